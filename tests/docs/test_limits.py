"""The documents keep their limits of words and lines, and what is over one is named with what to do."""

from __future__ import annotations

from pathlib import Path

from tests.docs.limits import A_PAGE, ALL_PAGES, README_LINES, exceeded


def written(root: Path, pages: dict[str, int], readme: int = 1) -> Path:
    """A project with pages of so many words, and a README of so many lines."""
    for page, words in pages.items():
        path = root / "docs" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word " * words)
    (root / "README.md").write_text("line\n" * readme)
    return root


def test_the_documents_of_this_project_keep_their_limits() -> None:
    assert exceeded() == []


def test_a_page_over_its_limit_is_named_but_for_the_reference(tmp_path: Path) -> None:
    root = written(tmp_path, {"how-to/long.md": A_PAGE + 1, "how-to/short.md": A_PAGE, "reference/all.md": A_PAGE + 1})
    (found,) = exceeded(root)
    assert found.startswith(f"docs/how-to/long.md has {A_PAGE + 1} words, more than {A_PAGE}: shorten it")


def test_all_pages_together_have_a_limit(tmp_path: Path) -> None:
    assert exceeded(written(tmp_path, {"reference/all.md": ALL_PAGES})) == []
    assert exceeded(written(tmp_path, {"reference/one.md": 1})) == [
        f"docs/ has {ALL_PAGES + 1} words, more than {ALL_PAGES}"
    ]


def test_a_page_in_no_folder_of_its_kind_and_a_long_readme_are_named(tmp_path: Path) -> None:
    root = written(tmp_path, {"index.md": 1, "notes.md": 1}, README_LINES + 1)
    kind, lines = exceeded(root)
    assert kind == "docs/notes.md is in none of the folders tutorials, how-to, explanation, reference"
    assert lines == f"README.md has {README_LINES + 1} lines, more than {README_LINES}"

"""A chunk's header is the title and the headings above it, and no chunk is only a heading."""

from __future__ import annotations

from pathlib import Path

import docx
import pypdf
import pytest

from tests.unit.documents.test_documents import pdf
from voicevault_retrievers.documents import load, read
from voicevault_retrievers.documents._split import split

pytestmark = pytest.mark.program  # a child process reads files

MANUAL = """# Zephyr X900

## Set-up

### Default value

The valve opens at 3 bar.

## Alarms

A red lamp means a leak.
"""


def headed(path: Path, **options: int) -> list[tuple[str, str]]:
    return [(chunk.header, chunk.text) for chunk in split(load(path), **options)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_headings_without_text_stand_before_the_next_text_and_in_no_chunk_alone(tmp_path: Path) -> None:
    assert headed(written(tmp_path / "x.md", MANUAL)) == [
        ("", "# Zephyr X900\n\n## Set-up\n\n### Default value\n\nThe valve opens at 3 bar."),
        ("Zephyr X900", "## Alarms\n\nA red lamp means a leak."),
    ]


def test_each_chunk_of_a_long_section_has_the_headings_that_it_does_not_show(tmp_path: Path) -> None:
    sentences = " ".join(f"Sentence {at} tells of the valve." for at in range(30))
    found = headed(written(tmp_path / "x.md", f"# X900\n\n## Valve\n\n{sentences}"), max_chars=200)
    assert len(found) > 3
    assert [header for header, _ in found] == ["", *["X900 > Valve"] * (len(found) - 1)]
    assert found[0][1].startswith("# X900\n\n## Valve\n\nSentence 0")
    assert all(len(text) <= 200 for _, text in found)
    assert [text for _, text in found if "Sentence" not in text] == []


def test_a_heading_that_closes_a_document_joins_the_text_before(tmp_path: Path) -> None:
    assert headed(written(tmp_path / "x.md", "# A\n\ntext\n\n## End\n")) == [("", "# A\n\ntext\n\n## End")]
    assert headed(written(tmp_path / "y.md", "# A\n\n## B\n")) == [("", "# A\n\n## B")]


def test_offsets_are_those_of_the_text_shown(tmp_path: Path) -> None:
    path = written(tmp_path / "x.md", MANUAL)
    document = load(path)
    for chunk in split(document, max_chars=60):
        part = next(part for part in document.parts if part.section == chunk.metadata["section"])
        assert part.text[chunk.metadata["start"] : chunk.metadata["end"]] == chunk.text


def test_front_matter_and_the_title_of_a_page_are_above_all_headings(tmp_path: Path) -> None:
    text = '---\ntitle: "The X900"\ntags: [a]\n---\n# Use\n\nRead this.\n'
    assert headed(written(tmp_path / "x.md", text)) == [("The X900", "# Use\n\nRead this.")]
    page = "<title>The  X900</title><h1>Use</h1><p>Read</p><h2>Lamps</h2><p>Red</p><h1>Sale</h1><p>No</p>"
    assert headed(written(tmp_path / "x.html", page)) == [
        ("The X900", "Use\nRead"),
        ("The X900 > Use", "Lamps\nRed"),
        ("The X900", "Sale\nNo"),
    ]


def test_a_heading_ends_those_of_its_level_and_below(tmp_path: Path) -> None:
    document = docx.Document()
    for text, level in (("X900", 0), ("Set-up", 1), ("Valve", 2), ("Alarms", 1)):
        document.add_heading(text, level)
        document.add_paragraph(f"On {text.lower()}.")
    document.save(str(path := tmp_path / "x.docx"))
    assert [header for header, _ in headed(path)] == ["", "X900", "X900 > Set-up", "X900"]


@pytest.mark.parametrize(
    ("title", "header"),
    [("The X900", "The X900 > Valve"), ("x900.docx", "Valve"), ("Microsoft Word - x900", "Valve"), ("", "Valve")],
)
def test_a_pdf_has_its_title_and_outline_above_its_pages(tmp_path: Path, title: str, header: str) -> None:
    path = pdf(tmp_path / "x.pdf", "opens at 3 bar", outline={1: "Valve"})
    writer = pypdf.PdfWriter(clone_from=str(path))
    writer.add_metadata({"/Title": title})
    writer.write(str(path))
    assert headed(path) == [(header, "opens at 3 bar")]


def test_children_have_headers_and_parents_have_none(tmp_path: Path) -> None:
    text = "# X900\n\n" + "\n\n".join(f"## Part {at}\n\n" + f"Sentence of part {at}. " * 12 for at in range(4))
    written(tmp_path / "x.md", text)
    found = read([tmp_path], parents=900, children=200)
    assert {chunk.header for chunk in found.chunks} >= {"X900", "X900 > Part 0"}
    assert [parent.header for parent in found.parents] == [""] * len(found.parents) != []


def test_headers_can_be_left_out(tmp_path: Path) -> None:
    written(tmp_path / "x.md", MANUAL)
    bare, whole = read([tmp_path], headers=False), read([tmp_path])
    assert [chunk.id for chunk in bare.chunks] == [chunk.id for chunk in whole.chunks]
    assert {chunk.header for chunk in bare.chunks} == {""}

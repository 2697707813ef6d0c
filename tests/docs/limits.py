"""The limits of the documents: `python -m tests.docs.limits` prints the words of each page, and fails above a limit.

Words are those of the whole file, with code and tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALL_PAGES, A_PAGE = 25_000, 1_200
"""Words; pages of the reference may be longer."""
README_LINES = 120
KINDS = ("tutorials", "how-to", "explanation", "reference")


def words(root: Path = ROOT) -> dict[str, int]:
    """The words of each page of docs/, by its path below that folder."""
    docs = root / "docs"
    pages = sorted(docs.rglob("*.md"))
    return {page.relative_to(docs).as_posix(): len(page.read_text("utf-8").split()) for page in pages}


def exceeded(root: Path = ROOT) -> list[str]:
    """What is over a limit, or in none of the four folders."""
    pages, lines = words(root), len((root / "README.md").read_text("utf-8").splitlines())
    found = [
        f"docs/{page} has {count} words, more than {A_PAGE}: shorten it, or move what is looked up to reference/"
        for page, count in pages.items()
        if count > A_PAGE and not page.startswith("reference/")
    ]
    found += [
        f"docs/{page} is in none of the folders {', '.join(KINDS)}"
        for page in pages
        if page != "index.md" and page.partition("/")[0] not in KINDS
    ]
    if (total := sum(pages.values())) > ALL_PAGES:
        found.append(f"docs/ has {total} words, more than {ALL_PAGES}")
    if lines > README_LINES:
        found.append(f"README.md has {lines} lines, more than {README_LINES}")
    return found


def main() -> None:
    """Print the words of each page; exit 1 where something is over a limit."""
    pages = words()
    for page, count in pages.items():
        sys.stdout.write(f"{count:6} {page}\n")
    sys.stdout.write(f"{sum(pages.values()):6} of {ALL_PAGES}\n")
    if found := exceeded():
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

"""The result of a loader: a document in parts, each with the page or section for citations."""

from __future__ import annotations

from dataclasses import dataclass

EXTRA = "documents"
"""The extra with the libraries of all loaders and of the splitter."""


@dataclass(frozen=True)
class Part:
    """A page or section. `page_number` counts from 1, `section` is its heading; None where there is none."""

    text: str
    page_number: int | None = None
    section: str | None = None


@dataclass(frozen=True)
class Document:
    """A file's text in reading order. `source_file` is its posix path below the folder it was read from."""

    source_file: str
    parts: tuple[Part, ...]

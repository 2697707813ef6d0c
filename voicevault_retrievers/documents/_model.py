"""The result of a loader: a document in parts, each with the page or section for citations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

BETWEEN = "\n\n"
"""The separator between joined parts."""

EXTRA = "documents"
"""The extra with the libraries of all loaders and of the splitter."""


@dataclass(frozen=True)
class Part:
    """A page or section. `page_number` counts from 1, `section` is its heading; None where there is none.

    `above` are the document's title and the headings above, outermost first. Up to its character `body`, the text is
    headings. `metadata` is what else a citation needs, such as `sheet` and `row`: its keys are those of `core.pages`.
    `notes` say how the file was read, where that was not plain, such as "read as cp932".
    """

    text: str
    page_number: int | None = None
    section: str | None = None
    above: tuple[str, ...] = ()
    body: int = 0
    metadata: Mapping[str, str | int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def header(self, start: int) -> str:
        """The headings over a text that begins at this character of the part, joined by " > ".

        Those that stand in the part's own text are left out where the text begins with them.
        """
        shown = self.text[: self.body] if start < self.body else ""
        path = dict.fromkeys((*self.above, self.section))
        return " > ".join(heading for heading in path if heading and heading not in shown)


@dataclass(frozen=True)
class Document:
    """A file's text in reading order. `source_file` is its posix path below the folder it was read from.

    `notes` say how it was read, where that was not plain.
    """

    source_file: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()


class HeadingPath:
    """The headings over the parts of a document that is read in order; `title` is known before its first heading."""

    def __init__(self, title: str | None = None) -> None:
        self._title = () if title is None else (title,)
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, heading: str | None) -> tuple[str, ...]:
        """The headings above a heading of this level, 1 being the outermost; it is above those of higher levels."""
        self._open = [(other, text) for other, text in self._open if other < level]
        above = (*self._title, *(text for _, text in self._open))
        self._open += [(level, heading)] if heading else []
        return above


def with_headings(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts, each that is only a heading joined to the next one, or behind the last one to it."""
    joined: list[Part] = []
    headings = ""
    for part in parts:
        if part.body and not part.text[part.body :].strip():
            headings += part.text.strip("\n") + BETWEEN
        else:
            joined.append(replace(part, text=headings + part.text, body=len(headings) + part.body))
            headings = ""
    if headings:
        last = joined.pop() if joined else Part("")
        joined.append(replace(last, text=f"{last.text}{BETWEEN}{headings}".strip("\n")))
    return tuple(joined)

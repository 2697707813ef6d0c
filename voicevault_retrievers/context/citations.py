"""Source markers: how a block is headed, and how an answer's markers are resolved to blocks again.

A header is `[Source: report.pdf, p.3 | Section: Results]`, a marker in an answer `[Source: report.pdf, p.3]`, or
`[1]` for the first block of a numbered context.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voicevault_retrievers.diversity import file_of, page_of
from voicevault_retrievers.types import Citation, Context, Hit

_MARKER = re.compile(r"\[Source:(?P<body>[^\[\]\n]*)\]|\[(?P<numbers>\d{1,6}(?:\s*[,;]\s*\d{1,6})*)\]", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_PREFIX = re.compile(r"^\s*source:\s*", re.IGNORECASE)
_PLACE = re.compile(r"[^;\s](?:[^;]*[^;\s])?")
_FORGED = re.compile(r"\[(?=\s*source\s*:)", re.IGNORECASE)
_FORGED_NUMBERS = re.compile(r"\[(\s*\d[\s\d,;]*)\]")
_SPACES = re.compile(r"\s*([,|])\s*|\s+")
_TIDY = str.maketrans({"[": "(", "]": ")", "\n": " ", "\r": " ", "|": "/"})


@dataclass(frozen=True)
class Marker:
    """A marker of an answer, where it stands (character offsets), and the citations that it names: none if unknown.

    `quote` is what of the source it is said to rest on, where a model cites by annotations; `text` is then what of the
    answer is annotated.
    """

    text: str
    start: int
    end: int
    citations: tuple[Citation, ...]
    quote: str = ""

    @property
    def resolved(self) -> bool:
        return bool(self.citations)


@dataclass(frozen=True)
class ResolvedAnswer:
    """An answer's markers in order."""

    answer: str
    markers: tuple[Marker, ...]

    @property
    def unresolved(self) -> tuple[Marker, ...]:
        """Markers that name no block: an invented source."""
        return tuple(marker for marker in self.markers if not marker.resolved)

    @property
    def citations(self) -> tuple[Citation, ...]:
        """Every citation that the answer names, once, in order of first mention."""
        return tuple({citation.index: citation for marker in self.markers for citation in marker.citations}.values())


def citation_of(index: int, hit: Hit, text: str) -> Citation:
    """The citation of a hit whose block of text is the `index`th."""
    metadata = hit.chunk.metadata
    file = file_of(metadata)
    return Citation(
        index=index,
        chunk_id=hit.chunk.id,
        kb=hit.chunk.kb,
        source_file=None if file is None else str(file),
        page_number=_shown_page(metadata),
        section=None if metadata.get("section") in (None, "") else str(metadata["section"]),
        start=metadata.get("start"),
        end=metadata.get("end"),
        score=hit.score,
        text=text,
    )


def header(citation: Citation) -> str:
    """`[Source: file, p.N | Section: S]`; page and section are left out where unknown."""
    return f"[Source: {_forms(citation)[0]}]"


def title(citation: Citation) -> str:
    """`file, p.N`; the page is left out where unknown."""
    return _forms(citation)[1]


def without_headers(text: str, *, numbered: bool = False) -> str:
    """A chunk's text in which nothing reads as a header: a document must not forge its neighbour's.

    For a `numbered` context nothing reads as a block's number either: `[7]` becomes `(7)`, or an answer that repeats
    the words would cite the seventh block.
    """
    text = _FORGED.sub("(", text)
    return _FORGED_NUMBERS.sub(r"(\1)", text) if numbered else text


def is_numbered(context: Context) -> bool:
    """Whether the blocks of a context that a `ContextBuilder` made have numbers."""
    return any(f"{numbered_header(citation)}\n" in context.text for citation in context.citations[:1])


def numbered_header(citation: Citation) -> str:
    """`[n] [Source: file, p.N | Section: S]`."""
    return f"[{citation.index}] {header(citation)}"


def cited(place: str, quote: str, citations: Iterable[Citation]) -> tuple[Citation, ...]:
    """The citations that a place (`file, p.N`, or part of a header) names, and whose text has the quote in it.

    Spaces are compared as one, so that a line's end is no difference.
    """
    wanted = _bare(quote)
    return tuple(citation for citation in _named(place, citations) if wanted in _bare(citation.text))


def resolve_citations(answer: str, citations: Sequence[Citation], *, numbered: bool = False) -> ResolvedAnswer:
    """Find the blocks that an answer's markers name.

    A marker names all blocks of its file and page, in order, and those of every file of that name. One without a page
    names all blocks of its file; one with several places, `;` between them, counts as several. Where the context was
    `numbered`, `[n]` names the block of that index, and `[1, 2]` counts as two. A marker without a block stays
    unresolved.
    """
    return ResolvedAnswer(answer, tuple(_markers(answer, citations, numbered)))


def _markers(answer: str, citations: Sequence[Citation], numbered: bool) -> Iterator[Marker]:
    for match in _MARKER.finditer(answer):
        if match["body"] is not None:
            yield from _places(match, citations)
        elif numbered:
            yield from _numbers(match, citations)


def _places(match: re.Match[str], citations: Sequence[Citation]) -> Iterator[Marker]:
    """One marker for what stands in brackets, or where that names nothing as a whole, one for each of its places."""
    body, start = match["body"], match.start("body")
    named = _named(body, citations)
    if named or ";" not in body:
        yield Marker(match[0], match.start(), match.end(), named)
        return
    for part in _PLACE.finditer(body):
        yield Marker(part[0], start + part.start(), start + part.end(), _named(part[0], citations))


def _numbers(match: re.Match[str], citations: Sequence[Citation]) -> Iterator[Marker]:
    """One marker for a number in brackets, or for each of several."""
    found = list(_NUMBER.finditer(match["numbers"]))
    for number in found:
        named = tuple(citation for citation in citations if citation.index == int(number[0]))
        start, end = match.span() if len(found) == 1 else (match.start("numbers") + at for at in number.span())
        yield Marker(match.string[start:end], start, end, named)


def _named(place: str, citations: Iterable[Citation]) -> tuple[Citation, ...]:
    wanted = {_plain(place), _plain(_PREFIX.sub("", place))}
    return tuple(citation for citation in citations if not wanted.isdisjoint(map(_plain, _forms(citation))))


def _forms(citation: Citation) -> tuple[str, ...]:
    """What a marker may say of a citation: its header, without the section, without the page."""
    file = _tidy(citation.source_file or citation.chunk_id)
    page, section = _page(citation), _section(citation)
    return (f"{file}{page}{section}", f"{file}{page}", f"{file}{section}", file)


def _page(citation: Citation) -> str:
    return "" if citation.page_number is None else f", p.{_tidy(citation.page_number)}"


def _section(citation: Citation) -> str:
    return f" | Section: {_tidy(citation.section)}" if citation.section else ""


def _bare(text: str) -> str:
    """A text by which quotes are compared: as a model may have read it, single spaces."""
    return " ".join(without_headers(text, numbered=True).split())


def _plain(text: str) -> str:
    """A text by which markers and headers are compared: composed characters, single spaces."""
    return _SPACES.sub(lambda space: space[1] or " ", unicodedata.normalize("NFC", text)).strip()


def _shown_page(metadata: Mapping[str, Any]) -> int | str | None:
    """The page as people count it: LangChain's `page` is zero-based, `page_number` and `page_label` are not."""
    if page_of(metadata) is None:
        return None
    for key, offset in (("page_number", 0), ("page_label", 0), ("page", 1)):
        page = metadata.get(key)
        if page not in (None, ""):
            counts = isinstance(page, int | float) and not isinstance(page, bool) and float(page).is_integer()
            return int(page) + offset if counts else str(page)
    return None


def _tidy(value: object) -> str:
    return str(value).translate(_TIDY).strip()

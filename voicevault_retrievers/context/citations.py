"""Source markers: how a block is headed, and how an answer's markers are resolved to blocks again.

A header is `[Source: report.pdf, p.3 | Section: Results]`, a marker in an answer `[Source: report.pdf, p.3]`, or
`[1]` for the first block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voicevault_retrievers.diversity import file_of, page_of
from voicevault_retrievers.types import Citation, Hit

_MARKER = re.compile(r"\[Source:\s*(?P<body>[^\[\]\n]*)\]|\[(?P<index>\d{1,6})\]", re.IGNORECASE)
_PLACE = re.compile(r"^(?P<file>.*?)(?:,\s*p\.\s*(?P<page>[^,|]+?))?\s*(?:\|\s*Section:\s*(?P<section>.*?))?\s*$", re.I)
_FORGED = re.compile(r"\[(?=\s*source\s*:)", re.IGNORECASE)
_TIDY = str.maketrans({"[": "(", "]": ")", "\n": " ", "\r": " ", "|": "/"})


@dataclass(frozen=True)
class Marker:
    """A marker of an answer, where it stands (character offsets), and the citations that it names: none if unknown."""

    text: str
    start: int
    end: int
    citations: tuple[Citation, ...]

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
        return tuple(dict.fromkeys(citation for marker in self.markers for citation in marker.citations))


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
        section=metadata.get("section"),
        start=metadata.get("start"),
        end=metadata.get("end"),
        score=hit.score,
        text=text,
    )


def header(citation: Citation) -> str:
    """`[Source: file, p.N | Section: S]`; page and section are left out where unknown."""
    page = "" if citation.page_number is None else f", p.{_tidy(citation.page_number)}"
    section = "" if not citation.section else f" | Section: {_tidy(citation.section)}"
    return f"[Source: {_tidy(citation.source_file or citation.chunk_id)}{page}{section}]"


def without_headers(text: str) -> str:
    """A chunk's text in which nothing reads as a header: a document must not forge its neighbour's."""
    return _FORGED.sub("(", text)


def resolve_citations(answer: str, citations: Sequence[Citation]) -> ResolvedAnswer:
    """Find the blocks that an answer's markers name.

    A marker names all blocks of its file and page, in order, and those of every file of that name. One without a page
    names all blocks of its file; `[n]` names the block of that index. A marker without a block stays unresolved.
    """
    return ResolvedAnswer(answer, tuple(_markers(answer, citations)))


def _markers(answer: str, citations: Sequence[Citation]) -> Iterator[Marker]:
    for match in _MARKER.finditer(answer):
        if match["index"] is not None:
            named = [citation for citation in citations if citation.index == int(match["index"])]
        else:
            places = [match["body"]] if _named(match["body"], citations) else match["body"].split(";")
            named = [citation for place in places for citation in _named(place, citations)]
        yield Marker(match[0], match.start(), match.end(), tuple(dict.fromkeys(named)))


def _named(place: str, citations: Iterable[Citation]) -> list[Citation]:
    match = _PLACE.match(re.sub(r"^\s*source:", "", place, flags=re.IGNORECASE))
    if match is None:
        return []
    file, page, section = match["file"].strip(), match["page"], match["section"]
    return [
        citation
        for citation in citations
        if _tidy(citation.source_file or citation.chunk_id) == file
        and (page is None or _tidy(citation.page_number) == page.strip())
        and (not section or _tidy(citation.section) == section.strip())
    ]


def _shown_page(metadata: Mapping[str, Any]) -> int | str | None:
    """The page as people count it: LangChain's `page` is zero-based, `page_number` and `page_label` are not."""
    page = page_of(metadata)
    if page is None:
        return None
    if metadata.get("page_number") is not None:
        return page[1]  # type: ignore[no-any-return]
    label = metadata.get("page_label")
    if label is not None:
        return label  # type: ignore[no-any-return]
    return page[1] + 1 if isinstance(page[1], int) else page[1]


def _tidy(value: object) -> str:
    return str(value).translate(_TIDY).strip()

"""Splits a document into children, which are searched, and parents, which a model reads in their place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents._model import BETWEEN, Document, Part
from voicevault_retrievers.documents._split import digest, named, place
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.text.sentences import pieces

PARENT_CHARS = 8000
CHILD_CHARS = 2000


@dataclass(frozen=True)
class Split:
    """The result of splitting a document. `chunks` are searched; `parents` are not, and may be empty.

    `notes` are the document's.
    """

    chunks: tuple[Chunk, ...]
    parents: tuple[Chunk, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """A child's place: the number of its part, and its range of characters in the part."""

    at: int
    start: int
    end: int
    begin: int
    """The start among all parts joined."""

    @property
    def stop(self) -> int:
        return self.begin + self.end - self.start


def split_families(document: Document, *, parents: int = PARENT_CHARS, children: int = CHILD_CHARS) -> Split:
    """Split a document into children of at most `children` characters, in parents of at most `parents`.

    Both end after paragraphs or sentences where possible. A child never crosses parts, so that a citation names its
    page and section. A parent is a run of children. It may cross parts, and ends at the end of a part where it is then
    at least half as long as allowed. Its metadata has the lists `pages` and `sections`, and `page_number` and `section`
    where all of it has the same. `chunk_type` is `parent`, `child`, or `standalone` for a child that would fill its
    parent alone, and so has none. `chunk_index` counts from 0 through the document's `chunks_in_file` children. For the
    ids see `split`. Raises ConfigError where children are longer than parents.
    """
    if whole("children", children) > whole("parents", parents):
        raise ConfigError(f"children are at most as long as parents, not {children} with parents of {parents}")
    found = list(_pieces(document, children))
    texts = _Texts(document, len(found))
    made: list[Chunk] = []
    kept: list[Chunk] = []
    for run in _runs(found, parents):
        parent = texts.parent(run) if len(run) > 1 else None
        first = len(made)
        made += [texts.child(piece, first + at, parent) for at, piece in enumerate(run)]
        kept += [] if parent is None else [parent]
    return Split(tuple(made), tuple(kept))


class _Texts:
    """Makes chunks from a document's pieces; equal texts get different ids."""

    def __init__(self, document: Document, count: int) -> None:
        self.document = document
        self.count = count
        self._seen: Counter[str] = Counter()

    def child(self, piece: _Piece, index: int, parent: Chunk | None) -> Chunk:
        part = self.document.parts[piece.at]
        text = part.text[piece.start : piece.end]
        metadata = place(self.document, part, piece.start, text)
        metadata |= {"chunk_index": index, "chunks_in_file": self.count}
        metadata["chunk_type"] = "standalone" if parent is None else "child"
        parent_id = None if parent is None else parent.id
        header = part.header(piece.start)
        return Chunk(self._id(part.page_number, part.section, text), text, parent_id, metadata, header=header)

    def parent(self, run: Sequence[_Piece]) -> Chunk:
        parts = [self.document.parts[at] for at in dict.fromkeys(piece.at for piece in run)]
        text = BETWEEN.join(self.document.parts[at].text[start:end] for at, start, end in _spans(run))
        pages, sections = _known(part.page_number for part in parts), _known(part.section for part in parts)
        if len(parts) == 1:
            metadata = place(self.document, parts[0], run[0].start, text)
        else:  # filters on a single page or section must exclude it
            page, section = _only([part.page_number for part in parts]), _only([part.section for part in parts])
            metadata = named(self.document, page, section) | _common(parts)
        metadata |= {"pages": pages} if pages else {}
        metadata |= {"sections": sections} if sections else {}
        metadata |= {"chunk_type": "parent", "children": len(run)}
        return Chunk(self._id("parent", pages, sections, text), text, metadata=metadata)

    def _id(self, *key: Any) -> str:
        told = json.dumps([self.document.source_file, *key])
        self._seen[told] += 1
        return digest(f"{told}{self._seen[told] - 1}")


def _pieces(document: Document, size: int) -> Iterator[_Piece]:
    before = 0
    for at, part in enumerate(document.parts):
        for start, text in pieces(part.text, size):
            yield _Piece(at, start, start + len(text), before + start)
        before += len(part.text) + len(BETWEEN)


def _runs(found: Sequence[_Piece], size: int) -> Iterator[Sequence[_Piece]]:
    """Yield runs of pieces, each of which becomes a parent of at most `size` characters."""
    start = 0
    while start < len(found):
        lengths = list(takewhile(lambda length: length <= size, _lengths(found, start)))
        end = start + len(lengths)
        if end < len(found):
            rest = found[-1].stop - found[start].begin
            aim = rest // 2 if rest <= 2 * size else size
            places = _places(found, start, lengths, aim // 2)
            end = start + 1 + min(places, key=lambda at: abs(lengths[at] - aim))
        yield found[start:end]
        start = end


def _lengths(found: Sequence[_Piece], start: int) -> Iterator[int]:
    """Yield the lengths of the runs from `start`, of one piece, of two and so on."""
    return (found[end].stop - found[start].begin for end in range(start, len(found)))


def _places(found: Sequence[_Piece], start: int, lengths: Sequence[int], least: int) -> Sequence[int]:
    """The possible ends of a run: of the long enough ones those at the end of a part, else any, else all."""
    enough = [at for at, length in enumerate(lengths) if length >= least]
    ends = [at for at in enough if found[start + at].at != found[start + at + 1].at]
    return ends or enough or range(len(lengths))


def _spans(run: Sequence[_Piece]) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each part in a run, and the range of characters in it."""
    for at, group in groupby(run, key=lambda piece: piece.at):
        own = list(group)
        yield at, own[0].start, own[-1].end


def _common(parts: Sequence[Part]) -> dict[str, Any]:
    """What the places of all parts have in common, and the range of their rows or lines."""
    first, last = parts[0].metadata, parts[-1].metadata
    found = {key: value for key, value in first.items() if all(part.metadata.get(key) == value for part in parts)}
    if found.get("sheet") != first.get("sheet"):
        return found
    for start, end in (("row", "row_end"), ("line_start", "line_end")):
        if start in first and start in last:
            found |= {start: first[start], end: last.get(end, last[start])}
    return found


def _only(values: Sequence[Any]) -> Any:
    """The common value; None where the values differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _known(values: Iterable[Any]) -> list[Any]:
    """The distinct values that are not None."""
    return [value for value in dict.fromkeys(values) if value is not None]

"""A document to children, which are searched, and the parents that a model reads in their place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents._model import Document
from voicevault_retrievers.documents._split import digest, named, place
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.text.sentences import pieces

PARENT_CHARS = 8000
CHILD_CHARS = 2000

BETWEEN = "\n\n"
"""What stands between the parts of a parent."""


@dataclass(frozen=True)
class Split:
    """What a document was cut into. `chunks` are searched; `parents` are not, and none where there are none."""

    chunks: tuple[Chunk, ...]
    parents: tuple[Chunk, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """A child's place: in which part, from which character of it to which."""

    at: int
    start: int
    end: int
    begin: int
    """Where it starts among all parts, one after the other."""

    @property
    def stop(self) -> int:
        return self.begin + self.end - self.start


def split_families(document: Document, *, parents: int = PARENT_CHARS, children: int = CHILD_CHARS) -> Split:
    """Children of at most `children` characters, in parents of at most `parents`.

    They end behind paragraphs or sentences where they can. A child crosses no part, so that a citation names its page
    and section. A parent is a run of children; it may cross parts, and ends with one where that leaves it at least half
    as long as it may be. Its metadata have the lists `pages` and `sections`, and `page_number` and `section` where one
    is that of all of it. `chunk_type` is `parent`, `child`, or `standalone` for a child that would be all of its
    parent: it has none. `chunk_index` counts from 0 through the document's `chunks_in_file` children. Ids are made as
    those of `split`. Raises ConfigError where children are longer than parents.
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
    """Chunks of a document's pieces; the second of two that are equal has another id."""

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
        return Chunk(self._id(part.page_number, part.section, text), text, parent_id, metadata)

    def parent(self, run: Sequence[_Piece]) -> Chunk:
        parts = [self.document.parts[at] for at in dict.fromkeys(piece.at for piece in run)]
        text = BETWEEN.join(self.document.parts[at].text[start:end] for at, start, end in _spans(run))
        pages, sections = _known(part.page_number for part in parts), _known(part.section for part in parts)
        if len(parts) == 1:
            metadata = place(self.document, parts[0], run[0].start, text)
        else:  # what has another page or section too is not to pass a filter for one of them
            page, section = _only([part.page_number for part in parts]), _only([part.section for part in parts])
            metadata = named(self.document, page, section)
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
    """The pieces in runs, each of which is a parent of at most `size` characters."""
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
    """How long runs from there are, of one piece, of two and so on."""
    return (found[end].stop - found[start].begin for end in range(start, len(found)))


def _places(found: Sequence[_Piece], start: int, lengths: Sequence[int], least: int) -> Sequence[int]:
    """Where a run may end: of those long enough the places where a part ends too, else any, else all."""
    enough = [at for at, length in enumerate(lengths) if length >= least]
    ends = [at for at in enough if found[start + at].at != found[start + at + 1].at]
    return ends or enough or range(len(lengths))


def _spans(run: Sequence[_Piece]) -> Iterator[tuple[int, int, int]]:
    """Of each part that a run is of: which, from which character to which."""
    for at, group in groupby(run, key=lambda piece: piece.at):
        own = list(group)
        yield at, own[0].start, own[-1].end


def _only(values: Sequence[Any]) -> Any:
    """The value that all are; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _known(values: Iterable[Any]) -> list[Any]:
    """The values but None, each once."""
    return [value for value in dict.fromkeys(values) if value is not None]

"""Building a graph from chunks: what each chunk is, cites and defines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.structure.graph.store import Entry, GraphStore, Link
from voicevault_retrievers.text.references.laws import plain
from voicevault_retrievers.text.references.reference import Reference, ReferenceReader
from voicevault_retrievers.text.references.rules import RuleReferences

WEIGHTS: Mapping[str, float] = {"is": 1.0, "defines": 1.0, "cites": 0.5, "in": 0.25}
"""The weight of an edge by its relation."""

HEADINGS = ("section", "heading", "title")
PLACES = ("part", "chapter", "schedule")
LAWS = ("law", "act", "statute")
DOCUMENTS = ("source_file", "source", "file_name")

WorkOf: TypeAlias = Callable[[Chunk], str]
_NUMBERED = re.compile(r"\s{0,8}(?:#{1,6}\s{1,4})?(\d{1,5}[A-Z]{0,2}(?:\.\d{1,4}){0,5})(?:[.:)]?\s|[.:)]?\Z)")
_LEAD = re.compile(r"[\s#*_]{0,16}")
_AFTER = re.compile(r"\s{0,4}(?:\Z|[.:;,(–—\-*]|\n|\s(?!\w)|\s[A-ZÄÖÜ0-9\"“„'])")
_HEAD = 300


def build_graph(
    chunks: Iterable[Chunk],
    store: GraphStore,
    *,
    reader: ReferenceReader | None = None,
    work: str | WorkOf | None = None,
    batch: int = 1000,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Put chunks into a graph with their references, replacing those with the same id; returns how many.

    A chunk *is* a section (or article, chapter, table) where its metadata says so under `section`, `heading` or
    `title`, or where its text begins with such a heading: "Section 12. Theft", "§ 12 Diebstahl". It is *in* the `part`,
    `chapter` or `schedule` of its metadata. References without a work, and what a chunk is, belong to `work`, a name or
    a function of the chunk; else to the law that the metadata names under `law`, `act` or `statute`, else to the
    chunk's document. `progress` is told how many chunks are done, after each `batch`.
    """
    reading, size, done = reader or RuleReferences(), whole("batch", batch), 0
    given = iter(chunks)
    while part := list(islice(given, size)):
        store.put([entry_of(chunk, reading, work) for chunk in part])
        done += len(part)
        if progress is not None:
            progress(done)
    return done


def entry_of(chunk: Chunk, reader: ReferenceReader, work: str | WorkOf | None = None) -> Entry:
    """The graph entry of a chunk: the chunk and its links."""
    home = _home(chunk, reader, work)
    own = _own(chunk, reader)
    links = dict.fromkeys(_links("is", own, home))
    for place in _places(chunk, reader):
        links.update(dict.fromkeys(_links("in", place, home)))
    identity = {link.key for link in links}
    for reference in reader.read(chunk.text):
        relation = "defines" if reference.defines else "cites"
        links.update(dict.fromkeys(link for link in _links(relation, reference, home) if link.key not in identity))
    return Entry(chunk, tuple(links))


def _links(relation: str, reference: Reference | None, home: str) -> Iterator[Link]:
    """Links to a reference and to the levels above it; a chunk that is a part is half of the whole."""
    if reference is None:
        return
    bare = reference.kind not in ("case", "term") and not reference.work
    for at, level in enumerate(reference.levels()):
        key = level.key + home if bare else level.key
        yield Link(relation, key, WEIGHTS[relation] * (0.5 if at and relation == "is" else 1.0))


def _own(chunk: Chunk, reader: ReferenceReader) -> Reference | None:
    """The reference that a chunk is; None where it is none."""
    for key in HEADINGS:
        value = chunk.metadata.get(key)
        heading = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        found = _leading(heading, reader)
        if found is None and (bare := _NUMBERED.match(heading)):
            found = Reference("section", bare[1].casefold(), text=bare[1])
        if found is not None:
            return found
    return _leading(chunk.text, reader)


def _places(chunk: Chunk, reader: ReferenceReader) -> Iterator[Reference]:
    """The parts, chapters and schedules that the metadata places a chunk in."""
    for kind in PLACES:
        value = chunk.metadata.get(kind)
        if isinstance(value, str | int) and not isinstance(value, bool):
            for text in (str(value), f"{kind} {value}"):
                found = _leading(text, reader)
                if found is not None and found.kind == kind:
                    yield found
                    break


def _leading(text: str, reader: ReferenceReader) -> Reference | None:
    """The reference that is the heading at the beginning of a text; None where there is none."""
    lead = _LEAD.match(text)
    start = lead.end() if lead else 0
    first = next(iter(reader.read(text[start : start + _HEAD])), None)
    if first is None or first.start or first.kind in ("case", "term") or not _AFTER.match(text, start + first.end):
        return None
    return first


def _home(chunk: Chunk, reader: ReferenceReader, work: str | WorkOf | None) -> str:
    """The canonical name of the work that a chunk belongs to; empty where unknown."""
    named: Any = work(chunk) if callable(work) else work
    if named is None:
        named = next((value for key in (*LAWS, *DOCUMENTS) if isinstance(value := chunk.metadata.get(key), str)), "")
    laws = getattr(reader, "laws", None)
    return str(laws.canonical(named)) if laws is not None else plain(named)

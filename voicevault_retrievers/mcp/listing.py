"""What a base holds: its documents, and the metadata keys by which a search may be narrowed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voicevault_retrievers.core.pages import file_of, page_of
from voicevault_retrievers.core.types import Chunk

MOST_KEYS = 40
EXAMPLES = 5
LONGEST = 60
_DISTINCT = 500
"""Values that are counted for examples; a key with more is best described by what it is."""

_INNER = {"start", "end", "start_index", "chunk_index", "chunks_in_file", "file_id"}
"""Where a chunk stands: nothing that a model would ask for."""


@dataclass(frozen=True)
class ListedDocument:
    """A document of a base: its name, None for what has none, and how many chunks and pages with text it has."""

    source_file: str | None
    chunks: int
    pages: int


@dataclass(frozen=True)
class Key:
    """A metadata key: how many chunks have it, the types of its values, and the most frequent ones."""

    name: str
    chunks: int
    types: tuple[str, ...]
    examples: tuple[Any, ...]


@dataclass(frozen=True)
class BaseListing:
    """The documents by name, the keys by how many chunks have them."""

    chunks: int
    documents: tuple[ListedDocument, ...]
    keys: tuple[Key, ...]


@dataclass
class _Counts:
    chunks: int = 0
    pages: set[str] = field(default_factory=set)


@dataclass
class _Values:
    chunks: int = 0
    types: set[str] = field(default_factory=set)
    seen: Counter[Any] = field(default_factory=Counter)


def listing(chunks: Iterable[Chunk]) -> BaseListing:
    """The account of chunks, in one pass."""
    total = 0
    documents: defaultdict[str | None, _Counts] = defaultdict(_Counts)
    keys: defaultdict[str, _Values] = defaultdict(_Values)
    for chunk in chunks:
        total += 1
        file, page = file_of(chunk.metadata), page_of(chunk.metadata)
        counts = documents[None if file is None else str(file)]
        counts.chunks += 1
        if page is not None:
            counts.pages.add(str(page[1]))
        _count(keys, chunk.metadata)
    named = sorted(documents.items(), key=lambda item: (item[0] is None, item[0] or ""))
    common = sorted(keys.items(), key=lambda item: (-item[1].chunks, item[0]))[:MOST_KEYS]
    return BaseListing(
        total,
        tuple(ListedDocument(name, counts.chunks, len(counts.pages)) for name, counts in named),
        tuple(_key(name, values) for name, values in common),
    )


def _count(keys: Mapping[str, _Values], metadata: Mapping[str, Any]) -> None:
    for name, value in metadata.items():
        if value is None or name in _INNER:
            continue
        values = keys[name]
        values.chunks += 1
        values.types.add(_type(value))
        for one in value if isinstance(value, list | tuple) else (value,):
            simple = isinstance(one, str | int | float) and len(str(one)) <= LONGEST
            if simple and (len(values.seen) < _DISTINCT or one in values.seen):
                values.seen[one] += 1


def _key(name: str, values: _Values) -> Key:
    common = sorted(values.seen.items(), key=lambda item: (-item[1], str(item[0])))[:EXAMPLES]
    return Key(name, values.chunks, tuple(sorted(values.types)), tuple(value for value, _ in common))


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list | tuple) else "other"

"""The content of a base: its documents, and the metadata keys to filter by."""

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
"""The most values of a key that are counted for examples."""

_INNER = {"start", "end", "start_index", "chunk_index", "chunks_in_file", "file_id"}
"""Keys of a chunk's position, which are of no use in filters."""


@dataclass(frozen=True)
class ListedDocument:
    """A document of a base: its name, None for chunks without one, and its numbers of chunks and of pages with text."""

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
    """The documents by name, and the keys by the number of chunks that have them."""

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
    """The listing of chunks, made in one pass."""
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

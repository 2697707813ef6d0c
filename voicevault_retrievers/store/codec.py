"""A chunk as one line of JSON, the form of chunks in logs and segments, and the limits on chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers._support.duplicates import duplicate
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """The limits on a chunk; a larger one is refused.

    `text` counts the characters of header and text, `metadata` the bytes of its JSON, `keys` the keys of the outermost
    object, `depth` how deep lists and dicts nest in it, `id` the bytes of an id (and of a parent's id).
    """

    text: int = 1_000_000
    metadata: int = 64 * 1024
    keys: int = 256
    depth: int = 16
    id: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            whole(f"Limits({field.name}=...)", getattr(self, field.name))

    def check(self, chunk: Chunk) -> None:
        """Raises ConfigError for a text, id, key or nesting beyond the limits; `check_size` checks the JSON's size."""
        if not isinstance(chunk.parent_id, str | None):
            raise ConfigError(f"the parent_id of chunk {chunk.id!r} is a string or None, not {chunk.parent_id!r}")
        for name, value in (("id", chunk.id), ("parent_id", chunk.parent_id or "")):
            size = len(value.encode("utf-8", "surrogatepass"))
            if size > self.id:
                raise ConfigError(f"the {name} {value[:40]!r}... has {size} bytes, more than {self.id}: shorten it")
        if len(chunk.indexed_text) > self.text:
            raise ConfigError(
                f"the text of chunk {chunk.id!r} {'with its header ' if chunk.header else ''}has "
                f"{len(chunk.indexed_text)} characters, more than {self.text}: split it, or open the knowledge base "
                "with limits=Limits(text=...)"
            )
        if len(chunk.metadata) > self.keys:
            raise ConfigError(
                f"the metadata of chunk {chunk.id!r} has {len(chunk.metadata)} keys, more than {self.keys}: put "
                "what no filter asks for under one key"
            )
        if _deeper(chunk.metadata, self.depth):
            raise ConfigError(
                f"the metadata of chunk {chunk.id!r} nests deeper than {self.depth} lists and dicts: flatten it"
            )
        _check_keys(chunk)

    def check_size(self, chunk: Chunk, size: int) -> None:
        """Raises ConfigError where the JSON of a chunk's metadata has too many bytes."""
        if size > self.metadata:
            raise ConfigError(
                f"the metadata of chunk {chunk.id!r} has {size} bytes as JSON, more than {self.metadata}: keep large "
                "values elsewhere, or open the knowledge base with limits=Limits(metadata=...)"
            )


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and dicts nest deeper than `depth`; looks no deeper."""
    level: list[Any] = [value]
    for _ in range(depth):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return any(True for outer in level for _ in _inside(outer))


def _check_keys(chunk: Chunk) -> None:
    for key in _keys(chunk.metadata):
        if not isinstance(key, str):
            raise ConfigError(
                f"the metadata key {key!r} of chunk {chunk.id!r} is not a string, and JSON would make it one: write "
                f"{str(key)!r}"
            )
    for key in chunk.metadata:
        if not key.isprintable():
            raise ConfigError(f"the metadata key {key!r} of chunk {chunk.id!r} has characters that do not print")


def _keys(value: Any) -> Iterator[Any]:
    """The keys of a dict and of all dicts in it."""
    yield from value if isinstance(value, Mapping) else ()
    for inner in _inside(value):
        yield from _keys(inner)


def _inside(value: Any) -> list[Any]:
    """The lists and dicts in a list or dict."""
    found = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [inner for inner in found if isinstance(inner, Mapping | list | tuple)]


def encode(chunk: Chunk) -> bytes:
    """The line of a chunk, pure ASCII; ConfigError where the metadata cannot be kept as JSON."""
    try:
        line = json.dumps([chunk.id, chunk.text, chunk.parent_id, chunk.metadata, chunk.header], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metadata of chunk {chunk.id!r} cannot be kept as JSON ({error}): use strings, finite numbers, "
            "booleans, None, and lists and dicts of these"
        ) from error
    return line.encode() + b"\n"


def decode(line: bytes, kb: str) -> Chunk:
    """The chunk of a line, in knowledge base `kb`."""
    chunk_id, text, parent_id, metadata, header = json.loads(line)
    return Chunk(chunk_id, text, parent_id, metadata, kb, header)


def own(chunk: Chunk) -> Chunk:
    """A copy of the chunk that shares no mutable value with it."""
    nested = any(isinstance(value, list | dict) for value in chunk.metadata.values())
    return replace(chunk, metadata=duplicate(dict(chunk.metadata))) if nested else chunk


def same(one: Chunk, other: Chunk | None) -> bool:
    """Whether two chunks are equal in all that is stored; `true` and `1` differ, as they do for a filter."""
    if other is None or _fields(one) != _fields(other):
        return False
    return _alike(one.metadata, other.metadata)


def _fields(chunk: Chunk) -> tuple[str | None, ...]:
    return chunk.id, chunk.text, chunk.parent_id, chunk.header


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is type(other) and bool(one == other)


def _kept(chunk: Chunk, kb: str, limits: Limits) -> Chunk:
    if not isinstance(chunk, Chunk):
        raise ConfigError(f"a knowledge base keeps values of Chunk, not {type(chunk).__name__}")
    limits.check(chunk)
    found = decode(encode(chunk), kb)
    limits.check_size(chunk, len(json.dumps(found.metadata)))
    return found


def kept(chunks: Iterable[Chunk], kb: str, limits: Limits) -> list[Chunk]:
    """The chunks as a knowledge base returns them: tuples become lists and keys strings, as in JSON.

    Raises ConfigError for a value that is not a Chunk or is beyond the limits, and for a repeated id.
    """
    if isinstance(chunks, Chunk | str) or not isinstance(chunks, Iterable):
        raise ConfigError(f"chunks is a list of chunks, not a {type(chunks).__name__}: a single one goes in a list")
    found = [_kept(chunk, kb, limits) for chunk in chunks]
    ids = [chunk.id for chunk in found]
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(chunk_id for chunk_id in ids if chunk_id in seen or seen.add(chunk_id))  # type: ignore[func-returns-value]  # add gives None
        raise ConfigError(f"two chunks have the id {twice!r}; ids are unique")
    return found


def limits_of(given: Limits | None) -> Limits:
    """The limits, by default `Limits()`; ConfigError for what is none."""
    if not isinstance(given, Limits | None):
        raise ConfigError(f"limits is a Limits(...), not a {type(given).__name__}")
    return given or Limits()

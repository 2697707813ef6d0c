"""A chunk as one line of JSON: the form it has in logs and segments alike."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store.limits import Limits


def encode(chunk: Chunk) -> bytes:
    """A line, pure ASCII; ConfigError where the metadata cannot be kept as JSON."""
    try:
        line = json.dumps([chunk.id, chunk.text, chunk.parent_id, chunk.metadata], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metadata of chunk {chunk.id!r} cannot be kept as JSON ({error}): use strings, finite numbers, "
            "booleans, None, and lists and dicts of these"
        ) from error
    return line.encode() + b"\n"


def decode(line: bytes, kb: str) -> Chunk:
    """The chunk of a line, as a chunk of this knowledge base."""
    chunk_id, text, parent_id, metadata = json.loads(line)
    return Chunk(chunk_id, text, parent_id, metadata, kb)


def own(chunk: Chunk) -> Chunk:
    """The chunk, sharing nothing that can be changed."""
    nested = any(isinstance(value, list | dict) for value in chunk.metadata.values())
    return replace(chunk, metadata=deepcopy(dict(chunk.metadata))) if nested else chunk


def same(one: Chunk, other: Chunk | None) -> bool:
    """Whether two chunks are alike in all that is kept; `true` and `1` are not, as they are not for a filter."""
    if other is None or (one.id, one.text, one.parent_id) != (other.id, other.text, other.parent_id):
        return False
    return _alike(one.metadata, other.metadata)


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
    """Chunks as a knowledge base gives them back: tuples become lists, and keys strings, as JSON has it.

    Raises ConfigError for what is no chunk or beyond the limits, and where two have one id.
    """
    found = [_kept(chunk, kb, limits) for chunk in chunks]
    ids = [chunk.id for chunk in found]
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(chunk_id for chunk_id in ids if chunk_id in seen or seen.add(chunk_id))  # type: ignore[func-returns-value]  # add gives None
        raise ConfigError(f"two chunks have the id {twice!r}; ids are unique")
    return found


def several(ids: Iterable[str]) -> Iterable[str]:
    """The ids; ConfigError for a single string, which would be taken letter by letter."""
    if isinstance(ids, str):
        raise ConfigError(f"ids is a list of strings; a single id goes in a list: [{ids!r}]")
    return ids

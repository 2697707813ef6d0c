"""What a chunk may be, so that none makes a knowledge base unusable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """The largest chunk that is kept.

    `text` counts characters, `metadata` the bytes of its JSON, `keys` those of its outermost object, `depth` how deep
    lists and dicts nest in it, `id` the bytes of an id (and of the parent's).
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
        """Raises ConfigError for a text, an id, nesting or a key that is not kept; `check_size` goes by its JSON."""
        if not isinstance(chunk.parent_id, str | None):
            raise ConfigError(f"the parent_id of chunk {chunk.id!r} is a string or None, not {chunk.parent_id!r}")
        for name, value in (("id", chunk.id), ("parent_id", chunk.parent_id or "")):
            size = len(value.encode("utf-8", "surrogatepass"))
            if size > self.id:
                raise ConfigError(f"the {name} {value[:40]!r}... has {size} bytes, more than {self.id}: shorten it")
        if len(chunk.text) > self.text:
            raise ConfigError(
                f"the text of chunk {chunk.id!r} has {len(chunk.text)} characters, more than {self.text}: split it, or "
                "open the knowledge base with limits=Limits(text=...)"
            )
        if len(chunk.metadata) > self.keys:
            raise ConfigError(
                f"the metadata of chunk {chunk.id!r} has {len(chunk.metadata)} keys, more than {self.keys}: put "
                "what no filter asks for under one key"
            )
        for key in chunk.metadata:
            if isinstance(key, str) and not key.isprintable():
                raise ConfigError(f"the metadata key {key!r} of chunk {chunk.id!r} has characters that do not print")
        if _deeper(chunk.metadata, self.depth):
            raise ConfigError(
                f"the metadata of chunk {chunk.id!r} nests deeper than {self.depth} lists and dicts: flatten it"
            )

    def check_size(self, chunk: Chunk, size: int) -> None:
        """Raises ConfigError where the JSON of a chunk's metadata has too many bytes."""
        if size > self.metadata:
            raise ConfigError(
                f"the metadata of chunk {chunk.id!r} has {size} bytes as JSON, more than {self.metadata}: keep large "
                "values elsewhere, or open the knowledge base with limits=Limits(metadata=...)"
            )


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and dicts nest deeper; looks no deeper than that."""
    level: list[Any] = [value]
    for _ in range(depth):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return any(True for outer in level for _ in _inside(outer))


def _inside(value: Any) -> list[Any]:
    """The lists and dicts in a list or dict."""
    found = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [inner for inner in found if isinstance(inner, Mapping | list | tuple)]

"""Placeholders for knowledge bases that are opened on first use, so that options can be checked before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from voicevault_retrievers.core.channel import Channel, check_named
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.presets.missing_parts import NotOpenChannel
from voicevault_retrievers.structure.graph import EmbeddedGraph


class NotOpenBase:
    """A placeholder for knowledge bases that are not open: it has all channels and no chunks."""

    def bm25(self, **options: Any) -> Channel:
        return NotOpenChannel("bm25")

    def dense(self, **options: Any) -> Channel:
        return NotOpenChannel("dense")

    def questions(self, **options: Any) -> Channel:
        return NotOpenChannel("questions")

    def graph(self, **options: Any) -> Channel:
        return NotOpenChannel("graph")

    def parents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        return {}

    def references(self) -> EmbeddedGraph:
        return EmbeddedGraph()


def beside(own: Mapping[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Own channels together with further ones; ConfigError where names collide or `more` is no mapping."""
    given = {} if more is None else more
    check_named(given)
    if taken := sorted(own.keys() & given.keys()):
        raise ConfigError(f"{' and '.join(own)} are channels already: give {', '.join(taken)} other names")
    return {**own, **given}

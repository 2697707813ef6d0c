"""The channels over the parts of one knowledge base, or of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from voicevault_retrievers.dense.exact import ExactVectors, VectorChannel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.snapshot import Part


def keyword_channel(parts: Iterable[Part], analyzer: SavedAnalyzer, **options: Any) -> BM25:
    """BM25 over all parts as one collection."""
    return BM25(LexicalIndex(part.lexical for part in parts), analyzer, **options)


def vector_channel(parts: Iterable[Part], embedder: Embedder | None, kb: str, **options: Any) -> VectorChannel:
    """Exact vector search over all parts; ConfigError where the knowledge base has no embedder."""
    if embedder is None:
        raise ConfigError(
            f"knowledge base {kb!r} was created without an embedder and holds no vectors: search it with bm25(), or "
            "index the documents into a new one created with embedder=..."
        )
    vectors = ExactVectors((part.dense for part in parts if part.dense), embedder.dimension)
    return VectorChannel(vectors, embedder, **options)

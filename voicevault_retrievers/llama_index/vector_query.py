"""The search for a LlamaIndex vector store query: its modes, counts, weights and restrictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers.core.channel import Through, check_k
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.protocols import VectorSource
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Scan, Variant
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError, unknown
from voicevault_retrievers.fusion import Method, fuse
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.llama_index.convert import REF_DOC
from voicevault_retrievers.llama_index.external_vectors import WrappedChannel
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.rerank import MMR
from voicevault_retrievers.rerank.mmr import share

Get: TypeAlias = Callable[[Iterable[str]], Mapping[str, Chunk]]
"""A lookup of chunks by id; returns those that exist."""

Listed: TypeAlias = Callable[[Sequence[str] | None, Filter | None], Sequence[str]]
"""The ids, of the given ones or of all, that pass a filter."""

ALPHA = 0.5
MMR_THRESHOLD = 0.5
"""The share of relevance in `mmr`, as in LlamaIndex's own stores."""

_CHANNEL = {
    VectorStoreQueryMode.DEFAULT: "dense",
    VectorStoreQueryMode.SPARSE: "bm25",
    VectorStoreQueryMode.TEXT_SEARCH: "bm25",
}


class Candidates(Through, LeafChannel):
    """A channel restricted to the chunks with some ids, where there are any, and to at most `most` hits."""

    below: LeafChannel

    def __init__(self, below: LeafChannel, get: Get, ids: Sequence[str], most: int | None = None) -> None:
        super().__init__(below.name, below.kind)
        self.below = below
        self.guard = below.guard
        self.get = get
        self.ids = ids
        self.most = whole_or_none("sparse_top_k", most, least=0)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        k = k if self.most is None else min(k, self.most)
        return [self._among(query)[:k]] if self.ids else self.below.find(query, wordings, k)

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> Scan | None:
        return self.below.scan(query, found)

    def _among(self, query: Query) -> list[Match]:
        chunks = self.get(self.ids)
        scores = self.below.scores(query, chunks)
        if scores is None:
            raise FilterNotSupportedError(f"{self.name} cannot search among node_ids alone; filter by metadata instead")
        found = [Match(chunks[chunk_id], score) for chunk_id, score in scores.items() if score > 0]
        return sorted(found, key=lambda match: (-scores[match.chunk.id], match.chunk.id))


class Passing(LeafChannel):
    """The chunks that pass a query's filters, by ascending id and without scores, whatever its text.

    `listed` returns the ids, of the given ones or of all, that pass a filter.
    """

    def __init__(self, like: LeafChannel, get: Get, ids: Sequence[str], listed: Listed) -> None:
        super().__init__("filters", like.kind)
        self.guard = like.guard
        self.get = get
        self.ids = ids
        self.listed = listed

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        passing = sorted(self.listed(self.ids or None, query.where))[:k]
        chunks = self.get(passing)
        return [[Match(chunks[chunk_id], None) for chunk_id in passing if chunk_id in chunks]]

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        return (Variant(query.text),)


def searching(
    asked: VectorStoreQuery,
    channels: Mapping[str, LeafChannel],
    get: Get,
    listed: Listed,
    fingerprint: str,
    fusion: Method | None,
) -> Plan[Ranking]:
    """A plan that searches the channels `bm25` and `dense` as the query's mode says.

    The query's embedding was made by the embedder with this `fingerprint`. A query of filters alone, with neither words
    nor embedding, finds what passes them (see `Passing`), as in LlamaIndex's own stores: its VectorIndexAutoRetriever
    makes such queries. Raises ConfigError for a mode that is none of these, a query that lacks what its mode searches
    for, and what a channel raises.
    """
    ids = asked.node_ids or ()  # an index passes an empty list to search all nodes
    if not (asked.query_str or "").strip() and not len(_embedding(asked)):
        query = _query(asked, set(), fingerprint)
        if query.where is not None:
            return Passing(channels["bm25"], get, ids, listed).plan(query, check_k(asked.similarity_top_k))
    if asked.mode == VectorStoreQueryMode.MMR:
        diverse = _among(channels["dense"], get, ids) >> _mmr(asked, channels["dense"])
        return diverse.plan(_query(asked, {"dense"}, fingerprint), check_k(asked.similarity_top_k))
    if asked.mode in _CHANNEL:
        name = _CHANNEL[asked.mode]
        k = asked.sparse_top_k if name == "bm25" and asked.sparse_top_k is not None else asked.similarity_top_k
        return _among(channels[name], get, ids).plan(_query(asked, {name}, fingerprint), check_k(k))
    if asked.mode != VectorStoreQueryMode.HYBRID:
        known = (mode.value for mode in (*_CHANNEL, VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.MMR))
        raise unknown("vector_store_query_mode", _named(asked), known)
    weights = _weights(asked.alpha)
    bm25 = Candidates(channels["bm25"], get, ids, asked.sparse_top_k)
    depth = max(DEPTH, asked.similarity_top_k, asked.sparse_top_k or 0)
    parts = {"bm25": bm25, "dense": _among(channels["dense"], get, ids)}
    fused = fuse(parts, method=fusion, weights=weights, depth=depth, on_error="raise")
    k = asked.similarity_top_k if asked.hybrid_top_k is None else asked.hybrid_top_k
    query = _query(asked, {name for name, weight in weights.items() if weight}, fingerprint)
    return fused.plan(query, check_k(k))


def _among(channel: LeafChannel, get: Get, ids: Sequence[str]) -> LeafChannel:
    if isinstance(channel, WrappedChannel):
        return channel.among(ids) if ids else channel
    return Candidates(channel, get, ids)


class _CosineMMR(MMR):
    """MMR whose relevance is the score as it is: the cosine with the query, as in LlamaIndex's own stores."""

    def relevance(self, hits: Sequence[Hit]) -> NDArray[np.float64]:
        return np.array([hit.score for hit in hits], dtype=np.float64)


def _mmr(asked: VectorStoreQuery, dense: LeafChannel) -> MMR:
    if not isinstance(dense, VectorSource):
        raise ConfigError(
            "mode 'mmr' compares the nodes' vectors, which are in dense=...: query that store, or keep the vectors in "
            "the knowledge base, HybridVectorStore.open(name, embed_model=...)"
        )
    threshold = MMR_THRESHOLD if asked.mmr_threshold is None else asked.mmr_threshold
    return _CosineMMR(share("mmr_threshold", threshold), by=dense)


def _weights(alpha: float | None) -> dict[str, float]:
    chosen = ALPHA if alpha is None else alpha
    if not 0 <= chosen <= 1:
        raise ConfigError(
            f"alpha is the weight of vectors, from 0 (keywords alone) to 1 (vectors alone), not {alpha!r}"
        )
    return {"bm25": 1 - chosen, "dense": chosen}


def _query(asked: VectorStoreQuery, searched: set[str], fingerprint: str) -> Query:
    if "bm25" in searched and asked.query_str is None:
        raise ConfigError(f"mode {_named(asked)!r} searches for words: give query_str")
    blank = asked.query_str is not None and not asked.query_str.strip()
    embedding = _embedding(asked) if "dense" in searched else ()
    if "dense" in searched and not len(embedding) and not blank:
        raise ConfigError(f"mode {_named(asked)!r} searches by vector: give query_embedding, the query as embedded")
    vectors = {fingerprint: np.asarray(embedding, np.float32)} if len(embedding) else {}
    documents = None if asked.doc_ids is None else {REF_DOC: {"$in": list(asked.doc_ids)}}
    return Query(asked.query_str or "", vectors=vectors, where=both(filter_of(asked.filters), documents))


def _embedding(asked: VectorStoreQuery) -> Sequence[float]:
    return () if asked.query_embedding is None else asked.query_embedding


def _named(asked: VectorStoreQuery) -> str:
    return VectorStoreQueryMode(asked.mode).value

"""Keyword search by Milvus' BM25 function, whose statistics are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, coverage, query_words
from voicevault_retrievers.engines.milvus import schema
from voicevault_retrievers.engines.milvus.collection import PAGE, MilvusCollection
from voicevault_retrievers.engines.milvus.connection import ask
from voicevault_retrievers.engines.milvus.facets import key_of
from voicevault_retrievers.engines.milvus.schema import Row
from voicevault_retrievers.engines.milvus.scoring import SCORED, scored_hits
from voicevault_retrievers.errors import ConfigError

DEEPEST = 16_384
"""The most hits that Milvus returns for one search."""

SPARE = 50
"""The hits of Milvus' BM25 beyond k, so that ties at the boundary are in the order of ids."""

Near: TypeAlias = tuple[Sequence[Row], Sequence[float]]


class MilvusKeywords(MilvusCollection):
    """The keyword searches of `MilvusEngine` that Milvus ranks."""

    unexplained = "Milvus"

    def _ranks(self, asked: Keywords) -> bool:
        """Whether Milvus' BM25 function serves a query."""
        able = self.capabilities.engine_statistics and asked.by_engine
        return able and asked.formula == schema.BM25 and min(asked.terms.values(), default=0) > 0

    def _check_statistics(self, asked: Keywords) -> None:
        super()._check_statistics(asked)
        if asked.formula != schema.BM25:
            raise ConfigError(
                f'statistics="engine": Milvus scores by {schema.BM25!r}, not by {asked.formula!r}: search with "exact"'
            )

    def _ranked(self, asked: Keywords, k: int) -> Steps[list[KeywordHit] | None]:
        """The k best by Milvus' BM25; None where too few of the most that Milvus returns pass."""
        clause, depth = self._clause(asked.passing), min(k + SPARE, DEEPEST)
        while True:
            hits, size = yield from self._scored(asked, clause, depth)
            if size < depth or len(hits) >= k:
                return hits[:k]
            if depth == DEEPEST:
                return None
            depth = min(4 * depth, DEEPEST)

    def _scored(self, asked: Keywords, clause: str, depth: int) -> Steps[tuple[list[KeywordHit], int]]:
        """The hits of Milvus' BM25 that pass, best first, and how many there were."""
        words = query_words(asked, schema.word, {})
        rows, scores = yield from self._near("bm25", words.text, depth, clause, SCORED)
        scale = words.repeats * (schema.BM25.k1 + 1)
        hits: list[KeywordHit] = yield Compute(partial(scored_hits, asked, rows, scores, scale, self.name))
        return hits, len(rows)

    def _scores_there(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        """The scores of the given chunks that pass, by Milvus' BM25."""
        passes = compile_filter(asked.passing)
        chunks = yield from self._get(ids, False)
        wanted = [one for one, chunk in chunks.items() if passes(chunk.metadata)]
        scores = dict.fromkeys(wanted, 0.0)
        for start in range(0, len(wanted), PAGE):
            some = wanted[start : start + PAGE]
            keys = ", ".join(f'"{key_of(one)}"' for one in some)
            hits, _ = yield from self._scored(asked, f"pk in [{keys}]", len(some))
            scores |= {hit.chunk.id: hit.score for hit in hits}
        return scores

    def _coverage(self, asked: Keywords) -> Steps[float | None]:
        if not self._ranks(asked):
            return (yield from super()._coverage(asked))
        there = yield from self._there("bm25", list(map(schema.word, asked.forms)), "")
        return coverage(asked, CollectionCounts(0, 0, dict(zip(asked.forms, there, strict=True))))

    def _there(self, anns: str, data: Sequence[Any], clause: str) -> Steps[list[bool]]:
        """Whether any row that passes a clause is found, for each query, in one request."""
        found = yield from self._search(anns, data, 1, clause, [])
        return [len(rows) > 0 for rows in found]

    def _near(self, anns: str, data: Any, depth: int, clause: str, fields: Sequence[str]) -> Steps[Near]:
        """The rows with the highest products or scores, and those."""
        (found,) = yield from self._search(anns, [data], depth, clause, fields)
        near: Near = yield Compute(lambda: ([one["entity"] for one in found], [one["distance"] for one in found]))
        return near

    def _search(self, anns: str, data: Sequence[Any], depth: int, clause: str, fields: Sequence[str]) -> Steps[Any]:
        return (
            yield ask(
                "search",
                collection_name=self._main,
                data=data,
                anns_field=anns,
                limit=depth,
                filter=clause,
                output_fields=["pk", *fields],
                search_params={"metric_type": schema.METRICS[anns]},
            )
        )

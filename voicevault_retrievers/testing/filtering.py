"""Tests of filters: on every engine and both channels they mean the same as in a knowledge base."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from voicevault_retrievers.core.filters import compile_filter, says_nothing, scope
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.testing.clients import CollectionClient, Collections
from voicevault_retrievers.testing.corpora import WordEmbedder, described, mixed
from voicevault_retrievers.testing.expect import differences, equal, that
from voicevault_retrievers.testing.suite import AUTO, COSINE, EXACT, Filled, Suite, fill, turned

TEXT = "pump valves leaking"
RIGHTS: list[Mapping[str, Any]] = [
    {"page": 1},
    {"page": {"$gte": 3}, "even": True},
    {"language": {"$in": ["de", "zh"]}},
    {"$or": [{"language": "en", "page": 2}, {"at": {"$lt": 9}}]},
    {"$not": {"language": "en"}},
    {"language": "fr"},
    {},
    {"language": {"$in": [*(f"language {at}" for at in range(150)), "de"]}},
    {"page": {"$in": [*range(100, 250), 1]}},
    {"$or": [*({"language": f"language {at}"} for at in range(150)), {"language": "de"}]},
    {"language": {"$nin": [*(f"language {at}" for at in range(150)), "de"]}},
]
"""Access rights for the chunks of `corpora.chunks_of`, some with more values than a query has clauses."""


class Filters(Suite):
    """Tests of `where` and `require`."""

    @pytest.fixture(scope="class")
    @classmethod
    def odd(cls, shared: Collections) -> Filled:
        return fill(shared, described(cls.values))

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls, shared: Collections) -> Filled:
        return fill(shared, mixed(60))

    @pytest.mark.parametrize("kind", ["where", "require"])
    @pytest.mark.parametrize("channel", ["bm25", "dense"])
    def test_every_operator(self, odd: Filled, way: asyncio.AbstractEventLoop | None, channel: str, kind: str) -> None:
        client, base, chunks = turned(odd, way)
        exact = getattr(base, channel)()
        wrong = {}
        for where in self.filters:
            query = Query(TEXT, where=where) if kind == "where" else Query(TEXT, require=where)
            expected = exact.search(query, 2 * len(chunks))  # of a base, the first of more are those of fewer
            for k in (5, 2 * len(chunks)):
                found = getattr(client, channel)(query, k)
                if said := compared(found, Ranking(expected.hits[:k]), k, COSINE if channel == "dense" else EXACT):
                    wrong[f"{where!r:.200}, k={k}"] = said
        that(
            not wrong, f"{len(wrong)} filters differ: " + "; ".join(f"{where}: {said}" for where, said in wrong.items())
        )

    def test_under_rights_it_is_a_base_of_what_is_permitted(
        self, collections: Collections, plain: Filled, way: asyncio.AbstractEventLoop | None
    ) -> None:
        client, _, chunks = turned(plain, way)
        for rights in RIGHTS:
            passes = compile_filter(scope(rights))
            permitted = collections.base(
                [c for c in chunks if passes(c.metadata)], embedder=WordEmbedder(), analyzer=AUTO
            )
            for text in ("leaking valves", "水泵 压力", "undichte Ventile"):
                self.as_if_alone(client, Query(text, require=rights), permitted.bm25().search(text, 1000), "bm25")
                self.as_if_alone(client, Query(text, require=rights), permitted.dense().search(text, 1000), "dense")
                where = {"even": True}
                both = Query(text, where=where, require=rights)
                self.as_if_alone(client, both, permitted.bm25().search(Query(text, where=where), 1000), "bm25")

    def as_if_alone(self, client: CollectionClient, query: Query, expected: Ranking, channel: str) -> None:
        found: Ranking = getattr(client, channel)(query, 1000)
        said = compared(found, expected, 1000, COSINE if channel == "dense" else EXACT)
        that(not said, f"{channel} under {query.require!r}, of {query.text!r}: {said}")

    def test_scores_of_given_chunks_pass_too(self, plain: Filled) -> None:
        client, base, chunks = plain
        ids = [chunk.id for chunk in chunks]
        for rights in RIGHTS:
            query = Query("leaking valves", require=rights)
            for channel in ("bm25", "dense"):
                expected = getattr(base, channel)().scores(query, ids)
                found = getattr(client.engine, channel)().scores(query, ids)
                equal(sorted(found), sorted(expected), f"{channel}: ids with a score under {rights!r}")

    def test_delete_by_filters_and_put_in_again(self, collections: Collections) -> None:
        client, base, chunks = fill(collections, described(self.values))
        for where in self.filters[::3]:  # a sample, because each search asks for all chunks
            if says_nothing(where):
                continue  # `delete` refuses an empty filter
            passes = compile_filter(where)
            there = [chunk for chunk in client.engine if passes(chunk.metadata)]
            equal(client.delete(where=where), len(there), f"deleted by {where!r:.200}")
            client.upsert(there)
        equal(client.ids(), [chunk.id for chunk in chunks], "ids after all were put in again")
        found, expected = client.bm25(TEXT, 1000), base.bm25().search(TEXT, 1000)
        that(not compared(found, expected, 1000, EXACT), "bm25 after all were deleted and put in again")


def compared(found: Ranking, expected: Ranking, k: int, tolerance: float) -> str:
    """How two rankings differ; near ties at the boundary k may change places."""
    if found.errors:
        return f"{found.errors}"
    if len(found) == len(expected) == k:
        scores = [(one.score or 0.0, other.score or 0.0) for one, other in zip(found, expected, strict=True)]
        return "" if all(abs(a - b) <= tolerance for a, b in scores) else f"(score, expected) {scores}"
    return differences(found, expected, tolerance)

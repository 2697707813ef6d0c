"""Tests of vector search against cosines that are computed here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.testing.clients import Collections
from voicevault_retrievers.testing.corpora import MIXED, WordEmbedder, mixed, vectors_of
from voicevault_retrievers.testing.expect import equal, falling, near, scores_of, that
from voicevault_retrievers.testing.keyword_search import ties
from voicevault_retrievers.testing.suite import AUTO, COSINE, Filled, Suite, fill, turned

COUNT = 150
K = 10


class VectorSuite(Suite):
    """Tests of the vector channel."""

    @pytest.fixture(scope="class")
    @classmethod
    def vectors(cls, shared: Collections) -> Filled:
        return fill(shared, mixed(COUNT))

    def cosines(self, filled: Filled, query: str) -> dict[str, float]:
        """The cosine of every chunk, in float64."""
        rows = vectors_of(WordEmbedder(), filled.chunks).astype(np.float64)
        own = WordEmbedder().embed_queries([query])[0].astype(np.float64)
        return dict(zip((chunk.id for chunk in filled.chunks), (rows @ own).tolist(), strict=True))

    def test_scores_are_cosines_and_near_ones_are_found(
        self, vectors: Filled, way: asyncio.AbstractEventLoop | None, record_property: Callable[[str, object], None]
    ) -> None:
        client = turned(vectors, way).client
        recalls = []
        for query in (*MIXED, "pump", "valves harbour northern"):
            cosines = self.cosines(vectors, query)
            found = client.dense(query, K)
            falling(found, f"dense of {query!r}")
            scores = scores_of(found)
            wrong = {
                one: (score, cosines[one]) for one, score in scores.items() if not near(score, cosines[one], COSINE)
            }
            that(not wrong, f"(score, cosine) for {query!r}: {wrong}")
            best = sorted(cosines.values(), reverse=True)[:K]
            equal(len(found), K, f"how many were found for {query!r}")
            recalls.append(sum(cosines[one] >= best[-1] - COSINE for one in found.ids) / K)
        recall = sum(recalls) / len(recalls)
        record_property("recall", recall)
        least = 1.0 if client.engine.capabilities.exact_vectors else self.recall
        that(recall >= least, f"recall@{K} is {recall:.3f}, at least {least}: {recalls}")

    def test_all_are_found_where_all_are_asked_for(
        self, vectors: Filled, way: asyncio.AbstractEventLoop | None
    ) -> None:
        client = turned(vectors, way).client
        cosines = self.cosines(vectors, "leaking valves")
        found = client.dense("leaking valves", 2 * len(cosines))
        expected = {one for one, cosine in cosines.items() if cosine > COSINE}
        unsure = {one for one, cosine in cosines.items() if abs(cosine) <= COSINE}
        equal(sorted(set(found.ids) - unsure), sorted(expected), "ids of cosines above 0")
        every = client.search(client.engine.dense(exclude_nonpositive=False), "leaking valves", 2 * len(cosines))
        equal(sorted(every.ids), sorted(cosines), "ids with exclude_nonpositive=False")

    def test_the_query_brings_its_vector(self, vectors: Filled, way: asyncio.AbstractEventLoop | None) -> None:
        client = turned(vectors, way).client
        own = WordEmbedder().embed_queries(["leaking valves"])[0]
        found = client.dense(Query("", vectors={WordEmbedder().fingerprint: 3 * own}), K)
        equal(found.ids, client.dense("leaking valves", K).ids, "ids found by the query's own vector")
        with pytest.raises(ConfigError):
            client.dense(Query("", vectors={WordEmbedder().fingerprint: own[:-1]}), K)

    def test_cosines_of_given_chunks(self, vectors: Filled) -> None:
        client, _, chunks = vectors
        ids = [chunk.id for chunk in chunks[::7]]
        cosines = self.cosines(vectors, "leaking valves")
        for query, wanted in (
            (Query("leaking valves"), ids),
            (Query("leaking valves", where={"page": 1}), [c.id for c in chunks[::7] if c.metadata["page"] == 1]),
            (Query("leaking valves", require={"even": True}), [c.id for c in chunks[::7] if c.metadata["even"]]),
        ):
            found = client.engine.dense().scores(query, [*ids, "nobody"])
            found = {} if found is None else dict(found)
            equal(sorted(found), sorted(wanted), f"ids with a score for {query!r}")
            wrong = {
                one: (score, cosines[one]) for one, score in found.items() if not near(score, cosines[one], COSINE)
            }
            that(not wrong, f"(score, cosine) of {query!r}: {wrong}")

    def test_vectors_come_back(self, vectors: Filled) -> None:
        client, _, chunks = vectors
        found = client.engine.vectors([chunk.id for chunk in chunks[:50]] + ["nobody", chunks[0].id])
        rows = vectors_of(WordEmbedder(), chunks[:50])
        equal(sorted(found), sorted(chunk.id for chunk in chunks[:50]), "ids")
        for chunk, row in zip(chunks, rows, strict=False):
            that(found[chunk.id].dtype == np.float32, f"vectors are {found[chunk.id].dtype}, expected float32")
            that(np.allclose(found[chunk.id], row, atol=1e-6), f"the vector of {chunk.id} came back as another")
        equal(client.engine.vectors([]), {}, "vectors of no ids")

    def test_k_and_empty_queries(self, vectors: Filled, way: asyncio.AbstractEventLoop | None) -> None:
        client = turned(vectors, way).client
        for query, k in (("pump", 0), ("", 5), ("  ", 5)):
            found = client.dense(query, k)
            equal((found.ids, found.errors), ((), ()), f"dense of {query!r}, k={k}")
        for k in (1, 3):
            equal(len(client.dense("pump", k)), k, f"how many were found, k={k}")

    def test_ties_of_vectors_are_in_order_of_ids_at_the_boundary_too(self, collections: Collections) -> None:
        names = [f"t{at:02}" for at in range(40)]
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert([Chunk(name, "pump valves") for name in sorted(names, key=lambda name: name[::-1])])
        client.upsert([Chunk("a", "harbour station"), Chunk("z", "pump")])
        found = client.dense("pump", 10)
        equal(found.ids[0], "z", "the best")
        ties(found.ids[1:], names, self.ties_at_k, "dense")
        equal(client.dense("pump", 41).ids[:41], ("z", *names), "all ids")

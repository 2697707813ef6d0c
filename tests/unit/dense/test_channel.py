"""The vector channel: whose vector a query brings, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import Counting, HashEmbedder, ListChannel
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.dense import ExactVectors, VectorChannel, VectorPart
from voicevault_retrievers.errors import ConfigError, EmbeddingError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25, BM25F
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query.phrases import extended

CHUNKS = [Chunk("a", "pump"), Chunk("b", "valve"), Chunk("c", "pump valve")]


def test_a_query_that_brings_its_vector_is_not_embedded_and_its_variants_are() -> None:
    embedder = Counting(16)
    channel = VectorChannel.from_chunks(CHUNKS, embedder)
    vector = embedder.embed_documents(["valve"])[0]
    for vectors in ({embedder.fingerprint: vector * 7}, vector):
        ranking = channel.search(Query("anything", vectors=vectors), 1)
        assert ranking.ids == ("b",)
    assert embedder.asked == []
    channel.search(Query("anything", (Variant("pump"),), vectors=vector), 1)
    assert embedder.asked == ["pump"]


def test_a_bare_vector_serves_the_channels_it_fits_and_must_fit_one() -> None:
    small, large = Counting(8), Counting(16)
    channels = {"small": VectorChannel.from_chunks(CHUNKS, small), "large": VectorChannel.from_chunks(CHUNKS, large)}
    vector = small.embed_documents(["valve"])[0]
    Pipeline(fuse(channels)).search(Query("pump", vectors=vector))
    assert (small.asked, large.asked) == ([], ["pump"])
    with pytest.raises(ConfigError, match=r"dimension 3, which fits no channel: \{'small': 8, 'large': 16\}"):
        Pipeline(fuse(channels)).search(Query("pump", vectors=np.ones(3)))
    foreign = {"large": channels["large"], "foreign": ListChannel([("x", 1.0)])}
    assert Pipeline(fuse(foreign)).search(Query("pump", vectors=np.ones(3))).hits


@pytest.mark.parametrize("vector", [[[1.0, 2.0]], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_vector_is_one_row_of_finite_numbers(vector: object) -> None:
    with pytest.raises(ConfigError, match="one row of finite numbers"):
        Query("q", vectors=vector)  # type: ignore[arg-type]


def test_vectors_that_do_not_join_are_refused() -> None:
    rows = Rows.of(CHUNKS)
    with pytest.raises(ConfigError, match="3 chunks and vectors of shape"):
        VectorPart(rows, np.zeros((2, 4), dtype=np.float32))
    with pytest.raises(ConfigError, match="dimension 4 in an index of dimension 8"):
        ExactVectors([VectorPart(rows, np.zeros((3, 4), dtype=np.float32))], 8)
    channel = VectorChannel.from_chunks(CHUNKS, HashEmbedder(16))
    with pytest.raises(ConfigError, match="all zeros"):
        channel.search(Query("q", vectors=np.zeros(16)))
    with pytest.raises(ConfigError, match="has dimension 4, the index 16"):
        channel.search(Query("q", vectors={"hash/16": np.ones(4)}))


@pytest.mark.parametrize("factor", [1e-25, 1.0, 1e25])
def test_a_vector_of_any_length_points_where_it_points(factor: float) -> None:
    embedder = HashEmbedder(16)
    channel = VectorChannel.from_chunks(CHUNKS, embedder)
    vector = embedder.embed_queries([CHUNKS[1].text])[0]
    found = channel.search(Query("q", vectors=vector * np.float32(factor)), 2)
    assert found.ids == channel.search(Query("q", vectors=vector), 2).ids
    assert found.scores[0] == pytest.approx(1.0)


class Wrong(HashEmbedder):
    """Gives every text the same row."""

    def __init__(self, row: Sequence[float]) -> None:
        super().__init__(2)
        self.row = row

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([self.row] * len(texts), dtype=np.float32)


@pytest.mark.parametrize("row", [[3.0, 4.0], [1.0, 0.0, 0.0]])
def test_an_embedder_that_gives_no_rows_of_length_one_is_named_and_nothing_is_lost(row: list[float]) -> None:
    good = VectorChannel.from_chunks(CHUNKS, HashEmbedder(2))
    with pytest.raises(ConfigError, match="vector"):
        VectorChannel.from_chunks(CHUNKS, Wrong(row))
    with pytest.raises(ConfigError, match="vector"):
        VectorChannel(good.index, Wrong(row)).search("pump")


@pytest.mark.parametrize("row", [[0.0, 0.0], [np.nan, 0.0], [np.inf, 0.0]])
async def test_a_text_without_a_vector_is_refused_when_indexed_and_marked_when_searched(row: list[float]) -> None:
    with pytest.raises(EmbeddingError, match=f"chunk {CHUNKS[0].id!r} cannot be indexed, for its text has no vector"):
        VectorChannel.from_chunks(CHUNKS, Wrong(row))
    good = VectorChannel.from_chunks(CHUNKS, HashEmbedder(2))
    both = fuse(bm25=BM25.from_chunks(CHUNKS), dense=VectorChannel(good.index, Wrong(row)))
    for found in (both.search("pump"), await both.asearch("pump")):
        assert found.hits
        assert [(failure.stage, failure.kind) for failure in found.errors if failure.degrades] == [
            ("dense", "EmbeddingError")
        ]


def test_a_query_of_another_dimension_than_the_index_is_no_outage() -> None:
    index = VectorChannel.from_chunks(CHUNKS, HashEmbedder(16)).index
    both = fuse(bm25=BM25.from_chunks(CHUNKS), dense=VectorChannel(index, HashEmbedder(4)))
    with pytest.raises(ConfigError, match="dimension 4 is looked for in an index of 16"):
        both.search("pump")


def test_scores_are_those_of_the_ranking() -> None:
    channel = VectorChannel.from_chunks(CHUNKS, HashEmbedder(16))
    found = {hit.id: hit.score for hit in channel.search("pump valve", 3)}
    scores = channel.scores(Query("pump valve"), ["a", "b", "c", "unknown"])
    assert scores is not None
    assert {name: score for name, score in scores.items() if score > 0} == found


def test_a_query_brings_a_sparse_vector_which_keyword_channels_search_in_place_of_its_text() -> None:
    embedder = Counting(16)
    dense = VectorChannel.from_chunks(CHUNKS, embedder)
    query = Query("seal", sparse={"pump": 2.0, "valve": 0.5})
    for words in (BM25.from_chunks(CHUNKS), BM25F.from_chunks(CHUNKS, {"text": 1.0})):
        pump, valve = (words.scores(Query(word), ["a", "b", "c"]) for word in ("pump", "valve"))
        found = words.search(query)
        assert {hit.id: hit.score for hit in found} == pytest.approx(
            {"a": 2 * pump["a"], "b": valve["b"] / 2, "c": 2 * pump["c"] + valve["c"] / 2}, rel=1e-9
        )
        assert found.hits[0].votes[0].query == "seal"
        scores = words.scores(query, ["a", "b", "c"])
        assert scores == {hit.id: hit.score for hit in found}
        assert math.fsum(part.contribution for part in words.explain(query, "c")) == pytest.approx(scores["c"])
    both = fuse(bm25=BM25.from_chunks(CHUNKS), dense=dense)
    assert {vote.stage: vote.query for vote in both.search(query).hits[0].votes} == {"bm25": "seal", "dense": "seal"}
    assert embedder.asked == ["seal"]
    assert extended(query, {"pump": 1.0}).terms == {"pump": 3.0, "valve": 0.5}


@pytest.mark.parametrize("sparse", [{"a": 0.0}, {"a": -1.0}, {"a": np.inf}, {"a": "1"}])
def test_a_sparse_vector_has_weights_above_0(sparse: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the words of a sparse vector have weights above 0"):
        Query("q", sparse=sparse)


def test_similarities_below_0_count_in_fusion_and_are_not_shown() -> None:
    table = {"q": [1.0, 0.0], "q up": [0.6, 0.8], "q across": [0.0, 1.0], "q against": [-1.0, 0.0]}

    class Fixed(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.array([table[text] for text in texts], dtype=np.float32)

    chunks = [Chunk(text, text) for text in table if text != "q"]
    dense, query = VectorChannel.from_chunks(chunks, Fixed(2)), Query("q")
    assert [(hit.id, hit.score) for hit in dense.search(query)] == [("q up", pytest.approx(0.6))]
    assert dense.scores(query, [chunk.id for chunk in chunks]) == pytest.approx(
        {"q up": 0.6, "q across": 0.0, "q against": -1.0}
    )
    fused = fuse(bm25=BM25.from_chunks(chunks), dense=dense).search(query)
    assert fused.ids == ("q up", "q across", "q against")  # BM25 scores them alike
    assert (fused.hits[1].score or 0.0) > (fused.hits[2].score or 0.0)


def test_the_nearest_are_matches_whatever_their_cosines_where_that_is_asked_for() -> None:
    embedder = Counting(16)
    against = -embedder.embed_documents(["pump"])[0]
    query = Query("", vectors={embedder.fingerprint: against})
    index = VectorChannel.from_chunks(CHUNKS, embedder).index
    assert "a" not in VectorChannel(index, embedder).search(query, 3).ids
    channel = VectorChannel(index, embedder, exclude_nonpositive=False)
    ranking = channel.search(query, 3)
    assert ranking.ids[-1] == "a"
    assert ranking.hits[-1].score == pytest.approx(-1.0)
    assert len(channel.search("valve", 3).ids) == 3
    with pytest.raises(ConfigError, match="exclude_nonpositive"):
        VectorChannel(index, embedder, exclude_nonpositive="no")  # type: ignore[arg-type]

"""A Matryoshka funnel: scores are exact, what may be missed is measured, and a prefix that says little is refused."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import Counting, HashEmbedder
from voicevault_retrievers.core.protocols import VectorIndex
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.dense import ExactVectors, VectorChannel, VectorPart
from voicevault_retrievers.dense.funnel import FunnelChannel, MatryoshkaFunnel, prefix_key
from voicevault_retrievers.dense.prefixes import cut_vector, made, prefix_recall
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.store import KnowledgeBase

ROWS, DIMENSION, PREFIX = 2000, 96, 16
Matrix = NDArray[np.float32]


def unit(rows: NDArray[np.float64]) -> Matrix:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def nested(count: int, seed: int) -> Matrix:
    """Rows whose first dimensions say most, as of a model that is trained for it."""
    spectrum = 0.85 ** np.arange(DIMENSION)
    return unit(np.random.default_rng(seed).standard_normal((count, DIMENSION)) * spectrum)


def flat(count: int, seed: int) -> Matrix:
    """Rows whose dimensions say equally much."""
    return unit(np.random.default_rng(seed).standard_normal((count, DIMENSION)))


def index(matrix: Matrix, parts: int = 1, order: Sequence[int] | None = None) -> ExactVectors:
    """The rows in so many parts; `order` deals them out."""
    dealt = np.array_split(np.arange(len(matrix)) if order is None else np.array(order), parts)
    chunks = [Chunk(f"c{at:05}", metadata={"even": at % 2 == 0, "few": at % 100 == 0}) for at in range(len(matrix))]
    made = [(Rows([chunks[at] for at in sorted(own)]), matrix[np.sort(own)]) for own in dealt]
    return ExactVectors([VectorPart(rows, own) for rows, own in made], matrix.shape[1])


NESTED, FLAT, ASKED = nested(ROWS, 1), flat(ROWS, 2), nested(20, 3)


def test_what_is_found_has_the_scores_of_an_exact_search_to_the_bit() -> None:
    exact = index(NESTED)
    funnel = MatryoshkaFunnel(exact, prefix=PREFIX, candidates=300)
    assert isinstance(funnel, VectorIndex)
    for vector in ASKED:
        near = funnel.nearest(vector, 50)
        scores = exact.similarities(vector, [one.chunk.id for one in near])
        assert [(one.chunk.id, one.score) for one in near] == sorted(scores.items(), key=lambda kv: (-kv[1], kv[0]))
        assert near[:10] == exact.nearest(vector, 10)
        assert near == [one for one in exact.nearest(vector, ROWS) if one in near]


def test_candidates_are_the_nearest_by_prefix() -> None:
    funnel = MatryoshkaFunnel(index(FLAT), prefix=PREFIX, candidates=40, on_loss="accept")
    short = index(unit(FLAT[:, :PREFIX].astype(np.float64)))
    for vector in ASKED:
        wanted = {one.chunk.id for one in short.nearest(cut_vector(vector, PREFIX), 40)}
        assert {one.chunk.id for one in funnel.nearest(vector, 100)} == wanted


@pytest.mark.parametrize("parts", [2, 7])
def test_neither_parts_nor_their_order_change_anything(parts: int) -> None:
    doubled = np.repeat(FLAT[:200], 3, axis=0)  # equal cosines at the border of the candidates
    order = np.random.default_rng(parts).permutation(len(doubled)).tolist()
    one, other = index(doubled), index(doubled, parts, order)
    for vector in ASKED:
        found = [
            MatryoshkaFunnel(made, prefix=PREFIX, candidates=100, on_loss="accept").nearest(vector, 100)
            for made in (one, other)
        ]
        assert found[0] == found[1]
        assert len(found[0]) == 100


def test_filters_come_before_the_candidates() -> None:
    exact = index(NESTED, 3)
    funnel = MatryoshkaFunnel(exact, prefix=PREFIX, candidates=200)
    even = [at for at in range(ROWS) if at % 2 == 0]
    alone = MatryoshkaFunnel(index(NESTED, 1, even), prefix=PREFIX, candidates=200)
    for vector in ASKED:
        assert funnel.nearest(vector, 20, where={"even": True}) == alone.nearest(vector, 20)
        assert funnel.nearest(vector, 20, require={"even": True}) == alone.nearest(vector, 20)
        rare = {"require": {"few": True}, "where": {"even": True}}
        assert funnel.nearest(vector, 50, **rare) == exact.nearest(vector, 50, **rare)
        assert len(funnel.nearest(vector, 50, **rare)) == ROWS // 100
        assert funnel.nearest(vector, 20, require={}) == exact.nearest(vector, 20, require={})


@pytest.mark.parametrize("k", [0, 1, 40, 41, ROWS + 1])
def test_k_and_the_number_of_candidates_bound_what_is_found(k: int) -> None:
    funnel = MatryoshkaFunnel(index(NESTED), prefix=PREFIX, candidates=40, least=0.0)
    assert len(funnel.nearest(ASKED[0], k)) == min(k, 40)
    assert funnel.nearest(ASKED[0], k) == funnel.nearest(ASKED[0], k + 1)[:k]
    assert MatryoshkaFunnel(ExactVectors([], DIMENSION)).nearest(ASKED[0], k) == []


def test_the_first_64_of_768_dimensions_find_1000_of_which_the_best_100_are_given() -> None:
    spectrum = 0.99 ** np.arange(768)
    rows = unit(np.random.default_rng(4).standard_normal((1500, 768)) * spectrum)
    exact, short = index(rows), index(unit(rows[:, :64].astype(np.float64)))
    funnel = MatryoshkaFunnel(exact, on_loss="accept")
    vector = rows[7]
    near = {one.chunk.id for one in short.nearest(cut_vector(vector, 64), 1000)}
    assert len(near) == 1000 == len(funnel.nearest(vector, 1500))
    expected = [one for one in exact.nearest(vector, 1500) if one.chunk.id in near]
    assert funnel.nearest(vector, 100) == expected[:100]


def test_a_prefix_of_zeros_points_nowhere_and_all_is_compared() -> None:
    exact = index(NESTED)
    vector = np.zeros(DIMENSION, dtype=np.float32)
    vector[-1] = 1
    assert MatryoshkaFunnel(exact, prefix=PREFIX, candidates=9, least=0).nearest(vector, 5) == exact.nearest(vector, 5)


def test_recall_is_the_share_of_the_true_nearest_among_the_candidates() -> None:
    exact, k, candidates = index(FLAT), 10, 50
    short = index(unit(FLAT[:, :PREFIX].astype(np.float64)))
    shares = []
    for vector in ASKED:
        wanted = {one.chunk.id for one in exact.nearest(vector, k)}
        near = {one.chunk.id for one in short.nearest(cut_vector(vector, PREFIX), candidates)}
        shares.append(len(wanted & near) / k)
    found = prefix_recall(exact, prefix=PREFIX, candidates=candidates, k=k, queries=ASKED)
    assert (found.queries, found.worst) == (len(ASKED), min(shares))
    assert found.mean == pytest.approx(sum(shares) / len(shares))


def test_a_row_that_is_asked_for_does_not_count_as_its_own_neighbour() -> None:
    exact = index(FLAT)
    own = exact.sample(64)
    assert prefix_recall(exact, prefix=PREFIX, candidates=1, k=1, queries=own).mean == 1.0
    assert prefix_recall(exact, prefix=PREFIX, candidates=1, k=1).mean < 0.5
    assert prefix_recall(index(FLAT[:1]), prefix=PREFIX).mean == 1.0
    assert prefix_recall(ExactVectors([], DIMENSION), prefix=PREFIX).queries == 0


def test_a_nested_prefix_passes_and_a_flat_one_is_refused() -> None:
    good = MatryoshkaFunnel(index(NESTED), prefix=PREFIX, candidates=400)
    assert good.check().mean > 0.99
    assert good.warning is None
    bad = MatryoshkaFunnel(index(FLAT), prefix=PREFIX, candidates=400)
    for search in (bad.check, lambda: bad.nearest(ASKED[0], 5)):
        with pytest.raises(ConfigError, match=r"first 16 of 96 dimensions keep .*not good enough \(95%\)"):
            search()
    lenient = MatryoshkaFunnel(index(FLAT), prefix=PREFIX, candidates=400, on_loss="accept")
    assert lenient.warning is not None
    assert not lenient.warning.degrades
    assert "2,000" in str(lenient.check())
    assert "2,000" not in lenient.warning.message  # somebody with few rights reads it


async def test_a_ranking_says_that_hits_may_be_missing_and_sync_agrees_with_async() -> None:
    embedder = HashEmbedder(DIMENSION)
    for matrix, kinds in ((NESTED, []), (FLAT, ["PrefixRecall"])):
        funnel = MatryoshkaFunnel(index(matrix), prefix=PREFIX, candidates=400, on_loss="accept")
        channel = FunnelChannel(funnel, embedder)
        ranking = channel.search(Query("a b", (Variant("c"),)), 10)
        assert [(failure.stage, failure.kind, failure.degrades) for failure in ranking.errors] == [
            ("dense", kind, False) for kind in kinds
        ]
        assert ranking == await channel.asearch(Query("a b", (Variant("c"),)), 10)
        assert len(ranking) == 10


def test_a_query_brings_its_vector_or_its_prefix_or_both() -> None:
    embedder = Counting(DIMENSION)
    funnel = MatryoshkaFunnel(index(NESTED), prefix=PREFIX, candidates=30, least=0.0)
    channel = FunnelChannel(funnel, embedder)
    vector, other = ASKED[0], ASKED[1][:PREFIX]
    full = {embedder.fingerprint: vector}
    cut = channel.search(Query("q", vectors=full), 30)
    assert cut.ids == tuple(one.chunk.id for one in funnel.nearest(vector, 30) if one.score > 0)
    for scale in (1, 5):
        brought = Query("q", vectors={**full, prefix_key(embedder, PREFIX): other * scale})
        found = channel.search(brought, 30)
        assert found.ids == tuple(one.chunk.id for one in funnel.nearest(vector, 30, short=other) if one.score > 0)
        assert found.ids != cut.ids
    assert embedder.asked == []
    bare = channel.search(Query("q", vectors=other), 30)
    named = channel.search(Query("q", vectors={prefix_key(embedder, PREFIX): other}), 30)
    assert bare.ids == named.ids
    assert embedder.asked == ["q"]
    with pytest.raises(ConfigError, match=r"the query's prefix has shape \(3,\), the funnel's is \(16,\)"):
        channel.search(Query("q", vectors={**full, prefix_key(embedder, PREFIX): np.ones(3)}))


def test_a_channel_over_a_funnel_scores_as_one_over_all_dimensions() -> None:
    embedder, exact = HashEmbedder(DIMENSION), index(NESTED)
    funnel = FunnelChannel(MatryoshkaFunnel(exact, prefix=PREFIX, candidates=500, on_loss="accept"), embedder)
    plain = VectorChannel(exact, embedder)
    ids = [f"c{at:05}" for at in range(0, ROWS, 7)]
    query = Query("q", vectors=ASKED[0])
    assert funnel.scores(query, ids) == plain.scores(query, ids)
    assert {key: row.tobytes() for key, row in funnel.vectors(ids).items()} == {
        key: row.tobytes() for key, row in plain.vectors(ids).items()
    }
    both = [fuse(bm25=BM25.from_chunks([Chunk("c00000", "q")]), dense=one) for one in (funnel, plain)]
    assert both[0].search(query, 5).hits == both[1].search(query, 5).hits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": DIMENSION}, "prefix is less than the 96 dimensions"),
        ({"prefix": 0}, "prefix is a whole number"),
        ({"candidates": 0}, "candidates is a whole number"),
        ({"least": 1.5}, "least is a share from 0 to 1"),
        ({"on_loss": "ignore"}, "unknown on_loss 'ignore'"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MatryoshkaFunnel(index(NESTED[:5]), **options)  # type: ignore[arg-type]


def test_a_funnel_is_over_rows_that_it_can_cut() -> None:
    with pytest.raises(ConfigError, match="a funnel is over ExactVectors"):
        MatryoshkaFunnel(object())  # type: ignore[arg-type]


def test_what_was_cut_and_measured_goes_with_the_vectors() -> None:
    matrix = nested(1500, 9)
    key = id(matrix)
    for _ in range(2):  # a channel is made anew after each commit
        MatryoshkaFunnel(index_of(matrix), prefix=PREFIX, candidates=200).nearest(ASKED[0], 5)
        assert len(made.kept(key)) == 2
    del matrix
    gc.collect()
    assert made.kept(key) == {}


def index_of(matrix: Matrix) -> ExactVectors:
    rows = Rows([Chunk(f"c{at:05}") for at in range(len(matrix))])
    return ExactVectors([VectorPart(rows, matrix)], DIMENSION)


@pytest.mark.parametrize("vectors", ["exact", "int8"])
def test_over_a_knowledge_base(tmp_path: Path, vectors: str) -> None:
    embedder = HashEmbedder(DIMENSION)
    with KnowledgeBase.create("kb", root=tmp_path, embedder=embedder, vectors=vectors) as kb:  # type: ignore[arg-type]
        chunks = [Chunk(f"c{at:05}", f"word{at}") for at in range(ROWS)]
        kb.add(chunks[:1500], NESTED[:1500])
        kb.compact()
        kb.add(chunks[1500:], NESTED[1500:])
        kb.delete(chunk.id for chunk in chunks[::10])
        exact = kb.view().index
        assert isinstance(exact, ExactVectors)
        funnel = MatryoshkaFunnel(exact, prefix=PREFIX, candidates=500)
        assert len(funnel) == ROWS * 9 // 10
        for vector in ASKED:
            assert funnel.nearest(vector, 10) == exact.nearest(vector, 10)

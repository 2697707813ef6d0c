"""The searches in numpy and in numba find what scoring every match finds, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers import examples
from voicevault_retrievers._support.compiled import installed
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical import native, vectorised
from voicevault_retrievers.lexical.builder import build
from voicevault_retrievers.lexical.formulas import FORMULAS, Curve, Floats, Formula, Lucene
from voicevault_retrievers.lexical.memtable import Memtable
from voicevault_retrievers.lexical.postings import ARRAYS, Postings, PostingsSource
from voicevault_retrievers.lexical.vectorised import FoundRows, Wanted, search
from voicevault_retrievers.text.analyzed_texts import Analyzed

pytestmark = pytest.mark.compiled

Ordinals: TypeAlias = NDArray[np.int64]

TERMS = "abcdef"
BLOCK = 1 << 16


def exhaustive(postings: PostingsSource, wanted: Wanted, selection: Selection | None) -> FoundRows:
    """What `search` promises, term by term over all documents."""
    formula, size = wanted.formula, len(postings)
    scores, found = np.full(size, wanted.base), np.zeros((size, len(wanted.numbers)), dtype=np.int64)
    for column, (number, weight) in enumerate(zip(wanted.numbers.tolist(), wanted.weights.tolist(), strict=True)):
        ordinals, found_here = postings.find(number)
        found[ordinals, column] = found_here
        norm = formula.norm(postings.lengths[ordinals], wanted.mean_length)
        scores[ordinals] += weight * (formula.tf(found_here.astype(np.float64), norm) - formula.absent())
    passing = np.full(size, selection is None)
    if selection is not None:
        passing[selection.ordinals] = True
    matched = np.flatnonzero(found.any(axis=1) & passing & (scores >= wanted.threshold))
    top = matched[np.lexsort((matched, -scores[matched]))[: max(0, wanted.k)]]
    return FoundRows(top, scores[top], found[top])


def agree(postings: PostingsSource, wanted: Wanted, selection: Selection | None = None) -> FoundRows:
    expected = exhaustive(postings, wanted, selection)
    found = [search(postings, wanted, selection)]
    if installed() and isinstance(postings, Postings) and native.able(wanted) and (wanted.numbers >= 0).all():
        found += [native.search(postings, wanted, selection) for _ in range(3)]  # the first keeps no parts yet
    for arrays in found:
        for own, other in zip(arrays, expected, strict=True):
            assert own.dtype == other.dtype
            np.testing.assert_array_equal(own, other)
    return found[0]


def query(postings: Postings, formula: Formula, k: int, counts: dict[str, float], base: float = 0.0) -> Wanted:
    """Terms and how often the query has each."""
    looked = postings.look(list(counts))
    numbers = np.array([number for number, _ in looked], dtype=np.int64)
    idf = [count * formula.idf(max(1, n), len(postings)) for (_, n), count in zip(looked, counts.values(), strict=True)]
    mean = postings.total_length / max(1, len(postings))
    return Wanted(numbers, np.array(idf), formula, mean, base, 0.0, k)


documents = st.lists(st.lists(st.sampled_from(TERMS), max_size=6), min_size=1, max_size=12)
formulas = st.sampled_from(
    [kind(*constants) for kind in FORMULAS.values() for constants in [(), (0.0, 1.0), (1.2, 0.0)]]
)


@examples(4)
@given(documents, st.integers(1, 40), st.integers(-1, 60), formulas, st.data())
def test_finds_what_scoring_every_match_finds(
    some: list[list[str]], copies: int, k: int, formula: Formula, data: st.DataObject
) -> None:
    """Copies of few documents, so that there are many ties, at the border of the best too."""
    postings = build(Analyzed.of(some * copies))
    counts = data.draw(st.dictionaries(st.sampled_from(TERMS + "z"), st.sampled_from([1.0, 2.0, 1e-3]), min_size=1))
    wanted = query(postings, formula, k, counts, base=data.draw(st.sampled_from([0.0, 0.7, 1e6])))
    if data.draw(st.booleans()):
        wanted = wanted._replace(weights=np.abs(wanted.weights) + 0.01)
    scores = exhaustive(postings, wanted._replace(k=len(postings), threshold=-np.inf), None).scores
    threshold = data.draw(st.sampled_from([-np.inf, 0.0, wanted.base, *scores[:: 1 + len(scores) // 4].tolist()]))
    kept = data.draw(st.sampled_from([1, 2, 5, 40, 0]))
    rows = np.arange(0, len(postings), kept) if kept else np.empty(0, dtype=np.intp)
    mask = np.isin(np.arange(len(postings)), rows)
    selection = data.draw(st.sampled_from([None, Selection(len(mask), mask), Selection(len(mask), rows.astype("u4"))]))
    agree(postings, wanted._replace(threshold=threshold), selection)


@pytest.fixture(scope="module")
def blocks() -> Postings:
    """Three blocks with a fringe; term x is rarer than term w, and y is in the middle block only."""
    rng = np.random.default_rng(5)
    size = 2 * BLOCK + 100
    has = {term: rng.random(size) < share for term, share in zip("uvwx", (0.5, 0.3, 0.02, 0.001), strict=True)}
    has["y"] = np.arange(size) == BLOCK
    has["z"] = (np.arange(size) % BLOCK == 0) | (np.arange(size) == size - 1)
    counts = np.array([own * rng.choice([1, 1, 1, 2, 3, 300], size) for own in has.values()])
    counts[5] = has["z"]
    lengths = counts.sum(axis=0)
    terms = np.repeat(np.tile(np.arange(len(has), dtype=np.uint32), size), counts.T.ravel())
    return build(Analyzed(list(has), terms, np.cumsum(lengths)))


@pytest.mark.parametrize("counts", ["u", "uv", "vw", "uvwx", "uvwxyz", "z", "yz", "uq"])
@pytest.mark.parametrize("kind", FORMULAS)
def test_searches_block_by_block(blocks: Postings, counts: str, kind: str) -> None:
    wanted = query(blocks, FORMULAS[kind](), 20, dict.fromkeys(counts, 1.0))
    size = len(blocks)
    few = np.unique(np.append(np.arange(0, size, 40), [BLOCK - 1, BLOCK, 2 * BLOCK, size - 1])).astype(np.uint32)
    for selection in (None, Selection(size, few), Selection(size, np.arange(size) % 3 == 0)):
        found = agree(blocks, wanted, selection)
        agree(blocks, wanted._replace(threshold=found.scores[len(found.scores) // 2] if len(found.scores) else 0.0))
        agree(blocks, wanted._replace(base=wanted.weights.sum()), selection)


def test_a_small_selection_is_searched_without_a_mask(blocks: Postings) -> None:
    for rows in ([3, BLOCK, 2 * BLOCK + 1], []):
        selection = Selection(len(blocks), np.array(rows, dtype=np.uint32))
        search(blocks, query(blocks, Lucene(), 20, {"u": 1.0, "z": 1.0}), selection)
        assert "mask" not in vars(selection)


def test_a_large_selection_is_searched_without_its_ordinals(blocks: Postings) -> None:
    selection = Selection(len(blocks), np.arange(len(blocks)) % 2 == 0)
    search(blocks, query(blocks, Lucene(), 20, {"u": 1.0, "z": 1.0}), selection)
    assert "ordinals" not in vars(selection)


def test_most_matches_are_not_scored_again(blocks: Postings, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    exact = vectorised._exact

    def counted(postings: Postings, wanted: Wanted, near: Ordinals, frequencies: Ordinals) -> Floats:
        scored.append(len(near))
        return exact(postings, wanted, near, frequencies)

    monkeypatch.setattr(vectorised, "_exact", counted)
    agree(blocks, query(blocks, Lucene(), 20, {"u": 1.0, "x": 1.0}))
    assert scored[0] < len(blocks) / 100


@pytest.mark.skipif(not installed(), reason="numba is not installed")
@given(st.lists(st.lists(st.sampled_from(TERMS), max_size=9), max_size=30))
def test_numba_builds_the_same_postings(some: list[list[str]]) -> None:
    analyzed = Analyzed.of(some)
    own, other = build(analyzed, compiled=True), build(analyzed)
    for name in ARRAYS:
        assert getattr(own, name).dtype == getattr(other, name).dtype
        np.testing.assert_array_equal(getattr(own, name), getattr(other, name))


@dataclass(frozen=True)
class Root(Formula):
    """A shape of its own."""

    def idf(self, n: int, total: int) -> float:
        return 1.0

    def curve(self) -> Curve | None:
        return None

    def tf(self, f: Any, norm: Any) -> Any:
        return np.sqrt(f) / norm


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, -1.0], [1e30, 1e-30]])
def test_weights_that_cannot_be_pruned_by(weights: list[float]) -> None:
    postings = build(Analyzed.of([["a"], ["a", "b"], ["b", "b"], ["c"]] * 30))
    agree(postings, query(postings, Lucene(), 3, {"a": 1.0, "b": 1.0})._replace(weights=np.array(weights)))


def test_a_formula_of_another_shape() -> None:
    postings = build(Analyzed.of([["a"], ["a", "b"], ["b", "b"], ["c"]] * 30))
    agree(postings, query(postings, Root(), 3, {"a": 1.0, "b": 1.0}))


def test_documents_just_added() -> None:
    texts = [["a"], ["a", "b"], ["b", "b"], ["c"]] * 30
    forward = Memtable().extended(texts, range(len(texts)))
    numbers = np.array([number for number, _ in forward.look(["a", "b"])])
    agree(forward, Wanted(numbers, np.array([1.0, 2.0]), Lucene(), 1.5, 0.0, 0.0, 3))


@pytest.mark.parametrize("size", [0, 1, 100])
def test_hardly_a_document_and_a_query_without_terms(size: int) -> None:
    postings = build(Analyzed.of([["a"]] * size))
    agree(postings, query(postings, Lucene(), 3, {"a": 1.0, "z": 1.0}))
    assert len(agree(postings, query(postings, Lucene(), 3, {})).ordinals) == 0


RANDOM = np.random.default_rng(5)


@pytest.mark.skipif(not installed(), reason="numba is not installed")
@pytest.mark.parametrize(
    "scores",
    [
        RANDOM.random(1000),
        RANDOM.integers(0, 4, 1000),
        10.0 ** RANDOM.uniform(-30, 2, 1000),
        np.concatenate([np.full(300, 1e-5), [50.0]]),
        np.append(np.zeros(500), RANDOM.random(30)),
        np.zeros(64),
        np.full(64, 3.0),
    ],
    ids=["even", "ties", "of every size", "one far above", "few", "none", "all alike"],
)
def test_the_kth_score_has_a_close_bound(scores: Floats) -> None:
    from voicevault_retrievers.core.kernels import nearly_kth

    given = scores.astype(np.float32)
    for k in (1, 20, 31, len(given)):
        kth, bound = np.sort(given)[-k], nearly_kth(given, k)
        assert kth * (1 - 1e-3) <= bound <= kth

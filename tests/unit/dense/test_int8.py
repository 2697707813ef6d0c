"""Codes of vectors: what they bound, and that a search by them finds what one without them finds, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers import examples
from voicevault_retrievers._support.compiled import installed
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import Codes, ExactVectors, VectorPart, exact, gate, int8, quantise, rescoring
from voicevault_retrievers.errors import ConfigError

pytestmark = pytest.mark.compiled

Matrix = NDArray[np.float32]
WAYS = ["numpy", pytest.param("numba", marks=pytest.mark.skipif(not installed(), reason="numba is not installed"))]


@contextmanager
def by(way: str) -> Iterator[None]:
    beside = SimpleNamespace(ready=lambda *_: way == "numba")  # at once, and not beside, after some searches
    with (
        patch.object(int8, "COMPILED_FROM", 0 if way == "numba" else 1 << 62),
        patch.object(int8, "BESIDE", beside),
        patch.object(rescoring, "BESIDE", beside),
    ):
        yield


def unit(rows: NDArray[Any]) -> Matrix:
    """Rows of length 1; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def rows_of(count: int, first: int = 0) -> Rows:
    return Rows([Chunk(f"{at:06}", "", metadata={"n": at}) for at in range(first, first + count)])


def two_heaps(vector: Matrix, count: int) -> Matrix:
    """Rows around a vector and its opposite, nearer to each other than codes can tell."""
    shaken = 1e-4 * np.random.default_rng(0).standard_normal((count, len(vector)))
    return unit(np.where(np.arange(count) % 2, 1, -1)[:, None] * vector + shaken)


def reread(codes: Codes) -> NDArray[Any]:
    """The rows that codes stand for."""
    return codes.centre.astype(np.float64) + codes.codes * codes.scales[:, None].astype(np.float64)


def nearest(matrix: Matrix, vector: Matrix, k: int, selection: Selection | None = None) -> list[tuple[str, float]]:
    """What a search promises: every cosine, summed in float64."""
    cosines = (matrix.astype(np.float64) * vector.astype(np.float64)).sum(axis=1)
    rows = range(len(matrix)) if selection is None else selection.ordinals.tolist()
    return sorted(((f"{at:06}", float(cosines[at])) for at in rows), key=lambda one: (-one[1], one[0]))[: max(0, k)]


def plain(found: list[Found]) -> list[tuple[str, float]]:
    return [(one.chunk.id, one.score) for one in found]


def agree(matrix: Matrix, vector: Matrix, k: int, selection: Selection | None = None) -> None:
    """With codes and without, alone and in a batch, in one part and in two, numpy and numba find the same."""
    expected, size = nearest(matrix, vector, k, selection), len(matrix)
    for way in ("numpy", "numba"):
        for quantised in (False, True):
            for borders in ((0, size), (0, size // 3, size)):
                chosen = [
                    (
                        VectorPart(rows_of(last - first, first), rows, quantise(rows) if quantised else None),
                        None if selection is None else Selection(last - first, selection.mask[first:last]),
                    )
                    for first, last in pairwise(borders)
                    for rows in [matrix[first:last]]
                ]
                with by(way):
                    for vectors in ([vector], [vector, vector]):
                        for found in exact.nearest_in(chosen, vectors, k):
                            assert repr(plain(found)) == repr(expected), (way, quantised, borders)  # 0 is not -0


@pytest.mark.parametrize("dimension", [7, 8, 127, 128, 129, 255, 256, 385, 1024, 3072])
def test_numba_sums_in_the_order_of_numpy_in_any_dimension(dimension: int) -> None:
    rng = np.random.default_rng(dimension)
    matrix = unit(rng.standard_normal((60, dimension)))
    agree(matrix, matrix[4], 50)
    agree(matrix, matrix[4], 50, Selection(60, rng.random(60) < 0.5))


def test_where_few_cosines_are_above_zero_only_the_nearest_are_read() -> None:
    rng = np.random.default_rng(0)
    matrix = unit(np.append(np.abs(rng.standard_normal((60, 40))), np.zeros((3, 40)), axis=0))
    agree(matrix, -matrix[4], 20)
    bounds = rescoring.products(matrix, -matrix[4])
    assert rescoring._compiled(matrix, -matrix[4], bounds, 20, None, 1e-3, -np.inf) is None
    assert rescoring._compiled(matrix, matrix[4], -bounds, 20, None, 1e-3, -np.inf) is not None


@examples(3)
@given(st.data())
def test_finds_what_comparing_every_row_finds(data: st.DataObject) -> None:
    """Few different rows, also zeros, copied, so that there are many ties, or shaken, so that many are near."""
    dimension, copies = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = data.draw(st.integers(1, 30))
    coarse = data.draw(st.sampled_from([1, 3, 1e6]))
    shaken = data.draw(st.sampled_from([0, 1e-7, 1e-4, 1e-2]))
    outlier = data.draw(st.sampled_from([0, 5, 100]))
    some = np.rint(rng.standard_normal((kinds, dimension)) * coarse)
    some[:, 0] += outlier * coarse
    matrix = unit(np.tile(unit(some), (copies, 1)) + shaken * rng.standard_normal((kinds * copies, dimension)))
    vectors = unit(np.append(rng.standard_normal((1, dimension)), matrix[:1], axis=0))
    vector = vectors[data.draw(st.integers(0, 1))]
    size = len(matrix)
    passing = rng.random(size) < data.draw(st.sampled_from([0, 0.1, 0.9]))
    few = Selection(size, np.flatnonzero(passing).astype(np.uint32))
    selection = data.draw(st.sampled_from([None, Selection(size, passing), few]))
    agree(matrix, vector, data.draw(st.integers(-1, size + 2)), selection)


@pytest.mark.parametrize("dimension", [1, 31, 384])
def test_rows_nearer_to_each_other_than_codes_can_tell(dimension: int) -> None:
    rng = np.random.default_rng(dimension)
    vector = unit(rng.standard_normal((1, dimension)))[0]
    matrix = two_heaps(vector, 2000)
    rough = reread(quantise(matrix)) @ vector
    assert dimension == 1 or rough.argmax() != int(nearest(matrix, vector, 1)[0][0])
    agree(matrix, vector, 10)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dimension", [1, 3, 384, 5000])
def test_bounds_hold_whatever_is_asked(way: str, dimension: int) -> None:
    """A query along what the codes lose of a row is the worst: all of it comes back, so the bound is met."""
    rng = np.random.default_rng(dimension)
    matrix = unit(rng.standard_normal((50, dimension)) * rng.choice([1, 1, 30], dimension))
    codes = quantise(matrix)
    lost = matrix - reread(codes)
    for at, along in enumerate(unit(lost)):
        for vector in (along, matrix[at], -matrix[at]):
            true = matrix.astype(np.float64) @ vector.astype(np.float64)
            with by(way):
                bounds = codes.bounds(vector)
                few = codes.bounds(vector, np.array([at], dtype=np.uint32))
            assert (bounds >= true).all()
            many = codes.bounds_each([vector] * int8.MANY)
            assert len(many) == int8.MANY
            assert all((own >= true).all() for own in many)
            assert few[0] == pytest.approx(bounds[at], abs=1e-5)
            assert few[0] >= true[at]
            if dimension == 384 and vector is along:
                assert max(own[at] for own in (bounds, *many)) - true[at] < codes.residuals[at] / 5


@pytest.mark.parametrize("selected", [None, np.arange(0, 300, 3, dtype=np.uint32)])
def test_a_batch_finds_what_each_of_its_vectors_finds(
    selected: NDArray[np.uint32] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By codes and without them, in segments of both kinds, with room for all vectors or for some at a time."""
    rng = np.random.default_rng(5)
    matrix, vectors = unit(rng.standard_normal((300, 24))), list(unit(rng.standard_normal((40, 24))))
    read: list[int] = []
    products = rescoring.products
    monkeypatch.setattr(rescoring, "products", lambda *given: read.append(given[1].ndim) or products(*given))
    for codes in (None, quantise(matrix)):
        part = VectorPart(rows_of(300), matrix, codes)
        chosen = None if selected is None else Selection(300, selected)
        alone = [list(found) for vector in vectors for found in part.nearest_each([vector], 7, chosen)]
        for room in (1 << 25, 300 * 17, 1):
            monkeypatch.setattr(exact, "ROOM", room)
            read.clear()
            assert [list(found) for found in part.nearest_each(vectors, 7, chosen)] == alone
            assert codes is None or room == 1 or 2 in read
    assert quantise(matrix).bounds_each([]) == []


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_many_dimensions_do_not_overflow(way: str) -> None:
    matrix = np.full((3, 1 << 16), 2.0**-8, dtype=np.float32)
    matrix[1] *= -1
    matrix[2] = 0
    assert 127 * 32767 * matrix.shape[1] > 2**31
    with by(way):
        bounds = quantise(matrix).bounds(matrix[0])
    assert bounds.tolist() == pytest.approx([1, -1, 0], abs=5 if way == "numpy" else 0.1)


def test_what_all_rows_share_takes_nothing_from_the_scales() -> None:
    matrix = unit(np.random.default_rng(0).standard_normal((5000, 40)))
    shared = unit(matrix + np.where(np.arange(40) == 3, 10.0, 0.0))
    assert quantise(shared).residuals.mean() < quantise(matrix).residuals.mean()


def test_rows_that_are_the_mean_and_zeros_have_codes_too() -> None:
    for matrix in (np.zeros((3, 8), dtype=np.float32), np.tile(np.eye(1, 8, dtype=np.float32), (3, 1))):
        codes = quantise(matrix)
        assert not codes.codes.any()
        assert codes.residuals.max() < 1e-40
        agree(matrix, np.eye(1, 8, dtype=np.float32)[0], 2)


@pytest.mark.parametrize("way", WAYS)
def test_codes_are_kept_as_arrays_and_read_where_they_lie(way: str, tmp_path: Path) -> None:
    matrix = unit(np.random.default_rng(0).standard_normal((300, 24)))
    for name, array in quantise(matrix).arrays().items():
        np.save(tmp_path / name, array)
    kept = Codes.of({path.stem: np.load(path, mmap_mode="r") for path in tmp_path.iterdir()})
    with by(way):
        np.testing.assert_array_equal(kept.bounds(matrix[3]), quantise(matrix).bounds(matrix[3]))
        found = ExactVectors([VectorPart(rows_of(300), matrix, kept)], 24).nearest(
            matrix[3], 5, where={"n": {"$lt": 9}}
        )
    assert plain(found) == nearest(matrix, matrix[3], 5, Selection(300, np.arange(300) < 9))


def test_codes_that_do_not_join_are_refused() -> None:
    codes = quantise(np.eye(4, dtype=np.float32))
    with pytest.raises(ConfigError, match=r"codes of shape \(4, 4\) and vectors of \(3, 4\)"):
        VectorPart(rows_of(3), np.eye(4, dtype=np.float32)[:3], codes)
    with pytest.raises(ConfigError, match=r"float32, not float16: use matrix\.astype"):
        VectorPart(rows_of(4), np.eye(4, dtype=np.float16))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"scales \(2,\)"):
        Codes.of({**codes.arrays(), "scales": codes.scales[:2]})


def test_the_gate_lets_codes_pass_that_tell_rows_apart() -> None:
    rng = np.random.default_rng(0)
    apart = unit(rng.standard_normal((10_000, 420)))
    passed = gate(apart, quantise(apart))
    assert passed.passed
    assert 10 / 10_000 <= passed.mean_at_10 <= 20 / 10_000
    assert 100 / 10_000 <= passed.mean_at_100 <= passed.worst_at_100 <= 200 / 10_000
    assert str(passed).startswith("of 10,000 rows, 0.1")
    assert str(passed).endswith(": int8")
    alike = two_heaps(apart[0], 10_000)
    refused = gate(alike, quantise(alike))
    assert not refused.passed
    assert refused.mean_at_10 > 0.1
    assert str(refused).endswith(": float32, for int8 pays up to 5%")


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_gate_is_shut_for_few_rows(count: int) -> None:
    matrix = np.eye(5, 8, dtype=np.float32)[:count]
    found = gate(matrix, quantise(matrix))
    assert (found.passed, found.mean_at_10) == (False, 1.0 if count else 0.0)
    assert str(found).endswith(": float32, for int8 pays from 524,288 rows")


def test_float32_products_are_off_by_no_more_than_is_allowed_for_in_any_dimension() -> None:
    for dimension in (1, 8, 4096):
        matrix = unit(np.random.default_rng(dimension).random((100, dimension)))
        true = matrix.astype(np.float64) @ matrix[0].astype(np.float64)
        off = np.abs(rescoring.products(matrix, matrix[0]) - true).max()
        assert off <= rescoring.LONGEST * rescoring.rounding(matrix[0]) < 1.02 * (dimension + 8) * 2**-23

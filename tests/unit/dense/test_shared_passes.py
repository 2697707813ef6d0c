"""Searches that read the same rows at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.execution import baton
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import ExactVectors, VectorChannel, passes, rescoring
from voicevault_retrievers.dense.passes import MOST, Passes
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25

MATRIX = np.random.default_rng(1).standard_normal((50, 24)).astype(np.float32)


class First:
    """A first pass that is held until others wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.begun, self.go_on, self.alone, self.error = threading.Event(), threading.Event(), 0, error
        monkeypatch.setattr(passes.rescoring, "products", self.products)

    def products(self, matrix: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        self.alone += vectors.ndim == 1
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(30)
            if self.error is not None:
                raise self.error
        product: NDArray[np.float32] = vectors @ matrix.T
        return product


@pytest.mark.parametrize("error", [None, MemoryError()], ids=["answered", "failed"])
def test_those_who_come_meanwhile_share_the_next_pass(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    first, shared, count = First(monkeypatch, error), Passes(), MOST + 3
    with ThreadPoolExecutor(count + 1) as threads:
        leader = threads.submit(shared.products, MATRIX[:1], [MATRIX])
        assert first.begun.wait(30)
        others = [threads.submit(shared.products, MATRIX[at : at + 1], [MATRIX]) for at in range(1, count + 1)]
        while len(shared._waiting) < count:
            threading.Event().wait(0.001)
        first.go_on.set()
        if error is None:
            assert np.array_equal(leader.result(30), [[MATRIX @ MATRIX[0]]])
        else:
            with pytest.raises(MemoryError):
                leader.result(30)
        for at, other in enumerate(others, 1):
            assert np.abs(other.result(30) - MATRIX @ MATRIX[at]).max() < 1e-4
    assert first.alone == 1  # the others came in two passes, of which none was for one alone
    assert shared._waiting == []


def test_all_segments_are_read_in_one_pass_whatever_each_search_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of other commits, under filters, and of several vectors have other segments, or more."""
    first, shared = First(monkeypatch), Passes()
    large, small, other = MATRIX, MATRIX[:20], MATRIX[::2]
    read: list[int] = []

    class Counting(np.ndarray[Any, Any]):
        def __matmul__(self, given: Any) -> Any:
            read.append(len(self))
            return np.asarray(self) @ given

    monkeypatch.setattr(passes.np, "stack", lambda rows: np.asarray(list(rows)).view(Counting))
    asked: list[tuple[slice, list[NDArray[np.float32]]]] = [
        (slice(1, 2), [large, small]),
        (slice(2, 5), [small, large]),
        (slice(5, 6), [other, large]),
        (slice(6, 7), [large]),
    ]
    with ThreadPoolExecutor(5) as threads:
        leader = threads.submit(shared.products, MATRIX[:1], [large, small])
        assert first.begun.wait(30)
        found = [threads.submit(shared.products, MATRIX[own], matrices) for own, matrices in asked]
        while len(shared._waiting) < len(asked):
            threading.Event().wait(0.001)
        first.go_on.set()
        leader.result(30)
        for (own, matrices), each in zip(asked, found, strict=True):
            for matrix, rows in zip(matrices, each.result(30), strict=True):
                assert np.abs(np.array(rows) - MATRIX[own] @ matrix.T).max() < 1e-4
    assert sorted(read) == [4, 6]  # vectors that met the small segment and the large one: each was read once
    assert first.alone == 3  # the two of the first, and the one that a single search has


def test_a_segment_that_cannot_be_read_fails_those_alone_who_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged(np.ndarray[Any, Any]):
        def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
            raise OSError("damaged")

    first, shared, damaged = First(monkeypatch), Passes(), MATRIX[:9].copy().view(Damaged)
    with ThreadPoolExecutor(3) as threads:
        leader = threads.submit(shared.products, MATRIX[:1], [MATRIX])
        assert first.begun.wait(30)
        sound = threads.submit(shared.products, MATRIX[1:2], [MATRIX])
        while len(shared._waiting) < 1:
            threading.Event().wait(0.001)
        broken = threads.submit(shared.products, MATRIX[2:3], [MATRIX, damaged])
        while len(shared._waiting) < 2:
            threading.Event().wait(0.001)
        first.go_on.set()
        leader.result(30)
        assert np.abs(sound.result(30)[0][0] - MATRIX @ MATRIX[1]).max() < 1e-4
        with pytest.raises(OSError, match="damaged"):
            broken.result(30)
    assert (shared._reading, shared._waiting) == (False, [])


def test_searches_of_other_commits_share_passes() -> None:
    """A search is made of the present commit, over matrices that others have too."""
    assert Passes.over([MATRIX, MATRIX[:20]]) is Passes.over([MATRIX[:10], MATRIX])
    assert Passes.over([MATRIX]) is not Passes.over([MATRIX.copy()])


def test_nobody_waits_for_a_small_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    found = passes.products(MATRIX[:2], [MATRIX, MATRIX[:5]])
    monkeypatch.setattr(Passes, "products", lambda *_: pytest.fail("shared"))
    assert np.array_equal(passes.products(MATRIX[:2], [MATRIX, MATRIX[:5]])[1], found[1])
    monkeypatch.setattr(passes, "SHARED_FROM", MATRIX[:-1].size)
    with pytest.raises(pytest.fail.Exception, match="shared"):
        passes.products(MATRIX[:2], [MATRIX])
    assert passes.products(MATRIX[:2], []) == []


def test_a_reader_that_is_lost_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fork, which leaves its thread behind."""
    monkeypatch.setattr(passes, "PATIENCE", 0.01)
    lost = Passes()
    lost._reading = True
    assert np.array_equal(lost.products(MATRIX[3:4], [MATRIX]), [[MATRIX @ MATRIX[3]]])
    assert (lost._reading, lost._waiting) == (False, [])


def test_what_is_found_does_not_depend_on_who_else_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: a pass picks candidates alone."""
    chunks = [Chunk(f"c{at:03}", f"pump {at % 7} valve {at % 11} motor {at}") for at in range(300)]
    embedder = HashEmbedder(24)
    index = ExactVectors.build(chunks, embedder)
    both = fuse(bm25=BM25.from_chunks(chunks), dense=VectorChannel(index, embedder))
    texts = [f"pump valve {at}" for at in range(64)]
    alone = [both.search(text) for text in texts]
    monkeypatch.setattr(baton, "LONG", 1)
    monkeypatch.setattr(passes, "SHARED_FROM", 1)
    wide: list[int] = []
    stack = np.stack
    monkeypatch.setattr(passes.np, "stack", lambda rows: wide.append(len(rows)) or stack(rows))
    quick = rescoring.products

    def waiting() -> list[object]:
        return Passes.over([index.parts[0].matrix])._waiting

    def products(*given: object) -> NDArray[np.float32]:
        for _ in range(30_000):  # the first is held until somebody else has come
            if wide or waiting():
                break
            threading.Event().wait(0.001)
        return quick(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(passes.rescoring, "products", products)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(both.search, texts)) == alone
    assert max(wide) > 1

"""Searches that read the same rows at the same time."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.execution import baton
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import ExactVectors, VectorChannel, exact, rescoring
from voicevault_retrievers.dense.exact import MOST, Passes
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25

MATRIX = np.random.default_rng(1).standard_normal((50, 24)).astype(np.float32)


class First:
    """A first pass that is held until others wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.begun, self.go_on, self.alone, self.error = threading.Event(), threading.Event(), 0, error
        monkeypatch.setattr(exact.rescoring, "products", self.products)

    def products(self, matrix: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
        self.alone += 1
        if self.alone == 1:
            self.begun.set()
            assert self.go_on.wait(30)
            if self.error is not None:
                raise self.error
        product: NDArray[np.float32] = matrix @ vector
        return product


@pytest.mark.parametrize("error", [None, MemoryError()], ids=["answered", "failed"])
def test_those_who_come_meanwhile_share_the_next_pass(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    first, shared, count = First(monkeypatch, error), Passes(MATRIX), MOST + 3
    with ThreadPoolExecutor(count + 1) as threads:
        leader = threads.submit(shared.products, MATRIX[0])
        assert first.begun.wait(30)
        others = [threads.submit(shared.products, MATRIX[at]) for at in range(1, count + 1)]
        while len(shared._waiting) < count:
            threading.Event().wait(0.001)
        first.go_on.set()
        if error is None:
            assert np.array_equal(leader.result(30), MATRIX @ MATRIX[0])
        else:
            with pytest.raises(MemoryError):
                leader.result(30)
        for at, other in enumerate(others, 1):
            assert np.abs(other.result(30) - MATRIX @ MATRIX[at]).max() < 1e-4
    assert first.alone == 1  # the others came in two passes, of which none was for one alone
    assert shared._waiting == []


def test_a_reader_that_is_lost_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fork, which leaves its thread behind."""
    monkeypatch.setattr(exact, "PATIENCE", 0.01)
    lost = Passes(MATRIX)
    lost._reading = True
    assert np.array_equal(lost.products(MATRIX[3]), MATRIX @ MATRIX[3])
    assert (lost._reading, lost._waiting) == (False, [])


def test_they_may_be_copied_with_what_holds_them() -> None:
    for twin in (copy.deepcopy(Passes(MATRIX)), pickle.loads(pickle.dumps(Passes(MATRIX)))):
        assert np.array_equal(twin.products(MATRIX[3]), MATRIX @ MATRIX[3])


def test_what_is_found_does_not_depend_on_who_else_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: a pass picks candidates alone."""
    chunks = [Chunk(f"c{at:03}", f"pump {at % 7} valve {at % 11} motor {at}") for at in range(300)]
    embedder = HashEmbedder(24)
    index = ExactVectors.build(chunks, embedder)
    both = fuse(bm25=BM25.from_chunks(chunks), dense=VectorChannel(index, embedder))
    texts = [f"pump valve {at}" for at in range(64)]
    alone = [both.search(text) for text in texts]
    monkeypatch.setattr(baton, "LONG", 1)
    wide: list[int] = []
    stack = np.stack
    monkeypatch.setattr(exact.np, "stack", lambda rows: wide.append(len(rows)) or stack(rows))
    quick = rescoring.products

    def products(*given: object) -> NDArray[np.float32]:
        while not wide and not index.parts[0]._passes._waiting:  # the first is held until somebody else has come
            threading.Event().wait(0.001)
        return quick(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(exact.rescoring, "products", products)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(both.search, texts)) == alone
    assert max(wide) > 1

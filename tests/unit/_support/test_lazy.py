"""Sequences made when they are asked for."""

from __future__ import annotations

from voicevault_retrievers._support.lazy import Lazy


def test_a_lazy_sequence_is_a_sequence() -> None:
    asked: list[int] = []
    squares = Lazy(5, lambda at: (asked.append(at), at * at)[1])
    assert (squares[2], squares[-1], squares[1:3], list(squares), len(squares)) == (4, 16, [1, 4], [0, 1, 4, 9, 16], 5)
    assert asked[:2] == [2, 4]

"""Sequences made when they are asked for."""

from __future__ import annotations

from bisect import bisect_left

from voicevault_retrievers._support.lazy import Ascending, Lazy


def test_a_lazy_sequence_is_a_sequence() -> None:
    asked: list[int] = []
    squares = Lazy(5, lambda at: (asked.append(at), at * at)[1])
    assert (squares[2], squares[-1], squares[1:3], list(squares), len(squares)) == (4, 16, [1, 4], [0, 1, 4, 9, 16], 5)
    assert asked[:2] == [2, 4]


def test_a_string_is_found_where_bisection_finds_it_and_few_are_made() -> None:
    for size in (0, 1, 2, 63, 64, 65, 1000):
        strings = [f"{at * 2:05}" for at in range(size)]
        made: list[int] = []
        ascending = Ascending(size, lambda at: (made.append(at), strings[at])[1])  # noqa: B023 - used in this turn
        ascending.place("")
        for wanted in ["", "00000", "00001", *(f"{at:05}" for at in range(0, 2 * size + 3, 7)), "x"]:
            made.clear()
            assert ascending.place(wanted) == bisect_left(strings, wanted)
            assert len(made) <= 5

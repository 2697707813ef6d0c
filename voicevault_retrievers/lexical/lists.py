"""Compiled loops over the postings of a term, and what each adds to a score."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled
from voicevault_retrievers.lexical.formulas import LEAST

SEEN = 1e-300
"""Less than any match adds."""


@compiled
def first_at_least(low: Any, value: Any, start: Any, stop: Any) -> Any:
    """The first place from `start` to `stop` whose ordinal is not below a value; gallops, for it is mostly near."""
    step = 1
    while start + step < stop and low[start + step] < value:
        start += step
        step *= 2
    stop = min(stop, start + step)
    while start < stop:
        middle = (start + stop) // 2
        if low[middle] < value:
            start = middle + 1
        else:
            stop = middle
    return start


@compiled
def frequencies_in(held: Any, term: Any, ordinals: Any, found: Any) -> None:
    """Write how often some documents, by ascending ordinal, have a term; nothing where they do not."""
    run, end = np.int64(held.term_runs[term]), np.int64(held.term_runs[term + 1])
    at = np.int64(held.run_starts[run])
    for j in range(len(ordinals)):
        block, rest = ordinals[j] >> 16, ordinals[j] & 0xFFFF
        while run < end and held.run_blocks[run] < block:
            run += 1
            at = np.int64(held.run_starts[run])
        if run == end:
            break
        stop = np.int64(held.run_starts[run + 1])
        if held.run_blocks[run] == block and at < stop:
            at = first_at_least(held.low, rest, at, stop)
            if at < stop and held.low[at] == rest:
                found[j] = held.frequencies[at]


@compiled
def tf_of(constants: Any, f: Any, norm: Any) -> Any:
    """`Formula.tf` less `Formula.absent`, in the same order of operations."""
    alpha, beta, gamma, add, absent, _, _ = constants
    return (alpha * f + beta * norm) / (f + gamma * norm) + add - absent


@compiled
def norm_of(constants: Any, length: Any) -> Any:
    """`Formula.norm`, in the same order of operations."""
    _, _, _, _, _, b, mean = constants
    return 1.0 - b + b * np.float64(length) / mean


@compiled
def part_of(table: Any, constants: Any, f: Any, length: Any) -> Any:
    """As `tf_of`, by the table where it goes so far, which saves a division; above 0."""
    if length < table.shape[0] and f < table.shape[1]:
        return table[length, f]
    return max(tf_of(constants, np.float64(f), norm_of(constants, length)), LEAST)


@compiled
def most_of(held: Any, constants: Any, term: Any) -> Any:
    """The most that a term can add, before its weight: by its bounds, or by its few postings."""
    most = LEAST
    row = np.searchsorted(held.bounded, term)
    if row < len(held.bounded) and held.bounded[row] == term:
        for kind in range(held.bounds.shape[1]):
            f = np.float64(held.bounds[row, kind, 0])
            if f > 0:
                most = max(most, tf_of(constants, f, norm_of(constants, held.bounds[row, kind, 1])))
        return most
    for run in range(held.term_runs[term], held.term_runs[term + 1]):
        base = np.int64(held.run_blocks[run]) << 16
        for at in range(held.run_starts[run], held.run_starts[run + 1]):
            norm = norm_of(constants, held.lengths[base + held.low[at]])
            most = max(most, tf_of(constants, np.float64(held.frequencies[at]), norm))
    return most


@compiled
def ordered(held: Any, constants: Any, numbers: Any, weights: Any) -> Any:
    """The terms by the most that each can add, and the most that the first ones can add together."""
    most = np.empty(len(numbers))
    for i in range(len(numbers)):
        most[i] = weights[i] * most_of(held, constants, numbers[i])
    order = np.argsort(most)
    below = np.zeros(len(numbers) + 1)
    for i in range(len(numbers)):
        below[i + 1] = below[i] + most[order[i]]
    chosen = numbers[order]
    return order, below, held.term_runs[chosen].astype(np.int64), held.term_runs[chosen + 1].astype(np.int64)


@compiled
def enter(held: Any, block: Any, run: Any, last_run: Any, place: Any, end: Any) -> None:
    """Set each list to its postings in a block."""
    for i in range(len(run)):
        while run[i] < last_run[i] and held.run_blocks[run[i]] < block:
            run[i] += 1
        here = run[i] < last_run[i] and held.run_blocks[run[i]] == block
        place[i] = held.run_starts[run[i]] if here else 0
        end[i] = held.run_starts[run[i] + 1] if here else 0

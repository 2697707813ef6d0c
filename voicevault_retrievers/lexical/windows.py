"""Compiled loops over the postings of a term and over a window of consecutive documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled
from voicevault_retrievers.lexical.formulas import LEAST
from voicevault_retrievers.lexical.postings import Arrays

SEEN = 1e-300
"""Less than the contribution of any match."""


@compiled
def named(held: Any) -> Any:
    """The arrays of postings, from a tuple of them."""
    return Arrays(held[0], held[1], held[2], held[3], held[4], held[5], held[6], held[7])


@compiled
def first_at_least(low: Any, value: Any, start: Any, stop: Any) -> Any:
    """The first position from `start` to `stop` whose ordinal is at least a value. Gallops, as it is mostly near."""
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
    """Write a term's frequency in some documents, by ascending ordinal; nothing where a document lacks the term."""
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
    """Like `tf_of`, from the table where it is large enough, which saves a division; above 0."""
    if length < table.shape[0] and f < table.shape[1]:
        return table[length, f]
    return max(tf_of(constants, np.float64(f), norm_of(constants, length)), LEAST)


@compiled
def most_of(held: Any, constants: Any, term: Any) -> Any:
    """An upper bound of a term's part, before its weight: from its bounds, or from its few postings."""
    most = LEAST
    row = first_at_least(held.bounded, term, 0, len(held.bounded))
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
    """The terms by rising bound, and the cumulated bounds of the first ones."""
    most = np.empty(len(numbers))
    for i in range(len(numbers)):
        most[i] = weights[i] * most_of(held, constants, numbers[i])
    order = np.argsort(most, kind="mergesort")  # as candidates are sorted: another kind takes the compiler 2 s more
    below = np.zeros(len(numbers) + 1)
    for i in range(len(numbers)):
        below[i + 1] = below[i] + most[order[i]]
    chosen = numbers[order]
    return order, below, held.term_runs[chosen].astype(np.int64), held.term_runs[chosen + 1].astype(np.int64)


@compiled
def enter(held: Any, block: Any, run: Any, last_run: Any, place: Any, end: Any) -> None:
    """Move each list to its postings in a block."""
    for i in range(len(run)):
        while run[i] < last_run[i] and held.run_blocks[run[i]] < block:
            run[i] += 1
        here = run[i] < last_run[i] and held.run_blocks[run[i]] == block
        place[i] = held.run_starts[run[i]] if here else 0
        end[i] = held.run_starts[run[i] + 1] if here else 0


GROUP = 32
"""The number of neighbouring documents whose highest score is found first, in loops that the compiler vectorises."""


@compiled
def lift(heap: Any, held: Any, score: Any) -> Any:
    """Push a score onto a min-heap of the highest scores. Returns the number held."""
    if held < len(heap):
        at = held
        while at > 0 and heap[(at - 1) // 2] > score:
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = score
        return held + 1
    if score > heap[0]:
        at = 0
        while True:
            child = 2 * at + 1
            if child >= held:
                break
            if child + 1 < held and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= score:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = score
    return held


@compiled
def add(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, at: Any, end: Any,
    origin: Any, start: Any, window: Any,
) -> Any:  # fmt: skip
    """Add a list's parts to a window of scores. Returns the list's position after the window."""
    if at < end:
        end = first_at_least(low, start + len(window), at, end)
    first, offset = np.uint64(start), np.uint64(origin)  # unsigned, as signed indices may count from the end
    for place in range(np.uint64(at), np.uint64(end)):
        slot = np.uint64(low[place])
        window[slot - first] += weight * part_of(table, constants, frequencies[place], lengths[offset + slot])
    return max(at, end)


@compiled
def add_and_tell(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, at: Any, end: Any,
    origin: Any, start: Any, window: Any, touched: Any, count: Any, live: Any,
) -> Any:  # fmt: skip
    """Like `add`, for live documents only (all where `live` is empty); also records the slots that were 0."""
    if at < end:
        end = first_at_least(low, start + len(window), at, end)
    first, offset = np.uint64(start), np.uint64(origin)
    for place in range(np.uint64(at), np.uint64(end)):
        slot = np.uint64(low[place])
        if len(live) == 0 or live[offset + slot]:
            part = weight * part_of(table, constants, frequencies[place], lengths[offset + slot])
            slot -= first
            touched[count] = slot
            count += window[slot] == 0.0
            window[slot] += part
    return max(at, end), count


@compiled
def probe(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, at: Any, end: Any,
    origin: Any, start: Any, window: Any, slots: Any, count: Any,
) -> None:  # fmt: skip
    """Add a list's parts to the given slots only, which ascend."""
    for j in range(count):
        value = start + slots[j]
        if at < end and low[at] < value:
            at = first_at_least(low, value, at, end)
        if at == end:
            break
        if low[at] == value:
            window[slots[j]] += weight * part_of(table, constants, frequencies[at], lengths[origin + value])


@compiled
def risen(window: Any, span: Any, floor: Any, slots: Any) -> Any:
    """Write the slots that reach the floor, and return their number."""
    count = 0
    for slot in range(span):
        slots[count] = slot
        count += window[slot] >= floor
    return count


@compiled
def keep(window: Any, floor: Any, slots: Any, count: Any) -> Any:
    """Keep the slots that reach the floor, and return their number."""
    kept = 0
    for j in range(count):
        slots[kept] = slots[j]
        kept += window[slots[j]] >= floor
    return kept


@compiled
def keep_live(live: Any, offset: Any, slots: Any, count: Any) -> Any:
    """Keep the slots of live documents, and return their number."""
    kept = 0
    for j in range(count):
        slots[kept] = slots[j]
        kept += live[offset + slots[j]]
    return kept


@compiled
def clear(window: Any, slots: Any, count: Any) -> None:
    """Set the given slots to 0; all slots where the count is below 0."""
    if count < 0:
        window[:] = 0.0
    for j in range(count):
        window[slots[j]] = 0.0

"""Compiled loops over a window: the scores of documents that follow one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled
from voicevault_retrievers.lexical.lists import first_at_least, part_of

GROUP = 64
"""Scores that are compared at once, which the processor does many at a time."""


@compiled
def lift(heap: Any, held: Any, score: Any) -> Any:
    """Put a score among the highest ones, the lowest of them on top; how many are held now."""
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
def make_room(ordinals: Any, scores: Any, used: Any, cut: Any, more: Any) -> Any:
    """Arrays with room for so many more: without what is below the cut, or larger."""
    kept = 0
    for at in range(used):
        if scores[at] >= cut:
            ordinals[kept], scores[kept] = ordinals[at], scores[at]
            kept += 1
    if kept + more > len(ordinals):
        larger_ordinals, larger_scores = np.empty(2 * (kept + more), np.int64), np.empty(2 * (kept + more))
        larger_ordinals[:kept], larger_scores[:kept] = ordinals[:kept], scores[:kept]
        return larger_ordinals, larger_scores, kept
    return ordinals, scores, kept


@compiled
def add(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, at: Any, end: Any,
    origin: Any, start: Any, window: Any,
) -> Any:  # fmt: skip
    """Add a list's part to a window of scores; where the list is after it."""
    if at < end:
        end = first_at_least(low, start + len(window), at, end)
    first, offset = np.uint64(start), np.uint64(origin)  # unsigned: no index counts from the end
    for place in range(np.uint64(at), np.uint64(end)):
        slot = np.uint64(low[place])
        window[slot - first] += weight * part_of(table, constants, frequencies[place], lengths[offset + slot])
    return max(at, end)


@compiled
def add_and_tell(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, at: Any, end: Any,
    origin: Any, start: Any, window: Any, touched: Any, count: Any, live: Any,
) -> Any:  # fmt: skip
    """As `add`, for the live documents alone (all where that is empty), and which slots were 0 before."""
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
    """Add a list's part to these slots alone, which ascend."""
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
    """Write the slots at the floor or above; how many they are."""
    count = 0
    for slot in range(span):
        slots[count] = slot
        count += window[slot] >= floor
    return count


@compiled
def next_risen(scores: Any, floor: Any, at: Any) -> Any:
    """The first place from `at` on that is at the floor or above; the number of scores where there is none."""
    while at + GROUP <= len(scores):
        group, some = scores[at : at + GROUP], np.int32(0)
        for place in range(GROUP):
            some += np.int32(group[place] >= floor)
        if some > 0:
            break
        at += GROUP
    while at < len(scores) and not scores[at] >= floor:
        at += 1
    return at


@compiled
def keep(window: Any, floor: Any, slots: Any, count: Any) -> Any:
    """Keep those of some slots that are at the floor or above; how many they are."""
    kept = 0
    for j in range(count):
        slots[kept] = slots[j]
        kept += window[slots[j]] >= floor
    return kept


@compiled
def keep_live(live: Any, offset: Any, slots: Any, count: Any) -> Any:
    """Keep those of some slots whose documents are live; how many they are."""
    kept = 0
    for j in range(count):
        slots[kept] = slots[j]
        kept += live[offset + slots[j]]
    return kept


@compiled
def clear(window: Any, slots: Any, count: Any) -> None:
    """Set these slots to 0; all of them where the count is below 0."""
    if count < 0:
        window[:] = 0.0
    for j in range(count):
        window[slots[j]] = 0.0

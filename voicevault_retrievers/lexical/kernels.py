"""The search loops that numba compiles. Imported only on use, since importing numba takes half a second.

`top` finds the best documents of one segment by MaxScore (Turtle, Flood, 1995, "Query evaluation: strategies and
optimizations") over windows of ordinals: a list that cannot lift a document over the threshold on its own is read only
for documents that other lists have lifted nearly there. The candidates are scored again in the order of the query's
terms, so that their scores equal those of `Formula.tf`, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled
from voicevault_retrievers.core.kernels import nearly_kth
from voicevault_retrievers.lexical.vectorised import LEAST as LEAST_HALF
from voicevault_retrievers.lexical.vectorised import MARGIN as MARGIN_HALF
from voicevault_retrievers.lexical.vectorised import SEEN as SEEN_HALF
from voicevault_retrievers.lexical.windows import (
    GROUP,
    SEEN,
    add,
    add_and_tell,
    clear,
    enter,
    first_at_least,
    frequencies_in,
    keep,
    keep_live,
    lift,
    named,
    norm_of,
    ordered,
    part_of,
    probe,
    risen,
    tf_of,
)

WIDTHS = (4096, 16384)
LARGE = 400_000
"""The number of documents from which windows are wide: the overhead per window then outweighs cache misses."""
MARGIN = 1e-9
"""The relative difference that two orders of summation may have; many times what float64 can lose."""
SLACK = 1e-12
"""The same where terms of a sum cancel: relative to the summands."""
NONE = 1 << 62
DENSE = 0.125
"""The number of postings per document from which all scores of a window are inspected."""
NEAR = 8
"""Looking up a document in a list takes about as long as adding this many postings."""
ENOUGH = 16
"""The initial pass reads this many postings of live documents per wanted document."""
SPARSE = 0.25
"""The share of live documents below which postings of other documents are skipped instead of added."""


@compiled
def _settle(
    held: Any, constants: Any, numbers: Any, weights: Any, base: Any, threshold: Any, near: Any,
    ordinals: Any, scores: Any, found: Any,
) -> Any:  # fmt: skip
    """Write the best of the candidates by exact score; `near` has their ordinals, ascending."""
    exact = np.empty(len(near))
    counts = np.zeros((len(near), len(numbers)), np.int64)
    for i in range(len(numbers)):
        frequencies_in(held, numbers[i], near, counts[:, i])
    for j in range(len(near)):
        norm = norm_of(constants, held.lengths[near[j]])
        score = base
        for i in range(len(numbers)):
            if counts[j, i]:
                score += weights[i] * tf_of(constants, np.float64(counts[j, i]), norm)
        exact[j] = score
    used = 0
    for j in np.argsort(-exact, kind="mergesort"):
        if used == len(ordinals) or exact[j] < threshold:
            break
        ordinals[used], scores[used] = near[j], exact[j]
        found[used] = counts[j]
        used += 1
    return used


@compiled
def _slack(constants: Any, weights: Any, base: Any) -> Any:
    """The largest absolute error of a query's sums."""
    alpha, _, _, add, absent, _, _ = constants
    return SLACK * (abs(base) + weights.sum() * (1.0 + alpha + add + absent))


@compiled
def _next_block(held: Any, run: Any, last_run: Any, first: Any) -> Any:
    """The next block with postings in a list from `first` on, or NONE."""
    block: Any = NONE
    for i in range(first, len(run)):
        if run[i] < last_run[i]:
            block = min(block, np.int64(held.run_blocks[run[i]]))
    return block


@compiled
def _next_window(low: Any, place: Any, end: Any, first: Any, width: Any) -> Any:
    """The start, within its block, of the next window with postings in a list from `first` on, or NONE."""
    start: Any = NONE
    for i in range(first, len(place)):
        if place[i] < end[i]:
            start = min(start, np.int64(low[place[i]]))
    return start if start == NONE else start // width * width


@compiled
def _gather(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, place: Any, end: Any,
    origin: Any, start: Any, window: Any, touched: Any, slots: Any, first: Any, dense: Any, floor: Any, live: Any,
    few: Any,
) -> Any:  # fmt: skip
    """Add the lists from `first` on to a window. Returns how many slots reach the floor (`slots`), and how many are
    `touched`.

    `few` marks the live documents where they are few, else it is empty.
    """
    told = 0
    if dense:
        for i in range(first, len(weight)):
            place[i] = add(
                low, frequencies, lengths, constants, table, weight[i], place[i], end[i], origin, start, window
            )
        count = risen(window, min(len(window), len(lengths) - origin - start), floor, slots)
        return (keep_live(live, origin + start, slots, count) if len(live) > 0 else count), told
    for i in range(first, len(weight)):
        place[i], told = add_and_tell(
            low, frequencies, lengths, constants, table, weight[i], place[i], end[i], origin, start, window, touched,
            told, few,
        )  # fmt: skip
    for j in range(told):  # assigning a slice takes a tenth of the compiler's time
        slots[j] = touched[j]
    count = keep(window, floor, slots, told)
    if len(live) > len(few):
        count = keep_live(live, origin + start, slots, count)
    if count > 1 and first < len(weight) - 1:
        slots[:count].sort()
    return count, told


@compiled
def _refine(
    low: Any, frequencies: Any, lengths: Any, constants: Any, table: Any, weight: Any, place: Any, end: Any,
    origin: Any, start: Any, window: Any, slots: Any, count: Any, first: Any, cut: Any, below: Any, seen: Any,
    postings: Any,
) -> Any:  # fmt: skip
    """Add the lists before `first` for slots that may reach the cut. Returns their number, and if others changed."""
    whole = False
    for i in range(first - 1, -1, -1):
        if count == 0:
            break
        if seen[i] != start:
            seen[i] = start
            if place[i] < end[i]:
                place[i] = first_at_least(low, start, place[i], end[i])
        if postings[i] < NEAR * count:
            place[i] = add(
                low, frequencies, lengths, constants, table, weight[i], place[i], end[i], origin, start, window
            )
            whole = True
        else:
            probe(
                low, frequencies, lengths, constants, table, weight[i], place[i], end[i], origin, start, window, slots,
                count,
            )  # fmt: skip
        count = keep(window, max(cut - below[i], SEEN), slots, count)
    return count, whole


@compiled
def _scan(
    held: Any, constants: Any, table: Any, weight: Any, below: Any, first_run: Any, last_run: Any, first: Any,
    cut: Any, live: Any, share: Any, k: Any, width: Any, slack: Any,
) -> Any:  # fmt: skip
    """The live candidates among documents in the lists from `first` on, and the cut that they give."""
    low, frequencies, lengths, size = held.low, held.frequencies, held.lengths, len(weight)
    run, seen, postings = first_run.copy(), np.empty(size, np.int64), np.empty(size, np.int64)
    place, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    window, touched, slots = np.zeros(width), np.empty(width + 1, np.int64), np.empty(width + 1, np.int64)
    heap, highest = np.empty(k), 0
    most: Any = np.int64(0)
    for i in range(first, size):
        most += np.int64(held.run_starts[last_run[i]]) - np.int64(held.run_starts[first_run[i]])
    most = min(most, len(lengths))
    near, near_scores, used = np.empty(most, np.int64), np.empty(most), 0  # arrays that grow make the loop slow
    block = _next_block(held, run, last_run, first)
    while block != NONE:
        origin = block << 16
        enter(held, block, run, last_run, place, end)
        run += end > 0
        seen[:] = -1
        postings[:] = (end - place) * width // min(65536, len(lengths) - origin)  # average per window
        dense = postings[first:].sum() * (share if share < SPARSE else 1.0) > DENSE * width
        start = _next_window(low, place, end, first, width)
        while start != NONE:
            count, told = _gather(
                low, frequencies, lengths, constants, table, weight, place, end, origin, start, window, touched, slots,
                first, dense, max(cut - below[first], SEEN), live, live if share < SPARSE else live[:0],
            )  # fmt: skip
            count, whole = _refine(
                low, frequencies, lengths, constants, table, weight, place, end, origin, start, window, slots, count,
                first, cut, below, seen, postings,
            )  # fmt: skip
            for j in range(count):
                score = window[slots[j]]
                if score >= cut:
                    near[used], near_scores[used] = origin + start + slots[j], score
                    used += 1
                    highest = lift(heap, highest, score)
                    if highest == k:
                        cut = max(cut, heap[0] * (1.0 - MARGIN) - slack)
            clear(window, touched, -1 if dense or whole else told)
            while first < size and below[first + 1] < cut:
                first += 1
            start = _next_window(low, place, end, first, width)
        block = _next_block(held, run, last_run, first)
    return np.sort(near[:used][near_scores[:used] >= cut]), cut


@compiled
def _score(
    held: Any, constants: Any, table: Any, weight: Any, below: Any, place: Any, end: Any, ordinal: Any, cut: Any
) -> Any:
    """The sum of a document's terms; a partial sum where it cannot reach the cut."""
    value, score = ordinal & 0xFFFF, 0.0
    for i in range(len(weight) - 1, -1, -1):
        if score + below[i + 1] < cut:
            break
        if place[i] < end[i] and held.low[place[i]] < value:
            place[i] = first_at_least(held.low, value, place[i], end[i])
        if place[i] < end[i] and held.low[place[i]] == value:
            score += weight[i] * part_of(table, constants, held.frequencies[place[i]], held.lengths[ordinal])
    return score


@compiled
def top(
    held: Any, constants: Any, table: Any, numbers: Any, weights: Any, base: Any, threshold: Any, live: Any,
    share: Any, ordinals: Any, scores: Any, found: Any,
) -> Any:  # fmt: skip
    """Write the best live documents, their scores and the terms' frequencies in each, and return their number.

    `held` are the segment's arrays, `table` that of `part_of`. `numbers` and `weights` (above 0) are those of the
    query's terms in order; `constants` those of the formula: alpha, beta, gamma, add, absent, b and the mean length.
    `base` is the score of a document without any of the terms. `live` marks the documents that are searched, empty for
    all, and `share` is their fraction. Only scores of at least `threshold` are found, and as many as fit in `ordinals`.
    """
    held = named(held)
    order, below, run, last_run = ordered(held, constants, numbers, weights)
    k, size, weight, width = len(ordinals), len(numbers), weights[order], WIDTHS[1 if len(held.lengths) >= LARGE else 0]
    slack = _slack(constants, weights, base)
    cut = max(0.0, (threshold - base) * (1.0 - MARGIN) - slack)
    # The lists with the highest bounds first: a few of their documents often lift the cut above all other lists.
    rare, postings = size, 0
    while rare > 0 and postings * share < ENOUGH * k:
        rare -= 1
        postings += int(held.run_starts[last_run[rare]]) - int(held.run_starts[run[rare]])
    near, cut = _scan(held, constants, table, weight, below, run, last_run, rare, cut, live, share, k, width, slack)
    if rare > 0 and below[rare] >= cut:
        first = 0  # lists from here on can lift a document over the cut
        while below[first + 1] < cut:
            first += 1
        near, cut = _scan(
            held, constants, table, weight, below, run, last_run, first, cut, live, share, k, width, slack
        )
    return _settle(held, constants, numbers, weights, base, threshold, near, ordinals, scores, found)


@compiled
def among(
    held: Any, constants: Any, table: Any, numbers: Any, weights: Any, base: Any, threshold: Any, chosen: Any,
    ordinals: Any, scores: Any, found: Any,
) -> Any:  # fmt: skip
    """Like `top`, among few documents: `chosen` are their ordinals, ascending."""
    held = named(held)
    order, below, run, last_run = ordered(held, constants, numbers, weights)
    size, k, weight = len(numbers), len(ordinals), weights[order]
    place, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    heap, highest = np.empty(k), 0
    near, near_scores, used = np.empty(len(chosen), np.int64), np.empty(len(chosen)), 0
    slack = _slack(constants, weights, base)
    cut = max(0.0, (threshold - base) * (1.0 - MARGIN) - slack)
    block = np.int64(-1)
    for at in range(len(chosen)):
        ordinal = np.int64(chosen[at])
        if ordinal >> 16 != block:
            block = ordinal >> 16
            enter(held, block, run, last_run, place, end)
        score = _score(held, constants, table, weight, below, place, end, ordinal, cut)
        if score == 0.0 or score < cut:
            continue
        near[used], near_scores[used] = ordinal, score
        used += 1
        highest = lift(heap, highest, score)
        if highest == k:
            cut = max(cut, heap[0] * (1.0 - MARGIN) - slack)
    near = near[:used][near_scores[:used] >= cut]
    return _settle(held, constants, numbers, weights, base, threshold, near, ordinals, scores, found)


@compiled
def weigh(held: Any, constants: Any, table: Any, parts: Any) -> None:
    """Write each posting's part, before its term's weight, in float32."""
    held = named(held)
    for run in range(len(held.run_blocks)):
        origin = np.int64(held.run_blocks[run]) << 16
        for at in range(held.run_starts[run], held.run_starts[run + 1]):
            part = part_of(table, constants, held.frequencies[at], held.lengths[origin + held.low[at]])
            parts[at] = max(part, LEAST_HALF)


@compiled
def _tops(sums: Any) -> Any:
    """The highest sum of each group. No sum is negative, so they are in the order of their bits."""
    bits = sums.view(np.uint32).reshape(len(sums) // GROUP, GROUP)
    tops = np.empty(len(bits), np.uint32)
    for group in range(bits.shape[0]):
        highest = np.uint32(0)
        for at in range(bits.shape[1]):
            some = bits[group, at]
            if some > highest:
                highest = some
        tops[group] = highest
    return tops.view(np.float32)


@compiled
def _reaching(sums: Any, tops: Any, cut: Any) -> Any:
    """The ordinals whose sums are at least a cut, ascending, and these sums; only their groups are read."""
    most, used = GROUP * (tops >= cut).sum(), 0
    near, found = np.empty(most, np.int64), np.empty(most, np.float32)
    for group in range(len(tops)):
        if tops[group] >= cut:
            for at in range(group * GROUP, (group + 1) * GROUP):
                if sums[at] >= cut:
                    near[used], found[used] = at, sums[at]
                    used += 1
    return near[:used], found[:used]


@compiled
def _highest(sums: Any, k: Any, floor: Any, margin: Any, slack: Any) -> Any:
    """The ordinals that may have the k best scores, ascending. The k-th highest sum is at least that of the tops."""
    tops = _tops(sums)
    near, found = _reaching(sums, tops, np.float32(max(floor, nearly_kth(tops, k) * margin - slack)))
    if len(near) > k:
        near = near[found >= np.float32(max(floor, nearly_kth(found, k) * margin - slack))]
    return near


@compiled
def dense(
    held: Any, parts: Any, constants: Any, numbers: Any, weights: Any, base: Any, threshold: Any, live: Any,
    ordinals: Any, scores: Any, found: Any,
) -> Any:  # fmt: skip
    """Like `top`, without pruning: all postings of all terms are added by their `parts` (see `weigh`), in float32."""
    held = named(held)
    sums = np.zeros(-(-len(held.lengths) // GROUP) * GROUP, np.float32)
    for i in range(len(numbers)):
        weight = np.float32(weights[i])
        for run in range(held.term_runs[numbers[i]], held.term_runs[numbers[i] + 1]):
            origin = np.uint64(held.run_blocks[run]) << np.uint64(16)
            for at in range(held.run_starts[run], held.run_starts[run + 1]):
                sums[origin + held.low[at]] += weight * parts[at]
    for at in range(len(live)):
        sums[at] = sums[at] if live[at] else np.float32(0.0)
    slack, margin = _slack(constants, weights, base), 1.0 - MARGIN_HALF * (len(numbers) + 5)
    floor = max(SEEN_HALF, (threshold - base) * margin - slack)
    near = _highest(sums, len(ordinals), floor, margin, slack)
    return _settle(held, constants, numbers, weights, base, threshold, near, ordinals, scores, found)


@compiled
def top_many(
    held: Any, parts: Any, constants: Any, table: Any, numbers: Any, weights: Any, ends: Any, live: Any, share: Any,
    first: Any, last: Any, ordinals: Any, scores: Any, found: Any, counts: Any,
) -> None:  # fmt: skip
    """Run `top` for the queries from `first` to `last`, or `dense` where there are `parts`.

    The terms of query q end at `ends[q]` in the flat `numbers`. `found` is flat as well: for each document found it has
    as many frequencies as the query has terms.
    """
    k = ordinals.shape[1]
    for q in range(first, last):
        start = ends[q - 1] if q else 0
        mine = found[k * start : k * ends[q]].reshape(k, ends[q] - start)
        if start == ends[q]:
            continue
        query = (numbers[start : ends[q]], weights[start : ends[q]], 0.0, -np.inf, live)
        if len(parts) > 0:
            counts[q] = dense(held, parts, constants, *query, ordinals[q], scores[q], mine)
        else:
            counts[q] = top(held, constants, table, *query, share, ordinals[q], scores[q], mine)

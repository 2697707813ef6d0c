"""Searches like `kernels`, with numpy alone.

MaxScore (see `kernels`) finds the documents that may be among the best, block by block; its sums are in float32, with a
margin for rounding. The candidates are then scored with `Formula.tf`, in float64 and in the order of the query's terms,
so that their scores equal those of `kernels`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.rows import best
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.formulas import Floats, Formula
from voicevault_retrievers.lexical.postings import BLOCK_BITS, Numbers, Postings, PostingsSource, Unsigned

Sums: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.intp]
Runs: TypeAlias = dict[int, slice]

TABLE = 1 << 16
"""The number of entries in a table of parts."""
LEAST = 1e-20
"""The least score of a match, before its weight, so that a sum of 0 means "no match"."""
HELD = 1e15
"""Weights between its inverse and this number neither overflow nor underflow float32."""
SEEN = LEAST / HELD
"""Less than the contribution of any match."""
MARGIN = 2.0**-22
"""The relative error of a float32 sum per term: rounding a part, weighting it, adding it."""
SLACK = 1e-12
"""The error due to float64 and `LEAST`, relative to the weights and the score of a document without terms."""
NEVER = np.float32(-1e38)
"""The sum of a document that is not selected."""
SAMPLE = 2048
"""The number of documents that are scored for a first cut."""
LOOK = 8
"""Looking up a document in a list takes about as long as adding this many postings."""
FEW = 32
"""Where less than one document in FEW is selected, each is looked up in every list."""


class Wanted(NamedTuple):
    """A query against a segment: the numbers of its terms and their weights (`count * idf`), in query order.

    `base` is the score of a document with none of the terms. Only scores of at least `threshold` are found, at most k.
    """

    numbers: Numbers
    weights: Floats
    formula: Formula
    mean_length: float
    base: float
    threshold: float
    k: int


def parts(wanted: Wanted, lengths: NDArray[Any], frequencies: NDArray[Any]) -> Floats:
    """Each document's part for a term that it contains, before the term's weight: `tf - absent`."""
    formula = wanted.formula
    tf: Floats = formula.tf(frequencies.astype(np.float64), formula.norm(lengths, wanted.mean_length))
    return tf - formula.absent()


def fits(formula: Formula, weights: Sequence[float]) -> bool:
    """Whether float32 can hold the sums of a formula with these weights."""
    return bool(weights) and min(weights) > 1 / HELD and max(weights) < HELD and formula.most < HELD


def runs_of(postings: Postings, numbers: Numbers) -> list[Runs]:
    """The postings of each term by block; empty for term -1."""
    blocks, starts = np.asarray(postings.run_blocks), np.asarray(postings.run_starts)
    found = []
    firsts, lasts = postings.term_runs[numbers].tolist(), postings.term_runs[numbers + 1].tolist()
    for number, first, last in zip(numbers.tolist(), firsts, lasts, strict=True):
        edges = starts[first : last + 1].tolist() if number >= 0 else []
        found.append(dict(zip(blocks[first:last].tolist(), map(slice, edges, edges[1:]), strict=False)))
    return found


def edges_of(ordinals: NDArray[np.integer], size: int) -> list[int]:
    """The start, in ascending ordinals, of each block of `size` documents, and the end of the last."""
    found: list[int] = ordinals.searchsorted(np.arange((size >> BLOCK_BITS) + 2) << BLOCK_BITS).tolist()
    return found


def seek(low: NDArray[np.uint16], runs: Runs, edges: list[int], wanted: NDArray[np.uint16], places: Places) -> None:
    """Write where a term's posting of each wanted document would be. Skips blocks without postings of the term."""
    for block, span in runs.items():
        first, last = edges[block], edges[block + 1]
        if first < last:
            places[first:last] = _first_at_least(low, span, wanted[first:last])


def _first_at_least(low: NDArray[np.uint16], span: slice, wanted: NDArray[np.uint16]) -> Places:
    """The first position in a run whose ordinal is at least each wanted one, or the run's last position."""
    found: Places = low[span.start : span.stop - 1].searchsorted(wanted) + span.start
    return found


@lru_cache(maxsize=16)
def _table(formula: Formula, mean_length: float, width: int) -> Sums:
    """Parts by `frequency * width + length`, with 0 for frequency 0; the last entry is above all parts."""
    wanted = Wanted(np.empty(0, np.int64), np.empty(0), formula, mean_length, 0.0, 0.0, 0)
    frequencies = np.arange(max(2, TABLE // width))[:, None]
    table = np.maximum(parts(wanted, np.arange(width), np.maximum(frequencies, 1)), LEAST)
    return np.append(table * (frequencies > 0), _limit(formula)).astype(np.float32)


def _limit(formula: Formula) -> float:
    """An upper bound of all parts."""
    curve = formula.curve()
    return np.inf if curve is None else curve.alpha + curve.add - formula.absent() + LEAST


class ListScan:
    """The state of one search: the query's lists by falling bound, and the sum above the base that a document needs.

    `rest` is the bound of each list and all lists after it. At least k documents reach `border`; `cut` is lower by the
    possible error of the sums.
    """

    def __init__(self, postings: Postings, wanted: Wanted, runs: Sequence[Runs]) -> None:
        self.wanted = wanted
        self.low, self.frequencies = np.asarray(postings.low), np.asarray(postings.frequencies)
        self.lengths = np.asarray(postings.lengths)
        self.width = postings.longest + 1
        self.table = _table(wanted.formula, wanted.mean_length, self.width)
        most = (wanted.weights * self._most(postings)).tolist()
        order = sorted(range(len(most)), key=most.__getitem__, reverse=True)
        self.rest = list(accumulate((most[at] for at in reversed(order)), initial=0.0))[::-1]
        self.weights: list[float] = [wanted.weights[at] for at in order]
        self.runs = [runs[at] for at in order]
        self.margin = 1.0 - MARGIN * (len(order) + 4)
        self.slack = SLACK * (abs(wanted.base) + sum(self.weights))
        self.border = max(SEEN, wanted.threshold - wanted.base)
        self.cut = self._under(wanted.threshold - wanted.base)

    def _most(self, postings: Postings) -> Floats:
        """An upper bound of each term's part, before its weight."""
        numbers, limit = self.wanted.numbers, self.table[-1]
        if not len(postings.bounded):
            return np.full(len(numbers), limit, dtype=np.float64)
        rows = postings.bounded.searchsorted(numbers)
        known = postings.bounded.take(rows, mode="clip") == numbers
        bounds = postings.bounds.take(rows, axis=0, mode="clip").astype(np.intp)
        codes = bounds[..., 0] * self.width + bounds[..., 1]
        most: Floats = np.where(known, self.table.take(codes, mode="clip").max(axis=1), limit).astype(np.float64)
        return most * (numbers >= 0)

    def _under(self, score: float) -> float:
        """The lowest float32 sum above the base of a document with at least this score."""
        return score * self.margin - self.slack

    def _raise(self, sums: Sums) -> None:
        """Raise the cut, given the sums or partial sums of some documents."""
        sums = sums[sums > self.border]  # strictly above: numpy partitions arrays of mostly equal values slowly
        if len(sums) >= self.wanted.k:
            self.border = float(np.partition(sums, len(sums) - self.wanted.k)[len(sums) - self.wanted.k])
            self.cut = max(self.cut, self._under(self.border))

    def near(self, selection: Selection | None) -> NDArray[np.int64]:
        """The ordinals of the documents that may be among the best, ascending."""
        if selection is not None and selection.count * FEW < selection.size:
            found = self._few(selection.ordinals)
        else:
            found = self._blocks(selection)
        ordinals, sums = np.empty(0, np.int64), np.empty(0, np.float32)
        for more, reached in found:
            if len(more):
                ordinals, sums = np.concatenate((ordinals, more)), np.concatenate((sums, reached))
                self._raise(sums)
                keep = sums >= self.cut
                ordinals, sums = ordinals[keep], sums[keep]
        return ordinals

    def _few(self, chosen: Unsigned) -> Iterator[tuple[NDArray[np.int64], Sums]]:
        """Score few documents: first a sample, which sets a cut for the others."""
        for part in (chosen[:SAMPLE], chosen[SAMPLE:]):
            if len(part):
                yield self._among(part.astype(np.int64))

    def _among(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], Sums]:
        """The documents that may be among the best, with their sums. Each document is looked up in every list."""
        sums = np.zeros(len(chosen), np.float32)
        for at, runs in enumerate(self.runs):
            keep = (sums >= self.cut - self.rest[at]).nonzero()[0]
            chosen, sums = chosen.take(keep), sums.take(keep)
            wanted, places = chosen.astype(np.uint16), np.full(len(chosen), -1)
            seek(self.low, runs, edges_of(chosen, len(self.lengths)), wanted, places)
            hit = ((self.low.take(places, mode="clip") == wanted) & (places >= 0)).nonzero()[0]
            sums[hit] += self._adds(at, self.lengths, chosen.take(hit), self.frequencies.take(places.take(hit)))
            self._raise(sums)
        last = (sums >= max(self.cut, SEEN)).nonzero()[0]
        return chosen.take(last), sums.take(last)

    def _blocks(self, selection: Selection | None) -> Iterator[tuple[NDArray[np.int64], Sums]]:
        """Yield for each block the documents that may be among the best, and their sums."""
        blocks = sorted(set().union(*self.runs))
        for block in blocks:
            places, sums = self._block(block, selection, first=block == blocks[0])
            yield places + (block << BLOCK_BITS), sums

    def _block(self, block: int, selection: Selection | None, first: bool) -> tuple[Places, Sums]:
        """The positions in a block of documents that may be among the best, and their sums."""
        lengths = self.lengths[block << BLOCK_BITS : (block + 1) << BLOCK_BITS]
        places: Places | None = None
        sums = _room(block, len(lengths), selection)
        for at, runs in enumerate(self.runs):
            if block not in runs:
                continue
            span = runs[block]
            if places is None and self.rest[at] < self.cut:
                # Only documents seen so far can reach the cut; but for many of them, adding the whole list is cheaper.
                seen = (sums >= max(self.cut - self.rest[at], SEEN)).nonzero()[0]
                if len(seen) * LOOK < span.stop - span.start:
                    places, sums = seen, sums.take(seen)
            if places is None:
                having = self.low[span].astype(np.intp)
                np.add.at(sums, having, self._adds(at, lengths, having, self.frequencies[span]))
                if first:
                    self._raise(sums.take(having if self.cut > 0 else having[:SAMPLE]))
            else:
                keep = (sums >= self.cut - self.rest[at]).nonzero()[0]
                places, sums = places.take(keep), sums.take(keep)
                self._look(at, span, lengths, places, sums)
        last = (sums >= max(self.cut, SEEN)).nonzero()[0]
        return last if places is None else places.take(last), sums.take(last)

    def _look(self, at: int, span: slice, lengths: Unsigned, places: Places, sums: Sums) -> None:
        """Add a list's contributions to the `sums` of the given documents in a block."""
        wanted = places.astype(np.uint16)
        found = _first_at_least(self.low, span, wanted)
        hit = (self.low.take(found) == wanted).nonzero()[0]
        sums[hit] += self._adds(at, lengths, places.take(hit), self.frequencies.take(found.take(hit)))

    def _adds(self, at: int, lengths: Unsigned, places: Places, frequencies: Unsigned) -> Sums:
        """A list's contributions to documents that it contains."""
        having = lengths.take(places)
        codes = np.multiply(frequencies, self.width, dtype=np.intp)
        codes += having
        try:
            added = self.table.take(codes)
        except IndexError:  # a frequency beyond the table, which is too rare to be checked first
            added = np.maximum(parts(self.wanted, having, frequencies), LEAST).astype(np.float32)
        added *= self.weights[at]
        return added


def _room(block: int, size: int, selection: Selection | None) -> Sums:
    """The initial sum of each document of a block: 0, or far below any other sum where it is not selected."""
    if selection is None:
        return np.zeros(size, np.float32)
    start = block << BLOCK_BITS
    return np.multiply(~selection.mask[start : start + size], NEVER, dtype=np.float32)


MANY = 8
"""Where at least one document in MANY is wanted, every match is scored."""


class FoundRows(NamedTuple):
    """Documents, best first, ties by ascending ordinal, with the `frequencies` (documents, terms) of the terms."""

    ordinals: NDArray[np.int64]
    scores: Floats
    frequencies: NDArray[np.int64]


def search(postings: PostingsSource, wanted: Wanted, selection: Selection | None) -> FoundRows:
    """The best documents of a selection (None for all)."""
    if not isinstance(postings, Postings) or not postings.count or not _prunable(wanted, len(postings)):
        return _every(postings, wanted, selection)
    runs = runs_of(postings, wanted.numbers)
    near = ListScan(postings, wanted, runs).near(selection)
    frequencies = _frequencies(postings, runs, near)
    scores = _exact(postings, wanted, near, frequencies)
    top = best(scores, (scores >= wanted.threshold).nonzero()[0], wanted.k)
    return FoundRows(near[top], scores[top], frequencies[top])


def each(postings: Postings, wanted: Wanted, ordinals: NDArray[np.int64]) -> FoundRows:
    """The given documents that contain a term, in the given ascending order."""
    frequencies = _frequencies(postings, runs_of(postings, wanted.numbers), ordinals)
    having = frequencies.any(axis=1)
    ordinals, frequencies = ordinals[having], frequencies[having]
    return FoundRows(ordinals, _exact(postings, wanted, ordinals, frequencies), frequencies)


def _prunable(wanted: Wanted, size: int) -> bool:
    """Whether every weight is positive and fits float32, and few enough documents are wanted."""
    return 0 < wanted.k * MANY < size and fits(wanted.formula, wanted.weights.tolist())


def _every(postings: PostingsSource, wanted: Wanted, selection: Selection | None) -> FoundRows:
    """Like `search`, with every match scored."""
    scores = np.full(len(postings), wanted.base)
    matched = np.zeros(len(postings), dtype=np.bool_)
    for number, weight in zip(wanted.numbers.tolist(), wanted.weights.tolist(), strict=True):
        ordinals, frequencies = postings.find(number)
        matched[ordinals] = True
        scores[ordinals] += weight * parts(wanted, postings.lengths[ordinals], frequencies)
    if selection is not None:
        matched &= selection.mask
    matched &= scores >= wanted.threshold
    top = best(scores, np.flatnonzero(matched), wanted.k)
    return FoundRows(top, scores[top], frequencies_of(postings, wanted.numbers, top))


def _exact(postings: Postings, wanted: Wanted, ordinals: NDArray[np.int64], frequencies: NDArray[np.int64]) -> Floats:
    """The scores of documents from their terms' frequencies, summed in the order of the query's terms."""
    each = wanted.weights * parts(wanted, postings.lengths[ordinals][:, None], np.maximum(frequencies, 1))
    each *= frequencies > 0
    each[:, 0] += wanted.base
    scores: Floats = each.cumsum(axis=1)[:, -1]  # sums from left to right, unlike `sum`
    return scores


def frequencies_of(postings: PostingsSource, numbers: Numbers, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
    """The frequency of each term in each document, of shape (documents, terms)."""
    found = np.zeros((len(ordinals), len(numbers)), dtype=np.int64)
    if isinstance(postings, Postings):
        order = np.argsort(ordinals)
        found[order] = _frequencies(postings, runs_of(postings, numbers), ordinals[order])
        return found
    for column, number in enumerate(numbers.tolist()):
        having, frequencies = postings.find(number)
        if len(having):
            at = np.minimum(np.searchsorted(having, ordinals), len(having) - 1)
            found[:, column] = np.where(having[at] == ordinals, frequencies[at], 0)
    return found


def _frequencies(postings: Postings, runs: Sequence[Runs], ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
    """Like `frequencies_of`, from the runs of each term; `ordinals` ascend."""
    low, frequencies = np.asarray(postings.low), np.asarray(postings.frequencies)
    if not len(low):
        return np.zeros((len(ordinals), len(runs)), dtype=np.int64)
    wanted, edges = ordinals.astype(np.uint16), edges_of(ordinals, len(postings))
    places = np.full((len(runs), len(ordinals)), -1)
    for row, own in zip(places, runs, strict=True):
        seek(low, own, edges, wanted, row)
    hit = (low.take(places, mode="clip") == wanted) & (places >= 0)
    found: NDArray[np.int64] = (frequencies.take(places, mode="clip") * hit).T.astype(np.int64)
    return found

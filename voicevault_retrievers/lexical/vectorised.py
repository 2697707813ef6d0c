"""The same search as `kernels`, with numpy alone.

The documents that may be among the best (see `vectorised_scan`) are summed by `Formula.tf`, in float64 and in the order
of the query's terms, so that the sums are those of `kernels`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.rows import best
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.formulas import Floats
from voicevault_retrievers.lexical.postings import Numbers, Postings, PostingsSource
from voicevault_retrievers.lexical.vectorised_scan import ListScan, Runs, edges_of, fits, parts, runs_of, seek
from voicevault_retrievers.lexical.vectorised_scan import Wanted as Wanted

MANY = 8
"""One document wanted in so many is many: every match is scored."""


class FoundRows(NamedTuple):
    """Documents, best first, ties by ascending ordinal; `frequencies` (documents, terms) says which terms they have."""

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
    """Those of some documents, which ascend, that have a term; in their order."""
    frequencies = _frequencies(postings, runs_of(postings, wanted.numbers), ordinals)
    having = frequencies.any(axis=1)
    ordinals, frequencies = ordinals[having], frequencies[having]
    return FoundRows(ordinals, _exact(postings, wanted, ordinals, frequencies), frequencies)


def _prunable(wanted: Wanted, size: int) -> bool:
    """Whether every term lifts a score, by what float32 can hold, and few enough documents are wanted."""
    return 0 < wanted.k * MANY < size and fits(wanted.formula, wanted.weights.tolist())


def _every(postings: PostingsSource, wanted: Wanted, selection: Selection | None) -> FoundRows:
    """As `search`, every match scored."""
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
    scores: Floats = each.cumsum(axis=1)[:, -1]  # one after the other, unlike those of `sum`
    return scores


def frequencies_of(postings: PostingsSource, numbers: Numbers, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each document has each term, shape (documents, terms)."""
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
    """As `frequencies_of`, from the runs of each term; `ordinals` ascend."""
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

"""Searches like `vectorised`, with the compiled loops of `kernels`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from math import inf
from types import ModuleType
from weakref import WeakSet

import numpy as np

from voicevault_retrievers._support.compiled import BESIDE, kind
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.formulas import LEAST, Floats, Formula
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.lexical.vectorised import FoundRows, Sums, Wanted, fits

FEW = 256
"""Where less than one document in FEW is searched, each is looked up; else whole lists are read."""

LIGHTEST = 1e-90
"""For weights above this, float64 can represent numbers below the least score of a match."""
TABLE = (1024, 8)
"""The lengths and frequencies up to which parts come from a table."""

ROOM = 1 << 24
"""The most postings whose parts are kept, in all: 64 MiB."""

ALL = np.empty(0, dtype=np.bool_)
NO_PARTS: Sums = np.empty(0, np.float32)

_having_parts: WeakSet[Postings] = WeakSet()


@cache
def kernels() -> ModuleType:
    """The compiled loops; MissingExtraError without numba."""
    from voicevault_retrievers.lexical import kernels

    return kernels


def able(wanted: Wanted) -> bool:
    """Whether the loops can search: they need a formula with a curve, and weights well above 0."""
    return wanted.formula.most < inf and min(wanted.weights.tolist(), default=0.0) > LIGHTEST


def ready(postings: Postings, wanted: Wanted, selection: Selection | None, after: int, *, each: bool = False) -> bool:
    """Whether the loops for such a `search` are compiled; a background thread compiles after `after` searches."""
    few = each or _few(postings, selection)
    masked = () if few or selection is None else kind([selection.mask])
    key = "lexical", few, masked, postings.count > ROOM, postings.kind
    return BESIDE.ready(key, _steps(postings, wanted, selection, each, few), after)


def _steps(
    postings: Postings, wanted: Wanted, selection: Selection | None, each: bool, few: bool
) -> Iterator[Callable[[], object]]:
    """Searches that compile all loops."""
    run = partial(search, postings, wanted, selection, each=each)
    yield run
    if not few:
        yield partial(parts_of, postings, wanted.formula, wanted.mean_length, wanted.weights, at_once=True)
        yield run


def _few(postings: Postings, selection: Selection | None) -> bool:
    return selection is not None and selection.count * FEW < len(postings)


def search(postings: Postings, wanted: Wanted, selection: Selection | None, *, each: bool = False) -> FoundRows:
    """The best documents of a selection (None for all); the postings contain every term.

    With `each`, or where few documents are selected, every document is looked up; else whole lists are read.
    """
    k = max(0, min(wanted.k, len(postings)))
    out = (np.empty(k, np.int64), np.empty(k), np.empty((k, len(wanted.numbers)), np.int64))
    query = (*table(wanted.formula, wanted.mean_length), wanted.numbers, wanted.weights, wanted.base, wanted.threshold)
    if selection is not None and (each or _few(postings, selection)):
        count = kernels().among(postings.arrays, *query, selection.ordinals, *out)
    else:
        live = ALL if selection is None else selection.mask
        parts = parts_of(postings, wanted.formula, wanted.mean_length, wanted.weights)
        if len(parts):
            count = kernels().dense(postings.arrays, parts, query[0], *query[2:], live, *out)
        else:
            share = 1.0 if selection is None else selection.count / selection.size
            count = kernels().top(postings.arrays, *query, live, share, *out)
    ordinals, scores, frequencies = out
    if count < k:
        ordinals, scores, frequencies = ordinals[:count], scores[:count], frequencies[:count]
    return FoundRows(ordinals, scores, frequencies)


@lru_cache(maxsize=4)
def table(formula: Formula, mean_length: float) -> tuple[tuple[float, ...], Floats]:
    """A formula's constants, and the table of its parts (`tf - absent`) by length and frequency."""
    curve = formula.curve() or (0.0, 0.0, 0.0, 0.0)
    norms = formula.norm(np.arange(TABLE[0]), mean_length)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # no posting has frequency 0, and none has length 0
        weights = np.maximum(formula.tf(np.arange(float(TABLE[1])), norms) - formula.absent(), LEAST)
    constants = (*map(float, curve), float(formula.absent()), float(formula.b), float(mean_length))
    return constants, weights


def parts_of(
    postings: Postings, formula: Formula, mean_length: float, weights: Floats, *, at_once: bool = False
) -> Sums:
    """Each posting's part, before its term's weight; empty where parts are not to be used.

    Up to some 200,000 documents, adding all postings of a query is faster than pruning. Parts take four bytes a
    posting. They are kept while there is room, for the latest formula and mean length. They are made at the second
    request, unless `at_once`, so that an index that keeps changing does not make them in vain.
    """
    if postings.count > ROOM or not fits(formula, weights.tolist()):
        return NO_PARTS
    key = (formula, mean_length)
    held: Sums
    held_key, held = postings.kept.get("parts", (None, NO_PARTS))
    if held_key == key and len(held):
        return held
    made = NO_PARTS
    if at_once or held_key == key:
        others = sum(len(other.kept["parts"][1]) for other in list(_having_parts) if other is not postings)
        if others + postings.count <= ROOM:
            made = _weighed(postings, formula, mean_length)
    postings.kept["parts"] = key, made
    _having_parts.add(postings)
    return made


def _weighed(postings: Postings, formula: Formula, mean_length: float) -> Sums:
    parts = np.empty(postings.count, np.float32)
    postings.check()
    kernels().weigh(postings.arrays, *table(formula, mean_length), parts)
    return parts

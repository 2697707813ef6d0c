"""Searches one segment, with numba or with numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from voicevault_retrievers.lexical import vectorised, waiting
from voicevault_retrievers.lexical.asked import Asked, Weighed
from voicevault_retrievers.lexical.formulas import Floats, Formula
from voicevault_retrievers.lexical.forward import Forward
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.lexical.segment import Segment
from voicevault_retrievers.lexical.vectorised import Wanted
from voicevault_retrievers.selection import Selection

T = TypeVar("T")
A = TypeVar("A")

FEW = 32
"""Where less than one chunk in so many is searched, each is looked at; else each list is read."""

LEAST = 1e-300
TABLE = (8, 1024)
"""Frequencies and lengths up to which the weights of all terms are computed once."""

ALL = np.empty(0, dtype=np.bool_)


def kernels() -> ModuleType:
    """The compiled search; MissingExtraError without numba."""
    from voicevault_retrievers.lexical import kernels

    return kernels


class Searcher:
    """Runs queries on segments; `compiled` says on what. Keeps the table of the formula that was used last."""

    def __init__(self, *, compiled: bool) -> None:
        self.compiled = compiled
        self._kept: tuple[Formula, float, tuple[float, ...], Floats] | None = None

    def search(
        self,
        segment: Segment,
        asked: Asked,
        weighed: Sequence[Weighed],
        selection: Selection | None,
        k: int,
        threshold: float,
    ) -> Iterable[tuple[int, float, Sequence[int]]]:
        """Ordinal, score and each asked term's frequency of the best k of the selected chunks (None for all)."""
        numbers = np.array([entry.number for entry in weighed], dtype=np.int64)
        weights = np.array([entry.weight for entry in weighed])
        k = min(k, len(segment.rows))
        if self._can_compile(segment, asked, weights):
            found = self._compiled(segment.postings, asked, numbers, weights, selection, k, threshold)
        else:
            wanted = Wanted(numbers, weights, asked.formula, asked.mean_length, asked.base, threshold, k)
            if isinstance(segment.postings, Forward):
                found = waiting.search(segment.postings, wanted, selection)
            else:
                found = vectorised.search(segment.postings, wanted, selection)
        ordinals, scores, frequencies = (array.tolist() for array in found)
        if len(asked.terms) > len(weighed) or any(entry.place != at for at, entry in enumerate(weighed)):
            places = [entry.place for entry in weighed]
            frequencies = [spread(row, places, len(asked.terms)) for row in frequencies]
        return zip(ordinals, scores, frequencies, strict=True)

    def scores(
        self, segment: Segment, asked: Asked, weighed: Sequence[Weighed], ordinals: Sequence[int]
    ) -> list[float]:
        """The scores of these chunks; 0 where none of the terms is."""
        chosen = Selection(len(segment.rows), np.unique(np.array(ordinals, dtype=np.uint32)))
        found = self.search(segment, asked, weighed, chosen, len(ordinals), -math.inf) if weighed else ()
        known = {at: score for at, score, _ in found}
        return [known.get(at, 0.0) for at in ordinals]

    def frequencies(self, segment: Segment, asked: Asked, weighed: Sequence[Weighed], ordinal: int) -> dict[int, int]:
        """How often a chunk has each term, by the term's place."""
        numbers = np.array([entry.number for entry in weighed], dtype=np.int64)
        row = vectorised.frequencies_of(segment.postings, numbers, np.array([ordinal]))[0].tolist()
        return {entry.place: f for entry, f in zip(weighed, row, strict=True) if f}

    def each(self, task: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """The task for each item; on two threads where the loops run without the interpreter's lock."""
        if not self.compiled or len(items) < 2:
            return [task(item) for item in items]
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(task, items))

    def _can_compile(self, segment: Segment, asked: Asked, weights: Floats) -> bool:
        return (
            self.compiled
            and isinstance(segment.postings, Postings)
            and float(weights.min()) > 0
            and asked.formula.curve() is not None
        )

    def _compiled(
        self,
        postings: Any,
        asked: Asked,
        numbers: Any,
        weights: Floats,
        selection: Selection | None,
        k: int,
        threshold: float,
    ) -> tuple[Any, Any, Any]:
        constants, table = self.table(asked)
        ordinals, scores = np.empty(k, dtype=np.int64), np.empty(k)
        frequencies = np.empty((k, len(numbers)), dtype=np.int64)
        query = (numbers, weights, asked.base, threshold)
        out = (ordinals, scores, frequencies)
        run = kernels()
        if selection is not None and selection.count * FEW < len(postings):
            count = run.among(postings.arrays, constants, table, *query, selection.ordinals, *out)
        else:
            live = ALL if selection is None else selection.mask
            count = run.top(postings.arrays, constants, table, *query, live, *out)
        return ordinals[:count], scores[:count], frequencies[:count]

    def table(self, asked: Asked) -> tuple[tuple[float, ...], Floats]:
        """The formula's constants, and its weights by frequency and length, less `Formula.absent`."""
        formula, mean, kept = asked.formula, asked.mean_length, self._kept
        if kept is None or kept[1] != mean or kept[0] != formula:
            curve = formula.curve() or (0.0, 0.0, 0.0, 0.0)
            norms = formula.norm(np.arange(TABLE[1]), mean)[None, :]
            with np.errstate(divide="ignore", invalid="ignore"):  # frequency 0 and length 0, which no posting has
                table = np.maximum(formula.tf(np.arange(float(TABLE[0]))[:, None], norms) - formula.absent(), LEAST)
            constants = (*map(float, curve), float(formula.absent()), float(formula.b), float(mean))
            kept = self._kept = (formula, mean, constants, table)
        return kept[2], kept[3]


def spread(row: Sequence[int], places: Sequence[int], size: int) -> list[int]:
    """Frequencies of forms as those of the terms that they belong to."""
    found = [0] * size
    for f, place in zip(row, places, strict=True):
        found[place] += f
    return found

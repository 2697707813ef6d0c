"""Compiled loops that build postings. Imported only on use, since importing numba takes half a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled


@compiled
def count(terms: Any, ends: Any, ranks: Any, first: Any, last: Any, counts: Any, runs: Any) -> None:
    """Count the postings and runs of each term in the documents from `first` to `last`."""
    seen = np.full(len(counts), -1, np.int64)
    at = ends[first - 1] if first else 0
    for document in range(first, last):
        while at < ends[document]:
            term = ranks[terms[at]]
            if seen[term] != document:
                if seen[term] < 0 or seen[term] >> 16 != document >> 16:
                    runs[term] += 1
                seen[term] = document
                counts[term] += 1
            at += 1


@compiled
def fill(
    terms: Any, ends: Any, ranks: Any, first: Any, last: Any,
    next_posting: Any, next_run: Any, blocks: Any, starts: Any, low: Any, frequencies: Any, most: Any,
) -> bool:  # fmt: skip
    """Write the postings and runs that `count` counted; false where a frequency is above `most`."""
    seen = np.full(len(next_posting), -1, np.int64)
    at = ends[first - 1] if first else 0
    for document in range(first, last):
        while at < ends[document]:
            term = ranks[terms[at]]
            place = next_posting[term]
            if seen[term] == document:
                if frequencies[place - 1] == most:
                    return False
                frequencies[place - 1] += 1
            else:
                if seen[term] < 0 or seen[term] >> 16 != document >> 16:
                    blocks[next_run[term]] = document >> 16
                    starts[next_run[term]] = place
                    next_run[term] += 1
                seen[term] = document
                low[place] = document & 0xFFFF
                frequencies[place] = 1
                next_posting[term] = place + 1
            at += 1
    return True


@compiled
def bound(held: Any, bounded: Any, bounds: Any) -> None:
    """For each given term and class of frequencies, find the highest frequency and the smallest length."""
    for row in range(len(bounded)):
        term = bounded[row]
        for run in range(held.term_runs[term], held.term_runs[term + 1]):
            base = np.int64(held.run_blocks[run]) << 16
            for at in range(held.run_starts[run], held.run_starts[run + 1]):
                frequency, length = held.frequencies[at], held.lengths[base + held.low[at]]
                kind = 0 if frequency == 1 else 1 if frequency == 2 else 2 if frequency <= 4 else 3
                if bounds[row, kind, 0] == 0 or length < bounds[row, kind, 1]:
                    bounds[row, kind, 1] = length
                bounds[row, kind, 0] = max(bounds[row, kind, 0], frequency)

"""Searches the documents that wait to become postings: few, so that all are scored at once."""

from __future__ import annotations

import numpy as np

from voicevault_retrievers.core.rows import best
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.memtable import Memtable
from voicevault_retrievers.lexical.vectorised import FoundRows, Wanted


def search(postings: Memtable, wanted: Wanted, selection: Selection | None) -> FoundRows:
    """As `vectorised.search`."""
    frequencies = np.zeros((len(wanted.numbers), len(postings)))
    for row, number in zip(frequencies, wanted.numbers.tolist(), strict=True):
        ordinals, counts = postings.find(number)
        row[ordinals] = counts
    norm = wanted.formula.norm(postings.lengths, wanted.mean_length)
    with np.errstate(divide="ignore", invalid="ignore"):  # of documents that lack the term, which count below
        parts = wanted.weights[:, None] * (wanted.formula.tf(frequencies, norm) - wanted.formula.absent())
    parts[frequencies == 0] = 0.0
    scores = np.full(len(postings), wanted.base)
    for part in parts:
        scores += part
    matched = frequencies.any(axis=0) & (scores >= wanted.threshold)
    if selection is not None:
        matched &= selection.mask
    top = best(scores, np.flatnonzero(matched), wanted.k)
    return FoundRows(top, scores[top], frequencies[:, top].T.astype(np.int64))

"""All that match a query: how their scores are distributed, and a sample of them; and how alike chunks are by words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.alike import Alike
from voicevault_retrievers.lexical.asked import Asked, Weighed
from voicevault_retrievers.lexical.formulas import Floats, Lucene
from voicevault_retrievers.lexical.segment import Segment
from voicevault_retrievers.selection import Ordinals, Selection
from voicevault_retrievers.shuffled import Drawn, smallest
from voicevault_retrievers.text import Analyzed
from voicevault_retrievers.types import Spread

SAMPLE = 256
"""Chunks in a sample."""
LEAST = 0.1
"""The deviation is at least this share of the highest score: few matches do not say how scores differ."""
_BITS = 16


class Matching(NamedTuple):
    """The spread of the scores of all chunks that match, and a sample of them; no spread where none does.

    `languages` has a bit for each language that half of the sample or more is in, as of `Source.languages`.
    """

    spread: Spread | None
    sample: tuple[str, ...]
    languages: int


def matching(segments: Sequence[Segment], asked: Asked, chosen: Sequence[Selection | None]) -> Matching:
    """What matches among the chosen chunks of each segment (None for the live ones)."""
    scores: list[Floats] = []
    drawn: list[Drawn] = []
    for segment, weighed, some in zip(segments, asked.segments, chosen, strict=True):
        ordinals, own = totals(segment, asked, weighed, segment.rows.selection(None) if some is None else some)
        scores.append(own)
        drawn.append(segment.order.among(SAMPLE, ordinals))
    ids = [segment.rows.ids[at] for segment, one in zip(segments, drawn, strict=True) for at in one.ordinals.tolist()]
    order = smallest([one.hashes for one in drawn], SAMPLE)
    sample = tuple(ids[at] for at in order.tolist())
    tags = [segment.postings.languages[one.ordinals] for segment, one in zip(segments, drawn, strict=True)]
    spoken = _most(np.concatenate([np.empty(0, np.uint32), *tags])[order])
    return Matching(spread_of(np.concatenate([np.empty(0), *scores])), sample, spoken)


def _most(languages: NDArray[np.uint32]) -> int:
    """The bits that half of these have, or more."""
    every = int(np.bitwise_or.reduce(languages, initial=0))
    bits = [1 << at for at in range(every.bit_length()) if every >> at & 1]
    return sum(bit for bit in bits if 2 * np.count_nonzero(languages & np.uint32(bit)) >= len(languages))


def totals(segment: Segment, asked: Asked, weighed: Weighed, chosen: Selection | None) -> tuple[Ordinals, Floats]:
    """The chunks that have any of the terms, and their scores, from all postings."""
    postings, formula = segment.postings, asked.formula
    sums, seen = np.zeros(len(segment.rows)), np.zeros(len(segment.rows), dtype=np.bool_)
    absent = formula.absent()
    for number, weight in zip(weighed.numbers, weighed.weights, strict=True):
        ordinals, frequencies = postings.find(number)
        norms = formula.norm(postings.lengths[ordinals], asked.mean_length)
        sums[ordinals] += weight * (formula.tf(frequencies.astype(np.float64), norms) - absent)
        seen[ordinals] = True
    if chosen is not None:
        seen &= chosen.mask
    found = np.flatnonzero(seen).astype(np.uint32)
    return found, sums[found] + asked.base


def spread_of(scores: Floats) -> Spread | None:
    """Mean and deviation, summed as integers: to the bit the same however the chunks are cut into segments."""
    if not len(scores):
        return None
    top = float(np.abs(scores).max())
    if top == 0.0:
        return Spread(0.0, 0.0, len(scores))
    scale = 2.0 ** (_BITS - math.ceil(math.log2(top)))
    whole = np.rint(scores * scale).astype(np.int64)
    n, total, squares = len(whole), int(whole.sum()), int((whole * whole).sum())
    deviation = math.sqrt(n * squares - total * total) / n / scale
    return Spread(total / n / scale, max(deviation, LEAST * top), n)


def likeness(ids: Sequence[str], analyzed: Analyzed) -> Alike:
    """How alike chunks are by their words: BM25, each the query of all, as a collection of their own."""
    formula = Lucene()
    counts = _counts(analyzed)
    having = (counts > 0).sum(axis=0)
    idf = np.array([formula.idf(n, len(counts)) for n in having.tolist()])
    lengths = analyzed.lengths
    norms = np.asarray(formula.norm(lengths, float(lengths.mean()) if len(lengths) else 0.0))
    weights = np.where(counts > 0, np.maximum(idf, 0.0) * formula.tf(np.maximum(counts, 1), norms[:, None]), 0.0)
    bare = (counts > 0).astype(np.float64)
    return Alike(tuple(ids), counts @ weights.T, bare @ bare.T > 0)


def _counts(analyzed: Analyzed) -> NDArray[np.float64]:
    """How often each text has each term that several have; of shape (texts, terms)."""
    texts = np.repeat(np.arange(len(analyzed)), analyzed.lengths)
    size = len(analyzed.vocabulary)
    having = np.bincount(np.unique(texts * size + analyzed.terms) % max(size, 1), minlength=size)
    shared = np.flatnonzero(having > 1)
    places = np.full(size, -1)
    places[shared] = np.arange(len(shared))
    kept = places[analyzed.terms] >= 0
    counts = np.zeros((len(analyzed), len(shared)))
    np.add.at(counts, (texts[kept], places[analyzed.terms[kept]]), 1.0)
    return counts

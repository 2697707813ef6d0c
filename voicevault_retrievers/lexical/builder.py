"""Builds postings from analysed documents, or merges other postings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.postings import (
    BLOCK_BITS,
    BOUNDED,
    CLASSES,
    KEY_BYTES,
    Arrays,
    Mask,
    Numbers,
    Postings,
    PostingsSource,
    Unsigned,
)
from voicevault_retrievers.text.analyzed_texts import Analyzed

T = TypeVar("T")

SLICE = 1 << 22
"""The number of postings processed at once, which bounds the memory of a build."""


def loops() -> ModuleType:
    """The compiled loops; MissingExtraError without numba."""
    from voicevault_retrievers.lexical import build_kernels

    return build_kernels


class Inverted(NamedTuple):
    """The runs and postings of sorted terms, laid out as in `Postings`."""

    term_runs: NDArray[Any]
    run_blocks: NDArray[Any]
    run_starts: NDArray[Any]
    low: NDArray[Any]
    frequencies: NDArray[Any]


class Moved(NamedTuple):
    """Postings to merge, with the new ordinal of each document, and which documents are live (None for all)."""

    postings: PostingsSource
    places: Numbers
    live: Mask | None


def build(analyzed: Analyzed, *, compiled: bool = False) -> Postings:
    """The postings of documents in the order of their ordinals. `compiled` builds the same postings with numba."""
    encoded = [term.encode("utf-8", "surrogatepass") for term in analyzed.vocabulary]
    used = np.bincount(analyzed.terms, minlength=len(encoded)) > 0
    order = sorted(np.flatnonzero(used).tolist(), key=encoded.__getitem__)
    vocabulary = [encoded[number] for number in order]
    ranks = np.zeros(len(encoded), dtype=np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    if compiled:
        return _finish(
            vocabulary, _invert(analyzed, ranks, len(order)), analyzed.lengths, analyzed.languages, compiled=True
        )
    documents = max(1, len(analyzed))
    pairs = ranks[analyzed.terms].astype(np.int64)
    pairs *= documents
    pairs += np.repeat(np.arange(len(analyzed)), analyzed.lengths)
    pairs.sort()
    unique, counts = _counted(pairs)
    return _assemble(vocabulary, *np.divmod(unique, documents), counts, analyzed.lengths, analyzed.languages)


def merge(sources: Sequence[Moved], total: int) -> Postings:
    """The postings of the live documents of several segments, at their new places among `total` ordinals.

    Terms that no live document contains are left out.
    """
    union = sorted({term for source in sources for term in source.postings.vocabulary()})
    rank = {term: number for number, term in enumerate(union)}
    lengths, languages = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.uint32)
    keys: list[Numbers] = []
    frequencies: list[Unsigned] = []
    for postings, places, live in sources:
        terms, ordinals, counts = postings.triples()
        kept = slice(None) if live is None else live[ordinals]
        ranks = np.array([rank[term] for term in postings.vocabulary()], dtype=np.int64)
        keys.append(ranks[terms[kept]] * max(1, total) + places[ordinals[kept]])
        frequencies.append(counts[kept])
        rows = slice(None) if live is None else live
        lengths[places[rows]] = postings.lengths[rows]
        languages[places[rows]] = postings.languages[rows]
    key, frequency = _sorted(np.concatenate(keys), np.concatenate(frequencies))
    terms, ordinals = np.divmod(key, max(1, total))
    used = np.unique(terms)
    return _assemble(
        [union[number] for number in used], np.searchsorted(used, terms), ordinals, frequency, lengths, languages
    )


def _counted(pairs: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct values of a sorted array, and their counts."""
    begins = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1]))[: len(pairs)])
    return pairs[begins], np.diff(begins, append=len(pairs))


def _sorted(key: Numbers, frequency: Unsigned) -> tuple[Numbers, Unsigned]:
    """Both arrays sorted by key. Packing both into one number, where they fit, sorts many times faster."""
    bits = int(frequency.max(initial=0)).bit_length()
    if int(key.max(initial=0)).bit_length() + bits > 62:
        order = np.argsort(key)
        return key[order], frequency[order]
    packed = (key << bits) | frequency.astype(np.int64)
    packed.sort()
    return packed >> bits, (packed & ((1 << bits) - 1)).astype(frequency.dtype)


def _assemble(
    vocabulary: Sequence[bytes],
    terms: Numbers,
    ordinals: Numbers,
    frequencies: NDArray[Any],
    lengths: Numbers,
    languages: NDArray[Any],
) -> Postings:
    """Postings of sorted terms from triples in order of term, then ordinal; every term has at least one triple."""
    blocks = ordinals >> BLOCK_BITS
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(terms) != 0) | (np.diff(blocks) != 0)))[: len(terms)])
    inverted = Inverted(
        np.searchsorted(terms[begins], np.arange(len(vocabulary) + 1)),
        blocks[begins],
        np.append(begins, len(terms)),
        ordinals & ((1 << BLOCK_BITS) - 1),
        frequencies,
    )
    return _finish(vocabulary, inverted, lengths, languages)


def _finish(
    vocabulary: Sequence[bytes],
    inverted: Inverted,
    lengths: NDArray[Any],
    languages: NDArray[Any],
    *,
    compiled: bool = False,
) -> Postings:
    """Postings from their runs: adds derived arrays, and narrows the types."""
    term_runs, run_blocks, run_starts, low, frequencies = inverted
    without_bounds = Postings(
        terms=np.frombuffer(b"".join(vocabulary), dtype=np.uint8),
        term_ends=_places(np.cumsum([len(term) for term in vocabulary], dtype=np.int64)),
        term_keys=_keys(vocabulary),
        term_runs=term_runs.astype(np.uint32, copy=False),
        run_blocks=run_blocks.astype(np.uint16, copy=False),
        run_starts=_places(run_starts),
        low=low.astype(np.uint16, copy=False),
        frequencies=_smallest(frequencies, np.uint8),
        lengths=_smallest(lengths),
        languages=_smallest(languages, np.uint8),
        bounded=np.empty(0, np.uint32),
        bounds=np.empty((0, len(CLASSES) + 1, 2), np.uint16),
    )
    return _bounded(without_bounds, compiled)


def _smallest(values: NDArray[Any], least: type = np.uint16) -> NDArray[Any]:
    """The values in the smallest unsigned type that holds them, from `least` on: each type compiles other loops."""
    kind = np.promote_types(least, np.min_scalar_type(int(values.max(initial=0))))
    return values.astype(kind, copy=False)


def _places(ascending: NDArray[Any]) -> NDArray[Any]:
    """The values in four bytes each where that is enough, else in eight."""
    last = int(ascending[-1]) if len(ascending) else 0
    return ascending.astype(np.uint32 if last < 1 << 32 else np.int64, copy=False)


def _keys(vocabulary: Iterable[bytes]) -> NDArray[np.uint64]:
    keys = b"".join(term[:KEY_BYTES].ljust(KEY_BYTES, b"\0") for term in vocabulary)
    return np.frombuffer(keys, dtype=">u8").astype(np.uint64)


def _bounded(postings: Postings, compiled: bool) -> Postings:
    """The postings with bounds for the terms that many documents contain."""
    counts = postings.counts(np.arange(len(postings.term_ends)))
    bounded = np.flatnonzero(counts >= BOUNDED)
    bounds = np.zeros((len(bounded), len(CLASSES) + 1, 2), dtype=np.uint32)
    if compiled:
        loops().bound(Arrays(*postings.arrays), bounded, bounds)
    else:
        ends = np.cumsum(counts)
        for first, last in _slices(ends):
            rows = slice(*np.searchsorted(bounded, [first, last]).tolist())
            if rows.start < rows.stop:
                bounds[rows] = _bounds(postings, first, last)[bounded[rows] - first]
    return replace(postings, bounded=bounded.astype(np.uint32), bounds=_smallest(bounds))


def _slices(ends: Numbers) -> Iterator[tuple[int, int]]:
    """Ranges of terms, each of about `SLICE` postings."""
    first = 0
    while first < len(ends):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + SLICE, side="right")))
        yield first, last
        first = last


def _bounds(postings: Postings, first: int, last: int) -> NDArray[np.uint32]:
    """The bounds of a range of terms, of shape (terms, classes, 2)."""
    runs = postings.term_runs[first : last + 1]
    starts = postings.run_starts[runs]
    span = slice(int(starts[0]), int(starts[-1]))
    inner = slice(int(runs[0]), int(runs[-1]))
    sizes = np.diff(postings.run_starts[inner.start : inner.stop + 1])
    blocks = np.repeat(postings.run_blocks[inner].astype(np.intp) << BLOCK_BITS, sizes)
    lengths = postings.lengths[blocks + postings.low[span]]
    frequencies = postings.frequencies[span].astype(np.uint32)
    kinds = np.searchsorted(CLASSES, frequencies)
    begins = (starts[:-1] - starts[0]).astype(np.intp)
    found = np.empty((last - first, len(CLASSES) + 1, 2), dtype=np.uint32)
    none = np.iinfo(np.uint32).max
    for kind in range(len(CLASSES) + 1):
        highest = np.maximum.reduceat(np.where(kinds == kind, frequencies, 0), begins)
        shortest = np.minimum.reduceat(np.where(kinds == kind, lengths, none), begins)
        found[:, kind, 0], found[:, kind, 1] = highest, np.where(highest > 0, shortest, 0)
    return found


def _invert(analyzed: Analyzed, ranks: NDArray[np.uint32], size: int) -> Inverted:
    """The arrays of runs and postings by counting sort; two threads handle one half of the documents each."""
    run = loops()
    middle = (len(analyzed) >> BLOCK_BITS) // 2 << BLOCK_BITS
    halves = [(0, middle), (middle, len(analyzed))] if middle else [(0, len(analyzed))]
    counts = np.zeros((len(halves), size), dtype=np.int64)
    runs = np.zeros((len(halves), size), dtype=np.int64)
    stream = (analyzed.terms, analyzed.ends, ranks)
    _together(lambda at: run.count(*stream, *halves[at], counts[at], runs[at]), len(halves))
    for kind in (np.uint8, np.uint32):
        filled = _filled(stream, halves, counts, runs, kind)
        if filled is not None:
            return filled
    raise ConfigError("a document has a term more than four billion times: split it")


def _filled(
    stream: tuple[Any, ...], halves: Sequence[tuple[int, int]], counts: Numbers, runs: Numbers, kind: type
) -> Inverted | None:
    """Runs and postings with frequencies of this type; None where a frequency does not fit."""
    next_posting, next_run = _starts(counts), _starts(runs)
    term_runs = np.append(next_run[0], runs.sum())
    blocks, starts = np.empty(int(runs.sum()), np.uint16), np.empty(int(runs.sum()) + 1, np.int64)
    starts[-1] = counts.sum()
    low = np.empty(int(counts.sum()), np.uint16)
    frequencies: NDArray[Any] = np.empty(int(counts.sum()), kind)
    written = (blocks, starts, low, frequencies, np.iinfo(kind).max)
    fill = loops().fill
    if all(_together(lambda at: fill(*stream, *halves[at], next_posting[at], next_run[at], *written), len(halves))):
        return Inverted(term_runs, blocks, starts, low, frequencies)
    return None


def _starts(counts: Numbers) -> Numbers:
    """The start of each half's part of each term, where a term's halves are adjacent."""
    ends = np.cumsum(counts.T.ravel()).reshape(counts.T.shape).T
    return np.ascontiguousarray(ends - counts)


def _together(task: Callable[[int], T], number: int) -> list[T]:
    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(task, range(number)))

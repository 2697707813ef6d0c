"""Adding to an index, deleting from it, and searching it after many changes, beside one built anew."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.lexical_corpora import Collection, chunks_of, picked, size, synthetic
from tests.benchmarks.lexical_measure import Case, isolated, latencies, percentiles, ratios
from tests.benchmarks.lexical_systems import K, analysed, terms_of
from tests.benchmarks.results import Row
from voicevault_retrievers import Chunk
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.lexical import LexicalIndex, Lucene
from voicevault_retrievers.text.analyzed_texts import Analyzed

CHANGES = 1_000
WARM = 20
ROUNDS = 5
Numbers = NDArray[np.int64]


def measure(cases: Sequence[Case]) -> Iterator[list[Row]]:
    """The figures of each collection."""
    return (isolated(update, case.documents) for case in cases)


def update(documents: int) -> list[Row]:
    """Three things, each from the same index: 1,000 documents added, 1,000 deleted, and 1,000 changes of both kinds."""
    collection, rng = synthetic(documents + CHANGES), np.random.default_rng(11)
    order = rng.permutation(documents + CHANGES)
    new, old = order[:CHANGES], np.sort(order[CHANGES:])
    index = _index(collection, old, texts=True)
    _add(index, collection, new[:WARM])
    _delete(index, old[:WARM])
    figures = {
        **_named("add and find", _add(index, collection, new)),
        **_named("delete", _delete(index, rng.choice(old, min(CHANGES, documents // 2), replace=False))),
        **_mix(index, collection, new, rng),
    }
    return [Row("ours", size(documents), metric, value) for metric, value in figures.items()]


def _index(collection: Collection, numbers: Numbers, *, texts: bool) -> LexicalIndex:
    rows = Rows.of(chunks_of(collection, numbers, texts=texts))
    return LexicalIndex.build(rows, picked(analysed(collection), numbers))


def _analyse(texts: Sequence[str]) -> Analyzed:
    return Analyzed.of(text.split() for text in texts)


def _add(index: LexicalIndex, collection: Collection, numbers: Numbers) -> list[float]:
    """Seconds from a document to the search that finds it; each has a word of its own, which the query asks for."""
    times = []
    for number in numbers.tolist():
        text = f"{collection.texts[number]} own{number}"
        chunk, analyzed, terms = Chunk(f"{number:08d}", text), _analyse([text]), text.split()[-3:]
        start = time.perf_counter()
        index = index.added([chunk], analyzed)
        found = index.search(terms, K, Lucene())
        times.append(time.perf_counter() - start)
        if chunk.id not in [hit.chunk.id for hit in found]:
            raise ValueError(f"document {chunk.id} was added and is not found")
    return times


def _delete(index: LexicalIndex, numbers: Numbers) -> list[float]:
    times = []
    for number in numbers.tolist():
        start = time.perf_counter()
        index = index.removed([f"{number:08d}"], _analyse)
        times.append(time.perf_counter() - start)
    return times


def _mix(index: LexicalIndex, collection: Collection, new: Numbers, rng: np.random.Generator) -> dict[str, float]:
    live = np.ones(len(collection.texts), dtype=np.bool_)
    live[new] = False
    for number in new.tolist():
        if rng.random() < 0.5:
            chunks = chunks_of(collection, [number], texts=True)
            index = index.added(chunks, _analyse([chunk.text for chunk in chunks]))
            live[number] = True
        else:
            gone = int(rng.choice(np.flatnonzero(live)))
            index = index.removed([f"{gone:08d}"], _analyse)
            live[gone] = False
    return _beside(index, _index(collection, np.flatnonzero(live), texts=False), terms_of(collection))


def _beside(changed: LexicalIndex, fresh: LexicalIndex, queries: Sequence[Sequence[str]]) -> dict[str, float]:
    def found(index: LexicalIndex) -> list[list[tuple[str, float]]]:
        return [[(hit.chunk.id, hit.score) for hit in index.search(terms, K, Lucene())] for terms in queries]

    exact = found(changed) == found(fresh)
    rounds = [[latencies(partial(_search, index), queries) for index in (changed, fresh)] for _ in range(ROUNDS)]
    ours, anew = zip(*rounds, strict=True)
    after = f"after {CHANGES:,} changes"
    figures = {f"{metric} {after} / fresh": value for metric, value in ratios(ours, anew).items()}
    return {**figures, f"exact {after}": float(exact)}


def _search(index: LexicalIndex, terms: Sequence[str]) -> object:
    return index.search(terms, K, Lucene())


def _named(what: str, times: Sequence[float]) -> dict[str, float]:
    return {f"{what} {metric}": value for metric, value in percentiles(times).items()}

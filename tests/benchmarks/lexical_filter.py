"""Searches under filters that pass ever less, beside searches without one, and beside the whole ranking filtered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tests.benchmarks.lexical_corpora import BUCKETS, chunks_of
from tests.benchmarks.lexical_measure import Case, Figures, isolated, latencies, ratios, seconds
from tests.benchmarks.lexical_systems import K, analysed, terms_of
from tests.benchmarks.results import Row
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.lexical import LexicalIndex, Lucene

ROUNDS = 5
CHECKED = 10
SHARES = {"100 %": range(BUCKETS), "10 %": range(100), "1 %": range(10), "0.1 %": range(1)}
"""The buckets that pass."""


def measure(cases: Sequence[Case]) -> Iterator[list[Row]]:
    """The figures of each collection."""
    return (isolated(compare, case) for case in cases)


def compare(case: Case) -> list[Row]:
    """Ratios to searches without a filter of the same round, the first search's time, and whether all is exact."""
    collection = case.load()
    index = LexicalIndex.build(Rows.of(chunks_of(collection)), analysed(collection))
    queries = terms_of(collection)
    _first(index, queries[0], "twin")  # so that what is compiled is no part of what a filter's first search takes
    first, rounds = _first(index, queries[0], "bucket"), _rounds(index, queries)
    rows = []
    for share in SHARES:
        figures = {f"{metric} / unfiltered": value for metric, value in ratios(rounds[share], rounds[""]).items()}
        figures |= {"first ms": first[share], "exact": float(_exact(index, share, queries[:CHECKED]))}
        rows += [Row("ours", f"{collection.name}, {share} pass", metric, value) for metric, value in figures.items()]
    return rows


def _where(share: str, key: str = "bucket") -> Filter:
    return {key: {"$lt": SHARES[share].stop}}


def _first(index: LexicalIndex, terms: Sequence[str], key: str) -> dict[str, float]:
    return {share: seconds(_search, index, _where(share, key), terms) * 1e3 for share in SHARES}


def _rounds(index: LexicalIndex, queries: Sequence[Sequence[str]]) -> dict[str, list[Figures]]:
    searches = {"": None, **{share: _where(share) for share in SHARES}}
    rounds: dict[str, list[Figures]] = {share: [] for share in searches}
    for _ in range(ROUNDS):
        for share, where in searches.items():
            rounds[share].append(latencies(partial(_search, index, where), queries))
    return rounds


def _search(index: LexicalIndex, where: Filter | None, terms: Sequence[str]) -> list[Any]:
    return index.search(terms, K, Lucene(), where=where)


def _exact(index: LexicalIndex, share: str, queries: Sequence[Sequence[str]]) -> bool:
    """Whether the filtered searches give what passes of the ranking of every document."""
    for terms in queries:
        every = index.search(terms, len(index), Lucene())
        expected = [hit for hit in every if hit.chunk.metadata["bucket"] in SHARES[share]][:K]
        if _search(index, _where(share), terms) != expected:
            return False
    return True

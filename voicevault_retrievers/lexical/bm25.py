"""The keyword channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from voicevault_retrievers.channel import Leaf, Match, weighted
from voicevault_retrievers.checks import flag
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.lexical.formulas import BM25L, FORMULAS, BM25Plus, Formula, Okapi
from voicevault_retrievers.lexical.index import LexicalIndex, Segment, TermScore
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.text.analyzer import Analyzer
from voicevault_retrievers.types import Chunk, Query, Variant, as_query

Tokenizer: TypeAlias = Callable[[str], Sequence[str]]


class BM25(Leaf):
    """BM25 over an index. A chunk is found when it shares a term with the query, whatever its score.

    Scores are 0 or more for most formulas, unbounded, higher is better. `analyzer` must be the one that the index was
    built with. `statistics` "filtered" counts document frequencies and lengths over what passes `Query.where` alone;
    `Query.require` always does. `exclude_nonpositive` drops chunks that match and score 0 or less.
    """

    def __init__(
        self,
        index: LexicalIndex,
        analyzer: Analyzer | Tokenizer | None = None,
        *,
        formula: Formula | str = "lucene",
        statistics: str = "collection",
        exclude_nonpositive: bool = False,
        timeout: float | None = None,
        name: str = "bm25",
    ) -> None:
        super().__init__(name, "keyword", timeout=timeout)
        if statistics not in ("collection", "filtered"):
            raise unknown("statistics", statistics, ("collection", "filtered"))
        self.index = index
        self.analyzer = Analyzer() if analyzer is None else analyzer
        self.formula = formula_of(formula)
        self.statistics = statistics
        self.exclude_nonpositive = flag("exclude_nonpositive", exclude_nonpositive)

    @classmethod
    def from_chunks(cls, chunks: Iterable[Chunk], analyzer: Analyzer | Tokenizer | None = None, **options: Any) -> BM25:
        """BM25 over chunks held in memory; `options` are those of the constructor."""
        rows = Rows.of(chunks)
        chosen = Analyzer() if analyzer is None else analyzer
        return cls(LexicalIndex.build(rows, (chosen(chunk.text) for chunk in rows.chunks)), chosen, **options)

    @classmethod
    def from_rank_bm25(
        cls, ranker: Any, chunks: Sequence[Chunk], tokenizer: Tokenizer | None = None, **options: Any
    ) -> BM25:
        """BM25 over what a rank-bm25 object holds, with its scores; `chunks` are its documents, in its order.

        `tokenizer` must be what the documents were split with; without one it is the object's own, else `str.split`.
        Raises ConfigError where the numbers of documents differ or the object is of another class.
        """
        formula = _formula_of_ranker(ranker)
        if len(chunks) != len(ranker.doc_freqs):
            raise ConfigError(
                f"the rank-bm25 object holds {len(ranker.doc_freqs)} documents, given {len(chunks)} chunks"
            )
        rows = Rows.of(chunks)
        counts = {chunk.id: frequencies for chunk, frequencies in zip(chunks, ranker.doc_freqs, strict=True)}
        postings = Postings.build(
            [term for term, f in counts[chunk_id].items() for _ in range(f)] for chunk_id in rows.ids
        )
        chosen = tokenizer or ranker.tokenizer or str.split
        return cls(LexicalIndex([Segment(rows, postings)]), chosen, formula=formula, **options)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [self._find(query, wording.text, k) for wording in wordings]

    def scores(self, query: Query, ids: Iterable[str]) -> Mapping[str, float]:
        wanted, best = list(ids), dict[str, float]()
        for wording in self._wordings(query):
            terms = list(self.analyzer(wording.text))
            found = self.index.scores(terms, wanted, self.formula, **self._scope(query))
            for chunk_id, score in found.items():
                best[chunk_id] = max(best.get(chunk_id, -math.inf), weighted(score, wording.weight))
        return best

    def explain(self, query: str | Query, chunk_id: str) -> list[TermScore]:
        """The terms of a chunk's score for the query's own text, which add up to it."""
        asked = as_query(query)
        return self.index.explain(list(self.analyzer(asked.text)), chunk_id, self.formula, **self._scope(asked))

    def _scope(self, query: Query) -> dict[str, Any]:
        """Which chunks are searched, and which count."""
        return {"where": query.where, "require": query.require, "filtered": self.statistics == "filtered"}

    def _find(self, query: Query, text: str, k: int) -> list[Match]:
        pairs = self._pairs(text)
        found = self.index.search(
            [term for _, term in pairs],
            k,
            self.formula,
            positive=self.exclude_nonpositive,
            **self._scope(query),
        )
        words = {term: word for word, term in reversed(pairs)}
        return [Match(hit.chunk, hit.score, tuple(words[term] for term in hit.terms)) for hit in found]

    def _pairs(self, text: str) -> list[tuple[str, str]]:
        if isinstance(self.analyzer, Analyzer):
            return self.analyzer.pairs(text)
        return [(term, term) for term in self.analyzer(text)]

    def __repr__(self) -> str:
        return f"BM25({self.formula!r}, analyzer={self.analyzer!r}, chunks={len(self.index)})"


def formula_of(formula: Formula | str) -> Formula:
    """A formula by its name in `FORMULAS`, with its default constants, or as given."""
    if isinstance(formula, Formula):
        return formula
    if formula not in FORMULAS:
        raise unknown("BM25 formula", formula, FORMULAS)
    return FORMULAS[formula]()


def _formula_of_ranker(ranker: Any) -> Formula:
    made: dict[str, Callable[[], Formula]] = {
        "BM25Okapi": lambda: Okapi(ranker.k1, ranker.b, ranker.epsilon),
        "BM25L": lambda: _RankBM25L(ranker.k1, ranker.b, ranker.delta),
        "BM25Plus": lambda: BM25Plus(ranker.k1, ranker.b, ranker.delta),
    }
    name = type(ranker).__name__
    if name not in made:
        raise unknown("rank-bm25 class", name, made)
    return made[name]()


class _RankBM25L(BM25L):
    """rank-bm25's BM25L multiplies by the frequency once more than the paper does."""

    def tf(self, f: Any, norm: Any) -> Any:
        return f * super().tf(f, norm)

    def absent(self) -> float:
        return 0.0

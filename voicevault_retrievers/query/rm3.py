"""Query expansion with words from the hits of a first search (pseudo-relevance feedback)."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.checks import number, whole
from voicevault_retrievers.core.channel import Channel, Rewriter
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, as_query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, analyse, query_terms
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.query.corpus import added, keyword_channel
from voicevault_retrievers.query.phrases import extended
from voicevault_retrievers.text import Analyzer, QueryTerm
from voicevault_retrievers.text.analyzed_texts import tags_of

SHORTEST, LONGEST = 2, 20
"""The least and the greatest number of characters of an added word."""
KEPT = 1024
"""The number of texts whose terms are cached, as the same documents are often found."""
COMMON = 0.1
"""A word in more than this share of the chunks is not added."""


class RM3(Rewriter):
    """Adds a wording for BM25: the question, with the words of the highest weight in a first search's best `documents`.

    The weight of a word w is `p(w) = sum over documents of score / (sum of scores) * f / length`, where f is its
    frequency in the document. The best `terms` are added, with p normalised to sum to 1. Relative to a question's
    words, each of which counts 1, a term counts `(1 - original) / original * p` times the number of the question's
    words. This is proportional to the model's `original * q(w) + (1 - original) * p(w)`, and no hit scores less than
    for the question alone. Documents weigh the same where one has no score above 0. Words of more than `COMMON` of the
    counted chunks are left out, where the channel is a BM25.

    `channel` is the keyword channel for the first search, under the query's own filters; by default the channel behind
    this rewriter (`RM3() >> channel`). `analyzer` maps words to terms; by default it is the channel's. Where the first
    search fails, the question is searched unchanged, with the failure.

    Lavrenko, Croft (2001), "Relevance-Based Language Models"; Abdul-Jaleel et al. (2004), "UMass at TREC 2004: Novelty
    and HARD", with its interpolation. There a document's weight is its query likelihood; here, as in Anserini, it is
    the BM25 score. Leaving out common words is Anserini's, too.
    """

    name = "rm3"
    blocking = True

    def __init__(
        self,
        channel: Channel | None = None,
        *,
        documents: int = 10,
        terms: int = 10,
        original: float = 0.5,
        analyzer: AnyAnalyzer | None = None,
    ) -> None:
        super().__init__()
        if channel is not None and not isinstance(channel, Channel):
            raise ConfigError(f"the channel that is searched first is a Channel, not {channel!r}")
        self.channel = channel
        self.documents = whole("documents", documents)
        self.terms = whole("terms", terms)
        self.original = number("original", original)
        if not 0 < original <= 1:
            raise ConfigError(f"original is the share of the question, above 0 and at most 1, not {original!r}")
        self._analyzer = analyzer
        self._read: LRUCache[tuple[AnyAnalyzer, str], list[QueryTerm] | None] = LRUCache(KEPT)

    @property
    def analyzer(self) -> AnyAnalyzer:
        if self._analyzer is not None:
            return self._analyzer
        return self.channel.analyzer if isinstance(self.channel, BM25) else Analyzer()

    def rewrite(self, query: Query) -> Query:
        return self._expanded(query, self._first().search(query, self.documents))

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        try:
            found = yield from self._first().plan(query, self.documents)
        except Exception as error:  # noqa: BLE001 - the question can be searched unchanged, whatever was raised
            return query, (Failure.of(self.name, error, self.instead),)
        (outcome,) = yield (replace(self.call(query), function=lambda: self._expanded(query, found)),)
        failures = tuple(failure.within(self.name) for failure in found.errors)
        if isinstance(outcome, Exception):
            return query, (*failures, Failure.of(self.name, outcome, self.instead))
        return as_query(outcome), failures

    def over(self, channel: Channel) -> RM3:
        if self.channel is not None:
            return self
        twin = copy.copy(self)
        twin.channel = keyword_channel(channel)
        return twin

    def _first(self) -> Channel:
        if self.channel is None:
            raise ConfigError("there is no keyword channel to search first: give RM3 a channel")
        return self.channel

    def _expanded(self, query: Query, found: Ranking) -> Query:
        hits = found.hits[: self.documents]
        own, *texts = self._terms([query.text, *(hit.chunk.text for hit in hits)])
        heaviest = self._heaviest(query, _shares(hits), texts)
        if not heaviest or self.original == 1:
            return query
        each = (1 - self.original) / self.original * max(1, len(own)) / sum(weight for weight, _ in heaviest)
        return added(query, [extended(query, {word: each * weight for weight, word in heaviest})])

    def _heaviest(
        self, query: Query, shares: Iterable[float], texts: Iterable[Sequence[QueryTerm]]
    ) -> list[tuple[float, str]]:
        """The terms of the highest weight, each as its most frequent word, with their weights."""
        weights: defaultdict[tuple[str, ...], float] = defaultdict(float)
        spelt: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for share, terms in zip(shares, texts, strict=True):
            for term in terms:
                weights[term.forms] += share / len(terms)
                spelt[term.forms][term.word] += 1
        common = self._common(query, weights)
        words = [
            (weight, min(spelt[forms].items(), key=lambda entry: (-entry[1], entry[0]))[0])
            for forms, weight in weights.items()
            if forms not in common
        ]
        fitting = [(weight, word) for weight, word in words if SHORTEST <= len(word) <= LONGEST]
        return sorted(fitting, key=lambda entry: (-entry[0], entry[1]))[: self.terms]

    def _common(self, query: Query, terms: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
        if not isinstance(self.channel, BM25):
            return set()
        shares = self.channel.index.shares(dict.fromkeys(terms, 1.0), require=query.require)
        return {forms for forms, share in shares.items() if share > COMMON}

    def _terms(self, texts: Sequence[str]) -> list[list[QueryTerm]]:
        """The terms of each text in its own language, with repeats."""
        analyzer = self.analyzer
        found = {text: self._read.get((analyzer, text)) for text in texts}
        new = [text for text, terms in found.items() if terms is None]
        for text, languages in zip(new, analyse(analyzer, new).languages.tolist(), strict=True):
            found[text] = query_terms(analyzer, text, tags_of(languages))
            self._read.put((analyzer, text), found[text])
        return [found[text] or [] for text in texts]

    def __repr__(self) -> str:
        return f"RM3(documents={self.documents}, terms={self.terms}, original={self.original})"


def _shares(hits: Sequence[Hit]) -> list[float]:
    """Each hit's share of the scores."""
    scores = [hit.score or 0.0 for hit in hits]
    if not all(score > 0 for score in scores):
        return [1 / len(hits)] * len(hits)
    return [score / sum(scores) for score in scores]

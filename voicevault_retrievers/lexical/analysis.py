"""One face for every kind of analyzer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from voicevault_retrievers.lexical.asked import Forms
from voicevault_retrievers.text import Analyzed, Analyzer, CustomAnalyzer, QueryTerm
from voicevault_retrievers.types import Variant

Tokenizer: TypeAlias = Callable[[str], Sequence[str]]
AnyAnalyzer: TypeAlias = Analyzer | CustomAnalyzer | Tokenizer


def analyse(analyzer: AnyAnalyzer, texts: Sequence[str]) -> Analyzed:
    """The terms of texts."""
    if isinstance(analyzer, Analyzer | CustomAnalyzer):
        return analyzer.analyse(texts)
    return Analyzed.of(map(analyzer, texts))


def query_terms(analyzer: AnyAnalyzer, text: str, tags: str) -> list[QueryTerm]:
    """The terms of a query for an index whose terms carry these tags."""
    if isinstance(analyzer, Analyzer | CustomAnalyzer):
        return analyzer.query(text, tags)
    return [QueryTerm(term, (term,)) for term in analyzer(text)]


def weighed_terms(analyzer: AnyAnalyzer, wording: Variant, tags: str) -> tuple[list[QueryTerm], Mapping[Forms, float]]:
    """The terms of a wording as of `query_terms`, repeats kept, and how often each counts in all."""
    asked: list[QueryTerm] = []
    counts: dict[Forms, float] = {}
    for text, count in ({wording.text: 1} if wording.terms is None else wording.terms).items():
        own = query_terms(analyzer, text, tags)
        asked += own
        for term in own:
            counts[term.forms] = counts.get(term.forms, 0) + count
    return asked, counts

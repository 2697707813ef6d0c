"""One face for every kind of analyzer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from voicevault_retrievers.text import Analyzed, Analyzer, CustomAnalyzer, QueryTerm

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

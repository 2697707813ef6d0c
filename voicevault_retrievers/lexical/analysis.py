"""One interface to all kinds of analyzers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from voicevault_retrievers.core.types import Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.weighted_query import Forms
from voicevault_retrievers.text import Analyzed, Analyzer, CustomAnalyzer, QueryTerm

Tokenizer: TypeAlias = Callable[[str], Sequence[str]]
AnyAnalyzer: TypeAlias = Analyzer | CustomAnalyzer | Tokenizer
A = TypeVar("A")

_LOG = logging.getLogger(__name__)


def checked_analyzer(analyzer: A) -> A:
    """An analyzer as it is; ConfigError for what makes no terms of a text."""
    if not callable(analyzer):
        raise ConfigError(f"an analyzer is an Analyzer, or a function from a text to its terms, not {analyzer!r}")
    return analyzer


class PlainWords:
    """Warns once where a channel expects unstemmed words and its analyzer stems."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._told = False

    def check(self, analyzer: AnyAnalyzer) -> None:
        """Log a warning, at the first call, where the analyzer stems."""
        if self._told or not isinstance(analyzer, Analyzer) or analyzer.language is None or not analyzer.stemming:
            return
        self._told = True
        _LOG.warning(
            "%s: words are expected as they are (plain_words), and the index has stems (%r): scores and matched words "
            "are of stems. For an unstemmed index: `voicevault index --language none`, or Analyzer(language=None)",
            self._channel, analyzer,
        )  # fmt: skip


def analyse(analyzer: AnyAnalyzer, texts: Sequence[str]) -> Analyzed:
    """The terms of texts."""
    if isinstance(analyzer, Analyzer | CustomAnalyzer):
        return analyzer.analyse(texts)
    return Analyzed.of(map(checked_analyzer(analyzer), texts))


def query_terms(analyzer: AnyAnalyzer, text: str, tags: str) -> list[QueryTerm]:
    """The terms of a query for an index with the given language tags."""
    if isinstance(analyzer, Analyzer | CustomAnalyzer):
        return analyzer.query(text, tags)
    return [QueryTerm(term, (term,)) for term in analyzer(text)]


def words_in(analyzer: AnyAnalyzer, text: str, asked: Sequence[QueryTerm], tags: str) -> tuple[str, ...]:
    """The words of a query that have a term in a text, in the query's order."""
    forms = {form for term in query_terms(analyzer, text, tags) for form in term.forms}
    return tuple(dict.fromkeys(term.word for term in asked if forms.intersection(term.forms)))


def weighed_terms(analyzer: AnyAnalyzer, wording: Variant, tags: str) -> tuple[list[QueryTerm], Mapping[Forms, float]]:
    """The terms of a wording as from `query_terms`, with repeats, and the total weight of each term."""
    asked: list[QueryTerm] = []
    counts: dict[Forms, float] = {}
    for text, count in ({wording.text: 1} if wording.terms is None else wording.terms).items():
        own = query_terms(analyzer, text, tags)
        asked += own
        for term in own:
            counts[term.forms] = counts.get(term.forms, 0) + count
    return asked, counts

"""Reads a wording for an index: its terms, those that patterns and misspelled words stand for, and its demands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Literal, NamedTuple, TypeAlias

from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, query_terms, weighed_terms, words_in
from voicevault_retrievers.lexical.formulas import Formula
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.lexical.operators import Demands, Operators, TermPattern
from voicevault_retrievers.lexical.term_dictionary import NearTerm, TermDictionary
from voicevault_retrievers.lexical.term_groups import GroupedIndex
from voicevault_retrievers.lexical.weighted_query import Forms, WeightedQuery
from voicevault_retrievers.text import Analyzer, QueryTerm, untagged
from voicevault_retrievers.text.prefixes import Beginning, beginnings
from voicevault_retrievers.text.spelling import LONGEST, edits_allowed, plain_matches

Fuzzy: TypeAlias = Literal[False, "auto", 1, 2]

NEAREST = 10
"""The most terms that a misspelled word stands for."""
PREFIXED = 100
"""The most terms that score for a prefix: those of the most chunks."""


class ExpandedTerm(NamedTuple):
    """A word of a query and the terms of the index that count as it, in all `found`.

    `is_unknown` where no counted chunk has the word itself.
    """

    word: str
    terms: tuple[str, ...]
    found: int
    is_unknown: bool

    @property
    def name(self) -> str:
        """The name of the terms' group."""
        return f"\0{self.word}"


@dataclass(frozen=True)
class QueryReading:
    """A wording analysed for an index: its words, its terms in the index, and the demands of its operators.

    `words_in` tells which of the words have a term in a text. `index` has a group of terms for each of the
    `expansions`; `tags` are its languages.
    """

    index: LexicalIndex
    words: Sequence[QueryTerm]
    asked: WeightedQuery
    demands: Demands | None
    words_in: Callable[[str], tuple[str, ...]]
    tags: str
    expansions: Sequence[ExpandedTerm] = ()

    @cached_property
    def word_of(self) -> Mapping[str, str]:
        """The first word of each term, by the term's first form."""
        return {term.forms[0]: term.word for term in reversed(self.words)}

    def scores(self, ids: Sequence[str], passing: Filter | None) -> dict[str, float]:
        """The scores of those given chunks that a search could find; 0 where no term matches."""
        left = self.demands.passing(self.index.segments, ids) if self.demands else ids
        return self.index.scored(self.asked, left, passing)


@dataclass(frozen=True)
class QueryReader:
    """Reads wordings with an analyzer; `operators` and `fuzzy` are those of `BM25`."""

    analyzer: AnyAnalyzer
    formula: Formula
    operators: bool
    fuzzy: Fuzzy

    def read(self, index: LexicalIndex, query: Query, wording: Variant, counting: Filter | None) -> QueryReading:
        """A wording's terms, looked up in an index, with the demands of its own operators and the query's."""
        tags = index.tags(counting)
        terms_of = _Terms(self.analyzer, index, counting, tags)
        demands, literal = None, Operators("")
        patterns: dict[TermPattern, float] = {}
        if self.operators:
            literal = self._parsed(wording.text)
            demanding = literal if wording.text == query.text else literal.under(self._parsed(query.text))
            demands = demanding.demands(self.analyzer, tags, terms_of.pattern)
            wording, patterns = self._bare(wording, literal)
        words, terms = weighed_terms(self.analyzer, wording, tags)
        finding = partial(words_in, self.analyzer, tags=tags)
        asked = index._ask(terms, self.formula, counting)
        expansions = [terms_of.expanded(pattern) for pattern in patterns]
        names: dict[Forms, ExpandedTerm] = {(one.name,): one for one in expansions}
        if self.fuzzy:
            plain = partial(_plain_words, wording, " ".join([*map(str, literal.must), *literal.phrases]))
            names |= terms_of.corrections(words, set(asked.terms), plain, self.fuzzy)
        if not names:
            return QueryReading(index, words, asked, demands, cache(partial(finding, asked=words)), tags)
        weighed = {**terms, **dict(zip(names, patterns.values(), strict=False))}
        words = [term._replace(forms=_forms(names.get(term.forms), term.forms)) for term in words]
        words += [QueryTerm(one.word, _forms(one)) for one in expansions]
        grouped = GroupedIndex(index, {one.name: one.terms for one in names.values()})
        renamed = {((names[forms].name,) if forms in names else forms): count for forms, count in weighed.items()}
        return QueryReading(
            grouped,
            words,
            grouped._ask(renamed, self.formula, counting),
            demands,
            cache(partial(finding, asked=words)),  # many chunks have one header
            tags,
            tuple(names.values()),
        )

    def corrects(self, index: LexicalIndex, texts: Sequence[str]) -> list[bool]:
        """Which of some plain queries have words that are corrected."""
        if not self.fuzzy:
            return [False] * len(texts)
        tags = index.tags()
        terms_of = _Terms(self.analyzer, index, None, tags)
        read = [query_terms(self.analyzer, text, tags) for text in texts]
        known = set(index._ask({term.forms: 1.0 for terms in read for term in terms}, self.formula, None).terms)
        return [
            bool(terms_of.corrections(terms, known, partial(_plain_words, Variant(text)), self.fuzzy))
            for terms, text in zip(read, texts, strict=True)
        ]

    def _parsed(self, text: str) -> Operators:
        return Operators.parse(text, self.analyzer)

    def _bare(self, wording: Variant, parsed: Operators) -> tuple[Variant, dict[TermPattern, float]]:
        """The wording without its operators, and the weight of each of its patterns."""
        patterns: dict[TermPattern, float] = {}
        bare: dict[str, float] = {}
        for text, count in ({wording.text: 1.0} if wording.terms is None else wording.terms).items():
            own = parsed if text == wording.text else self._parsed(text)
            bare[own.text] = count
            for pattern in own.patterns:
                patterns[pattern] = patterns.get(pattern, 0.0) + count
        return replace(wording, text=parsed.text, terms=None if wording.terms is None else bare or None), patterns


class _Terms:
    """The terms of an index that patterns and misspelled words stand for."""

    def __init__(self, analyzer: AnyAnalyzer, index: LexicalIndex, counting: Filter | None, tags: str) -> None:
        self._analyzer = analyzer
        self._tags = tags
        self._dictionary = TermDictionary(index.segments, index.population(counting))
        self._patterns: dict[TermPattern, Sequence[str]] = {}

    def pattern(self, pattern: TermPattern) -> Sequence[str]:
        """All terms that a pattern stands for, the best first."""
        if pattern not in self._patterns:
            self._patterns[pattern] = self._found(pattern)
        return self._patterns[pattern]

    def _found(self, pattern: TermPattern) -> Sequence[str]:
        begins = _beginnings(self._analyzer, pattern.word, self._tags)
        if pattern.is_prefix:
            return self._dictionary.beginning(begins)
        read = query_terms(self._analyzer, pattern.word, self._tags)
        forms = read[0].forms if read else tuple(one.prefix for one in begins)
        return [near.term for near in self._near(forms, pattern.edits)]

    def expanded(self, pattern: TermPattern) -> ExpandedTerm:
        """A pattern with the terms that score for it."""
        found = self.pattern(pattern)
        kept = found[: PREFIXED if pattern.is_prefix else NEAREST]
        return ExpandedTerm(str(pattern), tuple(kept), len(found), is_unknown=False)

    def corrections(
        self,
        words: Iterable[QueryTerm],
        known: Collection[Forms],
        plain: Callable[[], set[str]],
        fuzzy: Literal["auto", 1, 2],
    ) -> Mapping[Forms, ExpandedTerm]:
        """The plain words that are not among the known terms, with the nearest terms, where there are any.

        Most queries have none, so `plain` gives the plain words when they are needed.
        """
        others = [term for term in words if term.forms not in known]
        written = plain() if others else set()
        unknown: dict[Forms, str] = {}
        for term in others:
            if term.word.casefold() in written:
                unknown.setdefault(term.forms, term.word)
        allowed = edits_allowed if fuzzy == "auto" else lambda word: fuzzy if len(word) <= LONGEST else 0
        found = {forms: self._near(forms, allowed) for forms in unknown}
        nearest = {forms: [one for one in near if one.edits == near[0].edits] for forms, near in found.items()}
        return {
            forms: ExpandedTerm(unknown[forms], tuple(one.term for one in near[:NEAREST]), len(near), is_unknown=True)
            for forms, near in nearest.items()
            if near
        }

    def _near(self, forms: Forms, allowed: Callable[[str], int]) -> list[NearTerm]:
        """The terms near to any of some forms, the nearest first."""
        found: dict[str, NearTerm] = {}
        for form in forms:
            word = untagged(form)
            edits = min(allowed(word), len(word) - 1)
            for near in self._dictionary.near(form, edits) if edits > 0 else ():
                found[near.term] = min(near, found.get(near.term, near))
        return sorted(found.values())


def fuzzy_of(value: object) -> Fuzzy:
    """The option `fuzzy`: False, True (which is "auto"), "auto", 1 or 2; ConfigError for any other value."""
    if value is True or value == "auto":
        return "auto"
    if value is False:
        return False
    if isinstance(value, int) and value in (1, 2):
        return 1 if value == 1 else 2
    raise ConfigError(f'fuzzy is true, false, "auto", or the most edits, 1 or 2, and not {value!r}')


def _beginnings(analyzer: AnyAnalyzer, word: str, tags: str) -> list[Beginning]:
    if isinstance(analyzer, Analyzer):
        return beginnings(analyzer, word, tags)
    return [Beginning(form, frozenset()) for term in query_terms(analyzer, word, tags) for form in term.forms]


def _plain_words(wording: Variant, fixed: str = "") -> set[str]:
    """The words of a wording that may be misspelled, case folded, less those of a fixed text."""
    texts = (wording.text,) if wording.terms is None else tuple(wording.terms)
    found = {word.casefold() for text in texts for _, word in plain_matches(text)}
    return found - {word.casefold() for _, word in plain_matches(fixed)}


def _forms(expansion: ExpandedTerm | None, forms: Forms = ()) -> Forms:
    """The forms of a word: the name of its group and the terms in it, else its own."""
    return forms if expansion is None else (expansion.name, *expansion.terms)

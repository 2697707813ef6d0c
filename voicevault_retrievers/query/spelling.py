"""Query expansion by the spellings of a corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, analyse, query_terms
from voicevault_retrievers.query.corpus import Corpus, Learned, piece_counts, word_counts
from voicevault_retrievers.query.phrases import reworded
from voicevault_retrievers.query.related_words import american
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.analyzed_texts import tags_of
from voicevault_retrievers.text.spelling import LONGEST, SHORTEST, Nearest, edits_allowed, plain_matches

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class CorpusWords:
    """The vocabulary of a corpus: words with frequencies, terms, and the terms' language tags."""

    counts: Mapping[str, int]
    terms: frozenset[str]
    tags: str
    nearest: Nearest
    siblings: Mapping[str, Sequence[str]]
    """The corpus' words by American spelling, where there are several, or where the only one is spelled otherwise."""


class SpellingExpansion(Learned[CorpusWords]):
    """Adds a wording with the corpus' spellings: of words that it lacks, and of British or American words.

    A word whose stem is unknown to the corpus, too, is replaced by the nearest known word: at most one edit away, or
    two for longer words; ties by frequency. Short words, identifiers, numbers and words in capitals are left unchanged
    (see `text.spelling`). `analyzer` decides which words have the same stem.
    """

    name = "spelling"

    def __init__(
        self, corpus: Corpus | None = None, *, analyzer: AnyAnalyzer | None = None, timeout: float | None = None
    ) -> None:
        super().__init__(corpus, timeout=timeout)
        self.analyzer = Analyzer() if analyzer is None else analyzer

    def learn(self, texts: Iterable[str]) -> CorpusWords:
        pieces: Counter[bytes] = Counter()
        terms: set[str] = set()
        languages = 0
        for batch in _batches(texts):
            pieces.update(piece_counts(batch))
            analyzed = analyse(self.analyzer, batch)
            terms.update(analyzed.vocabulary)
            languages |= int(np.bitwise_or.reduce(analyzed.languages, initial=0))
        counts = word_counts(pieces)
        near = {word: count for word, count in counts.items() if SHORTEST <= len(word) <= LONGEST}
        return CorpusWords(counts, frozenset(terms), tags_of(languages), Nearest(near), _siblings(near))

    def variants(self, query: Query, known: CorpusWords) -> Iterable[Variant]:
        found = [
            (place, other)
            for place, written in plain_matches(query.text)
            if (other := self._other(written.casefold(), known)) is not None
        ]
        if found:
            yield reworded(query, found)

    def _other(self, word: str, known: CorpusWords) -> str | None:
        """The replacement for a word; None where the word stays."""
        if not (edits := edits_allowed(word)):
            return None
        sibling = next((other for other in known.siblings.get(american(word), ()) if other != word), None)
        if sibling is not None or self._has(word, known):
            return sibling
        return known.nearest.of(word, edits)

    def _has(self, word: str, known: CorpusWords) -> bool:
        if word in known.counts:
            return True
        asked = query_terms(self.analyzer, word, known.tags)
        return not asked or any(form in known.terms for term in asked for form in term.forms)

    def __repr__(self) -> str:
        return f"SpellingExpansion(analyzer={self.analyzer!r})"


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _siblings(counts: Mapping[str, int]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for word in counts:
        found[american(word)].append(word)
    return {key: sorted(own, key=lambda word: (-counts[word], word)) for key, own in found.items() if own != [key]}

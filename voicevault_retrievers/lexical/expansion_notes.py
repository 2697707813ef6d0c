"""Notes on words of a query that stand for other terms of the index: "did you mean", and prefixes of many terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice

from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import Failure
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, query_terms
from voicevault_retrievers.lexical.reading import ExpandedTerm, QueryReading
from voicevault_retrievers.text import untagged
from voicevault_retrievers.text.spelling import WordList

SHOWN = 3
"""The most words that a note suggests."""
READ = 5
"""The most hits whose texts are read to find the words of terms."""
FAR = 5
"""Words of this many edits and more are equally far from the written word."""


class Noted(ABC):
    """Matches that have notes."""

    @abstractmethod
    def notes(self, stage: str) -> Mapping[str, Failure]:
        """The notes by the word that they are about, as those of a channel of this name."""


def expansion_notes(
    stage: str, reading: QueryReading, analyzer: AnyAnalyzer, matches: Sequence[Match]
) -> dict[str, Failure]:
    """The notes on the expansions of a reading, by word, with words from the texts of its matches.

    A corrected word has a note "DidYouMean", a pattern that stands for more terms than are searched "TooManyTerms".
    """
    notes: dict[str, Failure] = {}
    for one in reading.expansions:
        if one.is_unknown:
            words = _words(one, reading.tags, analyzer, matches)
            said = f"no chunk has {one.word!r}: {_listed(words)} searched"
            notes[one.word] = Failure(stage, "DidYouMean", said, degrades=False)
        elif one.found > len(one.terms):
            said = f"{one.word!r} stands for {one.found} terms of the index: the first {len(one.terms)} were searched"
            notes[one.word] = Failure(stage, "TooManyTerms", said, degrades=False)
    return notes


def _words(expansion: ExpandedTerm, tags: str, analyzer: AnyAnalyzer, matches: Sequence[Match]) -> list[str]:
    """The words of an expansion's terms, quoted: as the best hits have them, else the term itself.

    Of several words with one term, that with the fewest edits.
    """
    found: dict[str, dict[str, None]] = {term: {} for term in expansion.terms}
    for match in islice((match for match in matches if expansion.word in match.terms), READ):
        for word, forms in query_terms(analyzer, match.chunk.indexed_text, tags):
            for form in found.keys() & forms:
                found[form][word] = None
        if all(found.values()):
            break
    told = (_nearest(expansion.word, list(words)) or f"{untagged(term)!r} (a stem)" for term, words in found.items())
    return list(dict.fromkeys(told))


def _nearest(word: str, others: Sequence[str]) -> str | None:
    """The first of some words with the fewest edits, quoted; None where there are none."""
    return repr(others[int(WordList(others).distances(word, FAR).argmin())]) if others else None


def _listed(words: Sequence[str]) -> str:
    shown = list(words[:SHOWN]) + ([f"{len(words) - SHOWN} more"] if len(words) > SHOWN else [])
    return f"{' and '.join(filter(None, [', '.join(shown[:-1]), shown[-1]]))} {'was' if len(words) == 1 else 'were'}"

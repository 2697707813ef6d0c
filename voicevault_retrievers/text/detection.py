"""Which language a document is in: for each script, the one whose stopwords the document has most of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.text.languages import LATIN, OTHER, TAGS, candidates, script
from voicevault_retrievers.text.stopwords import ENGLISH, STOPWORDS

UNIT = 5040
"""The vote of a word that one language has; n languages share it. Divisible by 1 to 10."""

PRIOR = 0.75
"""Of a vote, what the first candidate of a script has in advance: names and code hold a strange word or two."""

_LETTERS = {
    "de": "äöüß", "fr": "àâçéèêëîïôùûœ", "es": "áéíñóú", "it": "àèìòù", "pt": "áâãçéêíóôõú", "nl": "ëï",
    "pl": "ąćęłńóśźż", "sv": "åäö", "tr": "çğıöşü", "da": "æøå", "no": "æøå", "fi": "äö", "cs": "áčďéěíňřšťúůýž",
    "hu": "áéíóöőúüű", "ro": "ăâîșțşţ", "ca": "àçèéíïòóúü", "et": "äõöüšž", "eu": "ñ", "ga": "áéíóú", "lt": "ąčėęįšūųž",
    "sr": "čćđšž",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Ballots:
    """`of` gives each telling word the number of its row in `votes` (b, c), which has a column for each candidate.

    `languages` names the columns by their tags' numbers; `columns` are those of each script.
    """

    of: dict[str, int]
    letters: dict[str, int]
    votes: NDArray[np.float64]
    languages: NDArray[np.uint8]
    columns: dict[int, slice]

    def number(self, word: str) -> int:
        """The word's row; 0, which holds no votes, where it does not tell.

        Of l'acqua it is the l that does, and of a word that is no stopword the letter that the fewest languages have.
        """
        row = self.of.get(word) or ("'" in word and self.of.get(word.partition("'")[0] + "'"))
        return row or (0 if word.isascii() else self._by_letter(word))

    def _by_letter(self, word: str) -> int:
        rows = [self.letters[letter] for letter in set(word) & self.letters.keys()]
        return max(rows, key=lambda row: (self.votes[row].max(), row), default=0)


def languages(ballots: Ballots, sums: NDArray[np.float64], prior: float = PRIOR) -> NDArray[np.uint8]:
    """The languages of d documents in each script (d, OTHER + 1), as numbers of tags; 0 where there is but one way.

    `sums` (d, c) are the votes that each document has for each column; the first candidate of a script has `prior`
    votes more, and wins ties.
    """
    found = np.zeros((len(sums), OTHER + 1), dtype=np.uint8)
    for kind, columns in ballots.columns.items():
        ahead = sums[:, columns] - UNIT * prior * (np.arange(columns.stop - columns.start) > 0)
        found[:, kind] = ballots.languages[columns][np.argmax(ahead, axis=1)]
    return found


@cache
def ballots() -> Ballots:
    """The ballots of all stopwords. A letter that stands alone is a variable as often as a word, and does not vote."""
    places = [(kind, language) for kind, languages in candidates().items() for language in languages]
    voters: dict[str, list[int]] = defaultdict(list)
    for column, (kind, language) in enumerate(places):
        for word in ENGLISH if language == "en" else STOPWORDS[language]:
            if script(word) == kind:
                voters[f"{word}'" if kind == LATIN and len(word) == 1 else word].append(column)
    letters: dict[str, list[int]] = defaultdict(list)
    for column, (kind, language) in enumerate(places):
        for letter in _LETTERS.get(language, "") if kind == LATIN else "":
            letters[letter].append(column)
    return _ballots(places, voters, letters)


def _ballots(places: list[tuple[int, str]], words: dict[str, list[int]], letters: dict[str, list[int]]) -> Ballots:
    sets = sorted({tuple(columns) for columns in (*words.values(), *letters.values())})
    rows = {columns: row for row, columns in enumerate(sets, start=1)}
    votes = np.zeros((len(rows) + 1, len(places)))
    for columns, row in rows.items():
        votes[row, list(columns)] = UNIT // len(columns)
    kinds = [kind for kind, _ in places]
    return Ballots(
        {word: rows[tuple(columns)] for word, columns in words.items()},
        {letter: rows[tuple(columns)] for letter, columns in letters.items()},
        votes,
        np.array([ord(TAGS[language]) for _, language in places], dtype=np.uint8),
        {kind: slice(kinds.index(kind), kinds.index(kind) + kinds.count(kind)) for kind in dict.fromkeys(kinds)},
    )

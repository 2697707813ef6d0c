"""Analyses many texts: each distinct piece is analysed once, and the stream of pieces is handled as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.text import pieces, scan
from voicevault_retrievers.text.analyzed_texts import Analyzed
from voicevault_retrievers.text.languages import NEUTRAL, OTHER, Ballots, languages, script
from voicevault_retrievers.text.pieces import Numbers, spread

BATCH = 32 << 20
"""The bytes of text per batch, which bounds the memory for the numbers of their pieces."""

MOST = 8 << 20
"""The bytes of distinct pieces that are cached between batches: about a million words."""

Words = Callable[[bytes], list[str]]
Terms = Callable[[Sequence[str], int], list[str]]
Ints = NDArray[np.int32]
Ends = NDArray[np.int64]

_SHIFTS = 32 ** np.arange(OTHER + 1)
_UNKNOWN, _NONE = -2, -1


class Reader:
    """Reads texts in batches.

    `words(piece)` returns a piece's words. `terms(words, language)` returns the words' terms in a language, "" for
    none; a language is the number of its tag, 0 for no language. `reading` has the languages of all documents by script
    (NEUTRAL, LATIN, ...); None where `ballots` detect them.
    """

    def __init__(self, words: Words, terms: Terms, reading: Sequence[int] | None, ballots: Ballots | None) -> None:
        self._read = words
        self._make = terms
        self._reading = reading
        self._ballots = ballots
        self.vocabulary: Numbers[str] = Numbers()
        self._words: Numbers[str] = Numbers()
        self._scripts = np.empty(0, np.uint8)
        self._rows = np.empty(0, np.int32)
        self._terms: dict[int, Ints] = {}
        self._forget()

    def read(self, texts: Sequence[bytes]) -> tuple[Ints, Ends]:
        """The terms of a batch of encoded texts, and where each text's terms end."""
        if self._held > MOST:
            self._forget()
        way = scan if scan.pays(texts) else pieces
        stream, ends = way.stream(texts, self._pieces)
        self._learn()
        readings, which = self._readings(stream, ends, way)
        known = len(self._offsets) - 1
        if len(readings) > 1:
            stream = stream + np.repeat(which * known, np.diff(ends, prepend=0))
        offsets, values = self._entries(readings, stream, known)
        found: tuple[Ints, Ends] = way.spread(stream, ends, offsets, values)
        return found

    def _forget(self) -> None:
        self._pieces: Numbers[bytes] = Numbers()
        self._held = 0
        self._offsets = np.zeros(1, np.int64)
        self._values = np.empty(0, np.int32)
        self._cast_offsets = np.zeros(1, np.int64)
        self._cast = np.empty(0, np.int32)

    def _learn(self) -> None:
        """Analyse new pieces and their new words."""
        fresh = self._pieces.take()
        self._held += sum(map(len, fresh))
        found = [self._read(piece) for piece in fresh]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        values = np.fromiter(map(self._words.__getitem__, chain.from_iterable(found)), np.int32, int(lengths.sum()))
        self._offsets = np.concatenate((self._offsets, self._offsets[-1] + np.cumsum(lengths)))
        self._values = np.concatenate((self._values, values))
        new = self._words.take()
        self._scripts = np.concatenate((self._scripts, np.fromiter(map(script, new), np.uint8, len(new))))
        if self._ballots:
            self._rows = np.concatenate((self._rows, np.fromiter(map(self._ballots.number, new), np.int32, len(new))))
            self._collect(values, lengths)

    def _collect(self, values: Ints, lengths: Ends) -> None:
        """Store the ballots of new pieces. Words within a file name are not evidence of the surrounding language."""
        owners = np.repeat(np.arange(len(lengths)), lengths)
        named = np.bincount(owners[self._scripts[values] == NEUTRAL], minlength=len(lengths)) > 0
        rows = np.where(named[owners], 0, self._rows[values])
        counts = np.bincount(owners[rows > 0], minlength=len(lengths))
        self._cast_offsets = np.concatenate((self._cast_offsets, self._cast_offsets[-1] + np.cumsum(counts)))
        self._cast = np.concatenate((self._cast, rows[rows > 0]))

    def _readings(self, stream: Ints, ends: Ends, way: ModuleType) -> tuple[NDArray[np.uint8], Ints]:
        """The distinct assignments of languages to scripts (r, scripts), and each text's assignment."""
        if self._ballots is None:
            return np.array([self._reading], dtype=np.uint8), np.zeros(len(ends), np.int32)
        sums = way.tally(stream, ends, self._cast_offsets, self._cast, self._ballots.votes)
        found = languages(self._ballots, sums)
        _, firsts, which = np.unique(found @ _SHIFTS, return_index=True, return_inverse=True)
        return found[firsts], which

    def _entries(self, readings: NDArray[np.uint8], stream: Ints, known: int) -> tuple[Ends, Ints]:
        """The terms of each piece under each assignment that occurs with it, as offsets and values."""
        used = np.zeros(len(readings) * known, np.bool_)
        used[stream] = True
        entries = np.flatnonzero(used)
        of_reading, of_piece = np.divmod(entries, max(1, known))
        said, ends = spread(of_piece, np.arange(1, len(entries) + 1), self._offsets, self._values)
        lengths = np.diff(ends, prepend=0)
        languages = readings[np.repeat(of_reading, lengths), self._scripts[said]]
        found = self._lookup(languages, said)
        kept = np.concatenate(([0], np.cumsum(found >= 0)))[ends]
        counts = np.zeros(len(used) + 1, np.int64)
        counts[entries + 1] = np.diff(kept, prepend=0)
        return np.cumsum(counts), found[found >= 0]

    def _lookup(self, languages: NDArray[np.uint8], said: NDArray[np.integer]) -> Ints:
        """The number of each word's term in its language."""
        found = np.empty(len(said), np.int32)
        for language in np.flatnonzero(np.bincount(languages, minlength=1)).tolist():
            places = languages == language
            found[places] = self._row(language, said[places])[said[places]]
        return found

    def _row(self, language: int, said: NDArray[np.integer]) -> Ints:
        """The terms of all words in a language, computed at least for the given words."""
        row = self._terms.get(language, np.empty(0, np.int32))
        row = np.concatenate((row, np.full(len(self._words) - len(row), _UNKNOWN, np.int32)))
        needed = np.zeros(len(row), np.bool_)
        needed[said] = True
        new = np.flatnonzero(needed & (row == _UNKNOWN))
        names = list(self._words)
        made = self._make([names[number] for number in new.tolist()], language)
        row[new] = [self.vocabulary[term] if term else _NONE for term in made]
        self._terms[language] = row
        return row


def analyse(reader: Reader, texts: Sequence[str], progress: Callable[[int, int], None] | None) -> Analyzed:
    """Analyse all texts, batch after batch."""
    terms: list[Ints] = []
    lengths: list[Ends] = []
    done = 0
    for batch in _batches(texts):
        found, ends = reader.read(batch)
        terms.append(found.astype(np.uint32))
        lengths.append(np.diff(ends, prepend=0))
        done += len(batch)
        if progress:
            progress(done, len(texts))
    if not terms:
        return Analyzed.of([])
    return Analyzed(list(reader.vocabulary), np.concatenate(terms), np.cumsum(np.concatenate(lengths)))


def _batches(texts: Sequence[str]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(pieces.encoded(text))
        size += len(batch[-1])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

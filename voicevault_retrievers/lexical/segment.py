"""A segment: rows with their postings, and the term counts of deleted documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.selection import FEW, Selection
from voicevault_retrievers.lexical.postings import Mask, Numbers, Postings, PostingsSource, Unsigned
from voicevault_retrievers.text.analyzed_texts import ROWS, Analyzed

RECENT = 1 << 12

_NONE: Numbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DeletedTermCounts:
    """The term numbers of deleted documents, once per document that had the term, and the sum of their lengths.

    `older` is sorted; `newer` is short, so that a deletion copies little.
    """

    older: Numbers = field(default_factory=lambda: _NONE)
    newer: Numbers = field(default_factory=lambda: _NONE)
    length: int = 0

    def and_documents(self, numbers: Sequence[Numbers], length: int) -> DeletedTermCounts:
        """The counts with more deleted documents: the numbers of each one's distinct terms, and their total length."""
        newer = np.concatenate((self.newer, *numbers))
        if len(newer) <= RECENT:
            return DeletedTermCounts(self.older, newer, self.length + length)
        return DeletedTermCounts(np.sort(np.concatenate((self.older, newer))), _NONE, self.length + length)

    def count(self, number: int) -> int:
        """The number of deleted documents with a term."""
        first, last = np.searchsorted(self.older, [number, number + 1])
        return int(last - first) + int(np.count_nonzero(self.newer == number))

    def counts(self, terms: int) -> Numbers:
        """For each of a segment's terms, the number of deleted documents that had it."""
        return np.bincount(self.older, minlength=terms) + np.bincount(self.newer, minlength=terms)


Analyse: TypeAlias = Callable[[Sequence[str]], Analyzed]


@dataclass(frozen=True, eq=False)
class IndexSegment:
    """Rows and their postings: ordinal i is the same chunk in both.

    `removed` has the counts of the rows that are not live; None where these are counted when they are needed.
    """

    rows: Rows
    postings: PostingsSource
    removed: DeletedTermCounts | None = None
    _counted: dict[int, int] = field(default_factory=dict)

    @cached_property
    def length(self) -> int:
        """The number of terms of all live chunks, repeats included."""
        if self.rows.live is None:
            return self.postings.total_length
        if self.removed is not None:
            return self.postings.total_length - self.removed.length
        return int(self.postings.lengths.sum(where=self.rows.live, dtype=np.int64))

    def languages(self, chosen: Selection | None) -> int:
        """The languages of the chosen chunks (None: the live ones), as bits like in `PostingsSource.languages`."""
        if chosen is None:
            return self._languages
        if len(chosen) * FEW < chosen.size:
            return _union(self.postings.languages[chosen.ordinals], None, self._every_language)
        return _union(self.postings.languages, chosen.mask, self._every_language)

    @cached_property
    def _every_language(self) -> int:
        """The languages of all documents, deleted ones too."""
        return int(np.bitwise_or.reduce(self.postings.languages, initial=0))

    @cached_property
    def _languages(self) -> int:
        return _union(self.postings.languages, self.rows.live, self._every_language)

    def frequencies(self, looked: Sequence[tuple[int, int]], chosen: Selection | None) -> list[int]:
        """How many chosen chunks (None: live ones) contain each term that `PostingsSource.look` has found."""
        if chosen is not None:
            return [int(np.count_nonzero(chosen.has(self.postings.find(number)[0]))) for number, _ in looked]
        live = self.rows.live
        if live is None:
            return [documents for _, documents in looked]
        for number, documents in looked:
            if number not in self._counted:
                if self.removed is not None:
                    self._counted[number] = documents - self.removed.count(number)
                else:
                    self._counted[number] = int(np.count_nonzero(live[self.postings.find(number)[0]]))
        return [self._counted[number] for number, _ in looked]

    def counts(self, chosen: Selection | None) -> Numbers:
        """For every term, how many of the chosen chunks (None: the live ones) contain it."""
        if chosen is None and isinstance(self.postings, Postings) and (self.rows.live is None or self.removed):
            counts = self.postings.counts(np.arange(len(self.postings.term_ends)))
            return counts - self.removed.counts(len(counts)) if self.removed and self.rows.live is not None else counts
        numbers, ordinals, _ = self.postings.triples()
        counting = self.rows.live if chosen is None else chosen.mask
        kept = numbers if counting is None else numbers[counting[ordinals]]
        return np.bincount(kept, minlength=len(self.postings.vocabulary()))

    def counts_of(self, numbers: Numbers, chosen: Selection | None) -> Numbers:
        """For each of these terms, how many of the chosen chunks (None: the live ones) contain it."""
        if not isinstance(self.postings, Postings):
            return self.counts(chosen)[numbers]
        counting = self.rows.live if chosen is None else chosen.mask
        if counting is None:
            return self.postings.counts(numbers)
        ordinals, ends = self.postings.documents(numbers)
        reached = np.concatenate(([0], np.cumsum(counting[ordinals])))
        return np.diff(reached[ends], prepend=0)

    def without(self, ids: Iterable[str], analyse: Analyse | None) -> IndexSegment:
        """The segment without these chunks; the same segment where it has none of them.

        `analyse` derives the removed counts from the chunks' texts; without `analyse`, every posting is read.
        """
        gone = [at for chunk_id in ids if (at := self.rows.ordinal(chunk_id)) is not None]
        if not gone:
            return self
        removed = self.removed if self.rows.live is not None else DeletedTermCounts()
        if removed is not None:
            length = int(self.postings.lengths[gone].sum(dtype=np.int64))
            removed = removed.and_documents(self._terms(gone, analyse), length)
        return replace(self, rows=self.rows.without(gone), removed=removed, _counted={})

    def _terms(self, gone: Sequence[int], analyse: Analyse | None) -> list[Numbers]:
        """The numbers of the distinct terms of each of some chunks."""
        if analyse is None:
            return [self.postings.terms_of(at) for at in gone]
        analyzed = analyse([self.rows.chunks[at].indexed_text for at in gone])
        found: list[Numbers] = []
        for number, at in enumerate(gone):
            terms = analyzed.document(number)
            looked = [place for place, _ in self.postings.look(list(dict.fromkeys(terms)))]
            if len(terms) == self.postings.lengths[at] and -1 not in looked:
                found.append(np.array(looked, dtype=np.int64))
            else:  # the postings were built from another text
                found.append(self.postings.terms_of(at))
        return found


def _union(languages: Unsigned, mask: Mask | None, possible: int) -> int:
    """All language bits of the documents of a mask (None for all). Stops once all possible bits are set."""
    found = 0
    for first in range(0, len(languages), ROWS):
        if found == possible:
            break
        own = languages[first : first + ROWS]
        found |= int(np.bitwise_or.reduce(own if mask is None else own[mask[first : first + ROWS]], initial=0))
    return found

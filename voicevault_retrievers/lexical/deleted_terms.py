"""What deleted documents took with them: subtracted from a segment's counts, which never change themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from voicevault_retrievers.lexical.postings import Numbers

RECENT = 1 << 12

_NONE: Numbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DeletedTermCounts:
    """The term numbers of deleted documents, each as often as documents had it, and the sum of their lengths.

    `older` is sorted; `newer` is short, so that a deletion copies little.
    """

    older: Numbers = field(default_factory=lambda: _NONE)
    newer: Numbers = field(default_factory=lambda: _NONE)
    length: int = 0

    def and_documents(self, numbers: Sequence[Numbers], length: int) -> DeletedTermCounts:
        """With documents more: the numbers of the distinct terms of each, and the sum of their lengths."""
        newer = np.concatenate((self.newer, *numbers))
        if len(newer) <= RECENT:
            return DeletedTermCounts(self.older, newer, self.length + length)
        return DeletedTermCounts(np.sort(np.concatenate((self.older, newer))), _NONE, self.length + length)

    def count(self, number: int) -> int:
        """How many deleted documents had a term."""
        first, last = np.searchsorted(self.older, [number, number + 1])
        return int(last - first) + int(np.count_nonzero(self.newer == number))

    def counts(self, terms: int) -> Numbers:
        """Of each of a segment's terms, how many deleted documents had it."""
        return np.bincount(self.older, minlength=terms) + np.bincount(self.newer, minlength=terms)

"""Texts as streams of numbered pieces: the parts between spaces and signs that are part of no word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

BREAKS = bytes(range(33)) + b'!"$%&()*,/:;<=>?[\\]^`{|}~\x7f'
"""The bytes between pieces. The signs `#+-.@_'` are not among them, since they join identifiers and contractions."""

_ROWS = 512
_SPACED = bytes(32 if code in BREAKS else code for code in range(256))


class Numbers(dict[T, int], Generic[T]):
    """Numbers keys from 0 in the order of their first lookup; `fresh` are the new keys since the last `take`."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[T] = []

    def __missing__(self, thing: T) -> int:
        self[thing] = number = len(self)
        self.fresh.append(thing)
        return number

    def take(self) -> list[T]:
        """Return the new keys, and reset them."""
        fresh, self.fresh = self.fresh, []
        return fresh


def encoded(text: str) -> bytes:
    """The text in UTF-8, ready to be split; the number after a paragraph sign belongs to the sign's piece."""
    data = text.encode("utf-8", "surrogatepass")
    return data.replace(b"\xc2\xa7 ", b"\xc2\xa7") if b"\xc2\xa7 " in data else data


def split(text: bytes) -> list[bytes]:
    """The pieces of an encoded text."""
    return text.translate(_SPACED).split()


def stream(texts: Sequence[bytes], numbers: Numbers[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The pieces of all texts as numbers, and where each text's pieces end."""
    lengths: list[int] = []

    def found() -> Iterator[list[bytes]]:
        for text in texts:
            pieces = split(text)
            lengths.append(len(pieces))
            yield pieces

    # Texts are split one by one, so that the next text reuses a text's memory, which stays in the cache.
    flat = np.fromiter(map(numbers.__getitem__, chain.from_iterable(found())), np.int32)
    return flat, np.cumsum(lengths, dtype=np.int64)


def spread(
    numbers: NDArray[np.integer],
    ends: NDArray[np.int64],
    offsets: NDArray[np.int64],
    values: NDArray[np.integer],
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Replace each number n by `values[offsets[n]:offsets[n + 1]]`. Returns also where each document now ends."""
    counts = np.diff(offsets)[numbers]
    reached = np.concatenate(([0], np.cumsum(counts)))
    if counts.max(initial=0) <= 1:
        found = values[offsets[numbers[counts > 0]]]
    else:
        places = np.repeat(offsets[numbers] - reached[:-1], counts)
        places += np.arange(len(places))
        found = values[places]
    return found, reached[ends]


def tally(
    numbers: NDArray[np.integer],
    ends: NDArray[np.int64],
    offsets: NDArray[np.int64],
    cast: NDArray[np.integer],
    votes: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The sums of the votes of d documents for each of c columns (d, c).

    The words of piece n have the ballots `cast[offsets[n]:offsets[n + 1]]`, each a row of `votes` (b, c).
    """
    places = np.flatnonzero((np.diff(offsets) > 0)[numbers])
    given, given_ends = spread(numbers[places], np.searchsorted(places, ends), offsets, cast)
    sums = np.zeros((len(ends), votes.shape[1]))
    starts = np.concatenate(([0], given_ends))
    for first in range(0, len(ends), _ROWS):
        last = min(first + _ROWS, len(ends))
        owners = np.repeat(np.arange(last - first) * len(votes), np.diff(starts[first : last + 1]))
        counts = np.bincount(owners + given[starts[first] : starts[last]], minlength=(last - first) * len(votes))
        sums[first:last] = counts.reshape(last - first, len(votes)) @ votes
    return sums

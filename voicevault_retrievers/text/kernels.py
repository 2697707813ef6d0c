"""The loops over bytes and pieces that numba compiles. Imported only on use, since that takes half a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled

INLINE = 7
"""The most bytes of a piece that its key holds literally, below the length. A longer piece's key is a hash."""

_BASIS, _PRIME, _SPREAD = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)
_TOP, _LONG = np.uint64(56), np.uint64(255 << 56)


@compiled
def cut(text: Any, breaks: Any, ends: Any, start: int, piece_ends: Any) -> Any:
    """Split the documents that end at `ends` into pieces; the first document begins at `start`.

    Returns the start, the length and the key of each piece, and writes where each document's pieces end.
    """
    room = (ends[-1] - start + 1) // 2 + 1
    firsts, lengths, keys = np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.uint64)
    count, at = 0, start
    for document in range(len(ends)):
        end = ends[document]
        while at < end:
            if breaks[text[at]]:
                at += 1
                continue
            first = at
            short, hashed = np.uint64(0), _BASIS
            while at < end and not breaks[text[at]]:
                byte = np.uint64(text[at])
                short |= byte << np.uint64((8 * (at - first)) & 63)
                hashed = (hashed ^ byte) * _PRIME
                at += 1
            length = at - first
            firsts[count] = first
            lengths[count] = length
            keys[count] = short | np.uint64(length) << _TOP if length <= INLINE else hashed | _LONG
            count += 1
        piece_ends[document] = count
    return firsts[:count], lengths[:count], keys[:count]


@compiled
def number(text: Any, firsts: Any, lengths: Any, keys: Any) -> Any:
    """Number pieces from 0 in the order of their first occurrence, also returned; equal bytes have equal numbers.

    The hash table holds keys and numbers side by side, and is at most half full. No piece has the key 0.
    """
    table = np.zeros((1 << 16, 2), np.uint64)
    numbers = np.empty(len(keys), np.int32)
    known = np.empty(len(keys), np.int32)
    count = 0
    for place in range(len(keys)):
        if 2 * count == len(table):
            table = _grown(table)
        key = keys[place]
        slot = np.int64((key * _SPREAD) >> np.uint64(32)) & (len(table) - 1)
        while True:
            if table[slot, 0] == 0:
                table[slot, 0], table[slot, 1] = key, count
                known[count] = place
                count += 1
                break
            if table[slot, 0] == key and (
                key < _LONG or _same(text, firsts, lengths, place, known[np.int64(table[slot, 1])])
            ):
                break
            slot = (slot + 1) & (len(table) - 1)
        numbers[place] = table[slot, 1]
    return numbers, known[:count].copy()


@compiled
def _same(text: Any, firsts: Any, lengths: Any, one: int, other: int) -> Any:
    if lengths[one] != lengths[other]:
        return False
    for at in range(lengths[one]):  # noqa: SIM110 - numba does not support generators here
        if text[firsts[one] + at] != text[firsts[other] + at]:
            return False
    return True


@compiled
def _grown(table: Any) -> Any:
    larger = np.zeros((2 * len(table), 2), np.uint64)
    for old in range(len(table)):
        if table[old, 0]:
            slot = np.int64((table[old, 0] * _SPREAD) >> np.uint64(32)) & (len(larger) - 1)
            while larger[slot, 0]:
                slot = (slot + 1) & (len(larger) - 1)
            larger[slot] = table[old]
    return larger


@compiled
def spread(numbers: Any, ends: Any, offsets: Any, values: Any) -> Any:
    """Like `pieces.spread`."""
    total = 0
    for number in numbers:
        total += offsets[number + 1] - offsets[number]
    found = np.empty(total, values.dtype)
    found_ends = np.empty(len(ends), np.int64)
    written, at = 0, 0
    for document in range(len(ends)):
        while at < ends[document]:
            number = numbers[at]
            for place in range(offsets[number], offsets[number + 1]):
                found[written] = values[place]
                written += 1
            at += 1
        found_ends[document] = written
    return found, found_ends


@compiled
def tally(numbers: Any, ends: Any, offsets: Any, cast: Any, votes: Any) -> Any:
    """Like `pieces.tally`."""
    sums = np.zeros((len(ends), votes.shape[1]))
    at = 0
    for document in range(len(ends)):
        while at < ends[document]:
            for place in range(offsets[numbers[at]], offsets[numbers[at] + 1]):
                for column in range(votes.shape[1]):
                    sums[document, column] += votes[cast[place], column]
            at += 1
    return sums

"""The functions of `pieces` as compiled loops on several threads, where numba is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.compiled import installed
from voicevault_retrievers.text.pieces import BREAKS, Numbers

PAYS = 4 << 20
"""The bytes of text from which compiled loops save more than the half second of importing numba."""

_THREADS = min(4, os.cpu_count() or 1)


def pays(texts: Sequence[bytes]) -> bool:
    """Whether numba is installed and the texts are large enough."""
    return installed() and sum(map(len, texts)) >= PAYS


def stream(texts: Sequence[bytes], numbers: Numbers[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Like `pieces.stream`."""
    data = b"\n".join(texts)
    ends = np.cumsum([len(text) + 1 for text in texts]) - 1
    text = np.frombuffer(data, np.uint8)
    borders = np.searchsorted(ends, np.linspace(0, len(data), _THREADS + 1)[1:-1]).tolist()
    parts = [part for part in np.split(ends, borders) if len(part)]
    starts = [0, *(int(part[-1]) + 1 for part in parts)]
    with ThreadPoolExecutor(_THREADS) as threads:
        done = list(threads.map(lambda part, start: _part(text, part, start), parts, starts))
    known = [[data[first : first + length] for first, length in distinct] for _, _, distinct in done]
    streams = [
        np.fromiter(map(numbers.__getitem__, pieces), np.int32, len(pieces))[stream]
        for pieces, (stream, _, _) in zip(known, done, strict=True)
    ]
    lengths = [np.diff(piece_ends, prepend=0) for _, piece_ends, _ in done]
    return np.concatenate(streams), np.cumsum(np.concatenate(lengths))


def spread(*arguments: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Like `pieces.spread`."""
    found: tuple[NDArray[Any], NDArray[np.int64]] = _kernels().spread(*arguments)
    return found


def tally(*arguments: NDArray[Any]) -> NDArray[np.float64]:
    """Like `pieces.tally`."""
    sums: NDArray[np.float64] = _kernels().tally(*arguments)
    return sums


def _part(text: NDArray[np.uint8], ends: NDArray[np.int64], start: int) -> tuple[Any, Any, list[tuple[int, int]]]:
    """The numbered pieces of some documents, where each document's pieces end, and the distinct pieces."""
    kernels = _kernels()
    breaks = np.isin(np.arange(256), np.frombuffer(BREAKS, np.uint8))
    piece_ends = np.empty(len(ends), np.int64)
    firsts, lengths, keys = kernels.cut(text, breaks, ends, start, piece_ends)
    numbers, known = kernels.number(text, firsts, lengths, keys)
    return numbers, piece_ends, list(zip(firsts[known].tolist(), lengths[known].tolist(), strict=True))


def _kernels() -> ModuleType:
    from voicevault_retrievers.text import kernels

    return kernels

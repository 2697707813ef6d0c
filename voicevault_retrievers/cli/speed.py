"""Speed of this machine: one second each of embedding, reranking, keyword search and writing to disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.dense.embedders import GraphEmbedder
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.rerank.scorers import GraphScorer, load_scorer

SECONDS = 1.0
CHUNKS = 10_000
_TEXTS = 4
_PAGE = b"\0" * 4096
_SENTENCE = "The pump of unit T4 is reset with the red button, after the oil has cooled and the valve is shut. "
_PASSAGE = (10 * _SENTENCE)[:900]
"""A passage of the default length of chunks."""

Step = Callable[[], int]
"""Does some work and returns how many units it did."""


class Measurement(NamedTuple):
    """A step to be measured, and a description of what runs it, read after the first step; empty without a choice."""

    step: Step
    by: Callable[[], str] = str


def rate(step: Step, seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter) -> float:
    """The units per second of a step, after a first step that is not counted."""
    step()
    began, done, spent = clock(), 0, 0.0
    while spent < seconds:
        done += step()
        spent = clock() - began
    return done / spent


def embedding() -> Measurement:
    """A measurement of embedding texts with the default model of `load_embedder`."""
    embedder = load_embedder()
    return Measurement(lambda: len(embedder.embed_documents([_PASSAGE] * _TEXTS)), lambda: _backend(embedder))


def reranking() -> Measurement:
    """A measurement of scoring pairs with the default cross-encoder of presets."""
    scorer = load_scorer()
    return Measurement(
        lambda: len(scorer.score("how is the pump reset", [_PASSAGE] * _TEXTS)), lambda: _backend(scorer)
    )


def _backend(model: object) -> str:
    """The class that runs a loaded model, its precision, and the reason for it."""
    if isinstance(model, GraphEmbedder | GraphScorer):
        return f"{type(model).__name__} in {model.precision_used}: {model.precision_reason}"
    return type(model).__name__


def keyword_search() -> Measurement:
    """A measurement of searching ten hits in a synthetic collection of `CHUNKS` chunks of 50 words."""
    draw = np.random.default_rng(0)
    words = np.array([f"word{at}" for at in range(20_000)])
    frequencies = 1 / np.arange(1, len(words) + 1)
    frequencies /= frequencies.sum()
    texts = draw.choice(words, (CHUNKS, 50), p=frequencies)
    channel = BM25.from_chunks(Chunk(str(at), " ".join(text)) for at, text in enumerate(texts))
    queries = cycle(" ".join(query) for query in draw.choice(words, (64, 4), p=frequencies))

    def ask() -> int:
        channel.search(next(queries), 10)
        return 1

    return Measurement(ask)


@contextmanager
def flushing(folder: Path) -> Iterator[Measurement]:
    """A measurement of writing and syncing a page to the disk of a folder, or of its nearest existing parent."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    with TemporaryFile(dir=there) as file:

        def flush() -> int:
            file.write(_PAGE)
            file.flush()
            os.fsync(file.fileno())
            return 1

        yield Measurement(flush)

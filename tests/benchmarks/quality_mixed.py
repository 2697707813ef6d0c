"""Each collection searched inside all of them, and among many more documents that share no word with its queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.quality import Ahead, embedded, gains, load, rows_of, systems, vectors
from tests.benchmarks.results import Row
from voicevault_retrievers import Chunk
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense import ExactVectors, VectorPart
from voicevault_retrievers.evaluation import Judged

ASKED = 100
TIMES = 100
MOST = 150_000
EMBEDDED = 500
TWINS = {"xquad-en": "xquad-r-en", "xquad-r-en": "xquad-en"}
"""Collections of the same texts, in paragraphs and in sentences, with the same questions."""


def measure(data: Path, names: Sequence[str], embedder: Embedder) -> Iterator[Row]:
    """The rows of both."""
    yield from _together(data, names, embedder)
    for name in names:
        yield from _among_strangers(name, data / name, embedder)


def drawn(questions: Sequence[Judged]) -> list[Judged]:
    """At most so many, the same in every run."""
    order = np.random.default_rng(0).permutation(len(questions))[:ASKED]
    return [questions[at] for at in sorted(order.tolist())]


def _together(data: Path, names: Sequence[str], embedder: Embedder) -> Iterator[Row]:
    """Each collection inside the base of all."""
    every, index, ahead, asked = base_of_all(data, names, embedder)
    channels = systems(every, index, ahead)
    for name, questions in asked.items():
        yield from rows_of(f"{name}, inside all", gains(channels, questions))


def base_of_all(
    data: Path, names: Sequence[str], embedder: Embedder
) -> tuple[list[Chunk], ExactVectors, Ahead, dict[str, list[Judged]]]:
    """All collections as one, and the questions of each; relevant are the documents of its own, and of `TWINS`."""
    every: list[Chunk] = []
    rows: list[NDArray[np.float32]] = []
    asked: dict[str, list[Judged]] = {}
    ahead = Ahead(embedder, [])
    for name in names:
        chunks, questions = load(data / name)
        ahead.rows |= Ahead(embedder, [one.text for one in questions]).rows
        own = sorted(chunks, key=lambda chunk: chunk.id)
        every += [Chunk(f"{name}/{chunk.id}", chunk.text) for chunk in own]
        rows.append(vectors(chunks, embedder).parts[0].matrix)
        twins = _grades(data, TWINS.get(name))
        asked[name] = [
            Judged(f"{name}/{one.id}", one.text, {**_within(name, one), **twins.get(one.text, {})})
            for one in drawn(questions)
        ]
    return every, _index(every, np.concatenate(rows), embedder.dimension), ahead, asked


def _within(name: str, question: Judged) -> dict[str, int]:
    """The grades of a question's documents, in the base of all."""
    return {f"{name}/{chunk_id}": grade for chunk_id, grade in question.grades.items()}


def _grades(data: Path, name: str | None) -> dict[str, dict[str, int]]:
    """By each question's text the grades of a collection, in the base of all."""
    there = name is not None and (data / name).is_dir()
    return {one.text: _within(name, one) for one in load(data / name)[1]} if name and there else {}


def _among_strangers(name: str, folder: Path, embedder: Embedder) -> Iterator[Row]:
    """The collection among invented words in documents as long as its own; and alone, by the same questions."""
    chunks, questions = load(folder)
    asked = drawn(questions)
    ahead = Ahead(embedder, [one.text for one in questions])
    own = sorted(chunks, key=lambda chunk: chunk.id)
    matrix = vectors(chunks, embedder).parts[0].matrix
    added = min(TIMES * len(own), MOST)
    length = int(np.mean([len(chunk.text.split()) for chunk in own]))
    strangers, their_rows = _strangers(added, max(length, 5), embedder)
    index = _index([*own, *strangers], np.concatenate([matrix, their_rows]), embedder.dimension)
    among = gains(systems([*own, *strangers], index, ahead), asked)
    alone = gains(systems(own, _index(own, matrix, embedder.dimension), ahead), asked)
    yield from rows_of(f"{name}, alone, {len(asked)} queries", alone)
    yield from rows_of(f"{name}, {added // len(own)} times as many strangers", among)
    for system, values in among.items():
        change = float(np.mean(values) - np.mean(alone[system]))
        yield Row(system, f"{name}, {added // len(own)} times as many strangers", "change in nDCG@10", change)


def _strangers(count: int, length: int, embedder: Embedder) -> tuple[list[Chunk], NDArray[np.float32]]:
    """Documents of invented words; some are embedded, and the others lie between two of these."""
    rng = np.random.default_rng(0)
    letters = np.array(list("bcdfghjklmnpqrstvwxz"))
    words = np.array(["qx" + "".join(rng.choice(letters, 6)) for _ in range(5000)])
    texts = [" ".join(words[rng.integers(0, len(words), length)]) for _ in range(count)]
    known = embedded(texts[:EMBEDDED], embedder)
    pairs, shares = rng.integers(0, len(known), (2, count)), rng.random((count, 1), dtype=np.float32)
    rows = shares * known[pairs[0]] + (1 - shares) * known[pairs[1]]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return [Chunk(f"\uffff{at:07}", text) for at, text in enumerate(texts)], rows.astype(np.float32)


def _index(chunks: Sequence[Chunk], matrix: NDArray[np.float32], dimension: int) -> ExactVectors:
    """Vectors of chunks in any order."""
    order = sorted(range(len(chunks)), key=lambda at: chunks[at].id)
    return ExactVectors([VectorPart(Rows([chunks[at] for at in order]), matrix[order])], dimension)

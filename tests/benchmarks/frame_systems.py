"""What the benchmark of the frame compares: this package, and fifteen lines that somebody would write instead of it.

Both search the same synthetic chunks: 60 words each, drawn from 20,000 under Zipf's law, a year, and a random vector of
length 1 and 384 dimensions. Questions are five words; their vectors are made beforehand, so that no model is part of
what is measured. By hand, words are split at spaces; the package analyses texts as it does by default, which leaves
these words as they are.

    python -m tests.benchmarks.frame_systems SYSTEM FOLDER

opens what `save` wrote, and writes the seconds of its first search. A system's code is imported when it is asked for:
a process that searches by one holds no code of the other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers import (
    BM25,
    RRF,
    Channel,
    Chunk,
    KnowledgeBase,
    Pipeline,
    Query,
    Result,
    VectorChannel,
    fuse,
)
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense import ExactVectors, VectorPart
from voicevault_retrievers.dense.int8 import Codes, gate, quantise
from voicevault_retrievers.lexical import LexicalIndex

K, DEPTH, CONSTANT = 10, 100, 60
HAND, PLAIN, DEFAULT = "by hand", "package, RRF", "package, default"
WORDS, TEXT, QUESTION, DIMENSION = 20_000, 60, 5, 384
YEARS = (2024, 2025)
SHARE_DELETED = 0.05
LETTERS = str.maketrans("0123456789", "bcdfghjkmn")
"""Words without digits and vowels, which no analyzer cuts up and no stemmer shortens."""

Vectors = NDArray[np.float32]
Mask = NDArray[np.bool_]
Found = list[tuple[str, str, float]]


class Asked(NamedTuple):
    """A question, and the year that its answers are of; None for any."""

    text: str
    year: int | None = None


Search = Callable[[Asked], object]


class Case(NamedTuple):
    """How the chunks are kept, and whether every other question asks for a year, which half of the chunks have."""

    name: str
    segments: int = 1
    deleted: bool = False
    filtered: bool = False


class Ahead:
    """An embedder that computes nothing: the vector of each text was made before."""

    fingerprint = "ahead"
    dimension = DIMENSION
    local = True

    def __init__(self, known: Mapping[str, NDArray[np.float32]]) -> None:
        self._known = known

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self._known[text] for text in texts])

    embed_queries = embed_documents


class Drawn:
    """Draws chunks and questions at random, the same for the same seed; no question is drawn twice."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._words = [f"v{at:05d}".translate(LETTERS) for at in range(WORDS)]
        shares = np.cumsum(1 / np.arange(1, WORDS + 1))
        self._shares = shares / shares[-1]
        self.vectors: dict[str, NDArray[np.float32]] = {}
        """Those of the questions drawn so far."""

    def chunks(self, count: int, start: int = 0) -> list[Chunk]:
        """Chunks in ascending order of id, which are numbered from `start`."""
        years = self._rng.choice(YEARS, count).tolist()
        texts = self._texts(count, TEXT)
        return [Chunk(f"c{start + at:07d}", text, metadata={"year": years[at]}) for at, text in enumerate(texts)]

    def rows(self, count: int) -> Vectors:
        """Vectors of length 1."""
        rows: Vectors = self._rng.standard_normal((count, DIMENSION), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def questions(self, count: int, *, filtered: bool = False) -> list[Asked]:
        """Questions that nobody was asked yet; where `filtered`, every other one asks for a year."""
        new: dict[str, None] = {}
        while len(new) < count:
            new |= dict.fromkeys(text for text in self._texts(count, QUESTION) if text not in self.vectors)
        texts = list(new)[:count]
        self.vectors |= zip(texts, self.rows(count), strict=True)
        return [Asked(text, YEARS[0] if filtered and at % 2 else None) for at, text in enumerate(texts)]

    def _texts(self, count: int, length: int) -> list[str]:
        places = np.searchsorted(self._shares, self._rng.random((count, length)))
        return [" ".join(self._words[at] for at in row) for row in places.tolist()]


@dataclass(frozen=True)
class ByHand:
    """bm25s compiled by numba, one product with all vectors, reciprocal ranks summed in a dict.

    `masks` say by year, None for any, which chunks a search may give; None for all.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    words: Any
    matrix: Vectors
    vectors: Mapping[str, NDArray[np.float32]]
    masks: Mapping[int | None, Mask | None]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], matrix: Vectors, vectors: Mapping[str, NDArray[np.float32]]) -> ByHand:
        """An index of chunks, held in memory."""
        import bm25s  # type: ignore[import-untyped]  # it has no types

        words = bm25s.BM25(backend="numba")
        words.index([chunk.text.split() for chunk in chunks], show_progress=False)
        kept = [chunk.id for chunk in chunks], [chunk.text for chunk in chunks]
        return cls(*kept, words, matrix, vectors, _masks(chunks, None))

    def without(self, chunks: Sequence[Chunk], gone: Sequence[int]) -> ByHand:
        """The same without some of its chunks, by their places."""
        alive = np.ones(len(chunks), dtype=np.bool_)
        alive[list(gone)] = False
        return replace(self, masks=_masks(chunks, alive))

    def search(self, asked: Asked) -> Found:
        """Ids, texts and scores, best first."""
        mask, query = self.masks[asked.year], [asked.text.split()]
        found = self.words.retrieve(query, k=DEPTH, weight_mask=mask, n_threads=1, show_progress=False)
        cosines = self.matrix @ self.vectors[asked.text]
        if mask is not None:
            cosines[~mask] = -1
        near = np.argpartition(-cosines, DEPTH)[:DEPTH]
        near = near[np.argsort(-cosines[near])]
        scores: dict[int, float] = {}
        for ranking in (found.documents[0][found.scores[0] > 0], near):
            for rank, at in enumerate(ranking.tolist(), 1):
                scores[at] = scores.get(at, 0.0) + 1 / (CONSTANT + rank)
        best = sorted(scores, key=lambda at: -scores[at])[:K]
        return [(self.ids[at], self.texts[at], scores[at]) for at in best]


def _masks(chunks: Sequence[Chunk], alive: Mask | None) -> dict[int | None, Mask | None]:
    years = np.array([chunk.metadata["year"] for chunk in chunks])
    return {None: alive, **{year: (years == year) & (True if alive is None else alive) for year in YEARS}}


@dataclass(frozen=True)
class Parts:
    """Chunks as the two channels of the package search them."""

    words: BM25
    vectors: ExactVectors
    embedder: Ahead

    @classmethod
    def of(cls, chunks: Sequence[Chunk], matrix: Vectors, embedder: Ahead, segments: int = 1) -> Parts:
        """Chunks in ascending order of id, held in memory in so many segments."""
        ends = [len(chunks) * at // segments for at in range(segments + 1)]
        pieces = [slice(start, end) for start, end in pairwise(ends)]
        indexes = [BM25.from_chunks(chunks[piece]).index for piece in pieces]
        words = BM25(LexicalIndex(segment for index in indexes for segment in index.segments))
        vectors = [VectorPart(Rows(chunks[piece]), matrix[piece]) for piece in pieces]
        return cls(words, ExactVectors(vectors, DIMENSION), embedder)

    def by_int8(self) -> Parts | None:
        """The same, searched by codes of the segments whose codes the package keeps; None where it keeps none."""
        parts = [replace(part, codes=_codes(part.matrix)) for part in self.vectors.parts]
        coded = any(part.codes is not None for part in parts)
        return replace(self, vectors=ExactVectors(parts, DIMENSION)) if coded else None

    def without(self, ids: Sequence[str]) -> Parts:
        """The same without some of its chunks, which are marked as deleted."""
        words = self.fresh_words()
        words.delete(ids)
        gone = [[at for one in ids if (at := part.rows.ordinal(one)) is not None] for part in self.vectors.parts]
        parts = [replace(part, rows=part.rows.without(at)) for part, at in zip(self.vectors.parts, gone, strict=True)]
        return Parts(words, ExactVectors(parts, DIMENSION), self.embedder)

    def fresh_words(self) -> BM25:
        """Its keyword channel, that nobody has asked yet."""
        return BM25(self.words.index, self.words.analyzer)

    def channels(self) -> dict[str, Channel]:
        """Its channels, that nobody has asked yet."""
        return {"bm25": self.fresh_words(), "dense": VectorChannel(self.vectors, self.embedder)}


def _codes(matrix: Vectors) -> Codes | None:
    codes = quantise(matrix)
    return codes if gate(matrix, codes).passed else None


@dataclass(frozen=True)
class Package:
    """A pipeline of this package, of whose hits all is read that a caller would show."""

    pipeline: Pipeline

    @classmethod
    def default(cls, channels: Mapping[str, Channel]) -> Package:
        """As it is when nothing is said."""
        return cls(Pipeline(fuse(channels), k=K))

    @classmethod
    def plain(cls, channels: Mapping[str, Channel]) -> Package:
        """Fused by reciprocal ranks, as is done by hand."""
        return cls(Pipeline(fuse(channels, method=RRF(k=CONSTANT)), k=K))

    def search(self, asked: Asked) -> list[tuple[Any, ...]]:
        """Search, and read the hits."""
        return read(self.pipeline.search(_query(asked)))

    def search_many(self, asked: Sequence[Asked]) -> list[list[tuple[Any, ...]]]:
        """Search together, and read the hits of each."""
        return list(map(read, self.pipeline.search_many(map(_query, asked))))

    async def asearch(self, asked: Asked) -> list[tuple[Any, ...]]:
        """`search` on the running event loop."""
        return read(await self.pipeline.asearch(_query(asked)))


def read(result: Result) -> list[tuple[Any, ...]]:
    """Of each hit the id, text and score, and of each of its votes the channel, rank, score and matched terms."""
    return [
        (hit.id, hit.text, hit.score, [(vote.stage, vote.rank, vote.score, vote.terms) for vote in hit.votes])
        for hit in result.hits
    ]


def _query(asked: Asked) -> Query:
    return Query(asked.text, where=None if asked.year is None else {"year": asked.year})


class Collection:
    """Chunks as every system has them, made when they are first asked for, and questions to ask once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.drawn = Drawn(size)
        self.embedder = Ahead(self.drawn.vectors)
        self.chunks, self.matrix = self.drawn.chunks(size), self.drawn.rows(size)
        self.gone = np.random.default_rng(size).choice(size, round(size * SHARE_DELETED), replace=False).tolist()
        self._by_hand = ByHand.of(self.chunks, self.matrix, self.drawn.vectors)
        self._parts: dict[int, Parts] = {}

    def by_hand(self, case: Case) -> ByHand:
        """What somebody would write."""
        return self._by_hand.without(self.chunks, self.gone) if case.deleted else self._by_hand

    def parts(self, case: Case) -> Parts:
        """What the package searches."""
        if case.segments not in self._parts:
            self._parts[case.segments] = Parts.of(self.chunks, self.matrix, self.embedder, case.segments)
        parts = self._parts[case.segments]
        return parts.without([self.chunks[at].id for at in self.gone]) if case.deleted else parts

    def packages(self, case: Case) -> dict[str, Package]:
        """The package's pipelines, each with channels of its own; with int8 codes too, where the package keeps them."""
        parts, found = self.parts(case), dict[str, Package]()
        for suffix, kind in (("", parts), (", int8", parts.by_int8())):
            if kind is not None:
                found[PLAIN + suffix] = Package.plain(kind.channels())
                found[DEFAULT + suffix] = Package.default(kind.channels())
        return found


def spent(systems: Mapping[str, Callable[[Any], object]], questions: Sequence[Any]) -> dict[str, list[float]]:
    """CPU seconds of each question by system; who begins changes from one to the next."""
    times = {name: list[float]() for name in systems}
    for at, asked in enumerate(questions):
        for name in turns(systems, at):
            began = time.process_time()
            systems[name](asked)
            times[name].append(time.process_time() - began)
    return times


def turns(systems: Iterable[str], at: int) -> list[str]:
    """The systems, with another one first each time."""
    names = list(systems)
    start = at % len(names)
    return [*names[start:], *names[:start]]


def save(folder: Path, size: int) -> None:
    """Write chunks as both systems keep them on disk."""
    drawn = Drawn(size)
    chunks, matrix = drawn.chunks(size), drawn.rows(size)
    texts = [chunk.text for chunk in chunks]
    with KnowledgeBase.create(folder / "base", embedder=Ahead(dict(zip(texts, matrix, strict=True)))) as base:
        base.add(chunks)
    by_hand = ByHand.of(chunks, matrix, {})
    by_hand.words.save(folder / "words", show_progress=False)
    np.save(folder / "matrix.npy", matrix)
    (folder / "texts.json").write_text(json.dumps([by_hand.ids, by_hand.texts]), encoding="utf-8")


def opened(system: str, folder: Path, vectors: Mapping[str, NDArray[np.float32]]) -> Search:
    """A system's search over what `save` wrote."""
    if system == HAND:
        import bm25s

        ids, texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        words = bm25s.BM25.load(folder / "words", show_progress=False)
        return ByHand(ids, texts, words, np.load(folder / "matrix.npy"), vectors, {None: None}).search
    base = KnowledgeBase.open(folder / "base", embedder=Ahead(vectors))
    channels: dict[str, Channel] = {"bm25": base.bm25(), "dense": base.dense()}
    return (Package.default if system == DEFAULT else Package.plain)(channels).search


def main(system: str, folder: Path) -> float:
    """Open, and search once: seconds."""
    drawn = Drawn(0)
    (asked,) = drawn.questions(1)
    search = opened(system, folder, drawn.vectors)
    start = time.perf_counter()
    search(asked)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))

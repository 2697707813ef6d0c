"""Exact search over vectors in memory or memory-mapped: waiting queries share one pass over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.listing import Listing, kth_highest, merged
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.rows import Rows, best, located, spaced
from voicevault_retrievers.core.selection import Ordinals, Selection
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.core.vectors import embedded, unit_rows
from voicevault_retrievers.dense import passes, rescoring
from voicevault_retrievers.dense.int8 import Codes
from voicevault_retrievers.dense.rescoring import Bounds
from voicevault_retrievers.errors import ConfigError

X = TypeVar("X", bound="ExactVectors")

ROOM = 1 << 25
"""The most bounds of several vectors that are held at once: 128 MiB."""
FEW = 0.3
"""Up to this share of the rows, selected rows are gathered; beyond it, products with all rows are faster."""


@dataclass(frozen=True, eq=False)
class VectorPart:
    """Rows and their vectors, of shape (rows, dimension) and length 1: row i is the same chunk in both.

    `codes` are those of the vectors (`quantise`); where given, a search reads them, and few of the vectors.
    """

    rows: Rows
    matrix: NDArray[np.float32]
    codes: Codes | None = None

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.rows):
            raise ConfigError(f"{len(self.rows)} chunks and vectors of shape {self.matrix.shape} do not join")
        if self.matrix.dtype != np.float32:
            raise ConfigError(f"vectors are float32, not {self.matrix.dtype}: use matrix.astype(np.float32)")
        if self.codes is not None and self.codes.codes.shape != self.matrix.shape:
            raise ConfigError(f"codes of shape {self.codes.codes.shape} and vectors of {self.matrix.shape} do not join")

    def nearest_each(self, vectors: Sequence[Vector], k: int, selection: Selection | None) -> list[Listing[Found]]:
        """For each vector at most k chunks of a selection (None for all), by falling cosine, ties by ascending id."""
        return nearest_in([(self, selection)], vectors, k)

    def best(self, vector: Vector, k: int, candidates: NDArray[np.intp]) -> Listing[Found]:
        """The k nearest of some rows, whose ordinals ascend, by falling cosine, ties by ascending id."""
        cosines = rescoring.cosines(self.matrix, candidates, vector)
        top = best(cosines, np.arange(len(candidates)), k)
        return self.listing(candidates[top], cosines[top])

    def listing(self, ordinals: NDArray[np.intp], cosines: NDArray[np.float64]) -> Listing[Found]:
        """Rows that were found, best first."""
        places, chunks = ordinals.tolist(), self.rows.chunks
        return Listing(self.rows.ids_at(places), cosines, lambda at: Found(chunks[places[at]], float(cosines[at])))

    def warm(self) -> None:
        """Compile the machine code that searches these rows, and cache it. MissingExtraError without numba."""
        if self.codes is not None:
            self.codes.warm()
        rescoring.warm(self.matrix)

    def reads_whole(self, ordinals: Ordinals | None) -> bool:
        """Whether a search of some rows (None for all) reads all vectors."""
        return self.codes is None and (ordinals is None or len(ordinals) >= FEW * len(self.rows))


class ExactVectors:
    """Compares a query with every vector.

    Bounds of all cosines, from float32 or int8, select candidates, whose cosines are then summed in float64 row by row.
    So neither codes, nor the order of the corpus, nor its division into parts change a bit.
    """

    local = True
    """The index waits for nothing remote."""

    def __init__(self, parts: Iterable[VectorPart], dimension: int) -> None:
        self.parts = tuple(parts)
        self.dimension = dimension
        for part in self.parts:
            if part.matrix.shape[1] != dimension:
                raise ConfigError(f"vectors of dimension {part.matrix.shape[1]} in an index of dimension {dimension}")

    @classmethod
    def build(cls: type[X], chunks: Iterable[Chunk], embedder: Embedder) -> X:
        """An index of chunks held in memory, without parents; embeds them now."""
        rows = Rows.searched(chunks)
        return cls([VectorPart(rows, embedded(embedder, rows.chunks))], embedder.dimension)

    def __len__(self) -> int:
        return sum(part.rows.count for part in self.parts)

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Listing[Found]:
        """At most k chunks that pass both filters, by falling cosine, ties by ascending id.

        Raises ConfigError for a vector of another dimension.
        """
        return self.nearest_each([vector], k, where=where, require=require)[0]

    def nearest_each(
        self, vectors: Sequence[Vector], k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Listing[Found]]:
        """`nearest` for each vector; the index is read once for all."""
        for vector in vectors:
            if len(vector) != self.dimension:
                raise ConfigError(f"a vector of dimension {len(vector)} is looked for in an index of {self.dimension}")
        passing = both(require, where)
        return nearest_in([(part, part.rows.selection(passing)) for part in self.parts], vectors, k)

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> dict[str, float]:
        """The cosines of those given chunks that the index holds and that pass both filters."""
        parts, found = self.parts, dict[str, float]()
        for part, places in zip(parts, located([one.rows for one in parts], ids, both(require, where)), strict=True):
            cosines = rescoring.cosines(part.matrix, np.array(list(places.values()), dtype=np.intp), vector)
            found |= dict(zip(places, cosines.tolist(), strict=True))
        return found

    def vectors(self, ids: Iterable[str]) -> dict[str, Vector]:
        """The vectors of those given chunks that the index holds."""
        parts, found = self.parts, dict[str, Vector]()
        for part, places in zip(parts, located([one.rows for one in parts], ids), strict=True):
            found |= dict(zip(places, part.matrix[list(places.values())], strict=True))
        return found

    def sample(self, size: int) -> NDArray[np.float32]:
        """The vectors (at most `size`, dimension) of chunks evenly spaced by id."""
        parts = self.parts
        drawn = zip(parts, spaced([part.rows for part in parts], size), strict=True)
        none = np.empty((0, self.dimension), np.float32)
        return np.concatenate([none, *(part.matrix[ordinals] for part, ordinals in drawn)])


class MemoryVectors(ExactVectors):
    """Exact search over vectors in memory that can be added and deleted; a search sees all of a change or nothing."""

    def __init__(self, parts: Iterable[VectorPart], dimension: int) -> None:
        super().__init__(parts, dimension)
        self._writing = Mutex()

    def adding(self, chunks: Sequence[Chunk], embedder: Embedder) -> Callable[[], None]:
        """Embed chunks, and return a function that adds them. A chunk replaces an earlier chunk of the same id.

        Parents are neither embedded nor added.
        """
        given = {chunk.id: chunk for chunk in chunks}
        new = [chunk for chunk in given.values() if not chunk.is_parent]
        rows = unit_rows(embedder.embed_documents([chunk.indexed_text for chunk in new]), len(new), self.dimension)
        return partial(self._replace, list(given), new, rows)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete chunks; ids that are not in the index are ignored."""
        self._replace(ids, [], np.empty((0, self.dimension), np.float32))

    def _replace(self, ids: Iterable[str], new: Sequence[Chunk], rows: NDArray[np.float32]) -> None:
        gone = set(ids)
        with self._writing:
            chunks, matrices = [*new], [rows]
            for part in self.parts:
                kept = [at for at in part.rows.living if part.rows.ids[at] not in gone]
                chunks += [part.rows.chunks[at] for at in kept]
                matrices.append(part.matrix[kept])
            order = sorted(range(len(chunks)), key=lambda at: chunks[at].id)
            matrix = np.concatenate(matrices)[order]
            self.parts = (VectorPart(Rows([chunks[at] for at in order]), matrix),)


def nearest_in(
    chosen: Sequence[tuple[VectorPart, Selection | None]], vectors: Sequence[Vector], k: int
) -> list[Listing[Found]]:
    """For each vector the k nearest chunks of the selections (None for all) of several parts together."""
    parts = [(part, None if selection is None else selection.ordinals) for part, selection in chosen]
    step = max(1, ROOM // max(1, sum(len(part.rows) for part, _ in parts)))
    return [one for at in range(0, len(vectors), step) for one in _nearest(parts, vectors[at : at + step], k)]


def _nearest(
    parts: Sequence[tuple[VectorPart, Ordinals | None]], vectors: Sequence[Vector], k: int
) -> Iterator[Listing[Found]]:
    bounds, plain = _bounds(parts, vectors), [part.codes is None for part, _ in parts]
    for at, vector in enumerate(vectors):
        error = rescoring.LONGEST * rescoring.rounding(vector) if any(plain) else 0.0
        found, cosines, floor = list[Listing[Found]](), list[rescoring.Cosines](), -math.inf
        if len(parts) > 1:  # what one part finds excludes rows of others
            floor = kth_highest([own[at] for own, products in zip(bounds, plain, strict=True) if products], k) - error
        for (part, ordinals), own, products in zip(parts, bounds, plain, strict=True):
            exceeds = error if products else 0.0
            near = rescoring.nearest(part.matrix, vector, own[at], k, ordinals, error=exceeds, floor=floor)
            found.append(part.listing(*near))
            cosines.append(near[1])
            if len(parts) > 1:
                floor = max(floor, kth_highest(cosines, k))
        yield merged(found, k)


def _bounds(parts: Sequence[tuple[VectorPart, Ordinals | None]], vectors: Sequence[Vector]) -> list[Sequence[Bounds]]:
    """For each part each vector's products with all its rows or some, or with codes upper bounds of these."""
    whole = [part.matrix for part, ordinals in parts if part.reads_whole(ordinals)]
    with BATON.aside(sum(len(part.rows) if ordinals is None else len(ordinals) for part, ordinals in parts)):
        read = iter(passes.products(vectors, whole))
        found: list[Sequence[Bounds]] = []
        for part, ordinals in parts:
            if part.reads_whole(ordinals):
                own = next(read)
                found.append(own if ordinals is None else [each[ordinals] for each in own])
            elif part.codes is not None:
                found.append(part.codes.bounds_each(vectors, ordinals))
            else:
                found.append(list(rescoring.products(part.matrix, np.stack(vectors), ordinals)))
        return found

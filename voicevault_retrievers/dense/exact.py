"""Exact search over vectors in memory or memory-mapped, and the channel over any vector index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.dense.int8 import Codes
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import Filter, both
from voicevault_retrievers.leaf import Leaf, Match, weighted
from voicevault_retrievers.protocols import Embedder, Found, VectorIndex
from voicevault_retrievers.rows import Rows, best
from voicevault_retrievers.selection import Selection
from voicevault_retrievers.types import ANY_EMBEDDER, Chunk, Query, Variant, Vector

_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class VectorPart:
    """Rows and their vectors, of shape (rows, dimension) and length 1: row i is the same chunk in both.

    `codes` are those of the vectors (`quantise`): where they are given, a search reads them, and few of the vectors.
    """

    rows: Rows
    matrix: NDArray[np.float32]
    codes: Codes | None = None

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.rows):
            raise ConfigError(f"{len(self.rows)} chunks and vectors of shape {self.matrix.shape} do not join")
        if self.codes is not None and self.codes.codes.shape != self.matrix.shape:
            raise ConfigError(f"codes of shape {self.codes.codes.shape} and vectors of {self.matrix.shape} do not join")

    def nearest(self, vector: Vector, k: int, selection: Selection | None) -> list[Found]:
        """At most k chunks of a selection (None for all), by falling cosine, ties by ascending id."""
        ordinals = None if selection is None else selection.ordinals
        upper = self.codes.bounds(vector, ordinals) if self.codes else rescoring.bounds(self.matrix, vector, ordinals)
        candidates = rescoring.candidates(self.matrix, vector, k, upper, ordinals)
        cosines = rescoring.cosines(self.matrix, candidates, vector)
        top = best(cosines, np.arange(len(candidates)), k)
        return [Found(self.rows.chunks[candidates[at]], float(cosines[at])) for at in top.tolist()]


class ExactVectors:
    """Compares a query with every vector.

    Bounds of all cosines, from float32 or int8, pick the candidates; their cosines are then summed in float64 row by
    row, so neither codes, nor the order of the corpus, nor how it is cut into parts change a bit.
    """

    def __init__(self, parts: Iterable[VectorPart], dimension: int) -> None:
        self.parts = tuple(parts)
        self.dimension = dimension
        for part in self.parts:
            if part.matrix.shape[1] != dimension:
                raise ConfigError(f"vectors of dimension {part.matrix.shape[1]} in an index of dimension {dimension}")

    @classmethod
    def build(cls, chunks: Iterable[Chunk], embedder: Embedder) -> ExactVectors:
        """The vectors of chunks held in memory."""
        rows = Rows.of(chunks)
        matrix = embedder.embed_documents([chunk.text for chunk in rows.chunks])
        return cls([VectorPart(rows, unit_rows(matrix, len(rows), embedder.dimension))], embedder.dimension)

    def __len__(self) -> int:
        return sum(part.rows.count for part in self.parts)

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Found]:
        """At most k chunks of those that pass, by falling cosine, ties by ascending id."""
        passing = both(require, where)
        found = chain.from_iterable(part.nearest(vector, k, part.rows.selection(passing)) for part in self.parts)
        return sorted(found, key=lambda entry: (-entry.score, entry.chunk.id))[:k]

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> dict[str, float]:
        """The cosines of those of the given chunks that are here and pass."""
        found: dict[str, float] = {}
        for part in self.parts:
            places = part.rows.places(ids, both(require, where))
            cosines = rescoring.cosines(part.matrix, np.array(list(places.values()), dtype=np.intp), vector)
            found |= dict(zip(places, cosines.tolist(), strict=True))
        return found


class VectorChannel(Leaf):
    """Finds chunks by the similarity of their vectors to the query's.

    A score is the cosine, in (0, 1], higher is nearer; a chunk at 0 or below is not a match and is left out. The
    query's own vector (`Query.vectors`) is used where it is this embedder's, or a bare one that fits; it stands for
    the query's text, and its variants are embedded as ever.
    """

    def __init__(
        self, index: VectorIndex, embedder: Embedder, *, timeout: float | None = None, name: str = "dense"
    ) -> None:
        super().__init__(name, "semantic", timeout=timeout)
        self.index = index
        self.embedder = embedder

    @classmethod
    def from_chunks(
        cls, chunks: Iterable[Chunk], embedder: Embedder, *, timeout: float | None = None, name: str = "dense"
    ) -> VectorChannel:
        """Exact search over chunks held in memory; embeds them now."""
        return cls(ExactVectors.build(chunks, embedder), embedder, timeout=timeout, name=name)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [
            [
                Match(chunk, score)
                for chunk, score in self.index.nearest(vector, k, where=query.where, require=query.require)
                if score > 0
            ]
            for vector in self._vectors(query, wordings)
        ]

    def scores(self, query: Query, ids: Iterable[str]) -> Mapping[str, float] | None:
        wordings, wanted, best = self._wordings(query), list(ids), dict[str, float]()
        for wording, vector in zip(wordings, self._vectors(query, wordings), strict=True):
            found = self.index.similarities(vector, wanted, where=query.where, require=query.require)
            if found is None:
                return None
            for chunk_id, score in found.items():
                best[chunk_id] = max(best.get(chunk_id, -1.0), weighted(score, wording.weight))
        return best

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        """A blank text says something where the query's vector is of this embedder, and not where it is of another."""
        return tuple(w for w in super()._wordings(query) if w.text.strip() or self._own(query) is not None)

    def _vectors(self, query: Query, wordings: Sequence[Variant]) -> list[Vector]:
        own = self._own(query)
        texts = [wording.text for wording in wordings if own is None or wording.text != query.text]
        rows = self.embedder.embed_queries(texts) if texts else ()
        embedded = iter(unit_rows(rows, len(texts), self.embedder.dimension) if texts else ())
        return [own if own is not None and wording.text == query.text else next(embedded) for wording in wordings]

    def _own(self, query: Query) -> Vector | None:
        vector = query.vectors.get(self.embedder.fingerprint)
        bare = query.vectors.get(ANY_EMBEDDER)
        if vector is None and bare is not None and len(bare) == self.embedder.dimension:
            vector = bare
        if vector is None:
            return None
        if len(vector) != self.embedder.dimension:
            raise ConfigError(f"the query's vector has dimension {len(vector)}, the index {self.embedder.dimension}")
        length = float(np.linalg.norm(vector))
        if length == 0:
            raise ConfigError("the query's vector is all zeros, which points nowhere")
        return vector / np.float32(length)

    def __repr__(self) -> str:
        return f"VectorChannel({self.embedder!r}, {type(self.index).__name__})"


def unit_rows(vectors: ArrayLike, count: int, dimension: int) -> NDArray[np.float32]:
    """Vectors as float32 rows; ConfigError where they are not one per text, finite, and of length 1 (or 0)."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.shape != (count, dimension):
        raise ConfigError(f"the vectors have shape {rows.shape}, expected ({count}, {dimension}): one row per text")
    lengths = np.linalg.norm(rows, axis=1)
    wrong = np.flatnonzero(~((np.abs(lengths - 1) < _TOLERANCE) | (lengths == 0)))
    if wrong.size:
        raise ConfigError(
            f"vector {wrong[0]} has length {lengths[wrong[0]]}, expected 1: divide each row by its length"
        )
    return rows

"""Exact search over vectors in memory or memory-mapped, and the channel over any vector index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers.baton import BATON
from voicevault_retrievers.calls import in_thread
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.dense.int8 import Codes
from voicevault_retrievers.dense.passes import Passes
from voicevault_retrievers.drive import adrive
from voicevault_retrievers.errors import ConfigError, EmbeddingError
from voicevault_retrievers.filters import Filter, both
from voicevault_retrievers.leaf import Leaf, Match, best_of_wordings
from voicevault_retrievers.listing import Listing, merged
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.protocols import Embedder, Found, VectorIndex
from voicevault_retrievers.recent import Recent
from voicevault_retrievers.rows import Rows, best
from voicevault_retrievers.selection import Ordinals, Selection
from voicevault_retrievers.shuffled import Drawn, Shuffled, smallest
from voicevault_retrievers.types import ANY_EMBEDDER, Chunk, Query, Variant, Vector

X = TypeVar("X", bound="ExactVectors")

KEPT = 64
"""Texts whose vectors a channel keeps: a fused search asks for its query's more than once."""
FEW = 0.3
"""The share of rows up to which some are gathered; of more, the products of all take less time."""
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class VectorPart:
    """Rows and their vectors, of shape (rows, dimension) and length 1: row i is the same chunk in both.

    `codes` are those of the vectors (`quantise`): where they are given, a search reads them, and few of the vectors.
    `order` is that of the rows' ids by hash, where somebody keeps it.
    """

    rows: Rows
    matrix: NDArray[np.float32]
    codes: Codes | None = None
    order: Shuffled | None = None

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.rows):
            raise ConfigError(f"{len(self.rows)} chunks and vectors of shape {self.matrix.shape} do not join")
        if self.codes is not None and self.codes.codes.shape != self.matrix.shape:
            raise ConfigError(f"codes of shape {self.codes.codes.shape} and vectors of {self.matrix.shape} do not join")

    def nearest(self, vector: Vector, k: int, selection: Selection | None) -> Listing[Found]:
        """At most k chunks of a selection (None for all), by falling cosine, ties by ascending id."""
        ordinals = None if selection is None else selection.ordinals
        if self.codes is None:
            candidates = rescoring.near(self._products(vector, ordinals), vector, k, ordinals)
        else:
            with BATON.aside():
                bounds = self.codes.bounds(vector, ordinals)
            candidates = rescoring.candidates(self.matrix, vector, k, bounds, ordinals)
        cosines = rescoring.cosines(self.matrix, candidates, vector)
        top = best(cosines, np.arange(len(candidates)), k)
        return listed(self.rows, candidates[top], cosines[top])

    def _products(self, vector: Vector, ordinals: Ordinals | None) -> NDArray[np.float32]:
        if ordinals is not None and len(ordinals) < FEW * len(self.rows):
            with BATON.aside(len(ordinals)):
                return rescoring.products(self.matrix, vector, ordinals)
        with BATON.aside(len(self.rows)):
            whole = self._passes.products(vector)
        return whole if ordinals is None else whole[ordinals]

    @cached_property
    def _passes(self) -> Passes:
        return Passes(self.matrix)

    def first(self, size: int) -> Drawn:
        """The live rows whose ids have the smallest hashes."""
        return self._order.first(size, self.rows.selection(None))

    @cached_property
    def _order(self) -> Shuffled:
        return self.order or Shuffled(self.rows.ids)


class ExactVectors:
    """Compares a query with every vector.

    Bounds of all cosines, from float32 or int8, pick the candidates; their cosines are then summed in float64 row by
    row, so neither codes, nor the order of the corpus, nor how it is cut into parts change a bit.
    """

    local = True
    """Its scores wait for nothing remote."""

    def __init__(self, parts: Iterable[VectorPart], dimension: int) -> None:
        self.parts = tuple(parts)
        self.dimension = dimension
        for part in self.parts:
            if part.matrix.shape[1] != dimension:
                raise ConfigError(f"vectors of dimension {part.matrix.shape[1]} in an index of dimension {dimension}")

    @classmethod
    def build(cls: type[X], chunks: Iterable[Chunk], embedder: Embedder) -> X:
        """The vectors of chunks held in memory; parents have none."""
        rows = Rows.of(chunk for chunk in chunks if not chunk.is_parent)
        return cls([VectorPart(rows, embedded(embedder, rows.chunks))], embedder.dimension)

    def __len__(self) -> int:
        return sum(part.rows.count for part in self.parts)

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Listing[Found]:
        """At most k chunks of those that pass, by falling cosine, ties by ascending id.

        Raises ConfigError for a vector of another dimension.
        """
        if len(vector) != self.dimension:
            raise ConfigError(f"a vector of dimension {len(vector)} is looked for in an index of {self.dimension}")
        passing = both(require, where)
        return merged([part.nearest(vector, k, part.rows.selection(passing)) for part in self.parts], k)

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

    def vectors(self, ids: Iterable[str]) -> dict[str, Vector]:
        """The vectors of those of the given chunks that are here."""
        wanted, found = list(ids), dict[str, Vector]()
        for part in self.parts:
            places = part.rows.places(wanted)
            found |= dict(zip(places, part.matrix[list(places.values())], strict=True))
        return found

    def sample(self, size: int) -> NDArray[np.float32]:
        """The vectors (at most `size`, dimension) of those chunks whose ids have the smallest hashes."""
        drawn = [(part, part.first(size)) for part in self.parts]
        none = np.empty((0, self.dimension), np.float32)
        rows = np.concatenate([none, *(part.matrix[found.ordinals] for part, found in drawn)])
        return rows[smallest([found.hashes for _, found in drawn], size)]


class MemoryVectors(ExactVectors):
    """Exact search over vectors in memory that are added and deleted; a search sees all of a change or nothing."""

    def __init__(self, parts: Iterable[VectorPart], dimension: int) -> None:
        super().__init__(parts, dimension)
        self._writing = Mutex()

    def adding(self, chunks: Sequence[Chunk], embedder: Embedder) -> Callable[[], None]:
        """Embed chunks; what is returned adds them, and those whose id is here already take the other's place.

        Parents are not embedded, and not added.
        """
        given = {chunk.id: chunk for chunk in chunks}
        new = [chunk for chunk in given.values() if not chunk.is_parent]
        rows = unit_rows(embedder.embed_documents([chunk.text for chunk in new]), len(new), self.dimension)
        return partial(self._replace, list(given), new, rows)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete chunks; ids that are not here are passed over."""
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


class VectorChannel(Leaf):
    """Finds chunks by the similarity of their vectors to the query's.

    A score is the cosine, in (0, 1], higher is nearer; a chunk at 0 or below is not a match and is left out. The
    query's own vector (`Query.vectors`) is used where it is this embedder's, or a bare one that fits; it stands for
    the query's text, and its variants are embedded as ever. Raises IncompatibleIndexError for another embedder than
    the index's, where that is known.
    """

    def __init__(
        self, index: VectorIndex, embedder: Embedder, *, timeout: float | None = None, name: str = "dense"
    ) -> None:
        super().__init__(name, "semantic", timeout=timeout)
        if isinstance(index, Identified):
            index.check_embedder(embedder)
        self.index = index
        self.embedder = embedder
        self._embedded: Recent[str, Vector] = Recent(KEPT, for_queries=True)
        self.afind = self._awaited if callable(getattr(embedder, "aembed_queries", None)) else None
        self.local = self.afind is None and getattr(index, "local", False)
        self.computes = getattr(embedder, "local", False)

    @classmethod
    def from_chunks(
        cls, chunks: Iterable[Chunk], embedder: Embedder, *, timeout: float | None = None, name: str = "dense"
    ) -> VectorChannel:
        """Exact search over chunks held in memory; embeds them now."""
        return cls(MemoryVectors.build(chunks, embedder), embedder, timeout=timeout, name=name)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [
            matches_of(self.index.nearest(vector, k, where=query.where, require=query.require), vector)
            for vector in self._vectors(query, wordings)
        ]

    async def _awaited(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """`find`, once the vectors of the wordings have been awaited; what compares them runs in a worker thread."""
        new = [wording.text for wording in wordings if self._embedded.get(wording.text) is None]
        if new and not query.vectors:
            embedder: Any = self.embedder
            rows = unit_rows(await embedder.aembed_queries(new), len(new), embedder.dimension)
            for text, row in zip(new, rows, strict=True):
                self._embedded.put(text, row)
        return await adrive(in_thread(self.name, partial(self.find, query, wordings, k)))

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> VectorScan:
        return VectorScan(self, query, found)

    def warm_up(self) -> None:
        self.embedder.embed_queries(["warm up"])

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        """The stored vectors of given chunks, of length 1; none where the index does not give them."""
        return self.index.vectors(ids) if isinstance(self.index, Stored) else {}

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        """A blank text says something where the query's vector is of this embedder, and not where it is of another."""
        return tuple(w for w in super()._wordings(query) if w.text.strip() or self._own(query) is not None)

    def _vectors(self, query: Query, wordings: Sequence[Variant]) -> list[Vector]:
        own = self._own(query)
        texts = [wording.text for wording in wordings]
        known = {text: own if own is not None and text == query.text else self._embedded.get(text) for text in texts}
        new = [text for text, vector in known.items() if vector is None]
        if new:
            rows = _rows_of(self.embedder, self.embedder.embed_queries(new), len(new))
            for text, row in zip(new, rows, strict=True):
                known[text] = row
                self._embedded.put(text, row)
        return [vector for text in texts if (vector := known[text]) is not None]

    def _own(self, query: Query) -> Vector | None:
        if not query.vectors:
            return None
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


class Near(Listing[Match]):
    """Those of some chunks that are matches, by falling cosine: it is above 0. `vector` is what they are near."""

    def __init__(self, found: Listing[Found], vector: Vector) -> None:
        above = found.above_zero()
        super().__init__(above.ids, above.scores, lambda at: Match(*above[at]))
        self.vector = vector


class VectorScan:
    """The exact cosine of any chunk, by the vectors that a search has `found` matches with, else by those made now."""

    coverage = None

    def __init__(self, channel: VectorChannel, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]]) -> None:
        self.local = getattr(channel.index, "local", False)
        self._channel, self._query = channel, query
        self._vectors = [(wording, matches.vector) for wording, matches in found if isinstance(matches, Near)]

    def scores(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        """The best cosine of any wording with each of the given chunks; None where the index cannot tell."""
        channel, query, told = self._channel, self._query, list[tuple[float, Mapping[str, float]]]()
        if not self._vectors:
            wordings = channel._wordings(query)
            self._vectors = list(zip(wordings, channel._vectors(query, wordings), strict=True))
        for wording, vector in self._vectors:
            scores = channel.index.similarities(vector, ids, where=query.where, require=query.require)
            if scores is None:
                return None
            told.append((wording.weight, scores))
        return best_of_wordings(told, least=-1.0)


def listed(rows: Rows, ordinals: NDArray[np.intp], cosines: NDArray[np.float64]) -> Listing[Found]:
    """Rows by falling cosine."""
    places = ordinals.tolist()
    ids = [rows.ids[at] for at in places]
    return Listing(ids, cosines, lambda at: Found(rows.chunks[places[at]], float(cosines[at])))


def matches_of(found: Sequence[Found], vector: Vector) -> Sequence[Match]:
    """Those of some chunks, by falling cosine with a vector, that are matches."""
    if isinstance(found, Listing):
        return Near(found, vector)
    return [Match(chunk, score) for chunk, score in found if score > 0]


@runtime_checkable
class Stored(Protocol):
    """A vector index that gives the vectors it holds."""

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        """The vectors of those of the given chunks that are here, of length 1."""
        ...


@runtime_checkable
class Identified(Protocol):
    """A vector index that knows which embedder made its vectors."""

    def check_embedder(self, embedder: Embedder) -> None:
        """Raises IncompatibleIndexError for another one."""
        ...


def embedded(embedder: Embedder, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
    """The vectors of chunks, of shape (len(chunks), embedder.dimension) and length 1.

    Raises EmbeddingError, naming the chunk, where the vector of its text is all zeros or not finite.
    """
    try:
        return _rows_of(embedder, embedder.embed_documents([chunk.text for chunk in chunks]), len(chunks))
    except EmbeddingError as error:
        said = f"chunk {chunks[error.at].id!r} cannot be indexed, for its text has no vector: {error}"
        raise EmbeddingError(said, error.at) from error


def _rows_of(embedder: Embedder, vectors: ArrayLike, count: int) -> NDArray[np.float32]:
    """What an embedder gave, as `unit_rows`; EmbeddingError where a row is all zeros or not finite."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.shape == (count, embedder.dimension) and not len(_wrong(rows)):
        return rows
    good = np.isfinite(rows).all(axis=-1) & rows.any(axis=-1)
    if good.ndim and not good.all():
        at = int(good.argmin())
        raise EmbeddingError(f"{embedder!r} gave a row that is zero or not finite for text {at} of {count}", at)
    return unit_rows(rows, count, embedder.dimension)


def unit_rows(
    vectors: ArrayLike, count: int, dimension: int, chunks: Sequence[Chunk] | None = None
) -> NDArray[np.float32]:
    """Vectors as float32 rows; ConfigError where they are not one per text, finite, and of length 1.

    It names the chunk, where the `chunks` are given.
    """
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.shape != (count, dimension):
        raise ConfigError(f"the vectors have shape {rows.shape}, expected ({count}, {dimension}): one row per text")
    for at in _wrong(rows)[:1].tolist():
        whose = "" if chunks is None else f" of chunk {chunks[at].id!r}"
        raise ConfigError(
            f"vector {at}{whose} has length {np.linalg.norm(rows[at])}, expected 1: divide each row by its length"
        )
    return rows


def _wrong(rows: NDArray[np.float32]) -> NDArray[np.intp]:
    """The rows whose length is not 1."""
    return np.flatnonzero(~(np.abs(np.linalg.norm(rows, axis=1) - 1) < _TOLERANCE))

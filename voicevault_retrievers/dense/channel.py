"""The vector channel, over any vector index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.checks import flag
from voicevault_retrievers._support.frozen import FrozenDict
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.leaf import LeafChannel, Match, Request, best_of_wordings
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.protocols import Embedder, Found, VectorIndex
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk, Query, Variant, Vector
from voicevault_retrievers.core.vectors import rows_of, unit_rows
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.dense.exact import ExactVectors, MemoryVectors
from voicevault_retrievers.errors import ConfigError

KEPT = 64
"""The number of texts whose vectors a channel caches: a fused search needs its query's vector more than once."""
ROUNDING = 1e-6
"""A query's own vector whose length differs from 1 by less is used as it is, like an embedder's."""


class VectorChannel(LeafChannel):
    """Finds chunks by the similarity of their vectors to the query's.

    A score is the cosine, in (0, 1], higher is nearer; chunks with a cosine of 0 or below are not matches, unless
    `exclude_nonpositive` is False: then the nearest chunks are found whatever their cosines, which are in [-1, 1]. A
    vector in `Query.vectors` stands for the query's text where it is this embedder's, or a bare vector of the right
    dimension; variants are still embedded. Raises IncompatibleIndexError for another embedder than the index's, where
    that is known.
    """

    def __init__(
        self,
        index: VectorIndex,
        embedder: Embedder,
        *,
        exclude_nonpositive: bool = True,
        timeout: float | None = None,
        name: str = "dense",
    ) -> None:
        super().__init__(name, "semantic", timeout=timeout)
        self.exclude_nonpositive = flag("exclude_nonpositive", exclude_nonpositive)
        if isinstance(index, ChecksEmbedder):
            index.check_embedder(embedder)
        self.index = index
        self.embedder = embedder
        self._embedded: LRUCache[str, Vector] = LRUCache(KEPT, for_queries=True)
        self._awaits = callable(getattr(embedder, "aembed_queries", None))
        self.local = self.afind is None and getattr(index, "local", False)
        self.computes = getattr(embedder, "local", False)

    @classmethod
    def from_chunks(
        cls, chunks: Iterable[Chunk], embedder: Embedder, *, timeout: float | None = None, name: str = "dense"
    ) -> VectorChannel:
        """Exact search over chunks held in memory, which are embedded now."""
        return cls(MemoryVectors.build(chunks, embedder), embedder, timeout=timeout, name=name)

    @property
    def afind(self) -> Callable[[Query, Sequence[Variant], int], Any] | None:  # type: ignore[override]  # not kept
        """`find` that awaits the embedder; None where the embedder has no async methods."""
        return self._awaited if self._awaits else None

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [
            self._matches(self.index.nearest(vector, k, where=query.where, require=query.require), vector)
            for vector in self._vectors(query, wordings)
        ]

    def find_each(self, asked: Sequence[Request]) -> Sequence[Sequence[Sequence[Match]]]:
        texts = [wording.text for query, wordings, _ in asked if not query.vectors for wording in wordings]
        embedded = self._embed(dict.fromkeys(text for text in texts if self._embedded.get(text) is None))
        if not isinstance(self.index, ExactVectors):
            return [self.find(*one) for one in asked]
        alike = defaultdict[Any, list[int]](list)
        for at, (query, _, k) in enumerate(asked):
            alike[query.where, query.require, k].append(at)
        found: list[Sequence[Sequence[Match]]] = [()] * len(asked)
        for (where, require, k), places in alike.items():
            vectors = [(at, vector) for at in places for vector in self._vectors(*asked[at][:2], embedded)]
            near = self.index.nearest_each([vector for _, vector in vectors], k, where=where, require=require)
            for (at, vector), own in zip(vectors, near, strict=True):
                found[at] = [*found[at], self._matches(own, vector)]
        return found

    async def _awaited(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """`find` after the wordings' vectors were awaited. The comparison runs in a worker thread."""
        new = [wording.text for wording in wordings if self._embedded.get(wording.text) is None]
        if new and not query.vectors:
            embedder: Any = self.embedder
            rows = unit_rows(await embedder.aembed_queries(new), len(new), embedder.dimension)
            for text, row in zip(new, rows, strict=True):
                self._embedded.put(text, row)
        return await aexecute(in_thread(self.name, partial(self.find, query, wordings, k)))

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> VectorScan:
        return VectorScan(self, query, found)

    def warm_up(self) -> None:
        self.embedder.embed_queries(["warm up"])

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        """The stored vectors of given chunks, of length 1; empty where the index does not give vectors."""
        return self.index.vectors(ids) if isinstance(self.index, HoldsVectors) else {}

    def _matches(self, found: Sequence[Found], vector: Vector) -> Sequence[Match]:
        """The matches among chunks by falling cosine with a vector."""
        if isinstance(found, Listing):
            return Near(found.above_zero() if self.exclude_nonpositive else found, vector)
        return [Match(chunk, score) for chunk, score in found if score > 0 or not self.exclude_nonpositive]

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        """The wordings to search. A blank text counts only where the query has a vector of this embedder."""
        return tuple(w for w in super()._wordings(query) if w.text.strip() or self._own(query) is not None)

    def _vectors(
        self, query: Query, wordings: Sequence[Variant], embedded: Mapping[str, Vector] = FrozenDict()
    ) -> list[Vector]:
        """The vector of each wording: the query's own, or one from `embedded`, or a cached one, or a new one."""
        own = self._own(query)
        texts = [wording.text for wording in wordings]
        known = {text: embedded[text] if text in embedded else self._embedded.get(text) for text in texts}
        if own is not None and query.text in known:
            known[query.text] = own
        new = [text for text, vector in known.items() if vector is None]
        known |= self._embed(new)
        return [vector for text in texts if (vector := known[text]) is not None]

    def _embed(self, texts: Collection[str]) -> dict[str, Vector]:
        """Embed texts and cache their vectors for the next search."""
        if not texts:
            return {}
        rows = rows_of(self.embedder, self.embedder.embed_queries(list(texts)), len(texts))
        for text, row in zip(texts, rows, strict=True):
            self._embedded.put(text, row)
        return dict(zip(texts, rows, strict=True))

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
        length = rescoring.length(vector)
        if length == 0:
            raise ConfigError("the query's vector is all zeros, which points nowhere")
        if abs(length - 1) < ROUNDING:
            return vector
        return (vector.astype(np.float64) / length).astype(np.float32)

    def __repr__(self) -> str:
        return f"VectorChannel({self.embedder!r}, {type(self.index).__name__})"


class Near(Listing[Match]):
    """Chunks by falling cosine as matches. `vector` is the query's."""

    def __init__(self, found: Listing[Found], vector: Vector) -> None:
        super().__init__(found.ids, found.scores, lambda at: Match(*found[at]))
        self.vector = vector


class VectorScan:
    """The exact cosine of any chunk, with the vectors that the search has `found` matches with, or new ones."""

    coverage = None

    def __init__(self, channel: VectorChannel, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]]) -> None:
        self.local = getattr(channel.index, "local", False)
        self.source = getattr(channel.index, "source", None)
        self._channel, self._query = channel, query
        self._vectors = [(wording, matches.vector) for wording, matches in found if isinstance(matches, Near)]

    def scores(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        """The best cosine of any wording with each given chunk; None where the index cannot tell."""
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


@runtime_checkable
class HoldsVectors(Protocol):
    """A vector index that returns its vectors."""

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        """The vectors of those given chunks that the index holds, of length 1."""
        ...


@runtime_checkable
class ChecksEmbedder(Protocol):
    """A vector index that knows which embedder made its vectors."""

    def check_embedder(self, embedder: Embedder) -> None:
        """Raise IncompatibleIndexError for another embedder."""
        ...

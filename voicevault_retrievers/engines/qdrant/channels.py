"""The channels that only Qdrant has: vectors searched in its ways, and fusion by the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from voicevault_retrievers._support.checks import flag, whole
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import Failure, Query, Variant, Vector
from voicevault_retrievers.engines.channels import (
    Asked,
    AskedWording,
    EngineBM25,
    EngineDense,
    EngineLeaf,
    SearchedEngine,
)
from voicevault_retrievers.engines.keywords import KeywordHit
from voicevault_retrievers.errors import ConfigError, unknown

FUNNEL = ("prefix", "candidates", "on_loss")


@dataclass(frozen=True)
class Way:
    """How vectors are searched: all of them (`exact`), or those first that `prefix` dimensions find (`candidates`)."""

    exact: bool = False
    prefix: int | None = None
    candidates: int = 1000
    on_loss: Literal["raise", "full"] = "raise"

    def __post_init__(self) -> None:
        flag("exact", self.exact)

    def funnelled(self, funnel: Mapping[str, Any] | None) -> Way:
        """With a funnel. Raises ConfigError for what is none."""
        if funnel is None:
            return self
        for key in funnel:
            if key not in FUNNEL:
                raise unknown("key of a funnel", key, FUNNEL)
        on_loss = funnel.get("on_loss", "raise")
        if on_loss not in ("raise", "full"):
            raise unknown("on_loss", on_loss, ("raise", "full"))
        candidates = whole("candidates", funnel.get("candidates", 1000))
        return replace(self, prefix=whole("prefix", funnel.get("prefix")), candidates=candidates, on_loss=on_loss)

    def among(self, name: str, prefix: int | None) -> Way:
        """The way in a collection of such short vectors; ConfigError where it has no others, unless that is "full"."""
        if self.prefix in (None, prefix):
            return self
        if self.on_loss == "full":
            return replace(self, prefix=None)
        raise ConfigError(
            f"collection {name!r} was made with prefix={prefix}, so a funnel by {self.prefix} dimensions finds "
            "nothing: give that prefix, or copy the documents into a new collection"
        )


@dataclass(frozen=True)
class Fusion:
    """Reciprocal ranks, `1 / (k + rank)`, over two lists of this depth."""

    k: int
    depth: int


class QdrantSearch(SearchedEngine, Protocol):
    """What the channels ask of an engine; see `QdrantEngine`."""

    way: Way

    @property
    def prefix(self) -> int | None:
        """How many dimensions the collection's short vectors have, as far as that is known."""
        ...

    def near(self, vector: Vector, k: int, wanted: Filter | None, way: Way) -> Steps[list[Found]]: ...

    def fusing(self, asked: Asked, vector: Vector, fusion: Fusion, k: int, query: Query) -> Steps[list[KeywordHit]]: ...


class QdrantDense(EngineDense):
    """The vector channel, see `EngineDense`.

    `funnel={"prefix": 64, "candidates": 1000}` finds candidates by the first dimensions (of a collection made with that
    `prefix`) and rescores them by all, in one request; of another collection `on_loss` "raise" raises ConfigError, and
    "full" searches by all dimensions, with a note. `exact` compares all vectors, without Qdrant's graph; None is
    the engine's own choice.
    """

    def __init__(
        self,
        engine: QdrantSearch,
        *,
        funnel: Mapping[str, Any] | None = None,
        exact: bool | None = None,
        timeout: float | None = None,
        name: str = "dense",
    ) -> None:
        way = engine.way if exact is None else replace(engine.way, exact=exact)
        self.way = way.funnelled(funnel)
        super().__init__(_Searching(engine, self.way), timeout=timeout, name=name)
        self._made = engine

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        if self.way.prefix in (None, self._made.prefix):
            return ()
        said = f"the collection has no vectors of {self.way.prefix} dimensions: all were compared"
        return (Failure(self.name, "funnel", said, degrades=False),)

    def __repr__(self) -> str:
        return f"QdrantDense({self.engine!r}, {self.way!r})"


class QdrantFused(EngineLeaf[QdrantSearch]):
    """Words and vectors, searched and fused by Qdrant in one request; scores are RRF's, higher is better.

    `1 / (k + rank)` for each of the two lists of `depth`, ranks from 1. Qdrant ranks words by what it has stored for
    them, not by our exact scores, and says nothing of either list, so hits have one vote, which says so. Under
    `require` only filters that Qdrant itself can tell exactly are searched: equality with strings, `$in`, `$and`,
    `$or`; others raise FilterNotSupportedError. What `where` leaves out counts in the ranks where Qdrant cannot tell.
    """

    def __init__(
        self, engine: QdrantSearch, k: int, depth: int, *, timeout: float | None = None, name: str = "fused"
    ) -> None:
        super().__init__(engine, name, "hybrid", timeout=timeout)
        self.k = k
        self.depth = depth
        self._words = EngineBM25(engine)
        self._dense = QdrantDense(engine)

    def warm_up(self) -> None:
        self._dense.warm_up()

    def _finding(self, query: Query, wording: Variant, k: int) -> Steps[list[Match]]:
        vectors = yield from self._dense.embedded(query, (wording,))
        if vectors is None:
            return []
        asked = AskedWording(self._words, query, wording)
        hits = yield from self.engine.fusing(asked, vectors[0], Fusion(self.k, max(self.depth, k)), k, query)
        said = (f"RRF in Qdrant, k {self.k}",)
        return [Match(hit.chunk, hit.score, asked.words(hit.forms), said) for hit in hits]

    def __repr__(self) -> str:
        return f"{self.engine!r}.fused(k={self.k}, depth={self.depth})"


class _Searching:
    """An engine whose vectors are searched in a way."""

    def __init__(self, engine: QdrantSearch, way: Way) -> None:
        self._engine = engine
        self._way = way
        self.name = engine.name
        self.run, self.arun = engine.run, engine.arun
        self.exists, self.embedding = engine.exists, engine.embedding
        self.similarities, self.vectors = engine.similarities, engine.vectors
        self.keywords, self.keyword_scores = engine.keywords, engine.keyword_scores
        self.keyword_parts = engine.keyword_parts
        self.keyword_coverage = engine.keyword_coverage

    @property
    def embedder(self) -> Embedder | None:
        return self._engine.embedder

    def nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        if not (yield from self._engine.exists()):
            return ()
        return (yield from self._engine.near(vector, k, both(require, where), self._way))

    def __repr__(self) -> str:
        return repr(self._engine)

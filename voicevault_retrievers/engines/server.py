"""The interface between an engine and a server: requests as steps, for writes, reads and searches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.steps import Compute, Steps, arun, in_thread, run
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.keywords import KeywordHit, Keywords
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import embedding
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.codec import Limits, limits_of


@dataclass(frozen=True)
class Capabilities:
    """How far an engine behaves like a knowledge base.

    `exact_vectors`: no near neighbour is missed. `atomic`: a batch is written completely or not at all. `native_async`:
    the event loop waits for the server itself, without a thread. `server_fusion`: one request can search and fuse.
    `engine_statistics`: the engine keeps statistics of its own, by which BM25 scores approximately by default.
    """

    exact_vectors: bool
    atomic: bool
    native_async: bool
    server_fusion: bool = False
    engine_statistics: bool = False


@dataclass(frozen=True, eq=False)
class Record:
    """A chunk to be written: its vector of length 1, its term frequencies, and its digest.

    Two records with one digest have equal text, metadata and parent, and the same embedder and analyzer.
    """

    chunk: Chunk
    vector: Vector | None
    terms: Mapping[str, int]
    digest: str

    @property
    def length(self) -> int:
        """The length of the chunk in terms, repeats counted."""
        return sum(self.terms.values())


class Stored(NamedTuple):
    """The id and digest of a chunk in a listing."""

    id: str
    digest: str


class WriteCounts(NamedTuple):
    """How many chunks were new, replaced another, or were unchanged."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0


T = TypeVar("T")


class Server(ABC):
    """One collection of a server. Subclasses define its requests; `Engine` composes operations of them."""

    capabilities: Capabilities

    def __init__(
        self,
        name: str,
        *,
        embedder: Embedder | None = None,
        analyzer: SavedAnalyzer | None = None,
        timeout: float | None = 30.0,
        limits: Limits | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a collection's name is a string that is not empty, not {name!r}")
        self.name = name
        self.timeout = seconds_or_none("timeout", timeout)
        self._given = analyzer, embedder
        self._options = dict(options or {})
        self._limits = limits_of(limits)
        self._mutex = Mutex()
        self._recipe: Recipe | None = None
        self._analyzer: SavedAnalyzer | None = None
        self._embedder: Embedder | None = None

    # What an engine is asked: steps, each yielding what `_now` and `_later` understand.

    @abstractmethod
    def _now(self, ask: Any) -> Any:
        """Send a request, and wait for the answer."""

    async def _later(self, ask: Any) -> Any:
        """`_now` on the running event loop; in a worker thread where the engine has no async client."""
        return await in_thread(partial(self._now, ask))

    @abstractmethod
    def _read_recipe(self) -> Steps[str | None]:
        """The text of the recipe that `_create` stored; None where there is no such collection."""

    @abstractmethod
    def _create(self, recipe: Recipe) -> Steps[None]:
        """Create the collection, and store `recipe.text()`; no error where another client has just created it."""

    @abstractmethod
    def _drop(self) -> Steps[None]:
        """Remove the collection with its content."""

    @abstractmethod
    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        """The digests of the given chunks that exist."""

    @abstractmethod
    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        """Write chunks and parents, replacing those with the same ids; parents are not searched."""

    @abstractmethod
    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        """Remove chunks, and parents that lose their last chunk; returns how many chunks were removed."""

    @abstractmethod
    def _count(self) -> Steps[int]:
        """How many chunks there are."""

    @abstractmethod
    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        """The given chunks, or parents, that exist."""

    @abstractmethod
    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        """At most `limit` chunks from a cursor (None for the first) on, each once; and the next cursor, or None.

        All chunks that pass `where` are among them; which others are left out is up to the engine.
        """

    @abstractmethod
    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        """At most k chunks that pass both filters, by falling cosine, ties by ascending id."""

    @abstractmethod
    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        """The vectors, of length 1, of the given chunks that exist."""

    @abstractmethod
    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        """At most k chunks that have a term and pass, by falling score, ties by ascending id."""

    @abstractmethod
    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        """The scores of the given chunks that exist and pass, 0.0 where no term matches."""

    @abstractmethod
    def _tags(self, require: Filter | None) -> Steps[str]:
        """Exactly the control characters that terms of passing chunks begin with (see `Analyzer`).

        An extra one drops query words that are stopwords only in that language.
        """

    @abstractmethod
    def _close(self) -> None:
        """As `Engine.close`, for this collection only."""

    @abstractmethod
    async def _aclose(self) -> None:
        """As `Engine.aclose`, for this collection only."""

    # How it is done.

    def run(self, steps: Steps[T]) -> T:
        """Run the steps."""
        return run(steps, self._now)

    async def arun(self, steps: Steps[T]) -> T:
        """Run the steps on the running event loop."""
        return await arun(steps, self._later)

    def embedding(self) -> Steps[Embedder | None]:
        """The embedder, loaded at first use."""
        if not (yield from self._ready()):
            return self._given[1]
        recipe = self._recipe
        if self._embedder is not None or recipe is None or recipe.embedder is None:
            return self._embedder
        made: Embedder | None = yield Compute(partial(recipe.make_embedder, self._given[1], self.name))
        with self._mutex:
            if self._recipe is not recipe:  # the collection was replaced meanwhile
                return made
            self._embedder = self._embedder or made
        return self._embedder

    def exists(self) -> Steps[bool]:
        """Whether there is a collection of this name."""
        return (yield from self._ready())

    def forget(self) -> None:
        """Read the recipe again before the next operation: the collection may be replaced, or gone."""
        with self._mutex:
            self._recipe = self._analyzer = self._embedder = None

    def _ready(self, create: bool = False) -> Steps[bool]:
        """Whether the collection exists, loading its recipe; `create` creates a missing one."""
        if self._recipe is not None:
            return True
        text = yield from self._read_recipe()
        if text is None and create:
            yield from self._create(Recipe.of(*self._given, self._options))
            text = yield from self._read_recipe()
        if text is None:
            return False
        recipe = Recipe.parse(text, self.name)
        recipe.check_options(self._options, self.name)
        analyzer, embedder = self._given
        made = recipe.make_analyzer(analyzer, self.name)
        if embedder is not None:
            embedding.check(recipe.embedder, embedder, self.name)
        with self._mutex:
            self._recipe, self._analyzer = recipe, made
        return True

    def _if_there(self, steps: Callable[[], Steps[T]], otherwise: T) -> Steps[T]:
        return (yield from steps()) if (yield from self._ready()) else otherwise

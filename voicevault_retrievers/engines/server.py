"""What an engine is to the classes over it: a server asked in steps; what is written to it, and listed."""

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
from voicevault_retrievers.store.codec import Limits


@dataclass(frozen=True)
class Capabilities:
    """What an engine does as a knowledge base does, and what it does otherwise.

    `exact_keywords`: BM25 scores are those of a knowledge base of the same chunks, but for their last bits.
    `exact_vectors`: no near neighbour is missed. `atomic`: a batch is written whole or not at all. `native_async`: the
    event loop waits for the server itself, not for a thread. `server_fusion`: one request can search and fuse.
    """

    exact_keywords: bool
    exact_vectors: bool
    atomic: bool
    native_async: bool
    server_fusion: bool = False


@dataclass(frozen=True, eq=False)
class Record:
    """A chunk as it is written: its vector of length 1, its terms and how often it has each, and its digest.

    Two records of one digest are alike in text, metadata, parent, and in what made their vectors and terms.
    """

    chunk: Chunk
    vector: Vector | None
    terms: Mapping[str, int]
    digest: str

    @property
    def length(self) -> int:
        """How many terms it has, repeats counted."""
        return sum(self.terms.values())


class Stored(NamedTuple):
    """A chunk as it is listed."""

    id: str
    digest: str


class WriteCounts(NamedTuple):
    """How many chunks were new, took another's place, and were there already."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0


T = TypeVar("T")


class Server(ABC):
    """One collection of a server. A subclass says what is asked; how operations are made of that, see `Engine`."""

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
        self._limits = limits or Limits()
        self._mutex = Mutex()
        self._recipe: Recipe | None = None
        self._analyzer: SavedAnalyzer | None = None
        self._embedder: Embedder | None = None

    # What an engine is asked: steps, each yielding what `_now` and `_later` understand.

    @abstractmethod
    def _now(self, ask: Any) -> Any:
        """Ask the server, and wait."""

    async def _later(self, ask: Any) -> Any:
        """`_now` on the running event loop; in a worker thread where the engine has no async client."""
        return await in_thread(partial(self._now, ask))

    @abstractmethod
    def _read_recipe(self) -> Steps[str | None]:
        """What `_create` was given; None where there is no such collection."""

    @abstractmethod
    def _create(self, recipe: Recipe) -> Steps[None]:
        """Make the collection, and keep `recipe.text()`; no error where somebody else has just made it."""

    @abstractmethod
    def _drop(self) -> Steps[None]:
        """Remove the collection with all in it."""

    @abstractmethod
    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        """The digests of those of the given chunks that are here."""

    @abstractmethod
    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        """Put in chunks, in the place of those of their ids, and parents, which are kept and not searched."""

    @abstractmethod
    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        """Remove chunks, and parents that no chunk names any more; how many chunks were here."""

    @abstractmethod
    def _count(self) -> Steps[int]:
        """How many chunks there are."""

    @abstractmethod
    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        """Those of the given chunks, or parents, that are here."""

    @abstractmethod
    def _page(self, cursor: Any, limit: int) -> Steps[tuple[Sequence[Stored], Any]]:
        """At most `limit` chunks from a cursor (None for the first) on, each once, and the next cursor or None."""

    @abstractmethod
    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        """At most k chunks that pass both filters, by falling cosine, ties by ascending id."""

    @abstractmethod
    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        """The vectors of those of the given chunks that are here, of length 1."""

    @abstractmethod
    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        """At most k chunks that have a term and pass, by falling score, ties by ascending id."""

    @abstractmethod
    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        """The score of each given chunk that is here and passes: 0.0 where no term matches."""

    @abstractmethod
    def _tags(self, require: Filter | None) -> Steps[str]:
        """The control characters that terms of chunks that pass begin with (see `Analyzer`): these and no others.

        One too many lets a query lose words that are stopwords of that language alone.
        """

    @abstractmethod
    def _close(self) -> None:
        """As `Engine.close`, of this collection."""

    @abstractmethod
    async def _aclose(self) -> None:
        """As `Engine.aclose`, of this collection."""

    # How it is done.

    def run(self, steps: Steps[T]) -> T:
        """Take the steps."""
        return run(steps, self._now)

    async def arun(self, steps: Steps[T]) -> T:
        """Take the steps on the running event loop."""
        return await arun(steps, self._later)

    def embedding(self) -> Steps[Embedder | None]:
        """The embedder, made when it is first needed."""
        if not (yield from self._ready()):
            return self._given[1]
        recipe = self._recipe
        if self._embedder is not None or recipe is None or recipe.embedder is None:
            return self._embedder
        made: Embedder | None = yield Compute(partial(recipe.make_embedder, self._given[1], self.name))
        with self._mutex:
            if self._recipe is not recipe:  # the collection was made anew meanwhile
                return made
            self._embedder = self._embedder or made
        return self._embedder

    def exists(self) -> Steps[bool]:
        """Whether there is a collection of this name."""
        return (yield from self._ready())

    def forget(self) -> None:
        """Read the recipe anew before the next operation: the collection may be another, or gone."""
        with self._mutex:
            self._recipe = self._analyzer = self._embedder = None

    def _ready(self, create: bool = False) -> Steps[bool]:
        """Whether there is a collection, whose recipe is known from then on; `create` makes it where there is none."""
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

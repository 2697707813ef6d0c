"""The common interface of engines: a collection of chunks in a database, used like a knowledge base."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from voicevault_retrievers._support.checks import id_list, whole
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.channels import Asked, EngineBM25, EngineDense
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, coverage, explained
from voicevault_retrievers.engines.questions import QUESTIONS, question_channel
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.server import Capabilities as Capabilities
from voicevault_retrievers.engines.server import Record as Record
from voicevault_retrievers.engines.server import Stored as Stored
from voicevault_retrievers.engines.writing import BATCH as BATCH
from voicevault_retrievers.engines.writing import Progress as Progress
from voicevault_retrievers.engines.writing import WritableEngine
from voicevault_retrievers.errors import ConfigError, SearchError
from voicevault_retrievers.fusion.hybrid import HybridSearch
from voicevault_retrievers.lexical.index import TermScore
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.structure.questions import QuestionChannel


class Engine(WritableEngine, HybridSearch):
    """A collection of an engine, by its name: searched through its channels, as a knowledge base is.

    No request is sent before the first operation. Searching a missing collection finds nothing. The first write creates
    the collection with the `analyzer` of its keywords and the `embedder` of its vectors (None for keywords only). An
    existing collection keeps its own, and refuses others with IncompatibleIndexError.

    `timeout` is in seconds, for each request to a server. Methods that wait for the server have an async variant,
    except those that list everything (`stored`, iteration, `vectors`); both run the same steps. `with` and `async with`
    close the connections. Raises SearchNotAvailableError where the server cannot be reached or refuses the user,
    SearchTimeoutError where it is too slow, SearchError for any other failure.
    """

    unexplained: ClassVar[str] = ""
    """What scores by the engine's own statistics without telling the parts of a score."""

    @abstractmethod
    def sibling(self, suffix: str, **options: Any) -> Engine:
        """Another collection of the same server, named by this one's name and a suffix; may share its connections."""

    @cached_property
    def asked(self) -> Engine:
        """The collection of the questions that chunks answer; see `engines.questions`."""
        return self.sibling(QUESTIONS)

    def clear(self) -> None:
        """Remove the collection with its content, its recipe and the questions that its chunks answer."""
        self.run(self.exists())  # raises for a collection of another recipe, before anything is removed
        if not self.name.endswith(QUESTIONS):
            self.asked.run(self.asked._removing())
        self.run(self._removing())

    async def aclear(self) -> None:
        """`clear` on the running event loop."""
        await self.arun(self.exists())
        if not self.name.endswith(QUESTIONS):
            await self.asked.arun(self.asked._removing())
        await self.arun(self._removing())

    def reload(self) -> bool:
        """Read the collection's recipe again; returns whether it has changed."""
        before = self._recipe
        self.forget()
        return self.recipe != before

    def close(self) -> None:
        """Close the connections of threads; the next operation opens them again."""
        if "asked" in vars(self):
            self.asked.close()
        self._close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if "asked" in vars(self):
            await self.asked.aclose()
        await self._aclose()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
        self.close()

    def __len__(self) -> int:
        return self.run(self._if_there(self._count, 0))

    async def acount(self) -> int:
        """How many chunks there are."""
        return await self.arun(self._if_there(self._count, 0))

    def get(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """The given chunks that exist, by id."""
        return self.run(self._getting(ids, parents=False))

    async def aget(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """`get` on the running event loop."""
        return await self.arun(self._getting(ids, parents=False))

    def parents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """The given parents that exist, by id."""
        return self.run(self._getting(ids, parents=True))

    async def aparents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """`parents` on the running event loop."""
        return await self.arun(self._getting(ids, parents=True))

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """`parents`, as a `ParentStore`."""
        return self.parents(ids)

    async def afetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """`fetch` on the running event loop."""
        return await self.aparents(ids)

    def stored(self, size: int = BATCH) -> Iterator[Stored]:
        """The id and digest of each chunk, in the engine's order."""
        cursor: Any = None
        size = whole("size", size)
        if not self.run(self._ready()):
            return
        while True:
            page, cursor = self.run(self._page(cursor, size))
            yield from page
            if cursor is None:
                return

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks, in the engine's order."""
        ids: list[str] = []
        for entry in self.stored():
            ids.append(entry.id)
            if len(ids) == BATCH:
                yield from self.get(ids).values()
                ids = []
        yield from self.get(ids).values() if ids else ()

    def vectors(self, ids: Iterable[str]) -> dict[str, Vector]:
        """The vectors, of length 1, of the given chunks that exist."""
        wanted = id_list(ids)
        none: Mapping[str, Vector] = {}
        return dict(self.run(self._if_there(partial(self._vectors, wanted), none))) if wanted else {}

    def status(self) -> Mapping[str, Any]:
        """What else the engine tells of the collection, such as its weights and indexes; empty where it keeps none."""
        none: Mapping[str, Any] = {}
        return self.run(self._if_there(self._status, none))

    def reweigh(self) -> int:
        """Make the stored keyword weights with the present mean length; returns how many chunks got new ones.

        Raises ConfigError where the engine stores no weights.
        """
        return self.run(self._if_there(self._reweigh, 0))

    async def areweigh(self) -> int:
        """`reweigh` on the running event loop."""
        return await self.arun(self._if_there(self._reweigh, 0))

    def bm25(self, **options: Any) -> EngineBM25:
        """The keyword channel; `options` are those of `EngineBM25`."""
        return EngineBM25(self, **options)

    def dense(self, **options: Any) -> EngineDense:
        """The vector channel; `options` are those of `EngineDense`."""
        return EngineDense(self, **options)

    def fused(self, *, k: float = 60, depth: int = 100, **options: Any) -> Channel:
        """Keyword and vector search in one request, fused by RRF in the engine; `options` are those of `bm25`.

        `k` is RRF's, `depth` the number of hits of each search. Raises ConfigError where the engine cannot fuse.
        """
        raise ConfigError(f"a {type(self).__name__} cannot fuse in one request: fuse bm25() and dense() with 'rrf'")

    def questions(self, **options: Any) -> QuestionChannel:
        """The channel over the questions that chunks answer; as `engines.questions.question_channel`."""
        return question_channel(self, **options)

    @property
    def embedder(self) -> Embedder | None:
        """The embedder of the vectors; None for keywords only, or without a collection and a given embedder."""
        return self.run(self.embedding())

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the collection; None where there is no collection."""
        return self._recipe if self.run(self._ready()) else None

    @property
    def analyzer(self) -> SavedAnalyzer | None:
        """The analyzer of the keywords; None where there is no collection and no analyzer was given."""
        return self._analyzer if self.run(self._ready()) else self._given[0]

    def nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        """The nearest chunks; none where there is no collection."""
        none: Sequence[Found] = ()
        return (yield from self._if_there(partial(self._nearest, vector, k, where, require), none))

    def keywords(self, asked: Asked, k: int) -> Steps[Sequence[KeywordHit]]:
        """The chunks with a term of the query that `asked` makes of analyzer and tags; none without a collection."""
        if not (yield from self._ready()):
            return ()
        return (yield from self._keywords((yield from self._wanted(asked)), k))

    def keyword_scores(self, asked: Asked, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        """The keyword scores of given chunks, as of `keywords`."""
        if not ids or not (yield from self._ready()):
            return {}
        return (yield from self._keyword_scores((yield from self._wanted(asked)), ids))

    def keyword_parts(self, asked: Asked, chunk_id: str) -> Steps[list[TermScore]]:
        """The parts of a chunk's keyword score; none where `keywords` would not find the chunk."""
        if not (yield from self._ready()):
            return []
        wanted = yield from self._wanted(asked)
        chunk = (yield from self._get([chunk_id], False)).get(chunk_id)
        if chunk is None or not compile_filter(wanted.passing)(chunk.metadata):
            return []
        return (yield from self._parts(wanted, chunk))

    def keyword_coverage(self, asked: Asked) -> Steps[float | None]:
        """The share of the query's terms that some chunk has; None for no terms, or where it is not reported."""
        if not (yield from self._ready()):
            return None
        return (yield from self._coverage((yield from self._wanted(asked))))

    def _wanted(self, asked: Asked) -> Steps[Keywords]:
        """The keyword query; ConfigError for statistics that the engine does not keep."""
        tags = yield from self._tags(asked.counting)
        wanted = asked(self._present(), tags)
        if wanted.statistics == "engine":
            self._check_statistics(wanted)
        return wanted

    def _check_statistics(self, asked: Keywords) -> None:
        """Raises ConfigError where the engine's own statistics are asked for by name and cannot serve the query."""
        if not self.capabilities.engine_statistics:
            raise ConfigError(
                f'statistics="engine": a {type(self).__name__} keeps no statistics of its own: search with "exact"'
            )

    def _status(self) -> Steps[Mapping[str, Any]]:
        """As `status`, for a collection that exists."""
        yield from ()
        return {}

    def _reweigh(self) -> Steps[int]:
        """As `reweigh`, for a collection that exists."""
        raise ConfigError(f"a {type(self).__name__} stores no weights of keywords: there is nothing to reweigh")

    def _coverage(self, asked: Keywords) -> Steps[float | None]:
        """As `keyword_coverage`."""
        try:
            population = yield from self._population(asked)
        except ConfigError:  # `_parts` raises it, with the reason
            return None
        return coverage(asked, population)

    def _parts(self, asked: Keywords, chunk: Chunk) -> Steps[list[TermScore]]:
        """The parts of the score of a chunk that passes, from its text and the statistics of `_population`."""
        if asked.statistics == "engine" and self.unexplained:
            raise ConfigError(
                f'statistics="engine": {self.unexplained} does not tell the parts of a score: explain it by a channel '
                'with statistics="exact", whose parts are those of the exact score'
            )
        population = yield from self._population(asked)
        analyzed = yield Compute(partial(self._analysed, [chunk.indexed_text]))
        frequencies = Counter(analyzed.document(0))
        return explained(asked, population, frequencies, frequencies.total())

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        """The statistics of a keyword query; ConfigError where the engine does not provide them."""
        raise ConfigError(f"a {type(self).__name__} does not tell its statistics, so its scores are not explained")

    def _present(self) -> SavedAnalyzer:
        """The analyzer; SearchError where another thread has found the collection removed or replaced."""
        if self._analyzer is None:
            raise SearchError(f"collection {self.name!r} was removed or made anew meanwhile: ask again")
        return self._analyzer

    def similarities(
        self, vector: Vector, ids: Sequence[str], where: Filter | None, require: Filter | None
    ) -> Steps[Mapping[str, float]]:
        """The cosines, from stored vectors, of the given chunks that exist and pass the filters."""
        if not ids or not (yield from self._ready()):
            return {}
        rows = yield from self._vectors(ids)
        if where or require:
            chunks = yield from self._get(list(rows), False)
            passes = [compile_filter(one) for one in (where, require) if one]
            rows = {one: rows[one] for one in chunks if all(each(chunks[one].metadata) for each in passes)}
        wanted = vector.astype(np.float64)
        return {one: float(row.astype(np.float64) @ wanted) for one, row in rows.items()}

    def _getting(self, ids: Iterable[str], parents: bool) -> Steps[dict[str, Chunk]]:
        wanted = list(dict.fromkeys(id_list(ids)))
        if not wanted or not (yield from self._ready()):
            return {}
        found = yield from self._get(wanted, parents)
        return {one: found[one] for one in wanted if one in found}

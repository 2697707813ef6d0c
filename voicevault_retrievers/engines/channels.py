"""The keyword and vector channels of an engine's collection; sync and async calls share their steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from voicevault_retrievers._support.checks import flag
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.leaf import LeafChannel, Match, best_of_wordings
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import ChannelKind, Failure, Query, Variant, Vector, as_query
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.engines.keywords import KeywordHit, KeywordHits, Keywords
from voicevault_retrievers.errors import ConfigError, NotIndexedError
from voicevault_retrievers.lexical.analysis import PlainWords, weighed_terms, words_in
from voicevault_retrievers.lexical.bm25 import formula_of
from voicevault_retrievers.lexical.formulas import Formula
from voicevault_retrievers.lexical.index import TermScore
from voicevault_retrievers.lexical.reading import Fuzzy, fuzzy_of
from voicevault_retrievers.lexical.statistics import Statistics, counting_of, statistics_of
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text import QueryTerm, untagged

T = TypeVar("T")


class Asked(Protocol):
    """Makes a keyword query of the analyzer and of the language tags of the chunks that `counting` passes.

    In `memo` an engine keeps what it has counted for the query, so that exact scores and coverage are of the statistics
    of the search.
    """

    @property
    def memo(self) -> dict[str, Any]: ...

    @property
    def counting(self) -> Filter | None: ...

    def __call__(self, analyzer: SavedAnalyzer, tags: str) -> Keywords: ...


class SearchedEngine(Protocol):
    """The part of `Engine` that the channels need."""

    name: str

    @property
    def embedder(self) -> Embedder | None: ...

    def run(self, steps: Steps[T]) -> T: ...

    async def arun(self, steps: Steps[T]) -> T: ...

    def exists(self) -> Steps[bool]: ...

    def embedding(self) -> Steps[Embedder | None]: ...

    def nearest(
        self, vector: Vector, k: int, where: Filter | None, require: Filter | None
    ) -> Steps[Sequence[Found]]: ...

    def similarities(
        self, vector: Vector, ids: Sequence[str], where: Filter | None, require: Filter | None
    ) -> Steps[Mapping[str, float]]: ...

    def keywords(self, asked: Asked, k: int) -> Steps[Sequence[KeywordHit]]: ...

    def keyword_scores(self, asked: Asked, ids: Sequence[str]) -> Steps[Mapping[str, float]]: ...

    def keyword_parts(self, asked: Asked, chunk_id: str) -> Steps[list[TermScore]]: ...

    def keyword_coverage(self, asked: Asked) -> Steps[float | None]: ...

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]: ...


E = TypeVar("E", bound=SearchedEngine)


class NoCollection(list[Match]):
    """The matches of a search where there is no collection: none."""


def noted(name: str, engine: SearchedEngine, found: Sequence[Sequence[Match]]) -> list[Failure]:
    """A note where there is no collection to search, as its name may be misspelt, or nothing was ever put in."""
    if not any(isinstance(matches, NoCollection) for matches in found):
        return []
    said = f"there is no collection {engine.name!r}, so nothing was found: check its name, or put something in"
    return [Failure(name, "NoCollection", said, degrades=False)]


class EngineLeaf(LeafChannel, Generic[E]):
    """A channel that runs an engine's steps for each wording, sync or async; subclasses define the steps."""

    each_alone = True

    def __init__(self, engine: E, name: str, kind: ChannelKind, *, timeout: float | None = None) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.engine = engine

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        return noted(self.name, self.engine, found)

    @abstractmethod
    def _finding(self, query: Query, wording: Variant, k: int) -> Steps[Sequence[Match]]:
        """At most k matches of a wording, best first."""

    def _found(self, query: Query, wording: Variant, k: int) -> Steps[Sequence[Match]]:
        found = yield from self._finding(query, wording, k)
        return found if found or (yield from self.engine.exists()) else NoCollection()

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """For each wording at most k matches, best first."""
        return [self.engine.run(self._found(query, wording, k)) for wording in wordings]

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [await self.engine.arun(self._found(query, wording, k)) for wording in wordings]


class EngineScan:
    """Keyword scores of given chunks, and coverage of a query's terms, from an engine."""

    local = False

    def __init__(
        self, channel: EngineBM25, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()
    ) -> None:
        held = {wording: matches for wording, matches in found if isinstance(matches, EngineMatches)}
        wordings = channel._wordings(query)
        self._asked = [(w, held[w].asked if w in held else AskedWording(channel, query, w)) for w in wordings]
        self._first = held.get(wordings[0]) if wordings else None
        self.source = channel.engine

    @property
    def coverage(self) -> float | None:
        """As of `KeywordScan`; None where the engine does not report it. No request where the hits have all words."""
        if self._first is not None and self._first.have_all_words:
            return 1.0
        for _, asked in self._asked[:1]:
            return self.source.run(self.source.keyword_coverage(asked))
        return None

    def scores(self, ids: Sequence[str]) -> Mapping[str, float]:
        """As of `KeywordScan`."""
        run, scores = self.source.run, self.source.keyword_scores
        return best_of_wordings([(w.weight, run(scores(asked, ids))) for w, asked in self._asked])


class EngineBM25(EngineLeaf[SearchedEngine]):
    """Keyword search in an engine; scores are BM25's, higher is better.

    `formula`, `exclude_nonpositive` and `plain_words` are as of `BM25`; an engine that does not support a formula
    raises ConfigError at the search. `statistics` is one of `lexical.statistics.Statistics`. By default the engine's
    own serve where it keeps some, except under access rights (`require`): there the permitted chunks are counted.
    """

    def __init__(
        self,
        engine: SearchedEngine,
        *,
        formula: Formula | str = "lucene",
        statistics: Statistics | None = None,
        exclude_nonpositive: bool = False,
        operators: bool = False,
        fuzzy: bool | Fuzzy = False,
        plain_words: bool = False,
        timeout: float | None = None,
        name: str = "bm25",
    ) -> None:
        super().__init__(engine, name, "keyword", timeout=timeout)
        if flag("operators", operators):
            raise ConfigError("operators in queries are for knowledge bases: an engine does not read them")
        if fuzzy_of(fuzzy):
            raise ConfigError(
                "fuzzy is for knowledge bases: an engine does not list its terms; correct words with SpellingExpansion"
            )
        self.formula = formula_of(formula)
        self.statistics = statistics_of(statistics, engine=True)
        self.exclude_nonpositive = flag("exclude_nonpositive", exclude_nonpositive)
        self.plain = PlainWords(name) if flag("plain_words", plain_words) else None

    @property
    def options(self) -> dict[str, Any]:
        """What the channel was made with, beside its engine and name."""
        return {
            "formula": self.formula,
            "statistics": self.statistics,
            "exclude_nonpositive": self.exclude_nonpositive,
            "plain_words": self.plain is not None,
            "timeout": self.timeout,
        }

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> EngineScan:
        return EngineScan(self, query, found)

    def explain(self, query: str | Query, chunk_id: str) -> list[TermScore]:
        """The terms of a chunk's score for the query's own text, which add up to it; as `BM25.explain`.

        Empty where a search would not find the chunk.
        """
        query = as_query(query)
        asked = AskedWording(self, query, Variant(query.text))
        parts = self.engine.run(self.engine.keyword_parts(asked, chunk_id))
        return [replace(part, term=untagged(part.term)) for part in parts]

    def _finding(self, query: Query, wording: Variant, k: int) -> Steps[Sequence[Match]]:
        asked = AskedWording(self, query, wording)
        hits: Sequence[KeywordHit] = yield from self.engine.keywords(asked, k)
        return ListedMatches(asked, hits) if isinstance(hits, KeywordHits) else KeywordMatches(asked, hits)

    def __repr__(self) -> str:
        return f"EngineBM25({self.engine!r}, {self.formula!r})"


class AskedWording:
    """The keyword request of a wording, made once the analyzer is known; maps the terms back to words."""

    def __init__(self, channel: EngineBM25, query: Query, wording: Variant) -> None:
        self._channel = channel
        self._query = query
        self._wording = wording
        self._terms: Sequence[QueryTerm] = ()
        self._read: tuple[SavedAnalyzer, str] | None = None
        self.memo: dict[str, Any] = {}

    def __call__(self, analyzer: SavedAnalyzer, tags: str) -> Keywords:
        channel, query = self._channel, self._query
        if channel.plain is not None:
            channel.plain.check(analyzer)
        self._terms, counts = weighed_terms(analyzer, self._wording, tags)
        self._read = analyzer, tags
        return Keywords(
            counts,
            channel.formula,
            query.where,
            query.require,
            channel.statistics,
            channel.exclude_nonpositive,
        )

    @property
    def counting(self) -> Filter | None:
        """The filter of the chunks whose languages the query's words are read in; as of exact statistics."""
        return counting_of(self._query.where, self._query.require, self._channel.statistics == "filtered")

    def words(self, forms: Sequence[str]) -> tuple[str, ...]:
        """The words of the query that have one of these forms, in query order."""
        found = set(forms)
        return tuple(dict.fromkeys(term.word for term in self._terms if found.intersection(term.forms)))

    @property
    def all_words(self) -> set[str]:
        """The words of the query that have a term."""
        return {term.word for term in self._terms if term.forms}

    def header_words(self, header: str) -> tuple[str, ...]:
        """The words of the query that have a term in a chunk's header."""
        if not header or self._read is None:
            return ()
        analyzer, tags = self._read
        return words_in(analyzer, header, self._terms, tags)

    def match(self, hit: KeywordHit) -> Match:
        """The match of a hit, with the words that it has."""
        words = self.words(hit.forms)
        return Match(hit.chunk, hit.score, words, header_terms=self.header_words(hit.chunk.header))


class EngineMatches:
    """What a scan uses of a keyword search: its request, and the forms that each hit has."""

    asked: AskedWording
    forms: Sequence[tuple[str, ...]]

    @property
    def have_all_words(self) -> bool:
        """Whether each word of the query is in some match."""
        wanted = self.asked.all_words
        return bool(wanted) and wanted <= set(self.asked.words([form for forms in self.forms for form in forms]))


class KeywordMatches(EngineMatches, list[Match]):
    """The matches of a keyword search, best first."""

    def __init__(self, asked: AskedWording, hits: Sequence[KeywordHit]) -> None:
        super().__init__(asked.match(hit) for hit in hits)
        self.asked, self.forms = asked, [hit.forms for hit in hits]


class ListedMatches(EngineMatches, Listing[Match]):
    """`KeywordMatches` that are made when they are read."""

    def __init__(self, asked: AskedWording, hits: KeywordHits) -> None:
        super().__init__(hits.ids, hits.scores, lambda at: asked.match(hits[at]))
        self.asked, self.forms = asked, hits.forms


class EngineDense(VectorChannel):
    """Vector search in an engine; scores are cosines, in (0, 1], and options as of `VectorChannel`."""

    each_alone = True

    def __init__(self, engine: SearchedEngine, **options: Any) -> None:
        self.engine = engine
        super().__init__(_Index(engine), None, **options)  # type: ignore[arg-type]  # see `embedder`

    @property
    def has_options(self) -> bool:
        """Whether the channel searches otherwise than the engine does by default."""
        return self.timeout is not None

    @property
    def embedder(self) -> Embedder:
        """The embedder of the collection, loaded at first use; NotIndexedError where it has no vectors."""
        return self._present(self.engine.embedder)

    @embedder.setter
    def embedder(self, value: Embedder | None) -> None:
        """Does nothing: the collection has its own embedder."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """For each wording at most k chunks, nearest first."""
        return self.engine.run(self._finding(query, wordings, k))

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return await self.engine.arun(self._finding(query, wordings, k))

    def _finding(self, query: Query, wordings: Sequence[Variant], k: int) -> Steps[list[Sequence[Match]]]:
        found: list[Sequence[Match]] = []
        for vector in (yield from self.embedded(query, wordings)) or ():
            near = yield from self._near(vector, query, k)
            found.append(self._matches(near, vector))
        if not any(found) and not (yield from self.engine.exists()):
            return [NoCollection() for _ in wordings]
        return found

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        return noted(self.name, self.engine, found)

    def _near(self, vector: Vector, query: Query, k: int) -> Steps[Sequence[Found]]:
        """At most k chunks that pass the query's filters, nearest first."""
        return (yield from self.engine.nearest(vector, k, query.where, query.require))

    def embedded(self, query: Query, wordings: Sequence[Variant]) -> Steps[Sequence[Vector] | None]:
        """The vectors of the wordings; None where there is no collection, NotIndexedError for one without vectors."""
        embedder = yield from self.engine.embedding()
        if embedder is None and not (yield from self.engine.exists()):
            return None
        self._present(embedder)
        vectors: Sequence[Vector] = yield Compute(partial(self._vectors, query, wordings))
        return vectors

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        """The wordings with content; the search checks whether the query's own vector fits."""
        return LeafChannel._wordings(self, query)

    def _present(self, embedder: Embedder | None) -> Embedder:
        if embedder is None:
            raise NotIndexedError(
                f"collection {self.engine.name!r} was made without an embedder and holds no vectors: search it with "
                "bm25(), or copy the documents into a new one made with embedder=..."
            )
        return embedder

    def __repr__(self) -> str:
        return f"EngineDense({self.engine!r})"


class _Index:
    """An engine as a vector index, to score given chunks."""

    def __init__(self, engine: SearchedEngine) -> None:
        self.source = engine

    @property
    def dimension(self) -> int:
        embedder = self.source.embedder
        return 0 if embedder is None else embedder.dimension

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Sequence[Found]:
        return self.source.run(self.source.nearest(vector, k, where, require))

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> Mapping[str, float]:
        return self.source.run(self.source.similarities(vector, ids, where, require))

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        return self.source.vectors(ids)

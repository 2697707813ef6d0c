"""A collection of Qdrant as an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter, both, compile_filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import Query, Vector
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.engines.channels import Asked
from voicevault_retrievers.engines.filters import nothing_passes
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, best
from voicevault_retrievers.engines.qdrant import points, requests, statistics
from voicevault_retrievers.engines.qdrant.channels import (
    ByRanks,
    QdrantDense,
    QdrantFused,
    Scoring,
    Way,
    fused_hit,
    server_hit,
    server_query,
)
from voicevault_retrievers.engines.qdrant.collection import PAGE, Collection
from voicevault_retrievers.engines.qdrant.points import CHUNK, COUNTED, FULL
from voicevault_retrievers.engines.qdrant.statistics import Counts, State
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    SearchError,
)
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.store.analyzers import SavedAnalyzer

SAME = 1e-6
"""Float32 cosines that differ by less than this may be equal."""

TIES = 1000
"""How many hits behind the k-th are read at most, to order equal scores by id."""


class QdrantEngine(Collection):
    """A collection of a Qdrant server (`url`), of local mode in a folder (`path`) or in memory, or of a given client.

    Points have the vectors `full` and `fast` (the first `prefix` dimensions, where set), both of cosine, and the sparse
    `bm25`. `idf="own"` gives a knowledge base's exact BM25 scores; "server" leaves idf and scores to Qdrant. `indexes`
    are payload indexes on metadata by key ("keyword", "integer", "float", "bool", ...): all values of such a key must
    have that type. `tenant` is the key by which Qdrant partitions its storage. `quantization` is "scalar" or "binary",
    with rescoring. These options are fixed when the collection is made. `exact` searches vectors without Qdrant's HNSW
    graph.
    """

    # Searching.

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        return (yield from self.near(vector, k, both(require, where), self.way))

    @property
    def prefix(self) -> int | None:
        """The dimensions of the collection's short vectors, as far as known."""
        made: int | None = self._made("prefix")
        return made

    def near(self, vector: Vector, k: int, wanted: Filter | None, way: Way) -> Steps[list[Found]]:
        """The nearest chunks that pass, searched in the given way."""
        if k == 0 or nothing_passes(wanted):
            return []
        way = way.among(self.name, self.prefix)
        yield from self._state()  # the vector is one of the collection's embedder
        passes, clause = compile_filter(wanted), self._clause(wanted)
        ask = k + 1
        while True:
            asked = requests.dense(vector, ask, clause, way, self._params(way))
            told = yield from self._ask("query_points", **asked, with_vectors=[FULL] if self._client.local else False)
            near = [self._found(one, vector) for one in told.points]
            found = [entry for entry in near if passes(entry.chunk.metadata)]
            tied = len(found) >= k and near[-1].score > found[k - 1].score - SAME and ask < max(TIES, k)
            if len(near) < ask or (len(found) >= k and not tied):
                return sorted(found, key=lambda entry: (-entry.score, entry.chunk.id))[:k]
            ask *= 2

    def _params(self, way: Way) -> Any:
        """The parameters of a vector search; None in local mode, which compares all vectors."""
        return None if self._client.local else requests.params(way, self._made("quantization") is not None)

    def _found(self, point: Any, vector: Vector) -> Found:
        """A point with its score; in local mode the cosine in float64, as numpy's own depends on memory alignment."""
        score = float(point.score)
        if self._client.local:
            row = np.asarray([point.vector[FULL]], np.float32)
            score = float(rescoring.cosines(row, np.zeros(1, np.intp), vector)[0])
        return Found(points.chunk_of(point.payload, self.name), score)

    def _tags(self, require: Filter | None) -> Steps[str]:
        if self._made("idf") == "server":
            return (yield from self._state()).tags
        return (yield from self.counts(require)).languages()

    def counts(self, scope: Filter | None) -> Steps[Counts]:
        """The statistics of the chunks that pass; read from all of them where they are not cached, or outdated."""
        state = yield from self._state()
        held = self._statistics.held(scope, state)
        if held is not None:
            return held
        writes, counts, cursor = self._statistics.writes, Counts(), None
        passes, clause = compile_filter(scope), requests.of_kind(CHUNK, self._clause(scope))
        fields = COUNTED if scope is not None else ["terms", "length", "mean"]
        while not nothing_passes(scope):
            page, cursor = yield from self._scroll(clause, PAGE, cursor, fields)
            every = [point.payload for point in page]
            counts.change((), every if scope is None else [one for one in every if passes(points.metadata_of(one))])
            if cursor is None:
                break
        self._statistics.hold(scope, state, counts, writes)
        return counts

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        if k == 0 or nothing_passes(asked.passing):
            return []
        if self._made("idf") == "server":
            return (yield from self._server_keywords(asked, k))
        scoring = Scoring.of(asked, (yield from self.counts(asked.counting)))
        if not scoring.terms:
            return []
        clause, ask = self._clause(asked.passing), 2 * k + 16
        while True:
            told = yield from self._ask("query_points", **requests.words(scoring.query(), ask, clause))
            hits = [hit for one in told.points if (hit := scoring.hit(one.payload, self.name)) is not None]
            top = best(hits, k, positive=asked.positive)
            if len(told.points) < ask or (
                len(top) == k and top[-1].score > scoring.unseen(float(told.points[-1].score))
            ):
                return top
            ask *= 2

    def _server_keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        self._check_server(asked)
        vector, passes, clause = server_query(asked), compile_filter(asked.passing), self._clause(asked.passing)
        if not vector:
            return []
        ask = k + 1
        while True:
            told = yield from self._ask("query_points", **requests.words(vector, ask, clause))
            found = [server_hit(asked, passes, one.payload, float(one.score), self.name) for one in told.points]
            hits = [hit for hit in found if hit is not None]
            tied = len(hits) >= k and float(told.points[-1].score) == hits[k - 1].score and ask < max(TIES, k)
            if len(told.points) < ask or (len(hits) >= k and not tied):
                return best(hits, k, positive=asked.positive)
            ask *= 2

    def _check_server(self, asked: Keywords) -> None:
        if asked.formula != Lucene(points.K1, points.B):
            raise ConfigError(
                f"collection {self.name!r} was made with idf='server', which scores by Lucene's formula alone, not "
                f"{asked.formula!r}: make it with idf='own'"
            )
        if asked.counting is not None:
            raise FilterNotSupportedError(
                f"collection {self.name!r} was made with idf='server', which counts over all chunks: access rights and "
                "statistics='filtered' need one made with idf='own'"
            )

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        if self._made("idf") == "server":
            raise ConfigError(
                f"collection {self.name!r} was made with idf='server', whose scores Qdrant does not explain: make it "
                "with idf='own'"
            )
        return (yield from self.counts(asked.counting)).population(asked.forms)

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        if self._made("idf") == "server":
            return (yield from self._server_scores(asked, ids))
        named = {points.point_id(one): one for one in ids}
        scoring = Scoring.of(asked, (yield from self.counts(asked.counting)))
        found = yield from self._retrieve(list(named), COUNTED)
        scored: dict[str, float] = {}
        for at, point in found.items():
            if scoring.passes(points.metadata_of(point.payload)):
                own = scoring.score(point.payload)
                scored[named[at]] = 0.0 if own is None else own[0]
        return scored

    def _server_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        self._check_server(asked)
        passes = compile_filter(asked.passing)
        named = {points.point_id(one): one for one in ids}
        there = yield from self._retrieve(list(named), ["metadata", "exact"])
        scored = {named[at]: 0.0 for at, one in there.items() if passes(points.metadata_of(one.payload))}
        vector = server_query(asked)
        if vector and scored:
            clause = requests.among(list(there))
            told = yield from self._ask("query_points", **requests.words(vector, len(there), clause))
            hits = [server_hit(asked, passes, one.payload, float(one.score), self.name) for one in told.points]
            scored |= {hit.chunk.id: hit.score for hit in hits if hit is not None}
        return scored

    def fusing(self, asked: Asked, vector: Vector, fusion: ByRanks, k: int, query: Query) -> Steps[list[KeywordHit]]:
        """The best hits by keywords and vectors, fused in Qdrant; see `QdrantFused`."""
        if not (yield from self._ready()) or self._analyzer is None or k == 0:
            return []
        if query.require is not None and not requests.told_exactly(query.require):
            raise FilterNotSupportedError(
                f"Qdrant cannot tell exactly what {query.require!r} permits, so it is not asked to fuse: fuse bm25() "
                "and dense() here, or say the rights by equality with strings and $in"
            )
        wanted = both(query.require, query.where)
        if nothing_passes(wanted):
            return []
        words = yield from self._wanted(asked, query.require)
        vector_of_words = yield from self._asked_words(words)
        limit = k if requests.told_exactly(wanted) else 2 * fusion.depth
        made = requests.fused(vector_of_words, vector, fusion, limit, self._clause(wanted), self._params(self.way))
        told = yield from self._ask("query_points", **made)
        passes = compile_filter(wanted)
        found = [fused_hit(words, passes, one.payload, float(one.score), self.name) for one in told.points]
        return best((hit for hit in found if hit is not None), k)

    def _asked_words(self, asked: Keywords) -> Steps[dict[int, float]]:
        if self._made("idf") == "server":
            self._check_server(asked)
            return server_query(asked)
        return Scoring.of(asked, (yield from self.counts(asked.counting))).query()

    # What users call.

    def dense(self, **options: Any) -> QdrantDense:
        """The vector channel; `options` are those of `QdrantDense`."""
        return QdrantDense(self, **options)

    def fused(self, *, k: float = 60, depth: int = 100, **options: Any) -> QdrantFused:
        """A hybrid channel of keywords and vectors that Qdrant fuses by RRF; see `QdrantFused`."""
        return QdrantFused(self, whole("k", k), whole("depth", depth), **options)

    def save_vocabulary(self, path: Path | str) -> None:
        """Write terms, document frequencies, idf and mean length as JSON, so that they need not be read again.

        Raises ConfigError for a collection that leaves idf to the server, or that does not exist.
        """
        state, counts = self.run(self._vocabulary())
        statistics.save(path, self.name, state, counts)

    def load_vocabulary(self, path: Path | str) -> bool:
        """Load statistics from a file; returns whether they are current.

        Current statistics give bit-identical rankings. Where the collection was written to since, or has another number
        of chunks, the statistics are read from it at the next search. Raises IncompatibleIndexError for a file that is
        no vocabulary.
        """
        state, counts = statistics.load(path)
        fits = self.run(self._if_there(partial(self._stands, state, counts.total), False))
        if fits:
            self._statistics.hold(None, state, counts, self._statistics.writes)
        return fits

    def _stands(self, state: State, chunks: int) -> Steps[bool]:
        return (yield from self._state()) == state and (yield from self._count()) == chunks

    def _vocabulary(self) -> Steps[tuple[State, Counts]]:
        if not (yield from self._ready()) or self._made("idf") == "server":
            raise ConfigError(
                f"collection {self.name!r} does not exist, or leaves idf to the server: it has no vocabulary"
            )
        counts = yield from self.counts(None)
        state = yield from self._state()
        if self._statistics.held(None, state) is not counts:
            raise SearchError(f"collection {self.name!r} is being written to: save its vocabulary when that is done")
        return state, counts

    def sibling(self, suffix: str, **options: Any) -> QdrantEngine:
        given: dict[str, Any] = {"embedder": self._given[1], "analyzer": self._given[0], "limits": self._limits}
        given |= {"timeout": self.timeout, "exact": self.way.exact, **options}
        made = QdrantEngine(self.name + suffix, **given)
        made._client = self._client.shared()
        made._settle(made._options.get("idf") == "server")
        return made

    def __repr__(self) -> str:
        return f"QdrantEngine({self.name!r}, {self._client!r})"


def at(
    address: str, *, embedder: Embedder | None = None, analyzer: SavedAnalyzer | None = None, **options: Any
) -> QdrantEngine:
    """The collection at `qdrant://[key@]host[:6333]/COLLECTION`, `qdrants://` for TLS, or in local mode.

    `options` are those of `QdrantEngine`. Local mode is `qdrant+file:///FOLDER/COLLECTION`. Raises ConfigError for any
    other address, without repeating it, as it may hold a key.
    """
    try:
        parts = urlsplit(address)
        folder, _, name = parts.path.rpartition("/")
        port = parts.port
        whole_address = bool(name) and not parts.query and not parts.fragment and "@" not in parts.path
    except ValueError:
        whole_address = False
    if not whole_address or (not parts.hostname if parts.scheme != "qdrant+file" else not folder or parts.netloc):
        raise ConfigError(
            "the address of a Qdrant collection is qdrant://[key@]host[:6333]/COLLECTION, qdrants:// by TLS, or "
            "qdrant+file:///FOLDER/COLLECTION; in a key each of / ? # @ : [ ] % is written as %2F and so on"
        )
    given: dict[str, Any] = {"embedder": embedder, "analyzer": analyzer, **options}
    if parts.scheme == "qdrant+file":
        return QdrantEngine(unquote(name), path=unquote(folder), **given)
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    key = unquote(":".join(part for part in (parts.username, parts.password) if part))
    scheme = "https" if parts.scheme == "qdrants" else "http"
    given = {"api_key": key or None, **given}
    return QdrantEngine(unquote(name), url=f"{scheme}://{host}:{port or 6333}{folder}", **given)

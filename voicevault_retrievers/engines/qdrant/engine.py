"""A collection of Qdrant as an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter, both, compile_filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import Query, Vector
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.engines.channels import Asked
from voicevault_retrievers.engines.filters import nothing_passes
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, best, coverage
from voicevault_retrievers.engines.qdrant import points, requests, statistics
from voicevault_retrievers.engines.qdrant.channels import (
    ByRanks,
    QdrantDense,
    QdrantFused,
    Scoring,
    Way,
    engine_query,
    fused_hit,
)
from voicevault_retrievers.engines.qdrant.collection import STATE_ID
from voicevault_retrievers.engines.qdrant.points import BOUNDS, COUNTED, FULL, WEIGHTS
from voicevault_retrievers.engines.qdrant.statistics import Sums
from voicevault_retrievers.engines.qdrant.writing import WritableCollection
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.store.analyzers import SavedAnalyzer

SAME = 1e-6
"""Float32 cosines that differ by less than this may be equal."""

TIES = 1000
"""How many hits behind the k-th are read at most, to order equal scores by id."""


class QdrantEngine(WritableCollection):
    """A collection of a Qdrant server (`url`), of local mode in a folder (`path`) or in memory, or of a given client.

    Points have the vectors `full` and `fast` (the first `prefix` dimensions, where set), both of cosine, and the sparse
    `bm25`, with Qdrant's idf, and `bm25_bounds`, from which exact scores are found. Metadata keys get payload indexes
    when they are first written: all, or those in `indexes`. `tenant` is the key by which Qdrant partitions its storage.
    `quantization` is "scalar" or "binary", with rescoring. These options are fixed when the collection is made. `exact`
    searches vectors without Qdrant's HNSW graph.
    """

    unexplained = "Qdrant"

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
        passes, clause = compile_filter(wanted), self._clause(wanted)
        ask = k + 1
        while True:
            with_vector = [FULL] if self._client.local else False
            asked = requests.dense(vector, ask, clause, way, self._params(way), with_vector)
            (told,), _ = yield from self._search(asked)
            near = [self._found(one, vector) for one in told]
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
        return (yield from self._counted_sums(require)).languages

    def keywords(self, asked: Asked, k: int) -> Steps[Sequence[KeywordHit]]:
        if k == 0 or not (yield from self._ready()):
            return ()
        if self._by_engine(asked):
            return (yield from self._engine_keywords(asked, k))
        words, sums = yield from self._counting(asked)
        return (yield from self._keywords(words, k, sums))

    def keyword_scores(self, asked: Asked, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        if not ids or not (yield from self._ready()):
            return {}
        if self._by_engine(asked):
            return (yield from self._engine_scores(asked, ids))
        words, sums = yield from self._counting(asked)
        return (yield from self._keyword_scores(words, ids, sums))

    def keyword_coverage(self, asked: Asked) -> Steps[float | None]:
        if not (yield from self._ready()):
            return None
        if not self._by_engine(asked):
            words, sums = yield from self._counting(asked)
            return coverage(words, (yield from self._counted(words, sums)))

        def made(words: Keywords) -> list[Any]:
            return [requests.listed(requests.having(forms, None), 1, False) for forms in words.terms]

        words, found = yield from self._engine_search(asked, made)
        there = {forms[0]: len(told) for forms, told in zip(words.terms, found, strict=True)}
        return coverage(words, CollectionCounts(0, 0, there))

    # By Qdrant's own statistics.

    def _by_engine(self, asked: Asked) -> bool:
        """Whether Qdrant's own statistics serve the query.

        Raises ConfigError where statistics="engine" asks for another formula than that of the weights.
        """
        words = asked(self._present(), self._languages)
        fits = words.formula == points.FORMULA
        if words.statistics == "engine" and not fits:
            raise ConfigError(
                f'statistics="engine": Qdrant scores by {points.FORMULA!r} alone, not {words.formula!r}: search with '
                '"exact"'
            )
        return words.by_engine and fits and all(count > 0 for count in words.terms.values())

    def _engine_search(self, asked: Asked, made: Callable[[Keywords], Sequence[Any]]) -> Steps[tuple[Keywords, Any]]:
        """The query, and what the searches that `made` makes of it find, in one request.

        A second one where terms of another language have been written meanwhile. Under access rights, their languages
        are counted first.
        """
        permitted = None if asked.counting is None else (yield from self._sums(asked.counting)).languages
        while True:
            languages = self._languages if permitted is None else permitted
            words = asked(self._present(), languages)
            found, state = yield from self._search(*made(words))
            if permitted is not None or state.languages == languages:
                return words, found
            self._languages = state.languages

    def _engine_keywords(self, asked: Asked, k: int) -> Steps[Sequence[KeywordHit]]:
        ask = k + 1
        while True:
            words, found = yield from self._engine_search(asked, partial(self._engine_requests, ask))
            told: Sequence[Any] = found[0] if found else ()
            hits = self._hits(words, told)
            tied = len(hits) >= k and float(told[-1].score) == hits[k - 1].score and ask < max(TIES, k)
            if len(told) < ask or (len(hits) >= k and not tied):
                return best(hits, k, positive=words.positive)
            ask *= 2

    def _engine_requests(self, limit: int, words: Keywords, clause: Any = None) -> list[Any]:
        """The search by Qdrant's own idf; none where no chunk can be found."""
        vector = engine_query(words)
        if not vector or nothing_passes(words.passing):
            return []
        return [requests.words(vector, WEIGHTS, limit, clause or self._clause(words.passing))]

    def _hits(self, words: Keywords, told: Sequence[Any]) -> list[KeywordHit]:
        """Those of the points found by keywords that have a term, and pass."""
        passes = compile_filter(words.passing)
        found = (fused_hit(words, passes, one.payload, float(one.score), self.name) for one in told)
        return [hit for hit in found if hit is not None and hit.forms]

    def _engine_scores(self, asked: Asked, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        named = {points.point_id(one): one for one in ids}
        these = requests.among(list(named))

        def made(words: Keywords) -> list[Any]:
            listed = requests.listed(these, len(named), ["metadata", "exact"])
            return [listed, *self._engine_requests(len(named), words, these)]

        words, answers = yield from self._engine_search(asked, made)
        there, *found = answers
        passes = compile_filter(words.passing)
        scored = {named[str(one.id)]: 0.0 for one in there if passes(points.metadata_of(one.payload))}
        return scored | {hit.chunk.id: hit.score for told in found for hit in self._hits(words, told)}

    # By statistics that are counted for the query.

    def _counting(self, asked: Asked) -> Steps[tuple[Keywords, Sums]]:
        """The query in the languages of the chunks that count, and the sums over these chunks."""
        if "sums" not in asked.memo:
            asked.memo["sums"] = yield from self._counted_sums(asked.counting)
        sums: Sums = asked.memo["sums"]
        return asked(self._present(), sums.languages), sums

    def _counted_sums(self, scope: Filter | None) -> Steps[Sums]:
        if scope is None and self._vocabulary is not None:
            return self._vocabulary
        # Local mode would go through all chunks again for each term that it counts.
        return (yield from self._sums(scope, every=self._client.local))

    def _scoring(self, asked: Keywords, sums: Sums | None) -> Steps[Scoring]:
        if sums is None:
            sums = yield from self._counted_sums(asked.counting)
        return Scoring.of(asked, sums, (yield from self._counted(asked, sums)))

    def _counted(self, asked: Keywords, sums: Sums) -> Steps[CollectionCounts]:
        """The statistics of a query: `sums`, and the number of chunks with each form, counted by Qdrant.

        For a formula that replaces negative weights by a mean over all terms, those of all terms are read.
        """
        if sums.frequencies is None:
            clause = self._clause(asked.counting)
            frequencies = sums.counted
            forms = [form for form in asked.forms if form not in frequencies and encodable(form) == form]
            forms = forms if sums.total else []
            calls = [self._call("count", count_filter=requests.having([one], clause), exact=True) for one in forms]
            told = (yield from self._asking(calls)) if calls else ()
            frequencies |= {form: int(each.count) for form, each in zip(forms, told, strict=True)}
            known = [sum(frequencies.get(form, 0) for form in forms) for forms in asked.terms]
            if all(asked.formula.idf(n, sums.total) >= 0 for n in known if n):
                return CollectionCounts(sums.total, sums.length, frequencies)
            sums = yield from self._sums(asked.counting, every=True)
        histogram = Counter((sums.frequencies or {}).values())
        return CollectionCounts(sums.total, sums.length, sums.frequencies or {}, histogram.items)

    def _keywords(self, asked: Keywords, k: int, sums: Sums | None = None) -> Steps[Sequence[KeywordHit]]:
        if k == 0 or nothing_passes(asked.passing):
            return []
        scoring = yield from self._scoring(asked, sums)
        if not scoring.terms:
            yield from self._search()  # another collection by now may have no such terms
            return []
        clause, ask = self._clause(asked.passing), 2 * k + 16
        while True:
            (told,), _ = yield from self._search(requests.words(scoring.query(), BOUNDS, ask, clause))
            hits = [hit for one in told if (hit := scoring.hit(one.payload, self.name)) is not None]
            top = best(hits, k, positive=asked.positive)
            if len(told) < ask or (len(top) == k and top[-1].score > scoring.unseen(float(told[-1].score))):
                return top
            ask *= 2

    def _keyword_scores(
        self, asked: Keywords, ids: Sequence[str], sums: Sums | None = None
    ) -> Steps[Mapping[str, float]]:
        named = {points.point_id(one): one for one in ids}
        scoring = yield from self._scoring(asked, sums)
        found = yield from self._retrieve([STATE_ID, *named], [*COUNTED, statistics.RECIPE])
        yield from self._checked(found.pop(STATE_ID, None))
        scored: dict[str, float] = {}
        for at, point in found.items():
            if scoring.passes(points.metadata_of(point.payload)):
                own = scoring.score(point.payload)
                scored[named[at]] = 0.0 if own is None else own[0]
        return scored

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        return (yield from self._counted(asked, (yield from self._counted_sums(asked.counting))))

    def tells(self, where: Filter | None) -> bool:
        """Whether Qdrant evaluates a filter exactly."""
        return self._translated(where).exact

    def fusing(self, asked: Asked, vector: Vector, fusion: ByRanks, k: int, query: Query) -> Steps[list[KeywordHit]]:
        """The best hits by keywords and vectors, fused in Qdrant; see `QdrantFused`."""
        if not (yield from self._ready()) or self._analyzer is None or k == 0:
            return []
        wanted = both(query.require, query.where)
        if nothing_passes(wanted):
            return []
        if not self._translated(query.require).exact:
            raise FilterNotSupportedError(
                f"Qdrant cannot tell exactly what {query.require!r} permits, so it is not asked to fuse: fuse bm25() "
                "and dense() here, or say the rights by equality with strings and $in"
            )
        clause, params = self._clause(wanted), self._params(self.way)
        if self._by_engine(asked):

            def made(words: Keywords) -> list[Any]:
                return [requests.fused((WEIGHTS, engine_query(words)), vector, fusion, k, clause, params)]

            words, (told,) = yield from self._engine_search(asked, made)
        else:
            words, sums = yield from self._counting(asked)
            scoring = yield from self._scoring(words, sums)
            by_words = (BOUNDS, scoring.query())
            (told,), _ = yield from self._search(requests.fused(by_words, vector, fusion, k, clause, params))
        passes = compile_filter(wanted)
        found = [fused_hit(words, passes, one.payload, float(one.score), self.name) for one in told]
        return best((hit for hit in found if hit is not None), k)

    # What users call.

    def dense(self, **options: Any) -> QdrantDense:
        """The vector channel; `options` are those of `QdrantDense`."""
        return QdrantDense(self, **options)

    def fused(self, *, k: float = 60, depth: int = 100, **options: Any) -> QdrantFused:
        """A hybrid channel of keywords and vectors that Qdrant fuses by RRF; see `QdrantFused`."""
        return QdrantFused(self, k, depth, **options)

    def save_vocabulary(self, path: Path | str) -> None:
        """Write the terms of all chunks, with document frequencies and idf, and the mean length, as JSON.

        It reads the terms of all chunks. Raises ConfigError where there is no collection.
        """
        sums = self.run(self._if_there(partial(self._sums, None, True), None))
        if sums is None:
            raise ConfigError(f"collection {self.name!r} does not exist: it has no vocabulary")
        statistics.save(path, self.name, sums)

    def load_vocabulary(self, path: Path | str) -> bool:
        """Count by a saved vocabulary in place of Qdrant in exact searches of all chunks; returns whether it fits.

        It does where the collection has as many chunks and terms as when it was saved. It is dropped by `forget` and by
        a write of this engine; writes of others are not noticed. Raises IndexDamagedError for another file.
        """
        known = statistics.load(path)
        fits = self.run(self._if_there(partial(self._fits, known), False))
        self._vocabulary = known if fits else None
        return fits

    def sibling(self, suffix: str, **options: Any) -> QdrantEngine:
        given: dict[str, Any] = {"embedder": self._given[1], "analyzer": self._given[0], "limits": self._limits}
        given |= {"timeout": self.timeout, "exact": self.way.exact, **options}
        made = QdrantEngine(self.name + suffix, **given)
        made._client = self._client.shared()
        made._settle()
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

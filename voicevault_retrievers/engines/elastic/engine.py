"""Searching a collection of Elasticsearch or OpenSearch.

By default the server ranks keywords by BM25 of its own statistics: document frequencies with deleted chunks, and
lengths rounded to 256 values. Exact statistics are counted by one search with aggregations; then the server scores
every chunk that has a term, by a script over its frequency and unrounded length, and the best are scored once more
here, in float64.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter, both, canonical, compile_filter
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Query, Vector
from voicevault_retrievers.engines.channels import Asked
from voicevault_retrievers.engines.elastic import bodies
from voicevault_retrievers.engines.elastic.bodies import FORMULA, Search, document_id
from voicevault_retrievers.engines.elastic.collection import PAGE, ElasticCollection, Source
from voicevault_retrievers.engines.elastic.fused import ElasticFused
from voicevault_retrievers.engines.engine import Capabilities
from voicevault_retrievers.engines.filters import nothing_passes
from voicevault_retrievers.engines.keywords import (
    CollectionCounts,
    KeywordHit,
    Keywords,
    Weighted,
    best,
    coverage,
    score,
    weigh,
)
from voicevault_retrievers.engines.rows import chunk_of, id_of, key_of
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError

DEEPEST = 10_000
"""The most hits of one search, and the most neighbours of a search of vectors."""

TIES = 1000
"""How many hits behind the k-th are read at most, to order equal scores by id."""

SAME = 1e-6
"""Float32 scores that differ by less than this, relatively, may be equal."""

CLAUSES = 1000
"""The most terms that a server scores; OpenSearch takes 1024 clauses."""

SCOPES = 64
"""The most filters whose languages are kept."""


class ElasticEngine(ElasticCollection):
    """What the engines of both servers share; see `products`."""

    capabilities = Capabilities(
        exact_vectors=False, atomic=False, native_async=True, server_fusion=True, engine_statistics=True
    )
    cosine: ClassVar[str]
    """The script that scores a chunk by its cosine plus 1."""

    @abstractmethod
    def _neighbours(self, vector: Vector, size: int, clauses: Sequence[Any]) -> Search:
        """The search of the `size` nearest chunks that pass, by the index of vectors; scores are (1 + cosine) / 2."""

    @abstractmethod
    def _natively_fused(
        self, keywords: Any, vector: Vector, k: int, size: int, depth: int, clauses: Sequence[Any]
    ) -> Search:
        """One search that the server fuses by RRF."""

    # Vectors.

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        wanted = both(require, where)
        if k == 0 or nothing_passes(wanted):
            return []
        clauses, _ = bodies.passing(wanted)
        passes, ask = compile_filter(wanted), k + 1
        while ask <= DEEPEST:
            (told,) = yield from self._search(self._neighbours(vector, ask, clauses))
            hits = told["hits"]["hits"]
            near = self._near(hits, lambda score: 2 * score - 1)
            found = [one for one in near if passes(one.chunk.metadata)]
            tied = len(found) >= k and near[-1].score > found[k - 1].score - SAME and ask < max(TIES, k)
            if len(hits) < ask or (len(found) >= k and not tied):
                return found[:k]
            ask *= 2
        return (yield from self._nearest_of_all(vector, k, wanted))

    def _nearest_of_all(self, vector: Vector, k: int, wanted: Filter | None) -> Steps[list[Found]]:
        """The nearest chunks, by comparing all vectors that pass."""
        clauses, _ = bodies.passing(wanted)
        passes, found, after = compile_filter(wanted), list[Found](), None
        while True:
            (told,) = yield from self._search(bodies.compared(vector, self.cosine, clauses, PAGE, after))
            hits = told["hits"]["hits"]
            found += [one for one in self._near(hits, lambda score: score - 1) if passes(one.chunk.metadata)]
            if len(hits) < PAGE or len(found) >= k:
                return found[:k]
            after = hits[-1]["sort"]

    def _near(self, hits: Sequence[Mapping[str, Any]], cosine: Callable[[float], float]) -> list[Found]:
        found = [Found(chunk_of(one["_source"], self.name), min(cosine(bodies.score_of(one)), 1.0)) for one in hits]
        return sorted(found, key=lambda one: (-one.score, one.chunk.id))

    # Keywords.

    def _by_engine(self, asked: Keywords) -> bool:
        """Whether the server's own statistics serve the query; ConfigError where they are asked for and cannot."""
        fits = asked.formula == FORMULA and len(asked.forms) <= CLAUSES
        if asked.statistics == "engine" and not fits:
            raise ConfigError(
                f'statistics="engine": the index ranks up to {CLAUSES} terms by {FORMULA!r}, not {asked.formula!r}: '
                'search with "exact"'
            )
        return asked.by_engine and fits and all(count > 0 for count in asked.terms.values())

    def _check_statistics(self, asked: Keywords) -> None:
        self._by_engine(asked)

    def _spoken(self, asked: Asked, made: Callable[[Keywords], Sequence[Search]]) -> Steps[tuple[Keywords, list[Any]]]:
        """The query, and the answers to the searches that `made` makes of it, in one request.

        The query is read in the languages of the chunks that count, as last known; in a second request where they have
        changed meanwhile.
        """
        clauses, exact = bodies.passing(asked.counting)
        known = canonical(asked.counting)
        if not exact:
            self._learn(known, (yield from self._counted(asked.counting, ()))[1])
        while True:
            languages = self._known.get(known, "")
            asking = asked(self._present(), languages)
            *found, told = yield from self._search(*made(asking), bodies.speaking(clauses))
            spoken = bodies.languages_told(told["aggregations"]) if exact else languages
            if spoken == languages:
                return asking, found
            self._learn(known, spoken)

    def _learn(self, scope: str, languages: str) -> None:
        if len(self._known) >= SCOPES:
            self._known.clear()
        self._known[scope] = languages

    def _weighed(self, asked: Asked) -> Steps[tuple[Keywords, CollectionCounts]]:
        """The query, and the exact statistics for it, counted once for a query."""
        while "counts" not in asked.memo:
            known = canonical(asked.counting)
            languages = self._known.get(known, "")
            asking = asked(self._present(), languages)
            counts, spoken = yield from self._counted(asked.counting, asking.forms)
            self._learn(known, spoken)
            if spoken == languages:
                asked.memo["counts"], asked.memo["languages"] = counts, spoken
        return asked(self._present(), asked.memo["languages"]), asked.memo["counts"]

    def _counted(self, scope: Filter | None, forms: Sequence[str]) -> Steps[tuple[CollectionCounts, str]]:
        """The statistics of the chunks that pass, and the tags of their languages."""
        clauses, exact = bodies.passing(scope)
        if not exact:
            return (yield from self._counted_here(scope, forms))
        (told,) = yield from self._search(Search(bodies.counting(clauses, forms)))
        sums = told["aggregations"]
        frequencies = {form: sums["forms"]["buckets"][str(at)]["doc_count"] for at, form in enumerate(forms)}
        counts = CollectionCounts(told["hits"]["total"]["value"], int(sums["length"]["value"]), frequencies)
        return counts, bodies.languages_told(sums)

    def _counted_here(self, scope: Filter | None, forms: Sequence[str]) -> Steps[tuple[CollectionCounts, str]]:
        """`_counted` for a filter that the server cannot evaluate: the terms of the chunks that may pass are read."""
        passes, frequencies, sums = compile_filter(scope), Counter[str](), Counter[str]()
        spoken: set[str] = set()

        def take(page: Sequence[Source]) -> None:
            for source in page:
                if passes(bodies.metadata_of(source)):
                    frequencies.update(bodies.frequencies_of(source, forms).keys())
                    sums.update(chunks=1, length=source["length"])
                    spoken.update(source["languages"])

        fields = ["metadata", "terms", "length", "languages"]
        yield from self._through(bodies.passing(scope)[0], fields, take)
        tags = "".join(sorted(chr(int(one)) for one in spoken))
        return CollectionCounts(sums["chunks"], sums["length"], frequencies), tags

    def _tags(self, require: Filter | None) -> Steps[str]:
        return (yield from self._counted(require, ()))[1]

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        return (yield from self._counted(asked.counting, asked.forms))[0]

    def keywords(self, asked: Asked, k: int) -> Steps[Sequence[KeywordHit]]:
        if k == 0 or not (yield from self._ready()):
            return ()
        if self._by_engine(asked(self._present(), "")):
            return (yield from self._ranked(asked, k))
        words, counts = yield from self._weighed(asked)
        return (yield from self._exact(words, counts, k))

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        return (yield from self._exact(asked, (yield from self._population(asked)), k))

    def _ranked(self, asked: Asked, k: int) -> Steps[list[KeywordHit]]:
        """The best by the server's own statistics."""
        after, found = None, list[KeywordHit]()
        while True:
            size = min(k, DEEPEST)

            def made(words: Keywords, size: int = size, after: Any = after) -> list[Search]:
                return self._own(words, size, after)

            words, answers = yield from self._spoken(asked, made)
            hits = answers[0]["hits"]["hits"] if answers else []
            found += [hit for hit in self._hits(words, hits) if hit.forms]
            if len(hits) < size or len(found) >= k:
                return best(found, k, positive=words.positive)
            after = hits[-1]["sort"]

    def _own(self, words: Keywords, size: int, after: Any = None) -> list[Search]:
        """The search by the server's own statistics; none where no chunk can be found."""
        if not words.terms or nothing_passes(words.passing):
            return []
        return [bodies.words(bodies.by_engine(words), bodies.passing(words.passing)[0], size, after)]

    def _hits(self, words: Keywords, hits: Sequence[Mapping[str, Any]]) -> list[KeywordHit]:
        """The hits that pass, with the server's scores; without forms where only another language has the words."""
        passes, found = compile_filter(words.passing), list[KeywordHit]()
        for hit in hits:
            chunk = chunk_of(hit["_source"], self.name)
            if passes(chunk.metadata):
                forms = tuple(bodies.frequencies_of(hit["_source"], words.forms))
                found.append(KeywordHit(chunk, bodies.score_of(hit), forms))
        return found

    def _exact(self, words: Keywords, counts: CollectionCounts, k: int) -> Steps[list[KeywordHit]]:
        """The best by exact scores."""
        terms = weigh(words, counts)
        if k == 0 or not terms or nothing_passes(words.passing):
            return []
        scored, least = partial(self._scored, words, terms, counts.mean), self._base(words, terms)
        should = self._clauses(words, terms, counts.mean)
        if should is None:
            return (yield from self._exact_of_all(words, scored, k))
        clauses, _ = bodies.passing(words.passing)
        after, found, read = None, list[KeywordHit](), 0
        while True:
            size = min(k + 16, DEEPEST)
            (told,) = yield from self._search(bodies.words(should, clauses, size, after))
            hits = told["hits"]["hits"]
            new: list[KeywordHit] = yield Compute(partial(scored, [hit["_source"] for hit in hits]))
            found = best([*found, *new], k, positive=words.positive)
            read += len(hits)
            if len(hits) < size:
                return found
            after = hits[-1]["sort"]
            sure = len(found) == k and found[-1].score > (float(after[0]) + least) * (1 + SAME)
            if sure or (len(found) == k and read >= k + TIES):
                return found

    def _clauses(self, words: Keywords, terms: Sequence[Weighted], mean: float) -> list[Any] | None:
        """The clauses by which the server scores exactly; None where it cannot, as its scores are never negative."""
        curve = words.formula.curve()
        if curve is None or len(words.forms) > CLAUSES or min(one.weight for one in terms) < 0:
            return None
        return bodies.by_weights(words.formula, curve, terms, mean)

    def _base(self, words: Keywords, terms: Sequence[Weighted]) -> float:
        """What a score is above the server's: the weight of terms that are absent."""
        return words.formula.absent() * sum(one.weight for one in terms)

    def _exact_of_all(
        self, words: Keywords, scored: Callable[[Sequence[Source]], list[KeywordHit]], k: int
    ) -> Steps[list[KeywordHit]]:
        """The best by exact scores, of all chunks that have a term, read page by page."""
        clauses, found = [*bodies.passing(words.passing)[0], bodies.having(words.forms)], list[KeywordHit]()

        def take(page: Sequence[Source]) -> None:
            found[:] = best([*found, *scored(page)], k, positive=words.positive)

        yield from self._through(clauses, bodies.SCORED, take)
        return found

    def _scored(
        self, words: Keywords, terms: Sequence[Weighted], mean: float, sources: Sequence[Source]
    ) -> list[KeywordHit]:
        """The chunks that pass and have a term, with exact scores."""
        passes, forms, found = compile_filter(words.passing), words.forms, list[KeywordHit]()
        for source in sources:
            counts = bodies.frequencies_of(source, forms)
            made = score(words.formula, terms, mean, counts, source["length"])
            if made is not None and passes(bodies.metadata_of(source)):
                found.append(KeywordHit(chunk_of(source, self.name), *made))
        return found

    def keyword_scores(self, asked: Asked, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        if not ids or not (yield from self._ready()):
            return {}
        if not self._by_engine(asked(self._present(), "")):
            words, counts = yield from self._weighed(asked)
            return (yield from self._exact_scores(words, counts, ids))
        scores: dict[str, float] = {}
        for start in range(0, len(ids), PAGE):
            some = {"ids": {"values": [document_id(key_of(one)) for one in ids[start : start + PAGE]]}}

            def made(words: Keywords, some: Any = some) -> list[Search]:
                clauses = [*bodies.passing(words.passing)[0], some]
                return [bodies.words(bodies.by_engine(words), clauses, PAGE, least=0)]

            words, (told,) = yield from self._spoken(asked, made)
            hits = self._hits(words, told["hits"]["hits"])
            scores |= {hit.chunk.id: hit.score if hit.forms else 0.0 for hit in hits}
        return scores

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        return (yield from self._exact_scores(asked, (yield from self._population(asked)), ids))

    def _exact_scores(
        self, words: Keywords, counts: CollectionCounts, ids: Sequence[str]
    ) -> Steps[Mapping[str, float]]:
        held = yield from self._documents([key_of(one) for one in ids], bodies.SCORED)
        sources = {id_of(key): one["_source"] for key, one in held.items()}
        passes = compile_filter(words.passing)
        scores = {one: 0.0 for one, source in sources.items() if passes(bodies.metadata_of(source))}
        hits = self._scored(words, weigh(words, counts), counts.mean, list(sources.values()))
        return scores | {hit.chunk.id: hit.score for hit in hits}

    def keyword_coverage(self, asked: Asked) -> Steps[float | None]:
        if not (yield from self._ready()):
            return None
        self._by_engine(asked(self._present(), ""))
        words, counts = yield from self._weighed(asked)
        return coverage(words, counts)

    # Both.

    def fused(self, *, k: float = 60, depth: int = 100, native: bool = False, **options: Any) -> ElasticFused:
        """A hybrid channel of keywords and vectors in one round trip, fused by RRF; see `ElasticFused`."""
        return ElasticFused(self, k, depth, native, **options)

    def fusing(
        self, asked: Asked, vector: Vector, query: Query, depth: int, native: tuple[int, int] | None
    ) -> Steps[tuple[list[KeywordHit], list[Found]]]:
        """The best `depth` by keywords and by vectors, in one request.

        With `native`, RRF's constant and the number of hits, the server fuses: they are the keyword hits, with its
        scores, and nothing is by vectors; without a word to search, as without `native`. FilterNotSupportedError for a
        filter that the server cannot evaluate.
        """
        wanted = both(query.require, query.where)
        if nothing_passes(wanted) or not (yield from self._ready()):
            return [], []
        clauses, exact = bodies.passing(wanted)
        if not exact:
            raise FilterNotSupportedError(
                f"{self._connection.product} cannot tell exactly what {wanted!r} passes, and would rank what does "
                "not: fuse bm25() and dense() here"
            )
        near = self._neighbours(vector, depth, clauses)

        def searches(should: Sequence[Any]) -> list[Search]:
            legs = [bodies.words(should, clauses, depth)] if should else []
            if native is None:
                return [*legs, near]
            return [self._natively_fused(legs[0].body["query"], vector, *native, depth, clauses)] if legs else [near]

        if self._by_engine(asked(self._present(), "")):
            words, told = yield from self._spoken(asked, lambda words: searches(bodies.by_engine(words)))
            ranked = bool(words.terms)
        else:
            words, counts = yield from self._weighed(asked)
            terms = weigh(words, counts)
            should = self._clauses(words, terms, counts.mean) if terms else []
            if should is None:
                raise ConfigError(
                    f"{self._connection.product} cannot rank by {words.formula!r}: fuse bm25() and dense()"
                )
            told, ranked = (yield from self._search(*searches(should))), bool(should)
        answers = [one["hits"]["hits"] for one in told]
        if native is not None and ranked:
            return self._hits(words, answers[0]), []
        found = [one for one in self._near(answers[-1], lambda score: 2 * score - 1) if one.score > 0]
        by_words = self._hits(words, answers[0]) if ranked else []
        return [hit for hit in by_words if hit.forms], found

    def sibling(self, suffix: str, **options: Any) -> ElasticEngine:
        given: dict[str, Any] = {"embedder": self._given[1], "analyzer": self._given[0], "limits": self._limits}
        given |= {"timeout": self.timeout, "settings": self._settings, "index": self._options.get("index"), **options}
        made = type(self)(self.name + suffix, self._connection.url, **given)
        made._connection = self._connection.shared()
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._connection.url!r})"

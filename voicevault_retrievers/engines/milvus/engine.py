"""Milvus: a collection on a server, or in a file by Milvus Lite.

By default the BM25 function of a server ranks, by statistics of its own. Those of Milvus Lite are of a segment, and of
what passes a filter, so that its searches are exact.

Milvus cannot compute BM25 with other statistics. An exact search therefore takes candidates from a sparse index (see
`schema`), by upper bounds of their scores, and scores them exactly from the stored terms of each chunk. It requests
more until no unseen chunk can be among the k best. Milvus counts N, the mean length and document frequencies, under the
same access rights. Counts are cached until the collection's version changes; each write renews the version before and
after it.

Milvus Lite evaluates filters row by row, in Python. With it, all chunks that share a term are read at once, and counted
and filtered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require as required
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter, Predicate, both, canonical, compile_filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.engines.channels import Asked
from voicevault_retrievers.engines.engine import Capabilities
from voicevault_retrievers.engines.filters import nothing_passes, translate
from voicevault_retrievers.engines.keywords import (
    CollectionCounts,
    KeywordHit,
    Keywords,
    Weighted,
    best,
    query_words,
    weigh,
)
from voicevault_retrievers.engines.milvus import schema
from voicevault_retrievers.engines.milvus.collection import PAGE, VERSION
from voicevault_retrievers.engines.milvus.connection import MilvusAddress, ask
from voicevault_retrievers.engines.milvus.facets import CROWDED, bit, term_number
from voicevault_retrievers.engines.milvus.fused import MilvusFused
from voicevault_retrievers.engines.milvus.keyword_search import DEEPEST, MilvusKeywords
from voicevault_retrievers.engines.milvus.schema import Row
from voicevault_retrievers.engines.milvus.scoring import SCORED, Counted, RowBM25, Sum, Totals, all_of, counting, having
from voicevault_retrievers.errors import FilterNotSupportedError
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text.languages import TAGS

FIRST = 200
"""The first number of candidates of a keyword search."""

READ = 100_000
"""The most rows read from a server where Milvus cannot apply the filter exactly."""

_SAID = "$eq, $in, $ne, $nin, $exists, comparisons of numbers, $and and $or, of keys that are ASCII identifiers"
_MEASURED = ("pieces", "vector")

_LONGEST_BITS = 21
_MARGIN = 1 + 1e-5
_LOST = 1e-6


def at(
    address: str, *, embedder: Embedder | None = None, analyzer: SavedAnalyzer | None = None, **options: Any
) -> MilvusEngine:
    """The collection at an address: `milvus://[user:password@]host[:19530]/COLLECTION[?database=NAME]`.

    `milvuss://` uses TLS, `milvus+file:///FOLDER/FILE.db/COLLECTION` is a file of Milvus Lite. `options` are those of
    `MilvusEngine`. Raises ConfigError for any other address.
    """
    place, name = MilvusAddress.of(address)
    return MilvusEngine(name, place=place, embedder=embedder, analyzer=analyzer, **options)


class MilvusEngine(MilvusKeywords):
    """A collection of a Milvus; see `Engine` for its interface, and this module for its keyword search.

    `index` is the vector index of a new collection: AUTOINDEX, HNSW, FLAT (exact) or another of Milvus'; the default is
    AUTOINDEX on a server and FLAT in a file. A second collection holds the parents. Milvus stores chunks of up to 4,096
    different terms.
    """

    capabilities = Capabilities(
        exact_vectors=False, atomic=False, native_async=True, server_fusion=True, engine_statistics=True
    )

    def __init__(self, name: str, *, place: MilvusAddress, index: str | None = None, **options: Any) -> None:
        super().__init__(name, place=place, index=index, **options)
        self._counted = Counted("")

    def fused(self, *, k: float = 60, depth: int = 100, **options: Any) -> MilvusFused:
        """A hybrid channel of keywords and vectors that Milvus fuses by ranks; see `MilvusFused`."""
        return MilvusFused(self, k=k, depth=depth, **options)

    def sibling(self, suffix: str, **options: Any) -> MilvusEngine:
        given: dict[str, Any] = {
            "embedder": self._given[1],
            "analyzer": self._given[0],
            "limits": self._limits,
            "timeout": self.timeout,
            "index": self._options.get("index"),
        }
        return MilvusEngine(self.name + suffix, place=self.place, **{**given, **options})

    # Vectors.

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        wanted = both(require, where)
        if nothing_passes(wanted):
            return []
        yield from self._as_known()
        passes, clause, depth = compile_filter(wanted), self._clause(wanted), min(k + 1, DEEPEST)
        measured = partial(self._measured, vector.astype(np.float64), passes)
        while True:
            near, products = yield from self._near("vector", vector.tolist(), depth, clause, _MEASURED)
            kept: list[Found] = yield Compute(partial(measured, near))
            settled = len(kept) >= k and kept[k - 1].score > products[-1] + _LOST
            if settled or len(near) < depth or (depth == DEEPEST and len(kept) >= k):
                return kept[:k]
            if depth == DEEPEST:
                return (yield from self._nearest_of_pages(measured, k, wanted))
            depth = min(2 * depth, DEEPEST)

    def _nearest_of_pages(
        self, measured: Callable[[Sequence[Row]], list[Found]], k: int, wanted: Filter | None
    ) -> Steps[Sequence[Found]]:
        """The k nearest of all chunks that pass, read page by page.

        Raises FilterNotSupportedError where a server would have to return too many rows.
        """
        clause, kept = self._clause(wanted), list[Found]()
        if wanted and not self._lite and (yield from self._counting(clause)) > READ:
            raise FilterNotSupportedError(
                f"fewer than {k} of the {DEEPEST} chunks that Milvus gives pass {wanted!r}, and more than {READ} may: "
                f"narrow it by what Milvus can say ({_SAID}), or ask for fewer"
            )

        def take(page: list[Row]) -> None:
            kept[:] = sorted([*kept, *measured(page)], key=_best_first)[:k]

        yield from self._paged(clause, _MEASURED, take)
        return kept

    def _measured(self, asked: NDArray[np.float64], passes: Predicate, held: Sequence[Row]) -> list[Found]:
        """The chunks that pass, by exact cosines: Milvus' own differ in the last bits for equal vectors."""
        chunks = [(schema.chunk_of(one, self.name), one["vector"]) for one in held]
        found = [
            Found(chunk, float(np.asarray(row, dtype=np.float64) @ asked))
            for chunk, row in chunks
            if passes(chunk.metadata)
        ]
        return sorted(found, key=_best_first)

    # Words.

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        yield from self._as_known()
        if nothing_passes(asked.passing) or not asked.terms:
            return []
        if self._ranks(asked) and (found := (yield from self._ranked(asked, k))) is not None:
            return found
        if (yield from self._counted_by_milvus(asked.counting)):
            return (yield from self._best(asked, k))
        return (yield from self._best_of_all(asked, k))

    def _best(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        """The k best hits, requesting rows by falling bounds until no other can be among them."""
        population, longest = yield from self._counted_there(asked)
        terms = weigh(asked, population)
        query: dict[int, float] = yield Compute(partial(schema.bounds, asked.formula, terms, population.mean, longest))
        if min(query.values(), default=0.0) <= 0:
            return (yield from self._best_of_pages(asked, k, population, terms))
        scored = RowBM25(asked, population, terms, self.name)
        clause, depth = self._clause(asked.passing), min(max(4 * k, FIRST), DEEPEST)
        while True:
            near, products = yield from self._near("sparse", query, depth, clause, SCORED)
            hits: list[KeywordHit] = yield Compute(partial(scored.best, near, k))
            bound = scored.offset + _MARGIN * products[-1] if near else 0.0
            if len(near) < depth or (len(hits) == k and hits[-1].score > bound):
                return hits
            if depth == DEEPEST:
                return (yield from self._best_of_pages(asked, k, population, terms))
            depth = min(4 * depth, DEEPEST)

    def _best_of_pages(
        self, asked: Keywords, k: int, population: CollectionCounts, terms: Sequence[Weighted]
    ) -> Steps[Sequence[KeywordHit]]:
        """The k best of all chunks that share a term, read page by page."""
        clause = all_of(having(asked.forms), self._clause(asked.passing))
        scored, hits = RowBM25(asked, population, terms, self.name), list[KeywordHit]()

        def take(page: list[Row]) -> None:
            hits[:] = best([*hits, *scored.hits(page)], k, positive=asked.positive)

        yield from self._paged(clause, SCORED, take)
        return hits

    def _best_of_all(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        """The k best of all chunks that share a term, with statistics counted here."""
        population, held = yield from self._sharing(asked)
        terms = weigh(asked, population)
        hits: list[KeywordHit] = yield Compute(partial(RowBM25(asked, population, terms, self.name).best, held, k))
        return hits

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        yield from self._as_known()
        if nothing_passes(asked.passing):
            return {}
        if self._ranks(asked):
            return (yield from self._scores_there(asked, ids))
        population = yield from self._population(asked)
        scored = RowBM25(asked, population, weigh(asked, population), self.name)
        held = yield from self._by_ids(ids, SCORED)
        scores: dict[str, float] = yield Compute(partial(scored.scores, held))
        return scores

    # Statistics.

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        told = yield from self._counted_by_milvus(asked.counting)
        return (yield from (self._counted_there(asked) if told else self._sharing(asked)))[0]

    def _tags(self, require: Filter | None) -> Steps[str]:
        if getattr(self._analyzer, "language", None) != "auto":
            return ""
        if nothing_passes(require):
            return ""
        counted = yield from self._known()
        if not (yield from self._counted_by_milvus(require)):
            return (yield from self._totals_here(counted, require)).tags
        clause = translate(require, self._language).clause or ""
        if clause not in counted.tags:
            known = sorted(TAGS.values())
            there = yield from self._there("sparse", list(map(schema.having_tag, known)), clause)
            counted.tags[clause] = "".join(one for one, some in zip(known, there, strict=True) if some)
        return counted.tags[clause]

    def _counted_there(self, asked: Keywords) -> Steps[tuple[CollectionCounts, int]]:
        """The statistics, counted by Milvus, and an upper bound of the lengths of the chunks."""
        counted = yield from self._known()
        clause = translate(asked.counting, self._language).clause or ""
        if clause not in counted.totals:
            total = yield from self._counting(clause)
            length = longest = 0
            for number in range(_LONGEST_BITS if total else 0):
                n = yield from self._counting(all_of(f"array_contains(facets, {bit(number)})", clause))
                length += n << number
                longest = (2 << number) - 1 if n else longest
            counted.totals[clause] = Totals(total, length, longest)
        known = counted.frequencies.setdefault(clause, {})
        for form in asked.forms:
            if form not in known:
                known[form] = yield from self._counting(all_of(f"array_contains(terms, {term_number(form)})", clause))
        totals = counted.totals[clause]
        counts = CollectionCounts(totals.total, totals.length, {form: known[form] for form in asked.forms})
        return counts, totals.longest

    def _counted_by_milvus(self, counting: Filter | None) -> Steps[bool]:
        """Whether Milvus itself can count exactly, and quickly, under a filter."""
        return not self._counts_here and (yield from self._is_exact(counting))

    def _is_exact(self, where: Filter | None) -> Steps[bool]:
        if not where:
            return True
        if not translate(where, self._language).exact:
            return False
        counted = yield from self._known()
        if counted.crowded is None:
            counted.crowded = yield from self._counting(f"array_contains(facets, {CROWDED})")
        return not counted.crowded

    def _sharing(self, asked: Keywords) -> Steps[tuple[CollectionCounts, list[Row]]]:
        """The statistics, counted here, and the counted rows that have a term of the query."""
        counted = yield from self._known()
        totals = yield from self._totals_here(counted, asked.counting)
        held: list[Row] = []
        if self._counts_here:
            query = yield Compute(partial(schema.matching, asked.forms, totals.longest))
            size = yield from self._count()
            held = list((yield from self._near("sparse", query, size, "", SCORED))[0]) if query and size else []
        elif asked.forms:
            clause = all_of(having(asked.forms), self._clause(asked.counting))
            yield from self._paged(clause, SCORED, held.extend)
        held, frequencies = yield Compute(partial(counting, held, asked, self.name))
        return CollectionCounts(totals.total, totals.length, frequencies), held

    def _totals_here(self, counted: Counted, counting: Filter | None) -> Steps[Totals]:
        """The totals of the statistics, from the rows read.

        Raises FilterNotSupportedError where a server would have to return too many rows.
        """
        known = canonical(counting)
        if known in counted.totals:
            return counted.totals[known]
        clause = "" if self._counts_here else self._clause(counting)
        if not self._counts_here and (yield from self._counting(clause)) > READ:
            raise FilterNotSupportedError(
                f"Milvus cannot count exactly which chunks pass {counting!r}, and more than {READ} may: say rights "
                f"with {_SAID}"
            )
        summed = Sum(compile_filter(counting) if counting else None, self.name)
        yield from self._paged(clause, ["length", "facets", *(["pieces"] if counting else [])], summed.take)
        counted.totals[known] = summed.totals
        return summed.totals

    def _paged(self, clause: str, fields: Sequence[str], take: Callable[[list[Row]], None]) -> Steps[None]:
        """All rows that pass a clause, page by page; from Milvus Lite at once, as it reads all rows for each page."""
        key, size = "", PAGE * 1000 if self._lite else PAGE
        while True:
            page = yield from self._after(key, clause, fields, size)
            yield Compute(partial(take, page))
            if len(page) < size:
                return
            key = page[-1]["pk"]

    def _known(self) -> Steps[Counted]:
        """The cached counts of the collection's present version."""
        found = yield ask("get", collection_name=self._side, ids=[VERSION], output_fields=["pieces"])
        version = found[0]["pieces"][0] if found else ""
        with self._mutex:
            if not version or self._counted.version != version:
                self._counted = Counted(version)
            return self._counted

    def fusing(
        self, vector: Vector, asked: Asked, k: int, rank: int, depth: int, filters: tuple[Filter | None, Filter | None]
    ) -> Steps[list[Found]]:
        """At most k chunks, by fusion of their ranks in vector and keyword search; see `MilvusFused`.

        Raises FilterNotSupportedError for a filter that Milvus cannot apply exactly: chunks that do not pass would take
        ranks.
        """
        if not (yield from self._ready()) or self._analyzer is None:
            return []
        where, require = filters
        wanted = both(require, where)
        if nothing_passes(wanted):
            return []
        yield from self._as_known()
        words = yield from self._wanted(asked)
        if not (yield from self._is_exact(wanted)):
            raise FilterNotSupportedError(
                f"Milvus cannot tell exactly what passes {wanted!r}, and would rank what does not: fuse the channels "
                "bm25() and dense() here"
            )
        clause = translate(wanted, self._language).clause or ""
        field = "bm25" if self._ranks(words) else "sparse"
        asking: Any = (
            query_words(words, schema.word, {}).text if field == "bm25" else (yield from self._estimates(words))
        )
        milvus = required("pymilvus", extra="milvus")
        request = partial(milvus.AnnSearchRequest, limit=depth, expr=clause or None)
        requests = [request([vector.tolist()], "vector", {"metric_type": schema.METRICS["vector"]})]
        if asking:
            requests.append(request([asking], field, {"metric_type": schema.METRICS[field]}))
        found = yield ask(
            "hybrid_search",
            collection_name=self._main,
            reqs=requests,
            ranker=milvus.RRFRanker(rank),
            limit=k,
            output_fields=["pieces"],
        )
        hits: list[Found] = yield Compute(partial(self._fused, found[0]))
        return hits

    def _estimates(self, words: Keywords) -> Steps[Mapping[int, float]]:
        """A sparse query for estimates of exact scores."""
        told = yield from self._counted_by_milvus(words.counting)
        if told:
            population, longest = yield from self._counted_there(words)
        else:
            population, held = yield from self._sharing(words)
            longest = max((one["length"] for one in held), default=0)
        terms = weigh(words, population)
        made: Mapping[int, float] = yield Compute(
            partial(schema.estimates, words.formula, terms, population.mean, longest)
        )
        return made

    def _fused(self, found: Sequence[Any]) -> list[Found]:
        hits = [Found(schema.chunk_of(one["entity"], self.name), float(one["distance"])) for one in found]
        return sorted(hits, key=_best_first)

    def __repr__(self) -> str:
        return f"MilvusEngine({self.name!r}, {self.place!r})"


def _best_first(found: Found) -> tuple[float, str]:
    return -found.score, found.chunk.id

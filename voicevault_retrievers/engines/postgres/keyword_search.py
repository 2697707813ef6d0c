"""Keyword search and fusion in PostgreSQL: by the BM25 index of pg_textsearch, or by counting the postings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any, TypeAlias

from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.channels import Asked
from voicevault_retrievers.engines.encoding import encoded, unescaped
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.keywords import (
    CollectionCounts,
    KeywordHit,
    KeywordHits,
    Keywords,
    Words,
    query_words,
)
from voicevault_retrievers.engines.postgres import bm25_index, index_scores, statements, transactions
from voicevault_retrievers.engines.postgres.asking import SqlStatement, Transaction
from voicevault_retrievers.engines.postgres.bm25_index import TextSearch
from voicevault_retrievers.engines.postgres.fused import FusedRow
from voicevault_retrievers.engines.postgres.tables import Tables
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.formulas import Formula, Lucene
from voicevault_retrievers.text.analyzed_texts import tags_of

INDEXED_FROM = 1000
"""The number of chunks from which a collection has a BM25 index by default: counting fewer takes as long."""

SPILLED_AFTER = 10_000
"""The number of chunks that an engine adds to an index before it moves them to the index's segments."""

RARE = 5
"""The most of the first candidates that pass a filter which is taken for a rare one."""

Ranking: TypeAlias = Callable[[], statements.Ranked]

_INSTALL = (
    'install it (https://github.com/timescale/pg_textsearch), add it to shared_preload_libraries and run "CREATE '
    'EXTENSION pg_textsearch" in this database, or search with statistics="exact"'
)


class PostgresKeywords(Engine):
    """The keyword searches of `PostgresEngine`."""

    exact: bool
    _indexed: bool
    unexplained = "the index"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._textsearch = TextSearch()
        self._added = 0
        self._settle()

    @property
    @abstractmethod
    def tables(self) -> Tables:
        """The names of the collection's tables."""

    @abstractmethod
    def _chunk(self, row: Sequence[Any]) -> Chunk:
        """The chunk of a row's first five columns."""

    @abstractmethod
    def _rows(self, tables: Tables, statement: Callable[[], SqlStatement], *filters: Filter | None) -> Steps[Any]:
        """The rows of a search."""

    @abstractmethod
    def _checking(self, tables: Tables) -> Steps[None]:
        """Raises ReplacedError where the collection is no longer the one of the tables."""

    def _detecting(self) -> Steps[None]:
        self._textsearch = yield from bm25_index.detecting(self.tables)
        self._settle()

    def _settle(self) -> None:
        self.capabilities = replace(self.capabilities, engine_statistics=self._textsearch.indexed)

    def _with_index(self, recipe: Recipe) -> Steps[Recipe]:
        """The recipe of a new collection, with an index where there is pg_textsearch; installs it where possible."""
        found = self._textsearch
        if found.schema is None and found.creatable:
            yield SqlStatement("CREATE EXTENSION IF NOT EXISTS pg_textsearch")
            yield from self._detecting()
        elif found.schema is None:
            return recipe
        return bm25_index.with_option(recipe, Lucene())

    def _indexing_words(self, written: int) -> Steps[None]:
        """Create the index where it is due, or move what was added to its segments."""
        formula = bm25_index.option(self._recipe)
        if formula is None or not written:
            return
        if self._textsearch.indexed:
            self._added += written
            if self._added >= SPILLED_AFTER:
                self._added = 0
                yield bm25_index.spilling(self.tables)
            return
        if (yield from self._count()) >= INDEXED_FROM:
            yield Transaction(lambda _: transactions.indexing_words(self.tables, formula), unhurried=True)
            yield from self._detecting()

    def _words(self, asked: Keywords) -> Steps[Words | None]:
        """The query for the index; None where the postings are counted."""
        formula, found = bm25_index.option(self._recipe), self._textsearch
        if not asked.by_engine or (found.restricted and asked.statistics != "engine"):
            return None
        if formula != asked.formula or not found.indexed or min(asked.terms.values()) <= 0:
            return None
        several = bm25_index.several_forms(asked)
        rows = (yield bm25_index.frequencies(self.tables, several)) if several else ()
        return query_words(asked, encoded, bm25_index.weights(asked, several, rows) if several else {})

    def _check_statistics(self, asked: Keywords) -> None:
        formula = bm25_index.option(self._recipe)
        if formula is None:
            there = self._textsearch.schema is not None
            raise ConfigError(
                f'statistics="engine": collection {self.name!r} was made without a BM25 index: '
                + ('copy it into a new one, or search it with statistics="exact"' if there else _INSTALL)
            )
        if formula != asked.formula:
            raise ConfigError(
                f'statistics="engine": the index of collection {self.name!r} scores by {formula!r}, not by '
                f'{asked.formula!r}: give that formula, or search with statistics="exact"'
            )

    def _by_index(self, asked: Keywords, k: int, ask: Callable[[Ranking], Steps[tuple[Any, int]]]) -> Steps[Any]:
        """The first answer of `ask` to a ranking by the index that has k chunks, or all there are, and the ranking.

        None where there is no such ranking. `ask` returns rows and their number of ranked chunks. Unfiltered, one
        ranking is tried; filtered, that of `FILTERED_DEPTH` candidates and then, by the share that passed, a deeper one
        or that of all which pass.
        """
        words = yield from self._words(asked)
        depth = max(2 * k + 2 * bm25_index.SPARE, bm25_index.FILTERED_DEPTH if asked.passing else 0)
        if words is None or depth > bm25_index.DEEPEST:
            return None
        guarded = asked.statistics != "engine"
        made = partial(bm25_index.ranked, self.tables, asked, words, guarded=guarded)
        ranking: Ranking = partial(made, depth)
        rows, found = yield from ask(ranking)
        if guarded and rows and not rows[0][-1]:
            self._textsearch = replace(self._textsearch, restricted=True)
            return None
        if found >= k or (yield bm25_index.complete(self.tables, asked, words, depth))[0][0]:
            return rows, ranking
        least = k
        if asked.passing:
            if found * bm25_index.DEEPEST >= 2 * k * depth:
                ranking = partial(made, 2 * k * depth // found)
            elif found <= RARE:
                ranking, least = partial(bm25_index.ranked_few, self.tables, asked, words, guarded=guarded), 1
            else:
                return None
            rows, found = yield from ask(ranking)
        return (rows, ranking) if found >= least else None

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        forms, tables = asked.forms, self.tables
        if not asked.terms:
            yield from self._checking(tables)  # another collection's analyzer may find terms
            return []

        def ask(ranking: Ranking) -> Steps[tuple[Any, int]]:
            made = lambda: statements.keywords(tables, ranking(), k)  # noqa: E731 - computed beside the event loop
            rows = yield from self._rows(tables, made, asked.where, asked.require)
            return rows, len(rows)

        found = yield from self._by_index(asked, k, ask)
        rows, _ = found or (yield from ask(partial(statements.counted, tables, asked)))
        held = [tuple(forms[at] for at in row[6]) for row in rows]
        ids, scores = [unescaped(row[0]) for row in rows], [row[5] for row in rows]
        return KeywordHits(ids, scores, held, lambda at: self._chunk(rows[at]))

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        tables = self.tables
        words = (yield from self._words(asked)) if len(ids) <= bm25_index.MOST_SCORED and asked.terms else None
        if words is not None and (found := (yield from self._scores_by_index(asked, words, ids))) is not None:
            return found
        made = partial(statements.keyword_scores, tables, asked, list(ids))
        rows = yield from self._rows(tables, made, asked.where, asked.require)
        return {unescaped(one): score for one, score, _ in rows}

    def _scores_by_index(self, asked: Keywords, words: Words, ids: Sequence[str]) -> Steps[Mapping[str, float] | None]:
        """The index's scores of the given chunks; None where row-level security hides chunks."""
        tables, guarded = self.tables, asked.statistics != "engine"

        def ask(statement: Callable[..., SqlStatement]) -> Steps[Any]:
            made = partial(statement, tables, asked, words, ids, guarded=guarded)
            return self._rows(tables, made, asked.where, asked.require)

        rows = yield from ask(bm25_index.given)
        if not rows[0][-1]:
            return None
        found = index_scores.scores(asked, words, rows)
        if found is not None:
            scale = bm25_index.scale(asked, words)
            return {unescaped(one): score / scale for one, score in found.items()}
        rows = yield from ask(bm25_index.scores)
        return {unescaped(one): score for one, score, _ in rows} if rows and rows[0][-1] else None

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        forms, tables = asked.forms, self.tables
        rows = yield from self._rows(tables, partial(statements.statistics, tables, asked), asked.counting)
        floors = type(asked.formula).floor is not Formula.floor
        made = partial(statements.histogram, tables, asked)
        counts = (yield from self._rows(tables, made, asked.counting)) if floors and rows[0][0] else ()
        frequencies = {forms[number]: n for _, _, number, n, _ in rows if number is not None}
        return CollectionCounts(
            int(rows[0][0]), int(rows[0][1]), frequencies, lambda: [(n, terms) for n, terms, _ in counts]
        )

    def fusing(self, asked: Asked, vector: Vector, depth: statements.Depth) -> Steps[Sequence[FusedRow]]:
        """The best hits of both channels, fused; `asked` makes the keyword query of analyzer and tags."""
        if not (yield from self._ready()) or self._analyzer is None:
            return ()
        tables = self.tables
        words = yield from self._wanted(asked)
        forms = words.forms
        exact = self.exact or not self._indexed

        def ask(ranking: Ranking, exact: bool = exact) -> Steps[tuple[Any, int]]:
            made = lambda: statements.fused(tables, words, ranking(), vector, depth, exact=exact)  # noqa: E731 - above
            rows = yield from self._rows(tables, made, words.where, words.require)
            return rows, rows[0][12] if rows else 0

        counted: Ranking = partial(statements.counted, tables, words)
        found = (yield from self._by_index(words, depth.words, ask)) if words.terms else None
        rows, ranking = found or ((yield from ask(counted))[0], counted)
        if not exact and (not rows or rows[0][11] < depth.near):
            rows, _ = yield from ask(ranking, exact=True)
        return [
            FusedRow(self._chunk(row), row[5], tuple(forms[at] for at in row[6]), ((row[7], row[8]), (row[9], row[10])))
            for row in rows
        ]

    def _tags(self, require: Filter | None) -> Steps[str]:
        made = {} if self._recipe is None else self._recipe.analyzer
        if made.get("language", "auto") != "auto":
            return ""
        make = partial(statements.languages, self.tables, require)
        rows = yield (yield Compute(make)) if require else make()
        return tags_of(reduce(or_, (bits for (bits,) in rows), 0))

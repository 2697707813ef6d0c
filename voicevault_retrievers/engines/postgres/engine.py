"""A collection in PostgreSQL: chunks, postings and vectors in tables, searched entirely in SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np

from voicevault_retrievers._support.checks import flag, number, whole, whole_or_none
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.encoding import escaped, unescaped
from voicevault_retrievers.engines.engine import Capabilities, Progress, Record, Stored
from voicevault_retrievers.engines.postgres import bm25_index, statements, transactions
from voicevault_retrievers.engines.postgres.asking import SqlStatement, Transaction
from voicevault_retrievers.engines.postgres.conditions import Where
from voicevault_retrievers.engines.postgres.connections import Pools, misread, settings_of
from voicevault_retrievers.engines.postgres.fused import ServerFused
from voicevault_retrievers.engines.postgres.keyword_search import PostgresKeywords
from voicevault_retrievers.engines.postgres.tables import Tables, check_access, enabling
from voicevault_retrievers.engines.postgres.texts import is_plain, metadata_of
from voicevault_retrievers.engines.questions import QUESTIONS
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.server import WriteCounts
from voicevault_retrievers.errors import ConfigError, SearchError

MOST_INDEXED = {False: 2000, True: 4000}
"""The most dimensions that pgvector indexes, by whether vectors are halfvec."""

MOST_EF_SEARCH = 1000
"""The most neighbours that pgvector keeps in an index search."""

LONGEST_NAME = 63
"""The most bytes of a PostgreSQL name."""

_OTHER = frozenset({"22000", "3F000", "42P01", "42703", "42704", "42883"})
"""SQLSTATEs of statements on tables that are gone or replaced."""

_PAGE = """
SELECT c.id, c.digest FROM {chunks} c WHERE c.id > %(after)s::text AND {passing} ORDER BY c.id LIMIT %(limit)s
"""

M = 16
EF_CONSTRUCTION = 64
"""pgvector's defaults for building an index."""


class PostgresEngine(PostgresKeywords):
    """A collection, by its name, in a PostgreSQL with pgvector; see `Engine`.

    `dsn` is an address (`postgresql://user:password@host:5432/database`) or another libpq connection string. The tables
    are in `schema`, which is created where missing.

    `bm25(statistics="exact")` counts the postings: scores equal those of a knowledge base. "engine" uses a BM25 index
    of the extension pg_textsearch over the same terms, which is far faster. It rounds the lengths of chunks, counts all
    of them, those that access rights (`require`) hide too, and explains no scores; ConfigError without the extension or
    for a formula that is not the index's, `Lucene()`. None (the default) uses the index where there is one, the formula
    is its own, and neither `require` nor row-level security hides chunks; `explain` counts the postings.

    Collections that are made where the extension is get an index once they have 1000 chunks. The postings are counted
    before that, and where too few of the best chunks pass a filter.

    Vectors are searched exactly until an upsert leaves the collection with `index_from` chunks or more, which builds an
    HNSW index (None: never, see `create_index`); `exact` bypasses the index. `ef_search` is how many neighbours an
    index search keeps, at most 1000. Where too few of them pass the filter the index search continues, and finally
    searches exactly. `half` stores vectors in half precision. `size` is the most connections for threads, and for each
    event loop; the PostgreSQL `settings` are set on each, behind a pooler (PgBouncer, in any mode) in each transaction.
    """

    capabilities = Capabilities(exact_vectors=False, atomic=True, native_async=True, server_fusion=True)

    def __init__(
        self,
        name: str,
        dsn: str,
        *,
        schema: str = "voicevault",
        exact: bool = False,
        ef_search: int = 100,
        index_from: int | None = 50_000,
        half: bool | None = None,
        size: int = 8,
        settings: Mapping[str, str] | None = None,
        pools: Pools | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **{**options, "options": {} if half is None else {"half": flag("half", half)}})
        if not is_plain(schema) or not schema or "%" in schema or len(schema.encode()) > LONGEST_NAME:
            raise ConfigError(
                f"a schema's name is a string of 1 to {LONGEST_NAME} bytes without percent signs, not {schema!r}"
            )
        self.schema = schema
        self.exact = flag("exact", exact)
        self.ef_search = whole("ef_search", ef_search)
        if self.ef_search > MOST_EF_SEARCH:
            raise ConfigError(f"ef_search is at most {MOST_EF_SEARCH} in pgvector, not {ef_search!r}")
        self.index_from = whole_or_none("index_from", index_from)
        self.size = whole("size", size)
        self.settings = settings_of(settings)
        near = {"hnsw.ef_search": str(self.ef_search), "hnsw.iterative_scan": "strict_order"}
        self._pools = pools or Pools(dsn, self.timeout, self.size, {**near, **self.settings})
        self._dsn = dsn
        self._extended, self._extension = False, "public"
        self._indexed = False

    @property
    def tables(self) -> Tables:
        """The names of the collection's tables."""
        recipe = self._recipe
        half = self._options.get("half") if recipe is None else recipe.options.get("half")
        text = None if recipe is None else recipe.text()
        return Tables(self.schema, self.name, self._extension, bool(half), text, self._textsearch.schema or "public")

    def _now(self, ask: Any) -> Any:
        with self._forgetting():
            return self._pools.ask(ask)

    async def _later(self, ask: Any) -> Any:
        with self._forgetting():
            return await self._pools.aask(ask)

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forget the recipe where a request finds the collection gone or replaced; it is read again at the next."""
        try:
            yield
        except SearchError as error:
            if isinstance(error, transactions.ReplacedError) or getattr(error.__cause__, "sqlstate", None) in _OTHER:
                self.forget()
            raise

    def _rows(self, tables: Tables, statement: Callable[[], SqlStatement], *filters: Filter | None) -> Steps[Any]:
        """The rows of a search. Raises ReplacedError where the collection is no longer the one of the tables."""
        made = (yield Compute(statement)) if any(filters) else statement()
        rows = yield made
        if not rows or not rows[0][-1]:
            yield from self._checking(tables)
        return rows

    def _checking(self, tables: Tables) -> Steps[None]:
        try:
            yield from transactions.checking(tables)
        except transactions.ReplacedError:
            self.forget()
            raise

    def _ask(self, text: str, **parameters: Any) -> Steps[Any]:
        return transactions.asked(self.tables, text, **parameters)

    def _read_recipe(self) -> Steps[str | None]:
        ((there, indexed, extension),) = yield from self._ask(transactions.THERE)
        self._indexed, self._extended, self._extension = indexed, extension is not None, extension or "public"
        yield from self._detecting()
        return (yield from transactions.recipe_of(self.tables)) if there else None

    def _create(self, recipe: Recipe) -> Steps[None]:
        if recipe.embedder is not None and not self._extended:
            yield SqlStatement("CREATE EXTENSION IF NOT EXISTS vector")
            yield from self._read_recipe()
        made = yield from self._with_index(recipe)
        yield Transaction(lambda _: transactions.creating(self.tables, made), unhurried=True)

    def _drop(self) -> Steps[None]:
        yield Transaction(lambda _: transactions.dropping(self.tables))

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        text = "SELECT id, digest FROM {chunks} WHERE id = ANY (%(ids)s::text[])"
        rows = yield from self._ask(text, ids=[escaped(one) for one in ids])
        return {unescaped(one): digest for one, digest in rows}

    def _records(self, chunks: Sequence[Chunk], new: Collection[str], rows: Any) -> Steps[list[Record]]:
        recipe = self._recipe
        records = yield from super()._records(chunks, new, rows)
        if records and self._recipe != recipe:  # another thread noticed, so the vectors may be of either embedder
            raise transactions.ReplacedError(f"collection {self.name!r} was replaced meanwhile: ask again")
        return records

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        tables = self.tables
        words = bm25_index.option(self._recipe) is not None
        make = partial(transactions.rows_of, records, half=tables.half, words=words)
        rows: list[transactions.CopyRow] = yield Compute(make)
        yield Transaction(partial(transactions.writing, tables, rows, parents))

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        gone: int = yield Transaction(partial(transactions.removing, self.tables, ids))
        return gone

    def _count(self) -> Steps[int]:
        ((count,),) = yield from self._ask("SELECT count(*) FROM {chunks}")
        return int(count)

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        text = "SELECT id, text, header, parent_id, metadata::text FROM {parents} WHERE id = ANY (%(ids)s::text[])"
        text = text if parents else text.replace("{parents}", "{chunks}")
        rows = yield from self._ask(text, ids=[escaped(one) for one in ids])
        return {chunk.id: chunk for chunk in (self._chunk(row) for row in rows)}

    def _chunk(self, row: Sequence[Any]) -> Chunk:
        chunk_id, text, header, parent_id, metadata = row[:5]
        above = None if parent_id is None else unescaped(parent_id)
        return Chunk(unescaped(chunk_id), unescaped(text), above, metadata_of(metadata), self.name, unescaped(header))

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        passing = Where.of(where, "w")
        text = self.tables.sql(_PAGE, passing=require("psycopg.sql", extra="postgres").SQL(passing.text))
        rows = yield SqlStatement(text, {"after": cursor or "", "limit": limit + 1, **passing.parameters})
        page = [Stored(unescaped(one), digest) for one, digest in rows[:limit]]
        return page, rows[limit - 1][0] if len(rows) > limit else None

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        passing, tables = both(require, where), self.tables
        exact = self.exact or not self._indexed
        made = partial(statements.nearest, tables, vector, k, passing)
        rows = yield from self._rows(tables, partial(made, exact=exact), passing)
        if not exact and len(rows) < k:
            rows = yield from self._rows(tables, partial(made, exact=True), passing)
        ids, scores = [unescaped(row[0]) for row in rows], np.array([row[5] for row in rows])
        return Listing(ids, scores, lambda at: Found(self._chunk(rows[at]), rows[at][5]))

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        recipe, tables = self._recipe, self.tables
        if recipe is None or recipe.embedder is None:
            return {}
        rows = yield from self._rows(tables, partial(statements.vectors, tables, list(ids)))
        return {unescaped(one): np.frombuffer(data, ">f4", offset=4).astype(np.float32) for one, data, _ in rows}

    def fused(self, *, k: float = 60, depth: int = 100, **options: Any) -> ServerFused:
        """A channel that runs both channels and RRF in one statement.

        Ranking and votes are those of `fuse` over the two channels. `options` are those of `bm25`; a `timeout` limits
        the statement.
        """
        bm25 = self.bm25(**options)
        dense = self.dense(timeout=bm25.timeout)
        return ServerFused(self, bm25, dense, number("k", k), whole("depth", depth))

    def _upserting(
        self, chunks: Iterable[Chunk], vectors: Any, parents: Iterable[Chunk], progress: Progress | None
    ) -> Steps[WriteCounts]:
        written = yield from super()._upserting(chunks, vectors, parents, progress)
        due = written.added and self.index_from is not None and not self._indexed and self._can_index
        if due and (yield from self._count()) >= (self.index_from or 0):
            yield from self._indexing(M, EF_CONSTRUCTION)
        yield from self._indexing_words(written.added + written.replaced)
        return written

    @property
    def _can_index(self) -> bool:
        entry = None if self._recipe is None else self._recipe.embedder
        return entry is not None and entry.dimension <= MOST_INDEXED[self.tables.half]

    def create_index(self, *, m: int = M, ef_construction: int = EF_CONSTRUCTION) -> None:
        """Create the HNSW index of the vectors, where there is none; writers wait meanwhile. Options are pgvector's.

        Raises ConfigError where there are no vectors, or they have more dimensions than pgvector indexes.
        """
        self.run(self._creating_index(m, ef_construction))

    async def acreate_index(self, *, m: int = M, ef_construction: int = EF_CONSTRUCTION) -> None:
        """`create_index` on the running event loop."""
        await self.arun(self._creating_index(m, ef_construction))

    def _creating_index(self, m: int, ef: int) -> Steps[None]:
        if not (yield from self._ready()) or not self._can_index:
            raise ConfigError(
                f"collection {self.name!r} cannot have an index of vectors: it has none, or of more than "
                f"{MOST_INDEXED[self.tables.half]} dimensions (half=True allows {MOST_INDEXED[True]})"
            )
        yield from self._indexing(whole("m", m, least=2), whole("ef_construction", ef, least=4))

    def _indexing(self, m: int, ef: int) -> Steps[None]:
        yield Transaction(lambda _: transactions.indexing(self.tables, m, ef), unhurried=True)
        self._indexed = True

    def enable_access(self, key: str, *, roles: Iterable[str] = (), setting: str | None = None) -> None:
        """Restrict database users to the chunks whose metadata have their name under `key`, as the value or in a list.

        A user's name is that of the role, or with `setting` the value of that setting (such as "voicevault.user", see
        `settings`), which any user who can send SQL can change. `roles` are granted the rights that a search needs. The
        owner of the tables and superusers see all chunks. Hidden chunks do not count in the statistics either.

        The collection's questions (`questions`) are restricted likewise, where they exist; after they are first made,
        call this again.
        """
        self.run(self._enabling_access(key, roles, setting))

    async def aenable_access(self, key: str, *, roles: Iterable[str] = (), setting: str | None = None) -> None:
        """`enable_access` on the running event loop."""
        await self.arun(self._enabling_access(key, roles, setting))

    def _enabling_access(self, key: str, roles: Iterable[str], setting: str | None) -> Steps[None]:
        named = check_access(key, roles, setting)
        yield from self._ready(create=True)
        questions = self.sibling(QUESTIONS)
        all_of = [self, *([questions] if (yield from questions.exists()) else [])]

        def steps(again: bool) -> Steps[None]:
            for each in all_of:
                yield from enabling(each.tables, key, named, setting)
                if bm25_index.option(each._recipe) is not None:
                    yield from bm25_index.enabling(each.tables, named)

        yield Transaction(steps)

    def sibling(self, suffix: str, **options: Any) -> PostgresEngine:
        given: dict[str, Any] = {
            "schema": self.schema,
            "exact": self.exact,
            "ef_search": self.ef_search,
            "index_from": self.index_from,
            "half": self._options.get("half"),
            "size": self.size,
            "settings": self.settings,
            "pools": self._pools,
            "embedder": self._given[1],
            "analyzer": self._given[0],
            "timeout": self.timeout,
            "limits": self._limits,
        }
        return PostgresEngine(self.name + suffix, self._dsn, **{**given, **options})

    def _close(self) -> None:
        self._pools.close()

    async def _aclose(self) -> None:
        await self._pools.aclose()

    def __repr__(self) -> str:
        return f"PostgresEngine({self.name!r}, {self._pools.place!r}, schema={self.schema!r})"


def at(address: str, *, embedder: Any = None, analyzer: Any = None, **options: Any) -> PostgresEngine:
    """The collection at `postgresql://[user[:password]@]host[:5432]/DATABASE#COLLECTION`.

    Raises ConfigError, which repeats nothing of the address, as it may hold a password, for any other address.
    """
    dsn, _, name = address.partition("#")
    if "@" in name:
        raise misread()
    if not name or "#" in name:
        raise ConfigError(
            "the address of a collection in PostgreSQL ends in its name: postgresql://host/database#collection"
        )
    return PostgresEngine(unquote(name), dsn, embedder=embedder, analyzer=analyzer, **options)

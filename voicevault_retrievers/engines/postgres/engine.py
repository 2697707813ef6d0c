"""A collection in PostgreSQL: its chunks, terms and vectors in tables, searched by SQL alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any
from urllib.parse import unquote

import numpy as np

from voicevault_retrievers.checks import flag, number, whole, whole_or_none
from voicevault_retrievers.engines.channels import Asked
from voicevault_retrievers.engines.engine import Capabilities, Engine, Progress, Record, Stored, Written
from voicevault_retrievers.engines.keywords import KeywordHit, Keywords
from voicevault_retrievers.engines.postgres import statements, transactions
from voicevault_retrievers.engines.postgres.access import enabling
from voicevault_retrievers.engines.postgres.connections import Pools, Statement, Transaction
from voicevault_retrievers.engines.postgres.fused import FusedRow, ServerFused
from voicevault_retrievers.engines.postgres.tables import Tables
from voicevault_retrievers.engines.postgres.texts import (
    escaped,
    metadata_of,
    unescaped,
)
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.steps import Steps, Work
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import Filter, both
from voicevault_retrievers.protocols import Found
from voicevault_retrievers.text.analyzed import tags_of
from voicevault_retrievers.types import Chunk, Vector

MOST_INDEXED = {False: 2000, True: 4000}
"""The most dimensions that pgvector indexes, of a vector and of a halfvec."""

M = 16
EF_CONSTRUCTION = 64
"""What pgvector builds an index with where nothing is said."""


class PostgresEngine(Engine):
    """The collection of this name in a PostgreSQL with pgvector; see `Engine`.

    `dsn` is an address (`postgresql://user:password@host:5432/database`) or what else libpq reads. The tables are in
    `schema`, which is made where there is none. Keyword scores are those of a knowledge base.

    Vectors are compared one by one (exactly) until a collection that is written has `index_from` chunks, when they get
    an HNSW index (None: never, see `create_index`); `exact` asks past it. `ef_search` is how many neighbours a search
    of the index keeps; what passes few filters it goes on for, and then asks exactly. With `half` vectors are kept in
    half precision. `size` is how many connections there are at most, for threads and for each event loop; `settings`
    of PostgreSQL are set on each.
    """

    capabilities = Capabilities(
        exact_keywords=True, exact_vectors=False, atomic=True, native_async=True, server_fusion=True
    )

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
        if not isinstance(schema, str) or not schema or "\0" in schema:
            raise ConfigError(f"a schema's name is a string that is not empty, not {schema!r}")
        self.schema = schema
        self.exact = flag("exact", exact)
        self.ef_search = whole("ef_search", ef_search)
        self.index_from = whole_or_none("index_from", index_from)
        self.size = whole("size", size)
        self.settings = dict(settings or {})
        near = {"hnsw.ef_search": str(self.ef_search), "hnsw.iterative_scan": "strict_order"}
        self._pools = pools or Pools(dsn, self.timeout, self.size, {**near, **self.settings})
        self._dsn = dsn
        self._extended, self._extension = False, "public"
        self._indexed = False

    @property
    def tables(self) -> Tables:
        """The names of its tables."""
        recipe = self._recipe
        half = self._options.get("half") if recipe is None else recipe.options.get("half")
        return Tables(self.schema, self.name, self._extension, bool(half))

    def _now(self, ask: Any) -> Any:
        return self._pools.ask(ask)

    async def _later(self, ask: Any) -> Any:
        return await self._pools.aask(ask)

    def _ask(self, text: str, **parameters: Any) -> Steps[Any]:
        return transactions.asked(self.tables, text, **parameters)

    def _read_recipe(self) -> Steps[str | None]:
        ((there, indexed, extension),) = yield from self._ask(transactions.THERE)
        self._indexed, self._extended, self._extension = indexed, extension is not None, extension or "public"
        if not there:
            return None
        rows = yield from self._ask("SELECT recipe FROM {collections} WHERE name = %(name)s", name=escaped(self.name))
        return unescaped(rows[0][0]) if rows else None

    def _create(self, recipe: Recipe) -> Steps[None]:
        if recipe.embedder is not None and not self._extended:
            yield Statement("CREATE EXTENSION IF NOT EXISTS vector")
            yield from self._read_recipe()
        yield Transaction(lambda _: transactions.creating(self.tables, recipe), unhurried=True)

    def _drop(self) -> Steps[None]:
        yield Transaction(lambda _: transactions.dropping(self.tables), unhurried=True)

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        text = "SELECT id, digest FROM {chunks} WHERE id = ANY (%(ids)s::text[])"
        rows = yield from self._ask(text, ids=[escaped(one) for one in ids])
        return {unescaped(one): digest for one, digest in rows}

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        tables = self.tables
        rows: list[transactions.Row] = yield Work(partial(transactions.rows_of, records, half=tables.half))
        yield Transaction(partial(transactions.writing, tables, rows, parents))

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        gone: int = yield Transaction(partial(transactions.removing, self.tables, ids))
        return gone

    def _count(self) -> Steps[int]:
        ((count,),) = yield from self._ask("SELECT count(*) FROM {chunks}")
        return int(count)

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        text = "SELECT id, text, parent_id, metadata::text FROM {parents} WHERE id = ANY (%(ids)s::text[])"
        text = text if parents else text.replace("{parents}", "{chunks}")
        rows = yield from self._ask(text, ids=[escaped(one) for one in ids])
        return {chunk.id: chunk for chunk in (self._chunk(row) for row in rows)}

    def _chunk(self, row: Sequence[Any]) -> Chunk:
        chunk_id, text, parent_id, metadata = row[:4]
        above = None if parent_id is None else unescaped(parent_id)
        return Chunk(unescaped(chunk_id), unescaped(text), above, metadata_of(metadata), self.name)

    def _page(self, cursor: Any, limit: int) -> Steps[tuple[Sequence[Stored], Any]]:
        text = "SELECT id, digest FROM {chunks} WHERE id > %(after)s::text ORDER BY id LIMIT %(limit)s"
        rows = yield from self._ask(text, after=cursor or "", limit=limit + 1)
        page = [Stored(unescaped(one), digest) for one, digest in rows[:limit]]
        return page, rows[limit - 1][0] if len(rows) > limit else None

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        passing = both(require, where)
        exact = self.exact or not self._indexed
        rows = yield statements.nearest(self.tables, vector, k, passing, exact=exact)
        if not exact and len(rows) < k:
            rows = yield statements.nearest(self.tables, vector, k, passing, exact=True)
        return [Found(self._chunk(row), row[4]) for row in rows]

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        text = "SELECT id, {vector_send}(embedding::{full_vector}) FROM {chunks} WHERE id = ANY (%(ids)s::text[])"
        if self._recipe is None or self._recipe.embedder is None:
            return {}
        rows = yield from self._ask(text, ids=[escaped(one) for one in ids])
        return {unescaped(one): np.frombuffer(data, ">f4", offset=4).astype(np.float32) for one, data in rows}

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        if not asked.terms:
            return []
        forms = asked.forms
        rows = yield statements.keywords(self.tables, asked, k)
        return [KeywordHit(self._chunk(row), row[4], tuple(forms[at] for at in row[5])) for row in rows]

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        rows = yield statements.keyword_scores(self.tables, asked, list(ids))
        return {unescaped(one): score for one, score in rows}

    def fused(self, *, k: float = 60, depth: int = 100, **options: Any) -> ServerFused:
        """Both channels and RRF in one statement: a channel that ranks and votes as `fuse` does over the two.

        `options` are those of `bm25`.
        """
        return ServerFused(self, self.bm25(**options), self.dense(), number("k", k), whole("depth", depth))

    def fusing(
        self, asked: Asked, vector: Vector, depth: statements.Depth, require: Filter | None
    ) -> Steps[Sequence[FusedRow]]:
        """The best of both channels, of what `asked` makes of the analyzer and its tags."""
        if not (yield from self._ready()) or self._analyzer is None:
            return ()
        tags = yield from self._tags(require)
        words = asked(self._analyzer, tags)
        forms = words.forms
        exact = self.exact or not self._indexed
        rows = yield statements.fused(self.tables, words, vector, depth, exact=exact)
        if not exact and (not rows or rows[0][10] < depth.near):
            rows = yield statements.fused(self.tables, words, vector, depth, exact=True)
        return [
            FusedRow(self._chunk(row), row[4], tuple(forms[at] for at in row[5]), ((row[6], row[7]), (row[8], row[9])))
            for row in rows
        ]

    def _tags(self, require: Filter | None) -> Steps[str]:
        made = {} if self._recipe is None else self._recipe.analyzer
        if made.get("language", "auto") != "auto":
            return ""
        rows = yield statements.languages(self.tables, require)
        return tags_of(reduce(or_, (bits for (bits,) in rows), 0))

    def _upserting(
        self, chunks: Iterable[Chunk], vectors: Any, parents: Iterable[Chunk], progress: Progress | None
    ) -> Steps[Written]:
        written = yield from super()._upserting(chunks, vectors, parents, progress)
        due = written.added and self.index_from is not None and not self._indexed and self._can_index
        if due and (yield from self._count()) >= (self.index_from or 0):
            yield from self._indexing(M, EF_CONSTRUCTION)
        return written

    @property
    def _can_index(self) -> bool:
        entry = None if self._recipe is None else self._recipe.embedder
        return entry is not None and entry.dimension <= MOST_INDEXED[self.tables.half]

    def create_index(self, *, m: int = M, ef_construction: int = EF_CONSTRUCTION) -> None:
        """Make the HNSW index of the vectors, where there is none; writers wait meanwhile. Options are pgvector's.

        Raises ConfigError where there are no vectors, or of more dimensions than pgvector indexes.
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
        """Let users of the database see only the chunks whose metadata have their name under `key`, or in a list there.

        A user's name is that of the role, or with `setting` the value of that setting (such as "voicevault.user",
        see `settings`), which anybody can change who may send SQL of their own. `roles` are granted what a search
        needs. The owner of the tables, and superusers, see all. What is hidden does not count in scores either.
        """
        self.run(self._enabling_access(key, roles, setting))

    async def aenable_access(self, key: str, *, roles: Iterable[str] = (), setting: str | None = None) -> None:
        """`enable_access` on the running event loop."""
        await self.arun(self._enabling_access(key, roles, setting))

    def _enabling_access(self, key: str, roles: Iterable[str], setting: str | None) -> Steps[None]:
        if isinstance(roles, str):
            raise ConfigError(f"roles is a list of names; a single one goes in a list: [{roles!r}]")
        yield from self._ready(create=True)
        named = list(roles)
        yield Transaction(lambda again: enabling(self.tables, key, named, setting))

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

    Raises ConfigError for any other address, which no error repeats: it may hold a password.
    """
    dsn, _, name = address.partition("#")
    if not name or "#" in name:
        raise ConfigError(
            "the address of a collection in PostgreSQL ends in its name: postgresql://host/database#collection"
        )
    return PostgresEngine(unquote(name), dsn, embedder=embedder, analyzer=analyzer, **options)

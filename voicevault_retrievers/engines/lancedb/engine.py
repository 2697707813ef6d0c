"""LanceDB as an engine: a collection is a table in a folder, opened in this process."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import numpy as np

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Steps, blocking
from voicevault_retrievers.core.filters import Filter, both, canonical, compile_filter
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Capabilities, Engine, Record, Stored
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, scores_of, weigh
from voicevault_retrievers.engines.lancedb import schema
from voicevault_retrievers.engines.lancedb.schema import CHUNK, CHUNKS, having, id_of, key_of, one_of
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import ConfigError, RetrievalError, SearchError, SearchNotAvailableError
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.text.analyzed_texts import tags_of

INDEXED_FROM = 1000
"""The number of rows from which a table has indexes of terms, filters and keys."""

SPARE = 50
"""The candidates that LanceDB ranks beyond twice k: its BM25 has k1=1.2, which the asked formula may not."""

TIES = 1000
"""How many neighbours are read at most to order equally near chunks by id."""


class LanceEngine(Engine):
    """A LanceDB table, by its name, in the folder `path`; see `Engine`.

    A search reads one version of the table, as it is now, whichever process wrote it. The writers of a folder take
    turns by a file lock; one that waits longer than `timeout` gets LockedError.

    From 1000 chunks on `bm25(statistics="engine")`, the default, lets LanceDB's full-text index rank chunks, and scores
    the best 2k + 50 by the asked `Lucene` and exact statistics; ConfigError for another formula. "exact" scores every
    chunk that has a term of the query.

    Vectors are compared exactly until an upsert leaves `index_from` rows or more (None: never), which builds an index
    of 8-bit vectors (IVF_SQ); the nearest by the index are compared exactly.
    """

    def __init__(self, name: str, path: Path | str, *, index_from: int | None = 50_000, **options: Any) -> None:
        super().__init__(name, **options)
        self.folder = Path(path).absolute()
        self.index_from = whole_or_none("index_from", index_from)
        self.capabilities = Capabilities(index_from is None, atomic=True, native_async=False, engine_statistics=True)
        self._table = schema.table_name(name)
        self._database: Any = None
        self._totals: tuple[Any, dict[str, tuple[int, int, int]]] = None, {}

    # Connection.

    def _now(self, ask: Any) -> Any:
        try:
            return ask()
        except RetrievalError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            self.forget()
            kind = SearchNotAvailableError if isinstance(error, OSError) else SearchError
            raise kind(f"LanceDB in {self.folder} fails, or {self.name!r} was replaced meanwhile: {error}") from error

    def _connection(self) -> Any:
        with self._mutex:
            if self._database is None:
                self._database = require("lancedb", extra="lancedb").connect(self.folder)
            return self._database

    def _found(self) -> Any:
        """The table as it is now, which later writes do not change; None where there is none."""
        there = (self.folder / f"{self._table}.lance").is_dir()
        return self._connection().open_table(self._table) if there else None

    def _open(self) -> Any:
        """The table; SearchError where the collection is gone, or its recipe is not the known one."""
        table, known = self._found(), self._recipe
        if table is None or known is None or Recipe.parse(schema.recipe_of(table)[0], self.name) != known:
            self.forget()
            raise SearchError(f"collection {self.name!r} was replaced meanwhile, or removed: ask again")
        return table

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.folder / ".voicevault.lock", math.inf if self.timeout is None else self.timeout)
        try:
            yield
        finally:
            lock.release()

    def sibling(self, suffix: str, **options: Any) -> LanceEngine:
        given: dict[str, Any] = {"analyzer": self._given[0], "embedder": self._given[1], "timeout": self.timeout}
        given |= {"limits": self._limits, "index_from": self.index_from}
        return LanceEngine(self.name + suffix, self.folder, **{**given, **options})

    def _close(self) -> None:
        self._database = None

    async def _aclose(self) -> None:
        """Does nothing: there are no connections of an event loop."""

    def __repr__(self) -> str:
        return f"LanceEngine({self.name!r}, {str(self.folder)!r})"

    # Collection.

    @blocking
    def _read_recipe(self) -> str | None:
        table = self._found()
        return None if table is None else schema.recipe_of(table)[0]

    @blocking
    def _create(self, recipe: Recipe) -> None:
        with self._writing():
            if self._found() is None:
                self._connection().create_table(self._table, schema=schema.schema_of(recipe, uuid4().hex))

    @blocking
    def _drop(self) -> None:
        with self._writing():
            self._connection().drop_table(self._table, ignore_missing=True)

    # Writing.

    @blocking
    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> None:
        with self._writing():
            table = self._open()
            rows = schema.rows_of(records, parents, table.schema)
            keys = rows["key"].to_pylist()
            before = self._read(table, ["parent"], one_of("key", keys), CHUNKS)
            merge = table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(rows, on_bad_vectors="null")
            if left := self._left(table, before, ()) - set(keys):
                table.delete(one_of("key", left))

    @blocking
    def _remove(self, ids: Sequence[str]) -> int:
        with self._writing():
            table, keys = self._open(), set(map(key_of, ids))
            held = self._read(table, ["key", "parent"], one_of("key", keys))
            if len(held):
                table.delete(one_of("key", [*held["key"].to_pylist(), *self._left(table, held, keys)]))
            return len(held)

    def _left(self, table: Any, rows: Any, gone: Collection[str]) -> set[str]:
        """The parents of rows that no chunk names, other than those `gone`."""
        above = set(rows["parent"].drop_null().to_pylist())
        named = self._read(table, ["key", "parent"], one_of("parent", above), CHUNKS).to_pylist() if above else ()
        return above - {row["parent"] for row in named if row["key"] not in gone}

    def _upserting(self, *given: Any) -> Steps[Any]:
        written = yield from super()._upserting(*given)
        if written.added or written.replaced:
            yield from self._index()
        return written

    @blocking
    def _index(self) -> None:
        """Create the indexes that are due; update all where a twentieth of the rows is in none."""
        kinds = require("lancedb.index", extra="lancedb")
        plain = {"max_token_length": None, "lower_case": False, "stem": False, "remove_stop_words": False}
        words = kinds.FTS(base_tokenizer="whitespace", ascii_folding=False, **plain)
        due = [("key", "key", kinds.BTree()), ("facets", "facets", kinds.LabelList())]
        due += [("terms", "terms", kinds.LabelList()), ("words", "terms", words)]
        with self._writing():
            table = self._open()
            size, there = table.count_rows(), {index.name: index.num_unindexed_rows for index in table.list_indices()}
            if max(there.values(), default=0) > max(INDEXED_FROM, size // 20):
                table.optimize(cleanup_older_than=timedelta(hours=1))
            due = due if size >= INDEXED_FROM else []
            if self.index_from is not None and size >= self.index_from and "vector" in table.schema.names:
                due.append(("near", "vector", kinds.IvfSq(distance_type="cosine")))
            for name, column, kind in due:
                if name not in there:
                    table.create_index(column, config=kind, name=name)

    # Reading.

    def _read(self, table: Any, columns: Sequence[str], *conditions: str) -> Any:
        """The columns of the rows that meet all conditions, as an Arrow table."""
        return table.search().where(" AND ".join(conditions)).select(list(columns)).to_arrow()

    def _rows(self, table: Any, columns: Sequence[str], where: Filter | None, condition: str = CHUNKS) -> Any:
        """The columns of the chunks that pass a filter and meet a condition."""
        clause, exact = schema.clause_of(where)
        rows = self._read(table, [*columns, *([] if exact else ["metadata"])], CHUNKS, clause, condition)
        return rows if exact else _filtered(rows, where)

    def _counted(self, table: Any, where: Filter | None, condition: str = CHUNKS) -> int:
        clause, exact = schema.clause_of(where)
        if not exact:
            return len(self._rows(table, ["length"], where, condition))
        return int(table.count_rows(" AND ".join([CHUNKS, clause, condition])))

    @blocking
    def _count(self) -> int:
        return self._counted(self._open(), None)

    @blocking
    def _digests(self, ids: Sequence[str]) -> Mapping[str, str]:
        return dict(_stored(self._read(self._open(), ["key", "digest"], one_of("key", map(key_of, ids)))))

    @blocking
    def _page(self, cursor: Any, limit: int) -> tuple[Sequence[Stored], Any]:
        rows = self._read(self._open(), ["key", "digest"], CHUNKS) if cursor is None else cursor
        return _stored(rows.slice(0, limit)), rows.slice(limit) if len(rows) > limit else None

    @blocking
    def _get(self, ids: Sequence[str], parents: bool) -> Mapping[str, Chunk]:
        return self._chunks(self._open(), [key_of(one, "p" if parents else "c") for one in ids])

    def _chunks(self, table: Any, keys: Sequence[str]) -> dict[str, Chunk]:
        rows = self._read(table, CHUNK, one_of("key", keys)).to_pylist() if keys else []
        return {id_of(row["key"]): schema.chunk_of(row, self.name) for row in rows}

    @blocking
    def _vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        if self._recipe is None or self._recipe.embedder is None:
            return {}
        rows = self._read(self._open(), ["key", "vector"], one_of("key", map(key_of, ids)))
        return dict(zip(map(id_of, rows["key"].to_pylist()), _matrix(rows), strict=True))

    # Searching.

    @blocking
    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Sequence[Found]:
        table, wanted = self._open(), both(require, where)
        (clause, exact), size = schema.clause_of(wanted), table.count_rows()
        limit = min(2 * k, size) if clause != "false" else 0
        while limit:
            query = table.search(vector, vector_column_name="vector").distance_type("cosine").where(clause)
            query = query.minimum_nprobes(20).maximum_nprobes(0).refine_factor(4).limit(limit)
            near = query.select([*CHUNK, "vector", "_distance"]).to_arrow()
            cosines = np.minimum(_matrix(near).astype(np.float64) @ vector.astype(np.float64), 1.0)
            near = near.append_column("cosine", [cosines])
            rows = (near if exact else _filtered(near, wanted)).to_pylist()
            found = [Found(schema.chunk_of(row, self.name), row["cosine"]) for row in rows]
            found.sort(key=lambda one: (-one.score, one.chunk.id))
            enough = len(found) >= k and (found[k - 1].score > cosines.min() or limit >= max(TIES, 2 * k))
            if enough or len(near) < limit or limit == size:
                return found[:k]
            limit = min(4 * limit, size)
        return []

    def _check_statistics(self, asked: Keywords) -> None:
        if not isinstance(asked.formula, Lucene):
            raise ConfigError(f'statistics="engine": LanceDB ranks by Lucene(), not by {asked.formula!r}: use "exact"')

    @blocking
    def _tags(self, require: Filter | None) -> str:
        return tags_of(self._sums(self._open(), require)[2])

    @blocking
    def _population(self, asked: Keywords) -> CollectionCounts:
        return self._counts(self._open(), asked)

    def _counts(self, table: Any, asked: Keywords) -> CollectionCounts:
        frequencies = {form: self._counted(table, asked.counting, having([form])) for form in asked.forms}
        return CollectionCounts(*self._sums(table, asked.counting)[:2], frequencies)

    def _sums(self, table: Any, where: Filter | None) -> tuple[int, int, int]:
        """The number of chunks that pass, of their terms, and the bits of their languages; kept for one version."""
        version, key = (schema.recipe_of(table), table.version), canonical(where)
        if self._totals[0] != version:
            self._totals = version, {}
        known = self._totals[1]
        if key not in known:
            rows = self._rows(table, ["length", "languages"], where)
            length, languages = rows["length"].to_numpy().sum(), np.bitwise_or.reduce(rows["languages"].to_numpy())
            known[key] = len(rows), int(length), int(languages)
        return known[key]

    @blocking
    def _keywords(self, asked: Keywords, k: int) -> Sequence[KeywordHit]:
        if not asked.terms or not k:
            return ()
        table, wanted = self._open(), ["key", "terms", "length"]
        rows = self._ranked(table, asked, wanted, k)
        rows = self._rows(table, wanted, asked.passing, having(asked.forms)) if rows is None else rows
        scores, counts = self._scores(table, asked, rows)
        keys = rows["key"].to_numpy()
        least = np.partition(scores, -k)[-k] if len(scores) > k else -math.inf
        chosen = [at for at in np.flatnonzero(scores >= least) if scores[at] > 0 or not asked.positive]
        chosen = sorted(chosen, key=lambda at: (-scores[at], keys[at]))[:k]
        chunks = self._chunks(table, [keys[at] for at in chosen])
        return [
            KeywordHit(chunks[id_of(keys[at])], float(scores[at]), tuple(f for f in asked.forms if counts[f][at]))
            for at in chosen
        ]

    def _ranked(self, table: Any, asked: Keywords, columns: Sequence[str], k: int) -> Any:
        """The chunks that LanceDB ranks best and that pass; None where all with a term are scored."""
        indexed = any(index.name == "words" for index in table.list_indices())
        if not (asked.by_engine and indexed and isinstance(asked.formula, Lucene) and min(asked.terms.values()) > 0):
            return None
        query, limit = schema.words_query(asked.terms), 2 * k + SPARE
        clause, exact = schema.clause_of(asked.passing)
        while True:
            search = table.search(query, query_type="fts").where(clause).limit(limit)
            rows = search.select([*columns, "metadata", "_score"]).to_arrow()
            passing = rows if exact else _filtered(rows, asked.passing)
            if len(rows) < limit or len(passing) >= k:
                return passing
            limit *= 4

    @blocking
    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Mapping[str, float]:
        table = self._open()
        rows = self._rows(table, ["key", "terms", "length"], asked.passing, one_of("key", map(key_of, ids)))
        scores, _ = self._scores(table, asked, rows)
        return dict(zip(map(id_of, rows["key"].to_pylist()), scores.tolist(), strict=True))

    def _scores(self, table: Any, asked: Keywords, rows: Any) -> tuple[Any, Mapping[str, Any]]:
        """The scores of rows, and how often each has each form."""
        population, counts = self._counts(table, asked), schema.counts_of(rows["terms"], asked.forms)
        terms, lengths = weigh(asked, population), rows["length"].to_numpy()
        return scores_of(asked.formula, terms, population.mean, counts, lengths), counts


def at(address: str, **options: Any) -> LanceEngine:
    """The collection at `lancedb:///FOLDER/COLLECTION`; ConfigError for any other address."""
    parts = urlsplit(address)
    folder, _, name = parts.path.rpartition("/")
    if parts.scheme != "lancedb" or not folder or not name or parts.netloc or parts.query or parts.fragment:
        raise ConfigError("the address of a LanceDB collection is like lancedb:///FOLDER/COLLECTION")
    return LanceEngine(unquote(name), unquote(folder), **options)


def _filtered(rows: Any, where: Filter | None) -> Any:
    passes = compile_filter(where)
    pa, kept = require("pyarrow", extra="lancedb"), [passes(json.loads(one)) for one in rows["metadata"].to_pylist()]
    return rows.filter(pa.array(kept, pa.bool_()))


def _stored(rows: Any) -> list[Stored]:
    return [Stored(id_of(row["key"]), row["digest"]) for row in rows.to_pylist()]


def _matrix(rows: Any) -> Any:
    """The vectors, of shape (rows, dimension)."""
    column = rows["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(rows), column.type.list_size)

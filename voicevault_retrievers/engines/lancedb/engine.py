"""LanceDB as an engine: a collection is a table in a folder, opened in this process."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import OTHERWISE, leave_to_parent, reset_in_child, used_by_parent
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.engines.engine import Capabilities
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.rows import ALL, CHUNK
from voicevault_retrievers.engines.tables import TableEngine, TableVersion
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError
from voicevault_retrievers.store.lock import locked

INDEXED_FROM = 1000
"""The number of rows from which a table has indexes of terms, filters and keys."""

FRAGMENTS = 200
"""The number of a table's files from which they are joined; each write makes one."""

_NAME = re.compile("[A-Za-z0-9_-]{1,200}")
_RECIPE, _MADE = b"voicevault_recipe", b"voicevault_made"


class LanceEngine(TableEngine):
    """A LanceDB table, by its name, in the folder `path`; see `Engine`.

    Each step of a search reads the newest version of the table, whichever process wrote it. The writers of a folder
    take turns by a file lock; one that waits longer than `timeout` gets LockedError.

    From 1000 chunks on, `bm25(statistics="engine")`, the default, lets LanceDB's full-text index rank the chunks and
    scores the best 2k + 50 by the asked `Lucene` and exact statistics; ConfigError for another formula. "exact" scores
    every chunk that has a term, and orders all equal scores by id. Vectors are compared exactly until an upsert leaves
    `index_from` rows (None: never), which builds an index of 8-bit vectors (IVF_SQ).
    """

    def __init__(self, name: str, path: Path | str, *, index_from: int | None = 50_000, **options: Any) -> None:
        super().__init__(name, **options)
        self.folder = Path(path).absolute()
        self.index_from = whole_or_none("index_from", index_from)
        self.capabilities = Capabilities(index_from is None, atomic=True, native_async=False, engine_statistics=True)
        self._table = name if _NAME.fullmatch(name) else f"hex.{name.encode('utf-8', 'surrogatepass').hex()}"
        if len(self._table) > 240:
            raise ConfigError(f"the name {name[:40]!r}... is too long for a LanceDB table: shorten it")
        self._database: Any = None
        self._read: tuple[Any, TableVersion | None] = None, None
        reset_in_child(self, LanceEngine._forked)

    # Connection.

    def _forked(self) -> None:
        leave_to_parent((self._database, self._read))
        self._close()

    def _connection(self) -> Any:
        with self._mutex:
            if used_by_parent("lancedb"):
                raise SearchNotAvailableError(
                    f"LanceDB may hang or crash, as this process was forked from one that used it: {OTHERWISE}"
                )
            if self._database is None:
                self._database = require("lancedb", extra="lancedb").connect(self.folder)
            return self._database

    def found(self, *, writing: bool = False) -> TableVersion | None:
        folder = self.folder / f"{self._table}.lance" / "_versions"
        try:
            files = sorted((one.name, one.inode()) for one in os.scandir(folder))  # a commit adds one
            state = files, folder.stat().st_ino, folder.stat().st_ctime_ns
        except FileNotFoundError:
            return None
        known, held = self._read
        if held is None or writing or known != state:
            table = self._connection().open_table(self._table)  # which does not follow other clients' writes
            told = table.schema.metadata or {}
            held = TableVersion(table, told.get(_RECIPE, b"").decode(), (told.get(_MADE), table.version))
            self._read = self._read if writing else (state, held)
        return held

    def writing(self) -> AbstractContextManager[None]:
        return locked(self.folder / ".voicevault.lock", math.inf if self.timeout is None else self.timeout)

    def sibling(self, suffix: str, **options: Any) -> LanceEngine:
        given: dict[str, Any] = {"analyzer": self._given[0], "embedder": self._given[1], "timeout": self.timeout}
        given |= {"limits": self._limits, "index_from": self.index_from}
        return LanceEngine(self.name + suffix, self.folder, **{**given, **options})

    def _close(self) -> None:
        self._database = None
        self._read = None, None

    def __repr__(self) -> str:
        return f"LanceEngine({self.name!r}, {str(self.folder)!r})"

    # Schema.

    def create(self, recipe: Recipe) -> None:
        pa = require("pyarrow", extra="lancedb")
        columns = [(name, pa.string()) for name in (*CHUNK, "digest")]
        columns += [("length", pa.int32()), ("languages", pa.int64())]
        columns += [("terms", pa.list_(pa.string())), ("facets", pa.list_(pa.int64()))]
        if recipe.embedder is not None:
            columns.append(("vector", pa.list_(pa.float32(), recipe.embedder.dimension)))
        schema = pa.schema(columns, metadata={_RECIPE: recipe.text(), _MADE: uuid4().hex})
        self._connection().create_table(self._table, schema=schema)

    def drop(self) -> None:
        self._connection().drop_table(self._table, ignore_missing=True)

    def index(self, table: Any) -> None:
        kinds = require("lancedb.index", extra="lancedb")
        plain = {"lower_case": False, "stem": False, "remove_stop_words": False, "ascii_folding": False}
        words = kinds.FTS(base_tokenizer="whitespace", max_token_length=None, **plain)
        due = [("key", "key", kinds.BTree()), ("facets", "facets", kinds.LabelList())]
        due += [("terms", "terms", kinds.LabelList()), ("words", "terms", words)]
        size, there = table.count_rows(), {one.name: one.num_unindexed_rows for one in table.list_indices()}
        due = due if size >= INDEXED_FROM else []
        if self.index_from is not None and size >= self.index_from and "vector" in table.schema.names:
            due.append(("near", "vector", kinds.IvfSq(distance_type="cosine")))
        due = [one for one in due if one[0] not in there]
        fragments = table.stats()["fragment_stats"]["num_fragments"]
        if due or fragments > FRAGMENTS or max(there.values(), default=0) > max(INDEXED_FROM, size // 20):
            table.optimize(cleanup_older_than=timedelta(hours=1))
        for name, column, kind in due:
            table.create_index(column, config=kind, name=name)

    # Writing.

    def merge(self, table: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        data = require("pyarrow", extra="lancedb").Table.from_pylist(rows, schema=table.schema)
        merging = table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        merging.execute(data, on_bad_vectors="null")  # parents have none

    def erase(self, table: Any, condition: str) -> None:
        table.delete(condition)

    # Searching, with filters.

    def read(self, table: Any, columns: Sequence[str], condition: str) -> Any:
        return table.search().where(condition).select(list(columns)).to_arrow()

    def counted(self, table: Any, condition: str) -> int:
        return int(table.count_rows(condition))

    def near(self, table: Any, columns: Sequence[str], vector: Vector, limit: int, condition: str) -> Any:
        query = table.search(vector, vector_column_name="vector").distance_type("cosine")
        query = _where(query, condition).minimum_nprobes(20).maximum_nprobes(0).limit(limit)
        return query.select([*columns, "_distance"]).to_arrow()

    def ranked(self, table: Any, columns: Sequence[str], words: Mapping[str, float], limit: int, condition: str) -> Any:
        if all(index.name != "words" for index in table.list_indices()):
            return None
        kinds, alike = require("lancedb.query", extra="lancedb"), dict[float, list[str]]()
        for word, weight in words.items():
            alike.setdefault(weight, []).append(word)
        parts = [kinds.MatchQuery(" ".join(some), "terms", boost=weight) for weight, some in alike.items()]
        query = parts[0] if len(parts) == 1 else kinds.BooleanQuery([(kinds.Occur.SHOULD, one) for one in parts])
        search = _where(table.search(query, query_type="fts"), condition).limit(limit)
        return search.select([*columns, "_score"]).to_arrow()


def _where(query: Any, condition: str) -> Any:
    return query if condition == ALL else query.where(condition)  # "true" would be asked of every row


def at(address: str, **options: Any) -> LanceEngine:
    """The collection at `lancedb:///FOLDER/COLLECTION`; ConfigError for any other address."""
    parts = urlsplit(address)
    folder, _, name = parts.path.rpartition("/")
    if not folder or not name or parts.netloc or parts.query or parts.fragment:
        raise ConfigError("the address of a LanceDB collection is like lancedb:///FOLDER/COLLECTION")
    return LanceEngine(unquote(name), unquote(folder), **options)

"""An engine over a table of rows, for databases that return Arrow tables and have array functions in SQL."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from voicevault_retrievers._support.extras import require as imported
from voicevault_retrievers.core.execution.steps import Steps, blocking
from voicevault_retrievers.core.filters import Filter, both, canonical, compile_filter
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.rows import best_by_id
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.encoding import encoded
from voicevault_retrievers.engines.engine import Engine, Record, Stored
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, KeywordHits, Keywords, scores_of, weigh
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.rows import (
    ALL,
    CHUNK,
    CHUNKS,
    NONE,
    SCORED,
    all_of,
    chunk_of,
    condition_of,
    having,
    id_of,
    key_of,
    matrix_of,
    occurrences,
    one_of,
    parent_row,
    row_of,
)
from voicevault_retrievers.errors import ConfigError, RetrievalError, SearchError, SearchNotAvailableError
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.text.analyzed_texts import tags_of

TIES = 1000
"""How many neighbours are read at most to order equally near chunks by id."""

SPARE = 50
"""The rows read beyond k neighbours, which an index finds by rounded vectors, and beyond 2k keyword hits, as the
database's BM25 may have other constants."""

COUNTED = 10_000
"""The most counts that are cached: frequencies of terms, and sums, below a filter."""

T = TypeVar("T")


class TableVersion(NamedTuple):
    """A version of a table, the recipe that it was created with, and a value that no other version has."""

    table: Any
    recipe: str
    version: Any


class TableEngine(Engine):
    """An engine whose chunks and parents are rows (see `engines.rows`) of a table; subclasses define its requests.

    The methods block, and conditions are SQL on the columns of `engines.rows`. Each step of a search reads what one
    call of `found` returned, so that it has to be a version of the table that later writes do not change. What a method
    raises as OSError becomes SearchNotAvailableError, another exception SearchError; the recipe is read again after
    either.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._counts_of: tuple[Any, dict[Any, Any]] = None, {}

    @abstractmethod
    def found(self, *, writing: bool = False) -> TableVersion | None:
        """The table as it is now; None where there is none. One to be written is not shared with searches."""

    @abstractmethod
    def create(self, recipe: Recipe) -> None:
        """Create the table with the recipe; called while `writing` excludes others, and where there is none."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the table, if there is one."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """A block in which no other client writes."""

    @abstractmethod
    def merge(self, table: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows, all or none, replacing those with the same `key`."""

    @abstractmethod
    def erase(self, table: Any, condition: str) -> None:
        """Delete the rows that meet a condition."""

    @abstractmethod
    def index(self, table: Any) -> None:
        """Create or update the indexes that are due after an upsert."""

    @abstractmethod
    def read(self, table: Any, columns: Sequence[str], condition: str) -> Any:
        """The columns of the rows that meet a condition, as an Arrow table."""

    @abstractmethod
    def counted(self, table: Any, condition: str) -> int:
        """The number of rows that meet a condition."""

    @abstractmethod
    def near(self, table: Any, columns: Sequence[str], vector: Vector, limit: int, condition: str) -> Any:
        """The columns of the rows nearest by cosine, in any order, of those that meet a condition."""

    @abstractmethod
    def ranked(self, table: Any, columns: Sequence[str], words: Mapping[str, float], limit: int, condition: str) -> Any:
        """The columns of the rows best by the database's BM25 for weighted words of `terms`; None without an index."""

    # Connection.

    def _now(self, ask: Any) -> Any:
        try:
            return ask()
        except RetrievalError:
            raise
        except Exception as error:
            self.forget()
            kind = SearchNotAvailableError if isinstance(error, OSError) else SearchError
            raise kind(f"{self!r} fails, or was replaced meanwhile: {error}") from error

    def _open(self, *, writing: bool = False) -> TableVersion:
        """The table; SearchError where the collection is gone, or its recipe is not the known one."""
        held = self.found(writing=writing)
        if held is None or Recipe.parse(held.recipe, self.name) != self._recipe:
            self.forget()
            raise SearchError(f"collection {self.name!r} was replaced meanwhile, or removed: ask again")
        return held

    def _close(self) -> None:
        """Does nothing, where the client has nothing to close."""

    async def _aclose(self) -> None:
        """Does nothing: there are no connections of an event loop."""

    # The collection, and writing.

    @blocking
    def _read_recipe(self) -> str | None:
        held = self.found()
        return None if held is None else held.recipe

    @blocking
    def _create(self, recipe: Recipe) -> None:
        with self.writing():
            if self.found() is None:
                self.create(recipe)

    @blocking
    def _drop(self) -> None:
        with self.writing():
            self.drop()

    def _upserting(self, *given: Any) -> Steps[Any]:
        written = yield from super()._upserting(*given)
        if written.added or written.replaced:
            yield from self._index()
        return written

    @blocking
    def _index(self) -> None:
        with self.writing():
            self.index(self._open(writing=True).table)

    @blocking
    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> None:
        rows = [*map(parent_row, parents), *map(row_of, records)]
        keys = [row["key"] for row in rows]
        with self.writing():
            table = self._open(writing=True).table
            before = self.read(table, ["parent"], f"{one_of('key', keys)} AND {CHUNKS}")
            self.merge(table, rows)
            if left := self._left(table, before, ()) - set(keys):
                self.erase(table, one_of("key", left))

    @blocking
    def _remove(self, ids: Sequence[str]) -> int:
        keys = set(map(key_of, ids))
        with self.writing():
            table = self._open(writing=True).table
            held = self.read(table, ["key", "parent"], one_of("key", keys))
            if len(held):
                self.erase(table, one_of("key", [*held["key"].to_pylist(), *self._left(table, held, keys)]))
            return len(held)

    def _left(self, table: Any, rows: Any, gone: Collection[str]) -> set[str]:
        """The parents of rows that no chunk names, other than those `gone`."""
        above = set(rows["parent"].drop_null().to_pylist())
        naming = f"{one_of('parent', above)} AND {CHUNKS}" if above else ""
        named = self.read(table, ["key", "parent"], naming).to_pylist() if above else ()
        return above - {row["parent"] for row in named if row["key"] not in gone}

    # Reading, with filters.

    def _rows(self, held: TableVersion, columns: Sequence[str], where: Filter | None, condition: str = ALL) -> Any:
        """The columns of the chunks that pass a filter and meet a condition."""
        told, exact = condition_of(where)
        rows = self.read(held.table, [*columns, *([] if exact else ["metadata"])], all_of(told, condition))
        return rows if exact else _filtered(rows, where)

    def _counted(self, held: TableVersion, where: Filter | None, condition: str = ALL) -> int:
        told, exact = condition_of(where)
        if exact:
            return self.counted(held.table, all_of(told, condition))
        return len(self._rows(held, ["length"], where, condition))

    @blocking
    def _count(self) -> int:
        return self._counted(self._open(), None)

    @blocking
    def _digests(self, ids: Sequence[str]) -> Mapping[str, str]:
        return dict(_stored(self.read(self._open().table, ["key", "digest"], one_of("key", map(key_of, ids)))))

    @blocking
    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> tuple[Sequence[Stored], Any]:
        if cursor is None:
            cursor = self.read(self._open().table, ["key", "digest"], all_of(condition_of(where)[0]))
        return _stored(cursor.slice(0, limit)), cursor.slice(limit) if len(cursor) > limit else None

    @blocking
    def _get(self, ids: Sequence[str], parents: bool) -> Mapping[str, Chunk]:
        return self._chunks(self._open(), [key_of(one, "p" if parents else "c") for one in ids])

    def _chunks(self, held: TableVersion, keys: Sequence[str]) -> dict[str, Chunk]:
        rows = self.read(held.table, CHUNK, one_of("key", keys)).to_pylist() if keys else []
        return {id_of(row["key"]): chunk_of(row, self.name) for row in rows}

    @blocking
    def _vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        if self._recipe is None or self._recipe.embedder is None:
            return {}
        rows = self.read(self._open().table, ["key", "vector"], one_of("key", map(key_of, ids)))
        return dict(zip(map(id_of, rows["key"].to_pylist()), matrix_of(rows), strict=True))

    # Searching.

    @blocking
    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Sequence[Found]:
        held, wanted = self._open(), both(require, where)
        told, exact = condition_of(wanted)
        if told == NONE:
            return []
        limit = k + SPARE
        while True:
            near = self.near(held.table, [*CHUNK, "vector"], vector, limit, told)
            cosines = np.minimum(matrix_of(near).astype(np.float64) @ vector.astype(np.float64), 1.0)
            near = near.append_column("cosine", [cosines])
            rows = near if exact else _filtered(near, wanted)
            scores = rows["cosine"].to_numpy()
            best = best_by_id(rows["key"].to_pylist(), scores, k)
            enough = len(best) >= k and (scores[best[-1]] > cosines.min() or limit >= max(TIES, 2 * k))
            if enough or len(near) < limit:
                break
            limit *= 4
        ids, chunk = self._listed(rows, best)
        found = scores[best]
        return Listing(ids, found, lambda at: Found(chunk(at), float(found[at])))

    def _listed(self, rows: Any, best: Sequence[int]) -> tuple[list[str], Callable[[int], Chunk]]:
        """The ids of the best rows, and what makes the chunk of one of them."""
        rows = rows.select(CHUNK).take(np.asarray(best, dtype=np.int64))
        ids, read = list(map(id_of, rows["key"].to_pylist())), cache(rows.to_pylist)
        return ids, lambda at: chunk_of(read()[at], self.name)

    @blocking
    def _keywords(self, asked: Keywords, k: int) -> Sequence[KeywordHit]:
        if not asked.terms:
            return ()
        held = self._open()
        ranked = self._ranked(held, asked, k) if self._ranks(asked) else None
        rows = self._rows(held, SCORED, asked.passing, having(asked.forms)) if ranked is None else ranked
        (scores, counts), keys = self._scores(held, asked, rows, every=ranked is None), rows["key"].to_pylist()
        best = best_by_id(keys, scores, k, positive=asked.positive)
        forms = [tuple(form for form in asked.forms if counts[form][at]) for at in best]
        if ranked is None:  # its rows have no texts
            chunks, ids = self._chunks(held, [keys[at] for at in best]), [id_of(keys[at]) for at in best]
            return KeywordHits(ids, scores[best].tolist(), forms, lambda at: chunks[ids[at]])
        ids, chunk = self._listed(ranked, best)
        return KeywordHits(ids, scores[best].tolist(), forms, chunk)

    def _ranks(self, asked: Keywords) -> bool:
        return asked.by_engine and isinstance(asked.formula, Lucene) and min(asked.terms.values()) > 0

    def _ranked(self, held: TableVersion, asked: Keywords, k: int) -> Any:
        """The chunks that the database ranks best and that pass; None where it has no index."""
        words = {encoded(form): weight for forms, weight in asked.terms.items() for form in forms}
        (told, exact), limit = condition_of(asked.passing), 2 * k + SPARE
        while True:
            rows = self.ranked(held.table, [*CHUNK, "terms", "length"], words, limit, told)
            passing = rows if rows is None or exact else _filtered(rows, asked.passing)
            if rows is None or len(rows) < limit or len(passing) >= k:
                return passing
            limit *= 4

    @blocking
    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Mapping[str, float]:
        held = self._open()
        rows = self._rows(held, SCORED, asked.passing, one_of("key", map(key_of, ids)))
        scores, _ = self._scores(held, asked, rows)
        return dict(zip(map(id_of, rows["key"].to_pylist()), scores.tolist(), strict=True))

    def _scores(
        self, held: TableVersion, asked: Keywords, rows: Any, *, every: bool = False
    ) -> tuple[Any, Mapping[str, Any]]:
        """The scores of rows, and how often each has each form; `every` chunk that passes and has one is among them."""
        counts = occurrences(rows, asked.forms)
        counting = every and canonical(asked.counting) == canonical(asked.passing)
        population = self._counts(held, asked, counts if counting else None)
        lengths = rows["length"].to_numpy()
        return scores_of(asked.formula, weigh(asked, population), population.mean, counts, lengths), counts

    def _check_statistics(self, asked: Keywords) -> None:
        if not isinstance(asked.formula, Lucene):
            raise ConfigError(f'statistics="engine" ranks by Lucene(), not by {asked.formula!r}: search with "exact"')

    @blocking
    def _population(self, asked: Keywords) -> CollectionCounts:
        return self._counts(self._open(), asked)

    def _counts(self, held: TableVersion, asked: Keywords, there: Mapping[str, Any] | None = None) -> CollectionCounts:
        """The statistics; `there` says how often each chunk that counts has each form, where that is known."""
        where, exact = canonical(asked.counting), condition_of(asked.counting)[1]
        known = self._known(held)
        missing = [form for form in asked.forms if (where, form) not in known]
        if there is None and missing and not exact:  # one pass over the rows for all, as the filter is applied here
            there = occurrences(self._rows(held, ["terms"], asked.counting, having(missing)), missing)
        for form in missing:
            counted = self._counted(held, asked.counting, having([form])) if there is None else np.sum(there[form] > 0)
            known[where, form] = int(counted)
        frequencies = {form: known[where, form] for form in asked.forms}
        histogram = partial(self._histogram, held, asked.counting)
        return CollectionCounts(*self._sums_of(held, asked.counting)[:2], frequencies, histogram)

    def _histogram(self, held: TableVersion, where: Filter | None) -> Sequence[tuple[int, int]]:
        """Of each number of chunks, how many terms so many of the counted chunks have."""

        def counted() -> Sequence[tuple[int, int]]:
            pc = imported("pyarrow.compute", extra="lancedb")
            terms = self._rows(held, ["terms"], where)["terms"].combine_chunks()
            codes = terms.flatten().dictionary_encode()
            size = max(len(codes.dictionary), 1)
            cells = pc.list_parent_indices(terms).to_numpy().astype(np.int64) * size + codes.indices.to_numpy()
            numbers, times = np.unique(np.bincount(np.unique(cells) % size), return_counts=True)
            return list(zip(numbers.tolist(), times.tolist(), strict=True))

        return self._cached(held, ("terms", canonical(where)), counted)

    @blocking
    def _tags(self, require: Filter | None) -> str:
        return tags_of(self._sums_of(self._open(), require)[2])

    def _sums_of(self, held: TableVersion, where: Filter | None) -> tuple[int, int, int]:
        """How many chunks pass, the sum of their lengths, and the bits of their languages."""

        def summed() -> tuple[int, int, int]:
            rows = self._rows(held, ["length", "languages"], where)
            length, languages = rows["length"].to_numpy().sum(), np.bitwise_or.reduce(rows["languages"].to_numpy())
            return len(rows), int(length), int(languages)

        return self._cached(held, canonical(where), summed)

    def _cached(self, held: TableVersion, key: Hashable, count: Callable[[], T]) -> T:
        """What a version of the table has of a kind, counted once."""
        known = self._known(held)
        if key not in known:
            known[key] = count()
        value: T = known[key]
        return value

    def _known(self, held: TableVersion) -> dict[Any, Any]:
        """The cached counts of a version of the table."""
        version, known = self._counts_of
        if version != held.version or len(known) >= COUNTED:
            _, known = self._counts_of = held.version, {}
        return known


def _filtered(rows: Any, where: Filter | None) -> Any:
    passes, pa = compile_filter(where), imported("pyarrow", extra="lancedb")
    return rows.filter(pa.array([passes(json.loads(one)) for one in rows["metadata"].to_pylist()], pa.bool_()))


def _stored(rows: Any) -> list[Stored]:
    return [Stored(id_of(row["key"]), row["digest"]) for row in rows.to_pylist()]

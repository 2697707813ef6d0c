"""Writes to a collection, each as the steps of one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.encoding import escaped, unescaped
from voicevault_retrievers.engines.postgres import bm25_index, copies
from voicevault_retrievers.engines.postgres.asking import CopiedRows, SqlStatement
from voicevault_retrievers.engines.postgres.tables import CATALOG, DROPPED, NEAR, SLOTS, TABLES, VECTORS, Tables
from voicevault_retrievers.engines.postgres.texts import LONGEST, metadata_json, term_key
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.errors import ConfigError, SearchError
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.text.analyzed_texts import languages_of

THERE = """
SELECT to_regclass({collections_name}) IS NOT NULL, to_regclass({near_regclass}) IS NOT NULL,
    (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector')
"""
"""Whether the collections table exists, whether this collection has a vector index, and pgvector's schema or null."""

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended({chunks_name}, 0))"
_SHARE = "SELECT pg_advisory_xact_lock_shared(hashtextextended({chunks_name}, 0))"
_PARENTS_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended({chunks_name}, 1))"
_PARENTS_SHARE = "SELECT pg_advisory_xact_lock_shared(hashtextextended({chunks_name}, 1))"
"""Transactions that take chunks from a parent exclude those that give it some."""

_RECIPE = "SELECT recipe FROM {collections} WHERE name = %(name)s"
_HELD = "SELECT ordinal, parent_id FROM {chunks} WHERE id = ANY (%(ids)s::text[]) ORDER BY id FOR UPDATE"
_GONE = "DELETE FROM {chunks} WHERE ordinal = ANY (%(ordinals)s::bigint[])"
_NUMBERS = """
SELECT nextval(pg_get_serial_sequence({chunks_name}, 'ordinal')) FROM generate_series(1, %(number)s::integer)
"""
_CHUNKS = """
COPY {chunks} (ordinal, id, text, header, parent_id, metadata, digest, length, languages{embedding})
FROM STDIN (FORMAT BINARY)
"""
_POSTINGS = "COPY {postings} (term, chunk, frequency, length) FROM STDIN (FORMAT BINARY)"
_PARENTS = """
INSERT INTO {parents} (id, text, header, parent_id, metadata)
SELECT * FROM unnest(
    %(ids)s::text[], %(texts)s::text[], %(headers)s::text[], %(parents)s::text[], %(metadata)s::jsonb[]
)
ON CONFLICT (id) DO UPDATE SET text = excluded.text, header = excluded.header, parent_id = excluded.parent_id,
    metadata = excluded.metadata
"""
_ORPHANS = """
DELETE FROM {parents} p WHERE p.id = ANY (%(ids)s::text[])
    AND NOT EXISTS (SELECT FROM {chunks} c WHERE c.parent_id = p.id)
"""

_FIELDS = 9
"""The number of fields of a chunk with a vector."""

_METADATA = 4
"""The place of the metadata among them."""

_INLINE = 7000
"""The most bytes of a vector that is stored in its row, which one page holds."""


class ReplacedError(SearchError):
    """The collection is no longer the one that was known."""


@dataclass(frozen=True, eq=False)
class CopyRow:
    """A chunk as it is copied: its fields after the ordinal, and its terms (as of `copies.term`) with frequencies."""

    id: str
    parent: str | None
    fields: Sequence[bytes | None]
    terms: Sequence[tuple[bytes, int]]
    length: int
    words: Sequence[str] = ()


def rows_of(records: Sequence[Record], *, half: bool, words: bool = False) -> list[CopyRow]:
    """The rows of chunks, by ascending id, so that all writers lock rows in one order; `words` adds the index's."""
    known: dict[str, bytes] = {}
    encoded: dict[str, str] | None = {} if words else None
    return [_row(record, half, known, encoded) for record in sorted(records, key=lambda record: record.chunk.id)]


def _row(record: Record, half: bool, known: dict[str, bytes], encoded: dict[str, str] | None) -> CopyRow:
    chunk = record.chunk
    key, parent = _id(chunk.id), None if chunk.parent_id is None else _id(chunk.parent_id)
    fields = [
        key.encode(),
        escaped(chunk.text).encode(),
        escaped(chunk.header).encode(),
        None if parent is None else parent.encode(),
        copies.jsonb(metadata_json(chunk.metadata)),
        record.digest.encode(),
        copies.integer(record.length),
        copies.long(languages_of(record.terms)),
    ]
    if record.vector is not None:
        fields.append(copies.vector(record.vector, half=half))
    for term in record.terms.keys() - known.keys():
        known[term] = copies.term(term_key(term))
    terms = [(known[term], count) for term, count in record.terms.items()]
    words = () if encoded is None else tuple(bm25_index.word_rows(record.terms, encoded))
    return CopyRow(key, parent, fields, terms, record.length, words)


def _id(text: str) -> str:
    """An id as an index key. Raises ConfigError where its escaped form is too long."""
    key = escaped(text)
    if len(key.encode()) > LONGEST:
        raise ConfigError(
            f"the id {text[:40]!r}... has more than the {LONGEST} bytes that PostgreSQL indexes, with its control "
            "characters and halves of surrogate pairs written out: shorten it"
        )
    return key


def asked(tables: Tables, text: str, **parameters: Any) -> Steps[Any]:
    """One statement: its rows, or the number of changed rows."""
    result: Any = yield SqlStatement(tables.sql(text), parameters)
    return result


def creating(tables: Tables, recipe: Recipe) -> Steps[None]:
    """Create the tables, and the schema where missing; does nothing where the collection exists."""
    yield SqlStatement("SELECT pg_advisory_xact_lock(hashtextextended('voicevault', 0))")
    ((there, _, _),) = yield from asked(tables, THERE)
    if not there:
        ((schema,),) = yield from asked(tables, "SELECT to_regnamespace({schema_name}) IS NOT NULL")
        if not schema:  # `CREATE SCHEMA` needs a right that the owner of a schema may lack
            yield from asked(tables, "CREATE SCHEMA {schema}")
        yield from asked(tables, CATALOG)
    name = escaped(tables.collection)
    if (yield from asked(tables, "SELECT FROM {collections} WHERE name = %(name)s", name=name)):
        return
    sql: Any = require("psycopg.sql", extra="postgres")
    yield SqlStatement(tables.sql(TABLES, slots=sql.Literal(SLOTS)))
    if recipe.embedder is not None:
        dimension = recipe.embedder.dimension
        storage = sql.SQL("PLAIN" if dimension * (2 if tables.half else 4) <= _INLINE else "EXTERNAL")
        yield SqlStatement(tables.sql(VECTORS, dimension=sql.Literal(dimension), storage=storage))
    if bm25_index.option(recipe) is not None:
        yield bm25_index.creating(tables)
    insert = "INSERT INTO {collections} VALUES (%(name)s, %(prefix)s, %(recipe)s)"
    yield from asked(tables, insert, name=name, prefix=tables.prefix, recipe=escaped(recipe.text()))


def recipe_of(tables: Tables) -> Steps[str | None]:
    """The collection's recipe; None where there is no collection."""
    rows = yield from asked(tables, _RECIPE, name=escaped(tables.collection))
    return unescaped(rows[0][0]) if rows else None


def checking(tables: Tables) -> Steps[None]:
    """Raises ReplacedError where the collection is gone, or its recipe is not the known one."""
    text = yield from recipe_of(tables)
    name = tables.collection
    if text is None or tables.recipe is None or Recipe.parse(text, name) != Recipe.parse(tables.recipe, name):
        raise ReplacedError(f"collection {name!r} was replaced meanwhile, or removed: ask again")


def dropping(tables: Tables) -> Steps[None]:
    """Remove the tables, while no other client writes to them."""
    yield from asked(tables, _LOCK)
    yield from asked(tables, DROPPED)
    yield from asked(tables, "DELETE FROM {collections} WHERE name = %(name)s", name=escaped(tables.collection))


def writing(tables: Tables, rows: Sequence[CopyRow], parents: Sequence[Chunk], again: bool) -> Steps[None]:
    """Write rows and parents, replacing those with the same ids; `again`, after a conflict, locks out other writers.

    Parents that lose their last chunk are deleted, except those given. Raises ReplacedError as `checking` does.
    """
    yield from asked(tables, _LOCK if again else _SHARE)
    yield from checking(tables)
    left: set[str] = set()
    numbered: list[tuple[int, CopyRow]] = []
    if rows:
        held = yield from asked(tables, _HELD, ids=[row.id for row in rows])
        named = {row.parent for row in rows if row.parent is not None}.union(_id(one.id) for one in parents)
        left = {parent for _, parent in held if parent is not None} - named
        if left or named:
            yield from asked(tables, _PARENTS_LOCK if left else _PARENTS_SHARE)
        if held:
            yield from asked(tables, _GONE, ordinals=[ordinal for ordinal, _ in held])
        numbers = yield from asked(tables, _NUMBERS, number=len(rows))
        numbered = [(number, row) for (number,), row in zip(numbers, rows, strict=True)]
        sql: Any = require("psycopg.sql", extra="postgres")
        embedding = sql.SQL(", embedding" if len(rows[0].fields) == _FIELDS else "")
        chunks = copies.copied((copies.long(number), *row.fields) for number, row in numbered)
        yield CopiedRows(tables.sql(_CHUNKS, embedding=embedding), chunks)
        postings = copies.postings((number, row.length, row.terms) for number, row in numbered)
        yield CopiedRows(tables.sql(_POSTINGS), postings)
    if parents:
        yield from asked(
            tables,
            _PARENTS,
            ids=[_id(one.id) for one in parents],
            texts=[escaped(one.text) for one in parents],
            headers=[escaped(one.header) for one in parents],
            parents=[None if one.parent_id is None else _id(one.parent_id) for one in parents],
            metadata=[metadata_json(one.metadata) for one in parents],
        )
    if left:
        yield from asked(tables, _ORPHANS, ids=sorted(left))
    words = [(number, text, row.fields[_METADATA]) for number, row in numbered for text in row.words]
    if words:  # last, see `bm25_index`
        yield bm25_index.copying(tables, words)


def removing(tables: Tables, ids: Sequence[str], again: bool) -> Steps[int]:
    """Remove rows, and parents that lose their last chunk; returns the number of rows."""
    yield from asked(tables, _LOCK if again else _SHARE)
    held = yield from asked(tables, _HELD, ids=[escaped(one) for one in ids])
    if not held:
        return 0
    left = {parent for _, parent in held if parent is not None}
    if left:
        yield from asked(tables, _PARENTS_LOCK)
    gone = yield from asked(tables, _GONE, ordinals=[ordinal for ordinal, _ in held])
    if left:
        yield from asked(tables, _ORPHANS, ids=sorted(left))
    return int(gone)


def indexing(tables: Tables, m: int, ef_construction: int) -> Steps[None]:
    """Create the index of the vectors, where there is none."""
    yield from asked(tables, _LOCK)
    ((_, there, _),) = yield from asked(tables, THERE)
    if not there:
        sql: Any = require("psycopg.sql", extra="postgres")
        yield SqlStatement(tables.sql(NEAR, m=sql.Literal(m), ef=sql.Literal(ef_construction)))


def indexing_words(tables: Tables, formula: Lucene) -> Steps[None]:
    """Create the BM25 index, where there is none, while no client writes."""
    yield from asked(tables, _LOCK)
    yield from bm25_index.indexing(tables, formula)

"""Chunks and parents as rows of a LanceDB table, and filters in its SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.filters import Filter, parse
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.encoding import encoded, escaped, unescaped
from voicevault_retrievers.engines.facets import Facets, of_metadata
from voicevault_retrievers.engines.filters import nothing_passes, said
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.lexical.weighted_query import Forms
from voicevault_retrievers.text.analyzed_texts import language

CHUNK = ["key", "text", "header", "parent", "metadata"]
CHUNKS = "length IS NOT NULL"
"""The rows of chunks: a parent has no length, terms and vector, so that no search finds it."""

_RECIPE, _MADE = b"voicevault_recipe", b"voicevault_made"
_NAME = re.compile(r"(?!hex\.)[A-Za-z0-9_.-]{1,200}")
_LANGUAGE = Facets()


def table_name(name: str) -> str:
    """The name of a collection's table, in hexadecimal digits where LanceDB does not take it."""
    made = name if _NAME.fullmatch(name) else f"hex.{name.encode('utf-8', 'surrogatepass').hex()}"
    if len(made) > 240:
        raise ConfigError(f"the name {name[:40]!r}... is too long for a LanceDB table: shorten it")
    return made


def schema_of(recipe: Recipe, made: str) -> Any:
    """The schema of a new table; `made` tells it from another of the same recipe."""
    pa = require("pyarrow", extra="lancedb")
    columns = [(name, pa.string()) for name in (*CHUNK, "digest")]
    columns += [("length", pa.int32()), ("languages", pa.int64())]
    columns += [("terms", pa.list_(pa.string())), ("facets", pa.list_(pa.int64()))]
    if recipe.embedder is not None:
        columns.append(("vector", pa.list_(pa.float32(), recipe.embedder.dimension)))
    return pa.schema(columns, metadata={_RECIPE: recipe.text(), _MADE: made})


def recipe_of(table: Any) -> tuple[str, str]:
    """The text of a table's recipe, and `made` of `schema_of`."""
    told = table.schema.metadata or {}
    if _RECIPE not in told:
        raise IncompatibleIndexError(f"this package did not make the LanceDB table {table.name!r}: name another")
    return told[_RECIPE].decode(), told[_MADE].decode()


def rows_of(records: Iterable[Record], parents: Iterable[Chunk], schema: Any) -> Any:
    """The rows of chunks and parents, as an Arrow table."""
    rows = [_row(parent, "p") for parent in parents]
    for record in records:
        own = {
            "digest": record.digest,
            "length": record.length,
            "languages": reduce(or_, map(language, record.terms), 0),
            "terms": [encoded(term) for term, count in record.terms.items() for _ in range(count)],
            "facets": of_metadata(record.chunk.metadata),
            "vector": record.vector,
        }
        rows.append({**_row(record.chunk, "c"), **own})
    return require("pyarrow", extra="lancedb").Table.from_pylist(rows, schema=schema)


def _row(chunk: Chunk, kind: str) -> dict[str, Any]:
    parent = None if chunk.parent_id is None else key_of(chunk.parent_id, "p")
    text, header = escaped(chunk.text), escaped(chunk.header)
    return dict(zip(CHUNK, (key_of(chunk.id, kind), text, header, parent, json.dumps(chunk.metadata)), strict=True))


def chunk_of(row: Mapping[str, Any], name: str) -> Chunk:
    """The chunk or parent of a row, in collection `name`."""
    key, text, header, parent, metadata = (row[column] for column in CHUNK)
    above = None if parent is None else id_of(parent)
    return Chunk(id_of(key), unescaped(text), above, json.loads(metadata), name, unescaped(header))


def key_of(one: str, kind: str = "c") -> str:
    """The key of a chunk's id, or with the kind "p" of a parent's."""
    return kind + escaped(one)


def id_of(key: str) -> str:
    """The id of a key."""
    return unescaped(key[1:])


def one_of(column: str, values: Iterable[str]) -> str:
    """The condition that a column has one of the values."""
    return f"{column} IN ({_quoted(values)})"


def having(forms: Iterable[str]) -> str:
    """The condition that a chunk has one of the terms."""
    return f"array_has_any(terms, [{_quoted(map(encoded, forms))}])"


def words_query(terms: Mapping[Forms, float]) -> Any:
    """The full-text query for chunks that have one of the terms, given by their forms and weights."""
    kinds, words = require("lancedb.query", extra="lancedb"), dict[float, list[str]]()
    for forms, weight in terms.items():
        words.setdefault(weight, []).extend(map(encoded, forms))
    parts = [kinds.MatchQuery(" ".join(some), "terms", boost=weight) for weight, some in words.items()]
    return parts[0] if len(parts) == 1 else kinds.BooleanQuery([(kinds.Occur.SHOULD, part) for part in parts])


def _quoted(values: Iterable[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def clause_of(where: Filter | None) -> tuple[str, bool]:
    """A condition that passes at least what a filter passes, and whether it passes nothing else."""
    if not where or nothing_passes(where):
        return ("false" if where else "true"), True
    clause = said(where, _LANGUAGE)
    return clause or "true", clause is not None and _LANGUAGE.exactly(parse(where))


def counts_of(terms: Any, forms: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """How often each row of the column `terms` has each of the forms."""
    pa, pc = require("pyarrow", extra="lancedb"), require("pyarrow.compute", extra="lancedb")
    terms, size = terms.combine_chunks(), len(forms) + 1
    known = pc.fill_null(
        pc.index_in(terms.flatten(), pa.array([encoded(form) for form in forms], pa.string())), len(forms)
    )
    cells = pc.list_parent_indices(terms).to_numpy().astype(np.int64) * size + known.to_numpy()
    counts = np.bincount(cells, minlength=len(terms) * size).reshape(-1, size)
    return {form: counts[:, at] for at, form in enumerate(forms)}

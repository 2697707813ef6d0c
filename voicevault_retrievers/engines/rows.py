"""Chunks and parents as rows of a table, and filters on them in SQL with array functions, as of DataFusion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.encoding import encoded, escaped, unescaped
from voicevault_retrievers.engines.facets import Facets, facet, of_metadata
from voicevault_retrievers.engines.filters import Clause, nothing_passes, translate
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.text.analyzed_texts import languages_of

CHUNK = ["key", "text", "header", "parent", "metadata"]
"""The columns of a parent, all strings: `key` is unique, `parent` the key of the parent or null, `metadata` JSON."""

SCORED = ["key", "terms", "length"]
"""The columns that a chunk is scored from."""

CHUNKS = "length IS NOT NULL"
"""The condition that a row is a chunk, not a parent."""

ALL = "true"
NONE = "false"


class Sql(Facets):
    """The functions of lists that DataFusion has."""

    exact = Facets.exact | {"among"}

    def among(self, key: str, texts: Sequence[str], negated: bool) -> Clause:
        found = f"array_has_any(facets, [{', '.join(str(facet(key, text)) for text in texts)}])"
        return f"(not {found})" if negated else found


_LANGUAGE = Sql()


def row_of(record: Record) -> dict[str, Any]:
    """The row of a chunk: the columns of `CHUNK`, and what it is searched by.

    `terms` are words of ASCII letters, repeated as in the text; `languages` the bits of `tags_of`; `facets` what the
    conditions of `condition_of` ask for.
    """
    return {
        **fields_of(record.chunk, "c"),
        "digest": record.digest,
        "length": record.length,
        "languages": languages_of(record.terms),
        "terms": [encoded(term) for term, count in record.terms.items() for _ in range(count)],
        "facets": of_metadata(record.chunk.metadata),
        "vector": record.vector,
    }


def parent_row(parent: Chunk) -> dict[str, Any]:
    """The row of a parent, whose other columns are null, so that no search finds it."""
    return fields_of(parent, "p")


def fields_of(chunk: Chunk, kind: str) -> dict[str, Any]:
    """The columns of `CHUNK` for a chunk, or with the kind "p" for a parent."""
    return {
        "key": key_of(chunk.id, kind),
        "text": escaped(chunk.text),
        "header": escaped(chunk.header),
        "parent": None if chunk.parent_id is None else key_of(chunk.parent_id, "p"),
        "metadata": json.dumps(chunk.metadata),
    }


def chunk_of(row: Mapping[str, Any], name: str) -> Chunk:
    """The chunk or parent of a row, in collection `name`."""
    key, text, header, parent, metadata = (row[column] for column in CHUNK)
    above = None if parent is None else id_of(parent)
    return Chunk(id_of(key), unescaped(text), above, json.loads(metadata), name, unescaped(header))


def key_of(one: str, kind: str = "c") -> str:
    """The key of a chunk's id, or with the kind "p" of a parent's. Keys of a kind sort as their ids do."""
    return kind + escaped(one)


def id_of(key: str) -> str:
    """The id of a key."""
    return unescaped(key[1:])


def one_of(column: str, values: Iterable[str]) -> str:
    """The condition that a column has one of the values, of which there is one at least."""
    return f"{column} IN ({_quoted(values)})"


def having(forms: Iterable[str]) -> str:
    """The condition that a chunk has one of the terms."""
    return f"array_has_any(terms, [{_quoted(map(encoded, forms))}])"


def condition_of(where: Filter | None) -> tuple[str, bool]:
    """A condition that passes at least what a filter passes, and whether it passes nothing else."""
    if nothing_passes(where):
        return NONE, True
    clause, exact = translate(where, _LANGUAGE)
    return clause or ALL, exact


def all_of(*conditions: str) -> str:
    """The condition that a chunk meets all, which no parent does: conditions on chunks are null for parents."""
    return " AND ".join(one for one in conditions if one != ALL) or CHUNKS


def occurrences(rows: Any, forms: Sequence[str]) -> dict[str, Any]:
    """How often each row of an Arrow table has each term, in the order of the rows."""
    pa, pc = require("pyarrow", extra="lancedb"), require("pyarrow.compute", extra="lancedb")
    terms, size = rows["terms"].combine_chunks(), len(forms) + 1
    known = pc.fill_null(pc.index_in(terms.flatten(), pa.array(map(encoded, forms), pa.string())), len(forms))
    cells = pc.list_parent_indices(terms).to_numpy().astype(np.int64) * size + known.to_numpy()
    table = np.bincount(cells, minlength=len(rows) * size).reshape(-1, size)
    return dict(zip(forms, table.T, strict=False))


def matrix_of(rows: Any) -> Any:
    """The vectors of an Arrow table, of shape (rows, dimension)."""
    column = rows["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(rows), column.type.list_size)


def _quoted(values: Iterable[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)

"""A chunk as a row of a Chroma collection, with the BM25 statistics in the row's metadata."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voicevault_retrievers.core.filters import Filter, parse
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.chroma.vectors import OTHERS_KEY, PRIVATE_KEY
from voicevault_retrievers.engines.filters import KEY, Chroma, keys_of, translate
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.errors import IncompatibleIndexError

PARENT_KEY = "_voicevault_parent"
STATISTICS = ("tokens", "term_frequencies", "doc_length", "avg_doc_length")
RESERVED = (PRIVATE_KEY, OTHERS_KEY, PARENT_KEY, *STATISTICS)
"""The keys of a row that this package uses; a chunk's own values under them are stored in the private JSON."""

NO_VECTOR = (1.0,)
"""The placeholder vector in a collection without vectors: Chroma requires one."""

MOST_BYTES = 8_000_000
"""The approximate size of a request; a server refuses one of more than 40 MB."""

_WHOLE = 2**53
_HEX = "hex:"
_SURROGATE = re.compile("[\ud800-\udfff]")


def key_of(chunk_id: str) -> str:
    """A chunk id as Chroma accepts it: printable text."""
    plain = chunk_id.isprintable() and not chunk_id.startswith(_HEX)
    return chunk_id if plain else _HEX + chunk_id.encode("utf-8", "surrogatepass").hex()


def id_of(key: str) -> str:
    """The chunk id of a key of `key_of`."""
    return bytes.fromhex(key[len(_HEX) :]).decode("utf-8", "surrogatepass") if key.startswith(_HEX) else key


def text_of(chunk: Chunk) -> str:
    """A chunk's text as Chroma accepts it, with lone surrogates replaced."""
    return _SURROGATE.sub("\ufffd", chunk.text)


def row_of(record: Record, mean_length: float) -> dict[str, Any]:
    """The metadata of a chunk's row; `mean_length` is the mean length of chunks as of this batch, in terms."""
    return {
        **packed(record.chunk, record.digest),
        "tokens": json.dumps(list(record.terms)),
        "term_frequencies": json.dumps(record.terms),
        "doc_length": record.length,
        "avg_doc_length": mean_length,
    }


def packed(chunk: Chunk, digest: str = "") -> dict[str, Any]:
    """A chunk's metadata as a row's: values that Chroma compares differently from filters are stored as JSON."""
    own = {key: value for key, value in chunk.metadata.items() if _comparable(key, value)}
    rest = {key: value for key, value in chunk.metadata.items() if key not in own}
    private = {"digest": digest, "parent_id": chunk.parent_id, "metadata": rest, "keys": list(own)}
    if chunk.header:
        private["header"] = chunk.header
    if text_of(chunk) != chunk.text:
        private["text"] = chunk.text
    others = {mark_of(key): True for key, value in rest.items() if _sayable(key) and _may_pass(value)}
    parent = {} if chunk.parent_id is None else {PARENT_KEY: key_of(chunk.parent_id)}
    return {**own, **others, **parent, PRIVATE_KEY: json.dumps(private)}


def mark_of(key: str) -> str:
    """The key that marks a row whose value under `key` is hidden from Chroma, and could pass a filter on it."""
    return f"{OTHERS_KEY}.{key}"


def replacing(row: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A row that replaces another, setting the other's keys to None, which Chroma would keep."""
    return {**dict.fromkeys(before), **row}


def unpacked(key: str, text: str | None, row: Mapping[str, Any] | None, kb: str) -> Chunk:
    """The chunk of a row, in collection `kb`."""
    private = private_of(key, row, kb)
    own = {name: (row or {})[name] for name in private["keys"]}
    metadata = {**own, **private["metadata"]}
    return Chunk(
        id_of(key), private.get("text", text or ""), private["parent_id"], metadata, kb, private.get("header", "")
    )


def private_of(key: str, row: Mapping[str, Any] | None, kb: str) -> Mapping[str, Any]:
    """The private JSON of a row; IncompatibleIndexError for a row that this package did not write."""
    try:
        found: Mapping[str, Any] = json.loads((row or {})[PRIVATE_KEY])
        return found
    except (KeyError, ValueError, TypeError) as error:
        raise IncompatibleIndexError(
            f"the row {key!r} of the Chroma collection {kb!r} was not written by this package: remove it, or copy the "
            "documents into a collection of their own"
        ) from error


def terms_of(key: str, row: Mapping[str, Any], kb: str) -> Sequence[str]:
    """The terms of a row's text, repeated as in the text."""
    try:
        counts: Mapping[str, int] = json.loads(row["term_frequencies"])
        return [term for term, count in counts.items() for _ in range(count)]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise IncompatibleIndexError(
            f"the row {key!r} of the Chroma collection {kb!r} has no term_frequencies that can be read: put its chunk "
            "in again"
        ) from error


def native(where: Filter | None) -> dict[str, Any] | None:
    """The part of a filter that Chroma can apply: passes all chunks that the filter passes, and often more."""
    language = Chroma(RESERVED)
    clause, _ = translate(where, language)
    marks = [{mark_of(key): True} for key in sorted(keys_of(parse(where))) if _sayable(key)]
    return None if clause is None else language.some([clause, *marks])


def requests(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """The records, in as few requests as the size limit allows."""
    part: list[Record] = []
    size = 0
    for record in records:
        own = 6 * len(record.chunk.indexed_text) + sum(len(term) + 8 for term in record.terms) * 2
        own += 0 if record.vector is None else 22 * len(record.vector)
        if part and size + own > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(record)
        size += own
    if part:
        yield part


def _comparable(key: str, value: Any) -> bool:
    """Whether Chroma stores a value exactly and compares it as filters do."""
    if not _sayable(key):
        return False
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= _WHOLE
    if isinstance(value, float):
        return math.isfinite(value) and (value != 0 or math.copysign(1, value) > 0)  # Chroma has one zero
    return isinstance(value, str) and value.isprintable()


def _sayable(key: str) -> bool:
    """Whether a filter on a key is told to Chroma."""
    return KEY.fullmatch(key) is not None and key not in RESERVED


def _may_pass(value: Any) -> bool:
    """Whether a value hidden from Chroma could pass a filter."""
    return isinstance(value, list | int | float) and not isinstance(value, bool)

"""A chunk as a Qdrant point: its id, payload and sparse vector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.engine import Record
from voicevault_retrievers.engines.qdrant.statistics import MEAN, SUMS, parts_of
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.store import codec
from voicevault_retrievers.text import untagged

FULL, FAST, WEIGHTS, BOUNDS = "full", "fast", "bm25", "bm25_bounds"
"""The names of the vectors: the embedder's, its first dimensions, and two of BM25 with the same values.

Qdrant applies its idf to the first of these, and none to the second, of which exact search takes its candidates.
"""

CHUNK, PARENT, STATE = "chunk", "parent", "state"
"""The kinds of points."""

METADATA = "metadata."
"""The path of metadata in the payload."""

TOLD = ["id", "text", "header", "parent", "metadata", "exact"]
"""The payload fields that a chunk is read from."""

VERSION = "version"
"""The payload key that distinguishes versions of one chunk or parent."""

COUNTED = ["terms", "counts", "length", "metadata", "exact"]
"""The payload fields that a chunk is scored from."""

FORMULA = Lucene()
"""The BM25 formula of the stored values, and so of the scores by Qdrant's own statistics."""

_SPACES = {kind: uuid5(NAMESPACE_URL, f"voicevault-retrievers/{kind}") for kind in (CHUNK, PARENT, STATE)}
_WHOLE = 2**63
_LARGEST = 1.7976931348623157e308


def point_id(name: str, kind: str = CHUNK) -> str:
    """The UUID of the point of a chunk, of a parent, or of the collection's state."""
    if encodable(name) != name or name.startswith("\0"):
        name = f"\0{name.encode('utf-8', 'surrogatepass').hex()}"
    return str(uuid5(_SPACES[kind], name))


def bucket(term: str) -> int:
    """The index of a term in sparse vectors: a 32-bit hash, stable across processes; two terms may share one.

    Terms that differ by their language alone share it, so that Qdrant's idf is of both, as BM25's is.
    """
    name = untagged(term).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big")


def stored_tf(frequency: int, length: int, mean: float) -> float:
    """The stored value of a term: Lucene's `f / (f + k1 * (1 - b + b * L / avgL))`."""
    return frequency / (frequency + FORMULA.k1 * (1 - FORMULA.b + FORMULA.b * length / mean))


def weights(terms: Iterable[tuple[str, int]], length: int, mean: float) -> dict[int, float]:
    """The sparse vector of a chunk's term frequencies."""
    return sparse((bucket(term), stored_tf(frequency, length, mean)) for term, frequency in terms)


def sparse(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """A sparse vector; values of terms that share an index are added."""
    found: dict[int, float] = {}
    for index, value in values:
        found[index] = found.get(index, 0.0) + value
    return found


def payload_of(chunk: Chunk, kind: str) -> dict[str, Any]:
    """The payload that `chunk_of` reads. `exact` is present where Qdrant's JSON might change a value."""
    told = {
        "kind": kind,
        "id": encodable(chunk.id),
        "text": encodable(chunk.text),
        "header": encodable(chunk.header),
        "parent": None if chunk.parent_id is None else encodable(chunk.parent_id),
        "metadata": {key: _told(value) for key, value in chunk.metadata.items() if encodable(key) == key},
    }
    same = all(map(_survives, (chunk.id, chunk.text, chunk.parent_id, chunk.metadata, chunk.header)))
    return told if same else {**told, "exact": codec.encode(chunk).decode("ascii")}


def record_payload(record: Record, mean: float) -> dict[str, Any]:
    """The payload of a searched chunk."""
    return {
        **payload_of(record.chunk, CHUNK),
        "digest": record.digest,
        VERSION: _version(record.chunk.id.encode("utf-8", "surrogatepass") + record.digest.encode()),
        "terms": list(map(encodable, record.terms)),
        "counts": list(record.terms.values()),
        "length": record.length,
        SUMS: parts_of(record.terms, record.length),
        MEAN: repr(mean),
    }


def parent_payload(parent: Chunk) -> dict[str, Any]:
    """The payload of a parent."""
    return {**payload_of(parent, PARENT), VERSION: _version(codec.encode(parent))}


def chunk_of(payload: Mapping[str, Any], kb: str) -> Chunk:
    """The chunk of a payload."""
    if "exact" in payload:
        return codec.decode(payload["exact"].encode(), kb)
    return Chunk(payload["id"], payload["text"], payload["parent"], payload["metadata"], kb, payload["header"])


def id_of(payload: Mapping[str, Any]) -> str:
    """The id of a chunk."""
    return codec.decode(payload["exact"].encode(), "").id if "exact" in payload else str(payload["id"])


def metadata_of(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata to check filters against."""
    return codec.decode(payload["exact"].encode(), "").metadata if "exact" in payload else payload["metadata"]


def frequencies_of(payload: Mapping[str, Any]) -> dict[str, int]:
    """The term frequencies of a chunk."""
    return dict(zip(payload["terms"], payload["counts"], strict=True))


def _version(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _survives(value: Any) -> bool:
    """Whether every Qdrant returns a value unchanged; fractions might lose the last bit."""
    if isinstance(value, str):
        return encodable(value) == value
    if isinstance(value, Mapping):
        return all(_survives(key) and _survives(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_survives, value))
    return value is None or isinstance(value, bool) or (isinstance(value, int) and -_WHOLE <= value < _WHOLE)


def _told(value: Any) -> Any:
    """A value in the form that Qdrant's filters find; a number beyond Qdrant's range is clamped."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _told(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_told(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -_WHOLE <= value < _WHOLE:
        return float(max(-_LARGEST, min(_LARGEST, value)))
    return value

"""Requests to Qdrant: collections, points, searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.filters import Condition, Filter, Node, Not, parse
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Record
from voicevault_retrievers.engines.filters import KEY, MAX_CONDITIONS
from voicevault_retrievers.engines.qdrant import points
from voicevault_retrievers.engines.qdrant.points import CHUNK, FAST, FULL, METADATA, PARENT, SPARSE, STATE, VERSION
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import ConfigError

if TYPE_CHECKING:
    from voicevault_retrievers.engines.qdrant.channels import ByRanks, Way

KINDS = ("bool", "datetime", "float", "integer", "keyword", "uuid")
"""The kinds of payload indexes."""

RECIPE = "voicevault"
"""The key of a collection's metadata that holds its recipe."""

PRIOR_CHUNKS, PRIOR_LENGTH = 100, 100.0
"""A prior for the mean length at the first writes: as many chunks of this length."""

OVERSAMPLING = 3.0
"""The number of candidates by quantised vectors that are rescored, as a multiple of k."""

_ASKED = [*points.TOLD, "terms", "counts", "length"]


def models() -> Any:
    """The client's model classes."""
    return require("qdrant_client.models", extra="qdrant")


def collection(recipe: Recipe) -> dict[str, Any]:
    """The arguments of `create_collection`. Raises ConfigError for a prefix as long as the vectors."""
    of, options = models(), recipe.options
    entry, prefix = recipe.embedder, options.get("prefix")
    vectors: dict[str, Any] = {}
    if prefix is not None and (entry is None or prefix >= entry.dimension):
        size = "no vectors" if entry is None else f"vectors of {entry.dimension} dimensions"
        raise ConfigError(f"prefix={prefix} is shorter than the vectors, and the collection has {size}")
    if entry is not None:
        vectors[FULL] = of.VectorParams(size=entry.dimension, distance=of.Distance.COSINE)
        if prefix is not None:
            vectors[FAST] = of.VectorParams(size=prefix, distance=of.Distance.COSINE)
    modifier = of.Modifier.IDF if options.get("idf") == "server" else None
    return {
        "vectors_config": vectors,
        "sparse_vectors_config": {SPARSE: of.SparseVectorParams(modifier=modifier)},
        "quantization_config": _quantization(options.get("quantization")),
        "metadata": {RECIPE: recipe.text()},
    }


def indexes(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The payload indexes of a collection: fields and their schemas."""
    of = models()
    yield "kind", of.PayloadSchemaType.KEYWORD
    yield "parent", of.PayloadSchemaType.KEYWORD
    yield VERSION, of.PayloadSchemaType.KEYWORD
    for key, kind in (options.get("indexes") or {}).items():
        yield METADATA + key, of.PayloadSchemaType(kind)
    if options.get("tenant") is not None:
        yield METADATA + options["tenant"], of.KeywordIndexParams(type=of.KeywordIndexType.KEYWORD, is_tenant=True)


def of_kind(kind: str, clause: Any = None) -> Any:
    """A filter for points of one kind."""
    of = models()
    own = of.FieldCondition(key="kind", match=of.MatchValue(value=kind))
    return of.Filter(must=[own] if clause is None else [own, clause])


def children(parents: Sequence[str]) -> Any:
    """A filter for the chunks of these parents."""
    of = models()
    return of_kind(CHUNK, of.FieldCondition(key="parent", match=of.MatchAny(any=list(parents))))


def among(ids: Sequence[str]) -> Any:
    """A filter for these points."""
    return models().HasIdCondition(has_id=list(ids))


def mean_of(length: int, chunks: int, *, bounded: bool) -> float:
    """The mean length for stored values; where they bound scores, smoothed with `PRIOR_CHUNKS`."""
    if bounded:
        return (length + PRIOR_CHUNKS * PRIOR_LENGTH) / (chunks + PRIOR_CHUNKS)
    return length / chunks if length else 1.0


def without(field: str) -> Any:
    """A payload without one field."""
    return models().PayloadSelectorExclude(exclude=[field])


def chunk_point(record: Record, mean: float, prefix: int | None) -> Any:
    """A chunk as a point."""
    vector: dict[str, Any] = {}
    if record.vector is not None:
        vector[FULL] = record.vector.tolist()
        if prefix is not None:
            vector[FAST] = shortened(record.vector, prefix).tolist()
    if record.terms:
        length = record.length
        values = ((points.bucket(term), points.stored_tf(f, length, mean)) for term, f in record.terms.items())
        vector[SPARSE] = _sparse(points.sparse(values))
    return point(points.point_id(record.chunk.id), points.record_payload(record, mean), vector)


def parent_point(parent: Chunk) -> Any:
    """A parent as a point without vectors, so that no search finds it."""
    return point(points.point_id(parent.id, PARENT), points.parent_payload(parent))


def state_point(at: str) -> Any:
    """The collection's empty state, as a point without vectors."""
    return point(at, {"kind": STATE})


def point(at: str, payload: Mapping[str, Any], vector: Mapping[str, Any] | None = None) -> Any:
    """A point."""
    return models().PointStruct(id=at, payload=dict(payload), vector=dict(vector or {}))


def upsert(rows: Sequence[Any], *, over: Any = None) -> Any:
    """An operation that writes points; of existing points it replaces those that pass `over` (None for all)."""
    of = models()
    return of.UpsertOperation(upsert=of.PointsList(points=list(rows), update_filter=over))


def no_point() -> Any:
    """A filter that no point passes, so that an upsert over it replaces nothing."""
    return of_kind("none")


def of_versions(ids: Sequence[Any], versions: Sequence[str]) -> Any:
    """A selector of those parents that still have these versions."""
    of = models()
    same = of.FieldCondition(key=VERSION, match=of.MatchAny(any=list(versions)))
    return of.FilterSelector(filter=of.Filter(must=[among(ids), same]))


def delete(ids: Sequence[Any]) -> Any:
    """An operation that deletes points."""
    of = models()
    return of.DeleteOperation(delete=of.PointIdsList(points=list(ids)))


def payload(at: str, fields: Mapping[str, Any]) -> Any:
    """An operation that sets fields of a point's payload, and keeps the others."""
    of = models()
    return of.SetPayloadOperation(set_payload=of.SetPayload(payload=dict(fields), points=[at]))


def no_payload(at: str, fields: Sequence[str]) -> Any:
    """An operation that deletes fields of a point's payload."""
    of = models()
    return of.DeletePayloadOperation(delete_payload=of.DeletePayload(keys=list(fields), points=[at]))


def words(vector: Mapping[int, float], limit: int, clause: Any) -> dict[str, Any]:
    """A keyword search."""
    return {
        "query": _sparse(vector),
        "using": SPARSE,
        "limit": limit,
        "query_filter": _filter(clause),
        "with_payload": _ASKED,
    }


def dense(vector: Vector, limit: int, clause: Any, way: Way, params: Any) -> dict[str, Any]:
    """A vector search; where the way is a funnel, through the short vectors first, in one request."""
    of = models()
    asked: dict[str, Any] = {
        "query": vector.tolist(),
        "using": FULL,
        "limit": limit,
        "query_filter": _filter(clause),
        "search_params": params,
        "with_payload": points.TOLD,
    }
    if way.prefix is not None:
        asked["prefetch"] = of.Prefetch(
            query=shortened(vector, way.prefix).tolist(),
            using=FAST,
            limit=max(way.candidates, limit),
            filter=_filter(clause),
            params=params,
        )
    return asked


def fused(
    words_vector: Mapping[int, float], vector: Vector, fusion: ByRanks, limit: int, clause: Any, params: Any
) -> dict[str, Any]:
    """A keyword and vector search, fused by RRF in Qdrant, whose ranks begin at 0: k is one more than here."""
    of, where = models(), _filter(clause)
    by_vector = {"query": vector.tolist(), "using": FULL, "score_threshold": 0.0, "params": params}
    both = [of.Prefetch(**by_vector, limit=fusion.depth, filter=where)]
    if words_vector:
        both.insert(0, of.Prefetch(query=_sparse(words_vector), using=SPARSE, limit=fusion.depth, filter=where))
    return {
        "prefetch": both,
        "query": of.RrfQuery(rrf=of.Rrf(k=fusion.k + 1)),
        "limit": limit,
        "with_payload": _ASKED,
    }


def params(way: Way, quantised: bool) -> Any:
    """The parameters of a vector search; None for Qdrant's defaults."""
    of, rescored = models(), None
    if quantised:
        rescored = of.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
    return of.SearchParams(exact=way.exact, quantization=rescored) if way.exact or rescored else None


def told_exactly(where: Filter | None) -> bool:
    """Whether Qdrant evaluates a filter exactly: equality and membership of strings."""
    return _told_exactly(parse(where))


def _told_exactly(node: Node) -> bool:
    if isinstance(node, Condition):
        several = node.operand if node.operator == "$in" else [node.operand]
        said_alike = all(isinstance(one, str) and one.isprintable() for one in several)
        few = len(several) <= MAX_CONDITIONS
        return node.operator in ("$eq", "$in") and bool(KEY.fullmatch(node.key)) and said_alike and few
    return not isinstance(node, Not) and all(map(_told_exactly, node.parts))


def shortened(vector: Vector, prefix: int) -> Vector:
    """The first dimensions of a vector, normalised to length 1."""
    cut = vector[:prefix].astype(np.float64)
    norm = float(np.linalg.norm(cut))
    shorter: Vector = (cut / norm if norm else cut).astype(np.float32)
    return shorter


def _sparse(vector: Mapping[int, float]) -> Any:
    order = sorted(vector)
    return models().SparseVector(indices=order, values=[vector[index] for index in order])


def _filter(clause: Any) -> Any:
    of = models()
    return clause if clause is None or isinstance(clause, of.Filter) else of.Filter(must=[clause])


def _quantization(kind: str | None) -> Any:
    of = models()
    if kind == "scalar":
        return of.ScalarQuantization(scalar=of.ScalarQuantizationConfig(type=of.ScalarType.INT8, always_ram=True))
    return of.BinaryQuantization(binary=of.BinaryQuantizationConfig(always_ram=True)) if kind == "binary" else None

"""Requests to Qdrant: collections, points, searches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Record
from voicevault_retrievers.engines.filters import KEY
from voicevault_retrievers.engines.qdrant import points
from voicevault_retrievers.engines.qdrant.points import (
    BOUNDS,
    CHUNK,
    FAST,
    FULL,
    METADATA,
    PARENT,
    STATE,
    VERSION,
    WEIGHTS,
)
from voicevault_retrievers.engines.qdrant.statistics import MEAN, SUMS
from voicevault_retrievers.engines.qdrant.statistics import RECIPE as RECIPE_DIGEST
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import ConfigError

if TYPE_CHECKING:
    from voicevault_retrievers.engines.qdrant.channels import ByRanks, Way

MAX_INDEXES = 64
"""The most metadata keys that get a payload index of their own accord."""

_KINDS = ((bool, "bool"), (str, "keyword"), (int, "float"), (float, "float"))
"""The kind of index for a value. Qdrant finds values of another type under such a key without it, so that one key may
have several; an index of kind "integer" would lose fractions."""

RECIPE = "voicevault"
"""The key of a collection's metadata that holds its recipe."""

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
    return {
        "vectors_config": vectors,
        "sparse_vectors_config": {
            WEIGHTS: of.SparseVectorParams(modifier=of.Modifier.IDF),
            BOUNDS: of.SparseVectorParams(),
        },
        "quantization_config": _quantization(options.get("quantization")),
        "metadata": {RECIPE: recipe.text()},
    }


def indexes(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The payload indexes of every collection: fields and their schemas."""
    of = models()
    for field in ("kind", "parent", VERSION, SUMS, MEAN):
        yield field, of.PayloadSchemaType.KEYWORD
    yield "terms", of.KeywordIndexParams(type=of.KeywordIndexType.KEYWORD, on_disk=True)
    if options.get("tenant") is not None:
        yield METADATA + options["tenant"], of.KeywordIndexParams(type=of.KeywordIndexType.KEYWORD, is_tenant=True)


def metadata_indexes(records: Iterable[Record], named: Sequence[str] | None, there: Collection[str]) -> dict[str, Any]:
    """The missing payload indexes on the metadata of chunks: on the named keys, or on the first `MAX_INDEXES` (None).

    Filters use no other keys than those matched by `KEY`. The kind is that of the first value.
    """
    left = MAX_INDEXES - sum(field.startswith(METADATA) for field in there)
    kinds: dict[str, Any] = {}
    for key, value in (entry for record in records for entry in record.chunk.metadata.items()):
        first = value[0] if isinstance(value, list | tuple) and value else value
        kind = next((kind for type_, kind in _KINDS if isinstance(first, type_)), None)
        if kind is not None and KEY.fullmatch(key) and METADATA + key not in there and (named is None or key in named):
            kinds.setdefault(METADATA + key, models().PayloadSchemaType(kind))
    return kinds if named is not None else dict(list(kinds.items())[: max(left, 0)])


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
    vector |= weights(record.terms.items(), record.length, mean)
    return point(points.point_id(record.chunk.id), points.record_payload(record, mean), vector)


def weights(terms: Iterable[tuple[str, int]], length: int, mean: float) -> dict[str, Any]:
    """The sparse vectors of a chunk, by name; none without terms."""
    values = points.weights(terms, length, mean)
    return dict.fromkeys((WEIGHTS, BOUNDS), _sparse(values)) if values else {}


def reweighed(found: Sequence[Any], mean: float) -> list[Any]:
    """The operations that store chunks' weights by another mean length, where the chunks have not changed meanwhile."""
    of, rows = models(), []
    for one in found:
        vector = weights(points.frequencies_of(one.payload).items(), one.payload["length"], mean)
        rows += [of.PointVectors(id=one.id, vector=vector)] if vector else []
    unchanged = of_versions([one.id for one in found], [one.payload[VERSION] for one in found]).filter
    told = of.SetPayloadOperation(set_payload=of.SetPayload(payload={MEAN: repr(mean)}, filter=unchanged))
    vectors = of.UpdateVectors(points=rows, update_filter=unchanged)
    return [*([of.UpdateVectorsOperation(update_vectors=vectors)] if rows else []), told]


def otherwise_weighed(mean: float) -> Any:
    """A filter for chunks whose weights were made with another mean length."""
    of = models()
    own = of.FieldCondition(key=MEAN, match=of.MatchValue(value=repr(mean)))
    return of.Filter(must=[of_kind(CHUNK)], must_not=[own])


def having(forms: Sequence[str], clause: Any) -> Any:
    """A filter for the chunks that have one of these terms."""
    of = models()
    own = of.FieldCondition(key="terms", match=of.MatchAny(any=list(forms)))
    return of.Filter(must=[own] if clause is None else [own, clause])


def parent_point(parent: Chunk) -> Any:
    """A parent as a point without vectors, so that no search finds it."""
    return point(points.point_id(parent.id, PARENT), points.parent_payload(parent))


def state_point(at: str, payload: Mapping[str, Any]) -> Any:
    """The collection's state, as a point without vectors."""
    return point(at, {"kind": STATE, **payload})


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


def other_recipes(digest: str) -> Any:
    """A filter for states that name another recipe."""
    of = models()
    return of.Filter(must_not=[of.FieldCondition(key=RECIPE_DIGEST, match=of.MatchValue(value=digest))])


def of_versions(ids: Sequence[Any], versions: Sequence[str]) -> Any:
    """A selector of those points that still have these versions."""
    of = models()
    same = of.FieldCondition(key=VERSION, match=of.MatchAny(any=list(versions)))
    return of.FilterSelector(filter=of.Filter(must=[among(ids), same]))


def of_ids(ids: Sequence[Any]) -> Any:
    """A selector of points."""
    return models().PointIdsList(points=list(ids))


def payload(at: str, fields: Mapping[str, Any]) -> Any:
    """An operation that sets fields of a point's payload, and keeps the others."""
    of = models()
    return of.SetPayloadOperation(set_payload=of.SetPayload(payload=dict(fields), points=[at]))


def words(vector: Mapping[int, float], using: str, limit: int, clause: Any) -> Any:
    """A keyword search."""
    asked = {"query": _sparse(vector), "using": using, "limit": limit, "filter": _filter(clause)}
    return models().QueryRequest(**asked, with_payload=_ASKED)


def dense(vector: Vector, limit: int, clause: Any, way: Way, params: Any, with_vector: Any) -> Any:
    """A vector search; where the way is a funnel, through the short vectors first, in one request."""
    of, prefetch = models(), None
    if way.prefix is not None:
        prefetch = of.Prefetch(
            query=shortened(vector, way.prefix).tolist(),
            using=FAST,
            limit=max(way.candidates, limit),
            filter=_filter(clause),
            params=params,
        )
    return of.QueryRequest(
        prefetch=prefetch,
        query=vector.tolist(),
        using=FULL,
        limit=limit,
        filter=_filter(clause),
        params=params,
        with_payload=points.TOLD,
        with_vector=with_vector,
    )


def fused(
    words: tuple[str, Mapping[int, float]], vector: Vector, fusion: ByRanks, limit: int, clause: Any, params: Any
) -> Any:
    """A keyword and vector search, fused by RRF in Qdrant, whose ranks begin at 0: k is one more than here.

    `words` names the vector of the keyword search.
    """
    of, where = models(), _filter(clause)
    using, values = words
    by_vector = {"query": vector.tolist(), "using": FULL, "score_threshold": 0.0, "params": params}
    both = [of.Prefetch(**by_vector, limit=fusion.depth, filter=where)]
    if values:
        both.insert(0, of.Prefetch(query=_sparse(values), using=using, limit=fusion.depth, filter=where))
    by_ranks = of.RrfQuery(rrf=of.Rrf(k=fusion.k + 1))
    return of.QueryRequest(prefetch=both, query=by_ranks, limit=limit, with_payload=_ASKED)


def listed(clause: Any, limit: int, fields: Any) -> Any:
    """A listing of points that pass."""
    return models().QueryRequest(filter=_filter(clause), limit=limit, with_payload=fields)


def params(way: Way, quantised: bool) -> Any:
    """The parameters of a vector search; None for Qdrant's defaults."""
    of, rescored = models(), None
    if quantised:
        rescored = of.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
    return of.SearchParams(exact=way.exact, quantization=rescored) if way.exact or rescored else None


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

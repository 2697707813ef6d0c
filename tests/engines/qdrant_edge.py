"""Qdrant's own segments in this process, as a connection of `QdrantEngine`: `qdrant-edge-py` by the client's models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import qdrant_edge as edge
from qdrant_client import models as of

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.engines.qdrant import QdrantEngine
from voicevault_retrievers.engines.qdrant.clients import InThreads, NoCollectionError, QdrantCall
from voicevault_retrievers.errors import SearchError


class EdgeFolder(InThreads):
    """A folder of shards, one for each collection."""

    local = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: dict[str, Any] = {}
        self.mutex = Mutex()

    def engine(self, name: str, **options: Any) -> QdrantEngine:
        """A collection of the folder."""
        made = QdrantEngine(name, **options)
        made._client = self
        made._settle()
        return made

    def ask(self, asked: QdrantCall) -> Any:
        arguments = dict(asked.arguments)
        name = arguments.pop("collection_name")
        with self.mutex:
            if asked.method in ("create_collection", "collection_exists", "delete_collection"):
                return getattr(self, asked.method)(name, **arguments)
            if name not in self.shards:
                raise NoCollectionError(f"no collection {name!r}")
            try:
                return getattr(self, asked.method)(name, self.shards[name], **arguments)
            except Exception as error:  # the binding raises no other type
                raise SearchError(f"the shard refused a request: {error}") from error

    def shared(self) -> EdgeFolder:
        return self

    def close(self) -> None:
        """Others use the shards too: see `end`."""

    def end(self) -> None:
        """Close all shards."""
        for shard in self.shards.values():
            shard.close()
        self.shards.clear()

    # The methods of the client.

    def collection_exists(self, name: str) -> bool:
        return name in self.shards

    def create_collection(self, name: str, **made: Any) -> None:
        if name in self.shards:
            raise SearchError(f"{name} is there")
        sparse = {
            key: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if each.modifier else None)
            for key, each in made["sparse_vectors_config"].items()
        }
        dense = {
            key: edge.EdgeVectorParams(each.size, edge.Distance.Cosine) for key, each in made["vectors_config"].items()
        }
        at = self.folder / quote(name, safe="")
        self.shards[name] = edge.EdgeShard.create(str(at), edge.EdgeConfig(vectors=dense, sparse_vectors=sparse))
        (at / "metadata.json").write_text(json.dumps(made["metadata"]))

    def delete_collection(self, name: str) -> None:
        if name in self.shards:
            self.shards.pop(name).close()
            shutil.rmtree(self.folder / quote(name, safe=""))

    def get_collection(self, name: str, shard: Any) -> Any:
        metadata = json.loads((self.folder / quote(name, safe="") / "metadata.json").read_text())
        return SimpleNamespace(
            payload_schema=dict(shard.info().payload_schema), config=SimpleNamespace(metadata=metadata)
        )

    def create_payload_index(self, name: str, shard: Any, field_name: str, field_schema: Any, wait: bool) -> None:
        kind: Any = edge.PayloadSchemaType.Keyword
        if isinstance(field_schema, of.KeywordIndexParams):
            kind = edge.KeywordIndexParams(is_tenant=field_schema.is_tenant, on_disk=field_schema.on_disk)
        elif field_schema is not of.PayloadSchemaType.KEYWORD:
            kind = getattr(edge.PayloadSchemaType, field_schema.value.title())
        shard.update(edge.UpdateOperation.create_field_index(field_name, kind))

    def upsert(self, name: str, shard: Any, points: Any, update_filter: Any = None, wait: bool = True) -> None:
        rows = [edge.Point(one.id, vectors(one.vector), {**one.payload, "bools": bools(one.payload)}) for one in points]
        shard.update(edge.UpdateOperation.upsert_points(rows, filter_of(update_filter)))

    def delete(self, name: str, shard: Any, points_selector: Any, wait: bool) -> None:
        if isinstance(points_selector, of.PointIdsList):
            shard.update(edge.UpdateOperation.delete_points(list(points_selector.points)))
        else:
            shard.update(edge.UpdateOperation.delete_points_by_filter(filter_of(points_selector.filter)))

    def batch_update_points(self, name: str, shard: Any, update_operations: Any, wait: bool) -> None:
        for one in update_operations:
            if isinstance(one, of.UpsertOperation):
                self.upsert(name, shard, one.upsert.points, one.upsert.update_filter)
            elif isinstance(one, of.UpdateVectorsOperation):
                rows = [edge.PointVectors(row.id, vectors(row.vector)) for row in one.update_vectors.points]
                shard.update(edge.UpdateOperation.update_vectors(rows, filter_of(one.update_vectors.update_filter)))
            else:
                told = one.set_payload
                if told.points:
                    shard.update(edge.UpdateOperation.set_payload(list(told.points), told.payload))
                else:
                    shard.update(edge.UpdateOperation.set_payload_by_filter(filter_of(told.filter), told.payload))

    def retrieve(self, name: str, shard: Any, ids: Any, with_payload: Any, with_vectors: Any = False) -> list[Any]:
        return list(map(point, shard.retrieve(list(ids), payload(with_payload), with_vectors)))

    def scroll(self, name: str, shard: Any, scroll_filter: Any, limit: int, offset: Any, with_payload: Any) -> Any:
        found, after = shard.scroll(
            edge.ScrollRequest(offset, limit, filter_of(scroll_filter), payload(with_payload), False)
        )
        return list(map(point, found)), after

    def count(self, name: str, shard: Any, count_filter: Any, exact: bool) -> Any:
        return SimpleNamespace(count=shard.count(edge.CountRequest(exact, filter_of(count_filter))))

    def facet(self, name: str, shard: Any, key: str, facet_filter: Any, limit: int, exact: bool) -> Any:
        return shard.facet(edge.FacetRequest(key, limit, exact, filter_of(facet_filter)))

    def query_batch_points(self, name: str, shard: Any, requests: Any) -> list[Any]:
        answers = shard.query_batch(edge.QueryBatchRequest([query(one) for one in requests]))
        return [SimpleNamespace(points=list(map(point, found))) for found in answers]


def query(asked: of.QueryRequest) -> Any:
    return edge.QueryRequest(
        limit=asked.limit,
        query=None if asked.query is None else scoring(asked.query, asked.using),
        prefetches=list(map(prefetch, asked.prefetch if isinstance(asked.prefetch, list) else [asked.prefetch]))
        if asked.prefetch
        else None,
        with_vector=asked.with_vector or False,
        with_payload=payload(asked.with_payload),
        filter=filter_of(asked.filter),
        params=params(asked.params),
    )


def prefetch(asked: of.Prefetch) -> Any:
    return edge.Prefetch(
        limit=asked.limit,
        query=scoring(asked.query, asked.using),
        filter=filter_of(asked.filter),
        score_threshold=asked.score_threshold,
        params=params(asked.params),
    )


def scoring(asked: Any, using: str | None) -> Any:
    if isinstance(asked, of.RrfQuery):
        return edge.Fusion.Rrf(asked.rrf.k)
    return edge.Query.Nearest(vector(asked), using)


def bools(held: Any) -> dict[str, list[str]]:
    """The booleans of metadata as text, by key: the binding takes True for 1 in filters."""
    several = {key: value if isinstance(value, list) else [value] for key, value in held.get("metadata", {}).items()}
    return {key: [str(one) for one in values if isinstance(one, bool)] for key, values in several.items()}


def vector(value: Any) -> Any:
    return edge.SparseVector(value.indices, value.values) if isinstance(value, of.SparseVector) else value


def vectors(named: Any) -> dict[str, Any]:
    return {key: vector(value) for key, value in (named or {}).items()}


def params(asked: Any) -> Any:
    return None if asked is None else edge.SearchParams(exact=bool(asked.exact))


def payload(wanted: Any) -> Any:
    if isinstance(wanted, of.PayloadSelectorExclude):
        return edge.PayloadSelector.Exclude(wanted.exclude)
    return wanted


def point(found: Any) -> Any:
    return SimpleNamespace(
        id=str(found.id), payload=found.payload, vector=found.vector, score=getattr(found, "score", None)
    )


def filter_of(asked: Any) -> Any:
    if asked is None:
        return None
    return edge.Filter(
        *(None if part is None else list(map(condition, part)) for part in (asked.must, asked.should, asked.must_not))
    )


def condition(asked: Any) -> Any:
    if isinstance(asked, of.Filter):
        return filter_of(asked)
    if isinstance(asked, of.HasIdCondition):
        return edge.HasIdCondition(set(asked.has_id))
    if isinstance(asked, of.IsEmptyCondition):
        return edge.IsEmptyCondition(asked.is_empty.key)
    if isinstance(asked.match, of.MatchAny):
        return edge.FieldCondition(asked.key, match=edge.MatchAny(asked.match.any))
    if asked.match is not None and isinstance(asked.match.value, bool):
        key = asked.key.replace("metadata.", "bools.", 1)
        return edge.FieldCondition(key, match=edge.MatchValue(str(asked.match.value)))
    if asked.match is not None:
        return edge.FieldCondition(asked.key, match=edge.MatchValue(asked.match.value))
    ends = asked.range
    return edge.FieldCondition(asked.key, range=edge.RangeFloat(ends.gte, ends.gt, ends.lte, ends.lt))

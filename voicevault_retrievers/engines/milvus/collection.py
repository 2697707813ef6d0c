"""Creation, writes and reads of a Milvus collection."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from voicevault_retrievers._support.extras import require as required
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Engine, Record, Stored
from voicevault_retrievers.engines.filters import translate
from voicevault_retrievers.engines.milvus import schema
from voicevault_retrievers.engines.milvus.connection import Connection, MilvusAddress, ask
from voicevault_retrievers.engines.milvus.facets import CROWDED, key_of
from voicevault_retrievers.engines.milvus.language import Milvus
from voicevault_retrievers.engines.milvus.schema import Row
from voicevault_retrievers.engines.milvus.scoring import all_of
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import SearchError

PAGE = 1000
"""How many rows are read at once."""

MESSAGE = 8 << 20
"""The approximate bytes of a request."""

VERSION = "version"
"""The key of the row with the collection's version, which each change renews."""


class MilvusCollection(Engine):
    """The part of `MilvusEngine` other than its searches."""

    def __init__(self, name: str, *, place: MilvusAddress, index: str | None = None, **options: Any) -> None:
        fixed = {} if index is None else {"index": index}
        super().__init__(name, options=fixed, **options)
        self.place = place
        self._main = schema.checked_name(name)
        self._side = self._main + schema.SIDE
        self._connection = Connection(place, self.timeout)
        self._language = Milvus()
        self._know(lite=place.file is not None)

    def _know(self, *, lite: bool) -> None:
        """Whether it is Milvus Lite that answers, whose statistics are those of a segment, and of a filter."""
        self._lite = lite
        self.capabilities = replace(self.capabilities, engine_statistics=not self._counts_here)

    @property
    def _counts_here(self) -> bool:
        return self._lite

    # Asking.

    def _now(self, asked: Any) -> Any:
        return self._or_forget(partial(self._connection.now, asked))

    async def _later(self, asked: Any) -> Any:
        try:
            return await self._connection.later(asked)
        except SearchError as error:
            self._gone(error)
            raise

    def _or_forget(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except SearchError as error:
            self._gone(error)
            raise

    def _gone(self, error: SearchError) -> None:
        if getattr(error.__cause__, "code", None) in _NOT_THERE:
            self.forget()

    def _close(self) -> None:
        self._connection.close()
        if self.place.file is not None:
            self.forget()  # Milvus Lite forgets which collections were loaded

    async def _aclose(self) -> None:
        """Close the connection of the running event loop; a file of Milvus Lite is closed by `close`."""
        await self._connection.aclose()

    # The collection.

    def _read_recipe(self) -> Steps[str | None]:
        if not (yield ask("has_collection", collection_name=self._main)):
            return None
        text = yield from self._made_with()
        if text:
            self._know(lite=str((yield ask("get_server_version"))).startswith("milvus_lite"))
            yield from self._load(Recipe.parse(text, self.name))
        return text

    def _made_with(self) -> Steps[str]:
        told = yield ask("describe_collection", collection_name=self._main)
        return dict(told.get("properties") or {}).get(schema.RECIPE) or told.get("description") or ""

    def _as_known(self) -> Steps[None]:
        """Raises SearchError where the collection has been replaced by one with another recipe."""
        recipe = self._recipe
        if recipe is None or Recipe.parse((yield from self._made_with()), self.name) != recipe:
            self.forget()
            raise SearchError(f"the collection {self.name!r} of Milvus was replaced meanwhile: ask again")

    def _create(self, recipe: Recipe) -> Steps[None]:
        milvus = required("pymilvus", extra="milvus")
        self._know(lite=str((yield ask("get_server_version"))).startswith("milvus_lite"))
        dimension = None if recipe.embedder is None else recipe.embedder.dimension
        yield from self._make(self._side, schema.side_fields_of(milvus), {})
        fields = schema.fields_of(milvus, dimension, recipe.text())
        yield from self._make(self._main, fields, {schema.RECIPE: recipe.text()})

    def _make(self, name: str, fields: Any, properties: Mapping[str, str]) -> Steps[None]:
        options = {"schema": fields, "properties": dict(properties), "consistency_level": "Strong"}
        try:
            yield ask("create_collection", collection_name=name, **options)
        except SearchError:
            if not (yield ask("has_collection", collection_name=name)):  # otherwise another client has just created it
                raise

    def _load(self, recipe: Recipe) -> Steps[None]:
        """Index and load both collections, where their creator has not."""
        milvus = required("pymilvus", extra="milvus")
        dimension = None if recipe.embedder is None else recipe.embedder.dimension
        index = recipe.options.get("index") or ("FLAT" if self._lite else "AUTOINDEX")
        wanted = (
            (self._side, schema.side_indexes_of(milvus)),
            (self._main, schema.indexes_of(milvus, dimension, index, columns=not self._lite)),
        )
        if not (yield ask("has_collection", collection_name=self._side)):  # a drop was interrupted
            yield from self._make(self._side, schema.side_fields_of(milvus), {})
        for name, indexes in wanted:
            held = set((yield ask("list_indexes", collection_name=name)))
            for one in indexes:
                if one.field_name not in held:
                    yield from self._index(name, milvus, one)
            yield ask("load_collection", collection_name=name)

    def _index(self, name: str, milvus: Any, index: Any) -> Steps[None]:
        params = milvus.MilvusClient.prepare_index_params()
        params.append(index)
        try:
            # Loading a collection needs a known index, not a built one; waiting for the build sleeps at least 0.5 s.
            yield ask("create_index", collection_name=name, index_params=params, sync=False)
        except SearchError:
            if index.field_name not in (yield ask("list_indexes", collection_name=name)):
                raise

    def _drop(self) -> Steps[None]:
        yield ask("drop_collection", collection_name=self._side)  # first, so that no parents are left over
        yield ask("drop_collection", collection_name=self._main)

    # Writing.

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        above: list[dict[str, Any]] = yield Compute(lambda: [schema.parent_row(parent) for parent in parents])
        below: list[dict[str, Any]] = yield Compute(lambda: [schema.row(record) for record in records])
        yield from self._as_known()
        held = yield from self._by_ids([record.chunk.id for record in records], ["parent"])
        for batch in _batches(above):
            yield ask("upsert", collection_name=self._side, data=batch)
        yield from self._stir()
        for batch in _batches(below):
            yield ask("upsert", collection_name=self._main, data=batch)
        yield from self._stir()
        kept = {row["parent"] for row in below} | {row["pk"] for row in above}
        yield from self._tidy({found["parent"] for found in held.values()} - kept)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        held = yield from self._by_ids(ids, ["parent"])
        if not held:
            return 0
        yield from self._stir()
        yield ask("delete", collection_name=self._main, ids=[found["pk"] for found in held.values()])
        yield from self._stir()
        yield from self._tidy({found["parent"] for found in held.values()})
        return len(held)

    def _tidy(self, parents: Set[str]) -> Steps[None]:
        """Remove parents that no chunk names; restore those that a chunk names again meanwhile."""
        orphans = parents - {""} - (yield from self._named(parents - {""}))
        if not orphans:
            return
        kept = yield ask("get", collection_name=self._side, ids=sorted(orphans), output_fields=["pk", "pieces"])
        if not kept:
            return
        yield ask("delete", collection_name=self._side, ids=[found["pk"] for found in kept])
        again = yield from self._named(orphans)
        back = [{**schema.NOT_SEARCHED, **found} for found in kept if found["pk"] in again]
        for batch in _batches(back):
            yield ask("upsert", collection_name=self._side, data=batch)

    def _named(self, parents: Set[str]) -> Steps[set[str]]:
        """The given parents that chunks name."""
        left, found = set(parents), set[str]()
        while left:
            keys = ", ".join(f'"{one}"' for one in sorted(left))
            page = yield ask(
                "query",
                collection_name=self._main,
                filter=f"parent in [{keys}]",
                limit=PAGE,
                output_fields=["parent"],
            )
            if not page:
                break
            found |= {one["parent"] for one in page}
            left -= found
        return found

    def _stir(self) -> Steps[None]:
        """Renew the collection's version, so that cached statistics are dropped."""
        version = {"pk": VERSION, "pieces": [uuid.uuid4().hex], "vector": [0.0, 1.0]}
        yield ask("upsert", collection_name=self._side, data=[version])

    # Reading.

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        held = yield from self._by_ids(ids, ["digest"])
        return {one: found["digest"] for one, found in held.items()}

    def _count(self) -> Steps[int]:
        return (yield from self._counting(""))

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        held = yield from self._by_ids(ids, ["pieces"], self._side if parents else self._main)
        chunks: Mapping[str, Chunk] = yield Compute(
            lambda: {one: schema.chunk_of(found, self.name) for one, found in held.items()}
        )
        return chunks

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        if self._recipe is None or self._recipe.embedder is None:
            return {}
        yield from self._as_known()
        held = yield from self._by_ids(ids, ["vector"])
        return {one: np.asarray(found["vector"], dtype=np.float32) for one, found in held.items()}

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        found = yield from self._after(cursor or "", self._clause(where), ["id", "digest"], limit)
        page = [Stored(schema.id_of(one), one["digest"]) for one in found]
        return page, found[-1]["pk"] if len(found) == limit else None

    def _by_ids(self, ids: Sequence[str], fields: Sequence[str], name: str | None = None) -> Steps[dict[str, Row]]:
        keys = {key_of(one): one for one in ids}
        held: dict[str, Row] = {}
        wanted = iter(keys)
        while batch := list(islice(wanted, PAGE)):
            found = yield ask("get", collection_name=name or self._main, ids=batch, output_fields=["pk", *fields])
            held.update((yield Compute(partial(_by_id, found, keys))))
        return held

    def _after(self, key: str, clause: str, fields: Sequence[str], limit: int) -> Steps[list[Row]]:
        """The rows after a primary key that pass a clause, in key order."""
        found = yield ask(
            "query",
            collection_name=self._main,
            filter=all_of(f'pk > "{key}"', clause),
            limit=limit,
            output_fields=["pk", *fields],
            iterator="True",
            reduce_stop_for_best="True",
        )
        held: list[Row] = yield Compute(partial(list, found))  # pymilvus decodes rows as they are read
        return held

    def _counting(self, clause: str) -> Steps[int]:
        found = yield ask("query", collection_name=self._main, filter=clause, output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def _clause(self, where: Filter | None) -> str:
        """The part of a filter that Milvus can apply: passes all chunks that the filter passes, and often more."""
        clause, _ = translate(where, self._language)
        return "" if clause is None else f"({clause} or array_contains(facets, {CROWDED}))"


_NOT_THERE = (100, 101)
"""Milvus' error codes for a missing collection, and for one that is not loaded."""


def _by_id(found: Iterable[Row], keys: Mapping[str, str]) -> dict[str, Row]:
    return {keys[one["pk"]]: one for one in found}


def _batches(held: Sequence[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Rows in requests within the size limit."""
    batch: list[dict[str, Any]] = []
    size = 0
    for one in held:
        own = 4 * sum(map(len, one["pieces"])) + 24 * len(one.get("terms", ())) + 4 * len(one.get("vector", ()))
        if batch and size + own > MESSAGE:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += own
    if batch:
        yield batch

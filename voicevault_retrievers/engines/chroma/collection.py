"""Creation, writes and reads of a Chroma collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any
from uuid import uuid4

import numpy as np

from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.chroma.clients import (
    ChromaRequest,
    CollectionState,
    GoneError,
    HttpChroma,
    LocalChroma,
)
from voicevault_retrievers.engines.chroma.records import (
    NO_VECTOR,
    PARENT_KEY,
    id_of,
    key_of,
    native,
    packed,
    private_of,
    replacing,
    requests,
    row_of,
    text_of,
    unpacked,
)
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.filters import MAX_CONDITIONS
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.server import Record, Stored, WriteCounts

RECIPE, STATE, OPEN = "voicevault_recipe", "voicevault_state", "voicevault_open"
CHUNKS, LENGTH = "voicevault_chunks", "voicevault_length"
"""Keys of the collection's metadata: how it was made; an id of its content, changed by each write; whether a write is
under way; how many chunks have been written in all, and how many terms.
"""

PARENTS = ".voicevault.parents"
"""The suffix of the name of the parents' collection."""

PAGE = 1000


class ChromaCollection(Engine):
    """The part of `ChromaEngine` other than its searches."""

    _client: HttpChroma | LocalChroma

    # Asking.

    def _now(self, ask: Any) -> Any:
        return self._client.ask(ask)

    async def _later(self, ask: Any) -> Any:
        return await self._client.aask(ask)

    def _close(self) -> None:
        self._client.close()

    async def _aclose(self) -> None:
        await self._client.aclose()

    # The collection.

    def _read_recipe(self) -> Steps[str | None]:
        place: CollectionState | None = yield ChromaRequest("find", self.name)
        return None if place is None else str(place.metadata.get(RECIPE, ""))

    def _create(self, recipe: Recipe) -> Steps[None]:
        metadata = {RECIPE: recipe.text(), STATE: uuid4().hex, OPEN: False, CHUNKS: 0, LENGTH: 0}
        yield ChromaRequest("create", self.name, options={"metadata": metadata})

    def _drop(self) -> Steps[None]:
        yield ChromaRequest("drop", self.name + PARENTS)
        yield ChromaRequest("drop", self.name)

    def _here(self, create: bool = False, same: bool = False) -> Steps[CollectionState | None]:
        """The collection as it is now; with `create`, a missing one is created again with the known recipe.

        Where another collection with another recipe has replaced it, the new recipe is loaded. Then raises GoneError
        with `create`, and with `same`, for a request with a vector of the old collection's embedder.
        """
        known = self._recipe
        place: CollectionState | None = yield ChromaRequest("find", self.name)
        if place is None and create and self._recipe is not None:
            yield from self._create(self._recipe)
            place = yield ChromaRequest("find", self.name)
        if place is None or Recipe.parse(str(place.metadata.get(RECIPE, "")), self.name) == known:
            return place
        self.forget()
        if create:
            raise replaced(self.name)
        yield from self._ready()
        if same:
            raise replaced(self.name)
        return place

    # What is written.

    def _upserting(self, chunks: Any, vectors: Any, parents: Any, progress: Any) -> Steps[WriteCounts]:
        written = yield from super()._upserting(chunks, vectors, parents, progress)
        place: CollectionState | None = None if self._recipe is None else (yield ChromaRequest("find", self.name))
        if place is not None and place.metadata.get(OPEN):  # left open by a writer that was killed
            yield _marked(place, self.name, open=False)
        return written

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        place = yield from self._here(create=True)
        if place is None:
            return {}
        got = yield from self._rows(place, ids, ["metadatas"])
        rows = zip(got["ids"], got["metadatas"], strict=True)
        return {id_of(key): str(private_of(key, row, self.name)["digest"]) for key, row in rows}

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        place = yield from self._here(create=True)
        if place is None:
            raise GoneError(f"the collection {self.name!r} is removed as soon as it is made: ask again")
        if parents:
            yield from self._write_parents(parents)
        if not records:
            return
        former = set[str]()
        yield _marked(place, self.name, open=True)
        chunks = int(place.metadata.get(CHUNKS, 0)) + len(records)
        length = int(place.metadata.get(LENGTH, 0)) + sum(record.length for record in records)
        for part in requests(records):
            held = yield from self._rows(place, [record.chunk.id for record in part], ["metadatas"])
            before = dict(zip(held["ids"], held["metadatas"], strict=True))
            former |= _parents(before.values())
            rows = [
                replacing(row_of(record, length / chunks), before.get(key_of(record.chunk.id)) or {}) for record in part
            ]
            vectors = [list(NO_VECTOR) if r.vector is None else r.vector.tolist() for r in part]
            yield self._put(place.key, [record.chunk for record in part], vectors, rows)
        yield _marked(place, self.name, open=False, chunks=chunks, length=length)
        own = {key_of(record.chunk.parent_id) for record in records if record.chunk.parent_id is not None}
        yield from self._remove_parents(place, former - own - {key_of(parent.id) for parent in parents})
        if parents:
            yield from self._write_lost(parents)

    def _write_lost(self, parents: Sequence[Chunk]) -> Steps[None]:
        """Write again the parents that another client removed before the chunks that name them were written."""
        place: CollectionState | None = yield ChromaRequest("find", self.name + PARENTS)
        got = None if place is None else (yield from self._rows(place, [parent.id for parent in parents], []))
        held = set(map(id_of, got["ids"])) if got else set[str]()
        lost = [parent for parent in parents if parent.id not in held]
        if lost:
            yield from self._write_parents(lost)

    def _write_parents(self, parents: Sequence[Chunk]) -> Steps[None]:
        yield ChromaRequest("create", self.name + PARENTS, options={"metadata": {"voicevault_parents_of": self.name}})
        place: CollectionState | None = yield ChromaRequest("find", self.name + PARENTS)
        if place is None:
            raise GoneError(f"the parents of {self.name!r} are removed as soon as they are made: ask again")
        yield self._put(place.key, parents, [list(NO_VECTOR)] * len(parents), [packed(parent) for parent in parents])

    def _put(self, key: Any, chunks: Sequence[Chunk], vectors: Sequence[Any], rows: Sequence[Any]) -> ChromaRequest:
        options = {
            "ids": [key_of(chunk.id) for chunk in chunks],
            "embeddings": vectors,
            "documents": [text_of(chunk) for chunk in chunks],
            "metadatas": rows,
        }
        return ChromaRequest("upsert", self.name, key, options)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        place = yield from self._here()
        if place is None:
            return 0
        got = yield from self._rows(place, ids, ["metadatas"])
        if not got["ids"]:
            return 0
        yield _marked(place, self.name, open=True)
        yield ChromaRequest("delete", self.name, place.key, {"ids": got["ids"]})
        yield _marked(place, self.name, open=False)
        yield from self._remove_parents(place, _parents(got["metadatas"]))
        return len(got["ids"])

    def _remove_parents(self, place: CollectionState, keys: Set[str]) -> Steps[None]:
        """Remove parents that no chunk names; restore those that another client's chunk has come to name meanwhile."""
        held: CollectionState | None = (yield ChromaRequest("find", self.name + PARENTS)) if keys else None
        if held is None:
            return
        beside = self.name + PARENTS
        left = sorted(keys - (yield from self._named(place, sorted(keys))))
        for start in range(0, len(left), MAX_CONDITIONS):
            some = left[start : start + MAX_CONDITIONS]
            rows = yield ChromaRequest("get", beside, held.key, {"ids": some, "include": ["documents", "metadatas"]})
            yield ChromaRequest("delete", beside, held.key, {"ids": some})
            named = yield from self._named(place, some)
            again = [at for at, key in enumerate(rows["ids"]) if key in named]
            if again:
                back = {name: [rows[name][at] for at in again] for name in ("ids", "documents", "metadatas")}
                yield ChromaRequest("add", beside, held.key, {**back, "embeddings": [list(NO_VECTOR)] * len(again)})

    def _named(self, place: CollectionState, keys: Sequence[str]) -> Steps[Set[str]]:
        """The given keys of parents that chunks name."""
        found: Set[str] = set()
        for start in range(0, len(keys), MAX_CONDITIONS):
            where = {PARENT_KEY: {"$in": list(keys[start : start + MAX_CONDITIONS])}}
            got = yield ChromaRequest("get", self.name, place.key, {"where": where, "include": ["metadatas"]})
            found |= _parents(got["metadatas"])
        return found

    # What is read.

    def _count(self) -> Steps[int]:
        place = yield from self._here()
        return 0 if place is None else int((yield ChromaRequest("count", self.name, place.key)))

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        place: CollectionState | None = (
            (yield ChromaRequest("find", self.name + PARENTS)) if parents else (yield from self._here())
        )
        if place is None:
            return {}
        got = yield from self._rows(place, ids, ["documents", "metadatas"])
        return {chunk.id: chunk for chunk in self._chunks(got["ids"], got["documents"], got["metadatas"])}

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        place = yield from self._here()
        if place is None:
            return (), None
        start = int(cursor or 0)
        wanted = {"limit": limit, "offset": start, "include": ["metadatas"], "where": native(where)}
        got = yield ChromaRequest("get", self.name, place.key, wanted)
        rows = zip(got["ids"], got["metadatas"], strict=True)
        page = [Stored(id_of(key), str(private_of(key, row, self.name)["digest"])) for key, row in rows]
        return page, start + limit if len(page) == limit else None

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        place = yield from self._here(same=True)
        if place is None or self._recipe is None or self._recipe.embedder is None or not ids:
            return {}
        got = yield from self._rows(place, ids, ["embeddings"])
        if not got["ids"]:
            return {}
        rows = np.asarray(got["embeddings"], dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(lengths, lengths, 1)
        return dict(zip(map(id_of, got["ids"]), rows, strict=True))

    def _rows(self, place: CollectionState, ids: Sequence[str], include: Sequence[str]) -> Steps[Any]:
        """The fields `include` of the given chunks that exist."""
        wanted = list(dict.fromkeys(map(key_of, ids)))
        found: dict[str, list[Any]] = {name: [] for name in ("ids", *include)}
        for start in range(0, len(wanted), PAGE):
            options = {"ids": wanted[start : start + PAGE], "include": list(include)}
            got = yield ChromaRequest("get", self.name, place.key, options)
            for name, rows in found.items():
                rows.extend(got[name])
        return found

    def _chunks(self, keys: Sequence[str], texts: Sequence[Any], rows: Sequence[Any]) -> list[Chunk]:
        return [unpacked(*one, self.name) for one in zip(keys, texts, rows, strict=True)]


def replaced(name: str) -> GoneError:
    """The error for a collection that has been replaced by one with another recipe."""
    return GoneError(f"the collection {name!r} has been replaced by another meanwhile: ask again")


def _marked(
    place: CollectionState, name: str, *, open: bool, chunks: int | None = None, length: int | None = None
) -> ChromaRequest:
    """The request that marks the collection's content as changed."""
    said = {CHUNKS: chunks, LENGTH: length}
    own = {**place.metadata, **{key: value for key, value in said.items() if value is not None}}
    return ChromaRequest("mark", name, place.key, {"metadata": {**own, STATE: uuid4().hex, OPEN: open}})


def _parents(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of the parents that rows name."""
    return {row[PARENT_KEY] for row in rows if row and PARENT_KEY in row}

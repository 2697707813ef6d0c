"""Creation, writes and reads of a Qdrant collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Capabilities, Engine, Record, Stored
from voicevault_retrievers.engines.filters import Qdrant, said
from voicevault_retrievers.engines.qdrant import points, requests, statistics
from voicevault_retrievers.engines.qdrant.channels import Way
from voicevault_retrievers.engines.qdrant.clients import (
    Folder,
    HttpServer,
    Lent,
    NoCollectionError,
    QdrantCall,
    QdrantCaller,
)
from voicevault_retrievers.engines.qdrant.points import CHUNK, FULL, PARENT, STATE, TOLD, VERSION
from voicevault_retrievers.engines.qdrant.statistics import Counts, State, Statistics
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    SearchError,
    unknown,
)

PAGE = 1000
"""The most points read by one request."""

STATE_ID = points.point_id("state", STATE)
"""The id of the point that records the writes."""

_FORBIDDEN = '<>:"/\\|?*\0\x1f'


class Collection(Engine):
    """The part of `QdrantEngine` that writes, and reads by id; see there for the options."""

    capabilities = Capabilities(exact_vectors=False, atomic=False, native_async=True, server_fusion=True)

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        path: Path | str | None = None,
        api_key: str | None = None,
        client: Any = None,
        prefix: int | None = None,
        idf: Literal["own", "server"] | None = None,
        indexes: Mapping[str, str] | None = None,
        tenant: str | None = None,
        quantization: Literal["scalar", "binary"] | None = None,
        exact: bool = False,
        **options: Any,
    ) -> None:
        made: dict[str, Any] = {"prefix": whole_or_none("prefix", prefix), "idf": idf, "tenant": tenant}
        made |= {"quantization": quantization, "indexes": None if indexes is None else dict(indexes)}
        _check_made(made)
        given = {key: value for key, value in made.items() if value is not None}
        super().__init__(name, options=given, **options)
        if any(letter in _FORBIDDEN for letter in name) or name in (".", "..") or len(name.encode()) > 255:
            raise ConfigError(f"Qdrant takes no collection of the name {name!r}: use letters, digits, _ and -")
        if sum(one is not None for one in (url, path, client)) > 1:
            raise ConfigError("give one of url=, path= and client=: none is Qdrant's local mode in memory")
        if api_key is not None and url is None:
            raise ConfigError("an api_key is for a server: give its url=")
        self.way = Way(exact=exact)
        self._client: QdrantCaller = _client(url, path, api_key, client, self.timeout)
        self._statistics = Statistics()
        self._indexed: frozenset[str] | None = None
        self._settle(idf == "server")

    # What an engine is asked.

    def _now(self, ask: Any) -> Any:
        return self._client.ask(ask)

    async def _later(self, ask: Any) -> Any:
        return await self._client.aask(ask)

    def _ask(self, method: str, **arguments: Any) -> Steps[Any]:
        try:
            return (yield QdrantCall(method, {"collection_name": self.name, **arguments}))
        except NoCollectionError:
            self.forget()
            raise

    def _read_recipe(self) -> Steps[str | None]:
        if not (yield from self._ask("collection_exists")):
            return None
        try:
            told = yield from self._ask("get_collection")
        except NoCollectionError:  # another client has removed it
            return None
        self._indexed = frozenset(told.payload_schema or ())
        recipe = (told.config.metadata or {}).get(requests.RECIPE)
        if not isinstance(recipe, str):
            raise IncompatibleIndexError(
                f"the collection {self.name!r} of Qdrant was not made by this package, or by a server older than 1.16, "
                "which keeps no metadata: give another name, or search it as a vector store of its framework"
            )
        return recipe

    def _ready(self, create: bool = False) -> Steps[bool]:
        known = self._recipe is not None
        there = yield from super()._ready(create)
        if there and not known:
            self._settle(self._made("idf") == "server")
        if there and create:
            yield from self._index()
        return there

    def _index(self) -> Steps[None]:
        """Create missing payload indexes: the collection's creator may have been interrupted."""
        recipe, there = self._recipe, self._indexed
        if recipe is None or there is None or self._client.local:
            return
        for field, schema in requests.indexes(recipe.options):
            if field not in there:
                yield from self._ask("create_payload_index", field_name=field, field_schema=schema, wait=True)
        self._indexed = None

    def _settle(self, server: bool) -> None:
        vectors = self._client.local or self.way.exact
        self.capabilities = replace(
            type(self).capabilities,
            engine_statistics=server,
            exact_vectors=vectors,
            native_async=not isinstance(self._client, Folder | Lent),
        )

    def _made(self, option: str) -> Any:
        """An option that the collection was made with."""
        return None if self._recipe is None else self._recipe.options.get(option)

    def _create(self, recipe: Recipe) -> Steps[None]:
        made = requests.collection(recipe)
        try:
            yield from self._ask("create_collection", **made)
        except SearchError:
            if not (yield from self._ask("collection_exists")):
                raise
            return
        # A new collection has no state and no chunks, so that this engine's own writes need not be read back.
        self._statistics.hold(None, State({}), Counts(), self._statistics.writes)

    def _drop(self) -> Steps[None]:
        yield from self._ask("delete_collection")

    def forget(self) -> None:
        super().forget()
        self._statistics.forget()

    def _retrieve(self, ids: Sequence[str], fields: Any, vectors: Any = False) -> Steps[dict[str, Any]]:
        """Points by their ids."""
        found: dict[str, Any] = {}
        for start in range(0, len(ids), PAGE):
            part = list(ids[start : start + PAGE])
            got = yield from self._ask("retrieve", ids=part, with_payload=fields, with_vectors=vectors)
            found |= {str(point.id): point for point in got}
        return found

    def _scroll(self, clause: Any, limit: int, cursor: Any, fields: Sequence[str]) -> Steps[tuple[Any, Any]]:
        asked = {"scroll_filter": clause, "limit": limit, "offset": cursor, "with_payload": list(fields)}
        found, after = yield from self._ask("scroll", **asked)
        return found, after

    def _clause(self, where: Filter | None) -> Any:
        """The part of a filter that Qdrant can apply: passes all points that the filter passes; None for all."""
        return said(where, Qdrant(points.METADATA))

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        named = {points.point_id(one): one for one in ids}
        found = yield from self._retrieve(list(named), ["digest"])
        return {named[at]: point.payload["digest"] for at, point in found.items()}

    def _count(self) -> Steps[int]:
        told = yield from self._ask("count", count_filter=requests.of_kind(CHUNK), exact=True)
        return int(told.count)

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        named = {points.point_id(one, PARENT if parents else CHUNK): one for one in ids}
        found = yield from self._retrieve(list(named), TOLD)
        return {named[at]: points.chunk_of(point.payload, self.name) for at, point in found.items()}

    def _page(self, cursor: Any, limit: int) -> Steps[tuple[Sequence[Stored], Any]]:
        found, after = yield from self._scroll(requests.of_kind(CHUNK), limit, cursor, ["id", "digest", "exact"])
        return [Stored(points.id_of(point.payload), point.payload["digest"]) for point in found], after

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        yield from self._state()
        named = {points.point_id(one): one for one in ids}
        found = yield from self._retrieve(list(named), False, [FULL])
        rows = {named[at]: np.asarray(point.vector[FULL], np.float32) for at, point in found.items() if point.vector}
        norms = {one: float(np.linalg.norm(row)) or 1.0 for one, row in rows.items()}  # zero vectors stay zero
        return {one: row / np.float32(norms[one]) for one, row in rows.items()}

    # Writing.

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        tags = statistics.tags_of(term for record in records for term in record.terms)
        length = sum(record.length for record in records)
        told = self._statistics.begin(len(records), length, tags)
        before = after = None
        gone: list[Mapping[str, Any]] = []
        new: list[Mapping[str, Any]] = []
        try:
            state, old = yield from self._held([points.point_id(record.chunk.id) for record in records])
            known = self._statistics.held(None, state)
            sums = state.sums if known is None else (known.length, known.total)
            own = self._made("idf") != "server"
            mean = requests.mean_of(sums[0] + length, sums[1] + len(records), bounded=own)
            prefix = self._made("prefix")
            rows = [requests.chunk_point(record, mean, prefix) for record in records]
            rows += [requests.parent_point(parent) for parent in parents]
            after = yield from self._update([requests.upsert(rows)], state, told)
            before = state
            gone, new = [point.payload for point in old], [row.payload for row in rows[: len(records)]]
        finally:
            self._statistics.end(before, after, gone, new)
        named = {record.chunk.parent_id for record in records} | {parent.id for parent in parents}
        yield from self._tidy({payload["parent"] for payload in gone} - named)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        told = self._statistics.begin(0, 0, "")
        before = after = None
        gone: list[Mapping[str, Any]] = []
        try:
            state, old = yield from self._held([points.point_id(one) for one in ids])
            if not old:
                before = after = state
                return 0
            after = yield from self._update([requests.delete([point.id for point in old])], state, told)
            before = state
            gone = [point.payload for point in old]
        finally:
            self._statistics.end(before, after, gone, ())
        yield from self._tidy({payload["parent"] for payload in gone})
        return len(old)

    def _held(self, ids: Sequence[str]) -> Steps[tuple[State, list[Any]]]:
        """The state, and the given points that exist, without their texts."""
        found = yield from self._retrieve([STATE_ID, *ids], requests.without("text"))
        state = found.pop(STATE_ID, None)
        if self._recipe is None:
            raise self._replaced()
        return (yield from self._checked({} if state is None else state.payload)), list(found.values())

    def _state(self) -> Steps[State]:
        """The record of writes, empty before the first write. SearchError for a collection that was replaced."""
        found = yield from self._ask("retrieve", ids=[STATE_ID], with_payload=True)
        return (yield from self._checked(found[0].payload if found else {}))

    def _checked(self, payload: Mapping[str, Any]) -> Steps[State]:
        """The state in a payload; raises SearchError where the collection's recipe is no longer the known one.

        Where the state does not name the known recipe, before the first write or in a race of writers, the recipe is
        read.
        """
        state, known = State.of(payload), self._recipe
        if known is None or state.recipe == statistics.recipe_digest(known):
            return state
        text = yield from self._read_recipe()
        if text is None or Recipe.parse(text, self.name).text() != known.text():
            self.forget()
            raise self._replaced()
        return state

    def _replaced(self) -> SearchError:
        return SearchError(f"the collection {self.name!r} has been replaced, or removed: ask again")

    def _update(self, operations: Sequence[Any], state: State, told: Sequence[Any]) -> Steps[State | None]:
        """Write, and record the write in the state last, so that readers of the old state read again.

        Returns the new state; None where other writers' entries were folded into one, as they may have written
        meanwhile.
        """
        recipe = self._recipe
        if recipe is None:
            raise self._replaced()
        digest, own = statistics.recipe_digest(recipe), {self._statistics.writer: list(told)}
        after: State | None = State({**state.writers, **own}, digest)
        first, last = list[Any](), list[Any]()
        if not state.writers:
            first = [requests.upsert([requests.state_point(STATE_ID)], over=requests.no_point())]
        if state.crowded(self._statistics.writer):
            own[statistics.EARLIER], after = state.folded(), None
            last = [requests.no_payload(STATE_ID, sorted(state.writers.keys() - {statistics.EARLIER}))]
        told_now = requests.payload(STATE_ID, {**own, statistics.RECIPE: digest})
        steps = [*operations, *first, told_now, *last]
        yield from self._ask("batch_update_points", update_operations=steps, wait=True)
        return after

    def _tidy(self, parents: set[str | None]) -> Steps[None]:
        """Remove parents that no chunk names; restore those that a chunk names again meanwhile.

        Concurrent writes of a parent stay: only the version seen here is deleted, and it is restored only where there
        is none.
        """
        orphans = {one for one in parents if one is not None}
        orphans -= yield from self._named(orphans)
        if not orphans:
            return
        ids = [points.point_id(one, PARENT) for one in sorted(orphans)]
        kept = yield from self._retrieve(ids, True)
        versions = [one.payload[VERSION] for one in kept.values() if VERSION in one.payload]
        if not versions:
            return
        yield from self._ask("delete", points_selector=requests.of_versions(list(kept), versions), wait=True)
        again = yield from self._named(orphans)
        back = [requests.point(at, one.payload) for at, one in kept.items() if one.payload["id"] in again]
        if back:
            yield from self._ask("upsert", points=back, update_filter=requests.no_point(), wait=True)

    def _named(self, parents: set[str]) -> Steps[set[str]]:
        """The given parents that chunks name."""
        left, found = set(parents), set[str]()
        while left:
            page, _ = yield from self._scroll(requests.children(sorted(left)), PAGE, None, ["parent"])
            seen = {point.payload["parent"] for point in page}
            if not seen:
                break
            found |= seen
            left -= seen
        return found

    def _close(self) -> None:
        self._client.close()

    async def _aclose(self) -> None:
        await self._client.aclose()


def _client(
    url: str | None, path: Path | str | None, api_key: str | None, client: Any, timeout: float | None
) -> QdrantCaller:
    if client is not None:
        return Lent(client)
    return Folder(None if path is None else str(path)) if url is None else HttpServer(url, api_key, timeout)


def _check_made(made: Mapping[str, Any]) -> None:
    for option, known in (("idf", ("own", "server")), ("quantization", ("scalar", "binary"))):
        if made[option] is not None and made[option] not in known:
            raise unknown(option, made[option], known)
    for key, kind in (made["indexes"] or {}).items():
        if not isinstance(key, str) or kind not in requests.KINDS:
            raise unknown(f"index of {key!r}", kind, requests.KINDS)
    if made["tenant"] is not None and made["tenant"] in (made["indexes"] or {}):
        raise ConfigError(f"{made['tenant']!r} is the tenant, which has an index of its own: leave it out of indexes")

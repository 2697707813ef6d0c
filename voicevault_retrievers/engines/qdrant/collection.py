"""Creation and reads of a Qdrant collection, and the statistics that Qdrant counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter, Predicate, compile_filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Capabilities, Engine, Stored
from voicevault_retrievers.engines.filters import Qdrant, Translation, nothing_passes, translate
from voicevault_retrievers.engines.qdrant import points, requests, statistics
from voicevault_retrievers.engines.qdrant.channels import Way
from voicevault_retrievers.engines.qdrant.clients import (
    Folder,
    HttpServer,
    InThreads,
    Lent,
    NoCollectionError,
    QdrantCall,
    QdrantCaller,
)
from voicevault_retrievers.engines.qdrant.points import CHUNK, FULL, PARENT, STATE, TOLD, VERSION
from voicevault_retrievers.engines.qdrant.statistics import SUMS, State, Sums
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
"""The id of the point that holds the `State`."""

FACETS = 1000
"""More values than a facet of `SUMS` or `MEAN` has."""

_FORBIDDEN = '<>:"/\\|?*\0\x1f'


class Collection(Engine):
    """The part of `QdrantEngine` that reads by id, and counts; see there for the options."""

    capabilities = Capabilities(
        exact_vectors=False, atomic=False, native_async=True, server_fusion=True, engine_statistics=True
    )

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        path: Path | str | None = None,
        api_key: str | None = None,
        client: Any = None,
        prefix: int | None = None,
        indexes: Sequence[str] | None = None,
        tenant: str | None = None,
        quantization: Literal["scalar", "binary"] | None = None,
        exact: bool = False,
        **options: Any,
    ) -> None:
        made: dict[str, Any] = {"prefix": whole_or_none("prefix", prefix), "tenant": tenant}
        made |= {"quantization": quantization, "indexes": _names(indexes)}
        if quantization not in (None, "scalar", "binary"):
            raise unknown("quantization", quantization, ("scalar", "binary"))
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
        self._languages = ""
        self._vocabulary: Sums | None = None
        self._indexed: frozenset[str] = frozenset()
        self._settle()

    # What an engine is asked.

    def _now(self, ask: Any) -> Any:
        return list(map(self._client.ask, ask)) if isinstance(ask, list) else self._client.ask(ask)

    async def _later(self, ask: Any) -> Any:
        if isinstance(ask, list):
            return await asyncio.gather(*map(self._client.aask, ask))
        return await self._client.aask(ask)

    def _ask(self, method: str, **arguments: Any) -> Steps[Any]:
        return (yield from self._asking(self._call(method, **arguments)))

    def _call(self, method: str, **arguments: Any) -> QdrantCall:
        return QdrantCall(method, {"collection_name": self.name, **arguments})

    def _asking(self, calls: QdrantCall | list[QdrantCall]) -> Steps[Any]:
        """The answer of a call, or those of several, which an event loop sends at once."""
        try:
            return (yield calls)
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
        there = yield from super()._ready(create)
        recipe = self._recipe
        if there and create and recipe is not None:  # the collection's creator may have been interrupted
            yield from self._index(dict(requests.indexes(recipe.options)))
        return there

    def _index(self, fields: Mapping[str, Any]) -> Steps[None]:
        """Create the payload indexes that are missing; local mode uses none."""
        missing = {} if self._client.local else {key: fields[key] for key in fields if key not in self._indexed}
        for field, schema in missing.items():
            yield from self._ask("create_payload_index", field_name=field, field_schema=schema, wait=True)
        self._indexed |= missing.keys()

    def _settle(self) -> None:
        vectors = self._client.local or self.way.exact
        in_threads = isinstance(self._client, InThreads)
        self.capabilities = replace(type(self).capabilities, exact_vectors=vectors, native_async=not in_threads)

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

    def _drop(self) -> Steps[None]:
        yield from self._ask("delete_collection")

    def forget(self) -> None:
        super().forget()
        self._languages, self._vocabulary = "", None

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
        return self._translated(where).clause

    def _translated(self, where: Filter | None) -> Translation:
        return translate(where, Qdrant(points.METADATA))

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

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        passing = requests.of_kind(CHUNK, self._clause(where))
        found, after = yield from self._scroll(passing, limit, cursor, ["id", "digest", "exact"])
        return [Stored(points.id_of(point.payload), point.payload["digest"]) for point in found], after

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        named = {points.point_id(one): one for one in ids}
        held = [FULL] if self._recipe is not None and self._recipe.embedder is not None else False
        found = yield from self._retrieve([STATE_ID, *named], [statistics.RECIPE], held)
        yield from self._checked(found.pop(STATE_ID, None))
        rows = {named[at]: np.asarray(point.vector[FULL], np.float32) for at, point in found.items() if point.vector}
        norms = {one: float(np.linalg.norm(row)) or 1.0 for one, row in rows.items()}  # zero vectors stay zero
        return {one: row / np.float32(norms[one]) for one, row in rows.items()}

    def _search(self, *asked: Any) -> Steps[tuple[list[Any], State]]:
        """The points that several searches find, and the state, in one request. SearchError where it was replaced."""
        state = requests.listed(requests.among([STATE_ID]), 1, True)
        told = yield from self._ask("query_batch_points", requests=[*asked, state])
        *found, states = (answer.points for answer in told)
        return found, (yield from self._checked(states[0] if states else None))

    def _checked(self, point: Any) -> Steps[State]:
        """The state in a point; raises SearchError where the collection's recipe is no longer the known one.

        Where there is no state, before the first write, the recipe is read.
        """
        state, known = State.of({} if point is None else point.payload), self._recipe
        if known is None:
            raise self._replaced()
        if state.recipe == statistics.recipe_digest(known):
            return state
        text = yield from self._read_recipe()
        if text is None or Recipe.parse(text, self.name).text() != known.text():
            self.forget()
            raise self._replaced()
        return State()

    def _replaced(self) -> SearchError:
        return SearchError(f"the collection {self.name!r} has been replaced, or removed: ask again")

    def _batch(self, *operations: Any) -> Steps[None]:
        yield from self._ask("batch_update_points", update_operations=list(operations), wait=True)

    # Statistics.

    def _sums(self, scope: Filter | None, every: bool = False) -> Steps[Sums]:
        """The sums over the chunks that pass, counted by Qdrant, or here from the terms of all of them.

        They are read where Qdrant cannot evaluate the filter, and for `every` frequency.
        """
        if nothing_passes(scope):
            return Sums()
        passing, exact = self._translated(scope)
        clause = requests.of_kind(CHUNK, passing)
        if every or not exact:
            return Sums.read((yield from self._terms(clause, None if exact else compile_filter(scope))))
        told = {"facet_filter": clause, "limit": FACETS, "exact": True}
        facets = yield from self._asking([self._call("facet", key=key, **told) for key in (SUMS, statistics.MEAN)])
        parts, means = ({str(hit.value): int(hit.count) for hit in facet.hits} for facet in facets)
        return Sums.of(parts, means, None)

    def _terms(self, clause: Any, passes: Predicate | None) -> Steps[list[Mapping[str, Any]]]:
        """What is counted of the chunks that pass."""
        found: list[Mapping[str, Any]] = []
        fields = ["terms", SUMS, statistics.MEAN, *(() if passes is None else ("metadata", "exact"))]
        cursor: Any = None
        while True:
            page, cursor = yield from self._scroll(clause, PAGE, cursor, fields)
            payloads = (point.payload for point in page)
            found += [one for one in payloads if passes is None or passes(points.metadata_of(one))]
            if cursor is None:
                return found

    def _fits(self, known: Sums) -> Steps[bool]:
        now = yield from self._sums(None)
        return (now.total, now.length, now.means) == (known.total, known.length, known.means)

    def _status(self) -> Steps[Mapping[str, Any]]:
        yield from self._read_recipe()
        _, state = yield from self._search()
        sums = yield from self._sums(None)
        weights = statistics.weighing(sums, state)
        keys = sorted(field[len(points.METADATA) :] for field in self._indexed if field.startswith(points.METADATA))
        return {"weights": weights, "indexed": keys}

    def _reweigh(self) -> Steps[int]:
        return (yield from self._reweighing((yield from self._sums(None))))

    def _reweighing(self, sums: Sums) -> Steps[int]:
        """Make all weights with the mean length in `sums`; returns how many chunks got new ones.

        Chunks written with another mean meanwhile keep it until the next time: `bound` holds for any mean.
        """
        mean = sums.mean or 1.0
        told = requests.payload(STATE_ID, {statistics.MEAN_LENGTH: mean, statistics.WEIGHED: sums.total})
        yield from self._batch(told)
        clause, cursor, changed = requests.otherwise_weighed(mean), None, 0
        while True:
            page, after = yield from self._scroll(clause, PAGE, cursor, ["terms", "counts", "length", VERSION])
            if page:
                try:
                    yield from self._batch(*requests.reweighed(page, mean))
                except SearchError:  # Qdrant refuses new vectors of points that were deleted meanwhile
                    there = yield from self._retrieve([point.id for point in page], False)
                    if len(there) == len(page):
                        raise
                    continue
            changed, cursor = changed + len(page), after
            if cursor is None:
                return changed

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


def _names(indexes: Sequence[str] | None) -> list[str] | None:
    if indexes is None:
        return None
    if isinstance(indexes, str) or not all(isinstance(key, str) for key in indexes):
        raise ConfigError(f"indexes= is a list of metadata keys, not {indexes!r}")
    return sorted(set(indexes))

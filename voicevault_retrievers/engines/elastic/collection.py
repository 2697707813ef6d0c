"""A collection of a search server: its index, what it holds, and writes.

A collection is the index of its name. Requests name an alias that only this index has, so that one made anew under the
same name is noticed, and a write never makes an index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.elastic import bodies
from voicevault_retrievers.engines.elastic.bodies import Search, document_id
from voicevault_retrievers.engines.elastic.clients import (
    CollectionExistsError,
    ElasticConnection,
    ElasticRequest,
    Login,
    NoIndexError,
)
from voicevault_retrievers.engines.engine import Engine, Record, Stored
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.rows import CHUNK, chunk_of, id_of, key_of
from voicevault_retrievers.errors import ConfigError, SearchError

PAGE = 1000
"""The most documents of a page that is read through."""

BYTES = 10_000_000
"""The most bytes of a bulk request, but for one document; the servers take 100 MB by default."""

_PLAIN = re.compile(r"(?!hex\.)[a-z0-9][a-z0-9_.-]{0,199}")

Source = Mapping[str, Any]


class ElasticCollection(Engine):
    """The part of an engine that keeps an index."""

    connection: ClassVar[type[ElasticConnection]]
    own_settings: ClassVar[Mapping[str, Any]] = {}
    """The index settings that its vectors need."""

    def __init__(
        self,
        name: str,
        url: str = "http://localhost:9200",
        *,
        user: tuple[str, str] | None = None,
        api_key: str | None = None,
        index: str | None = None,
        settings: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, options=None if index is None else {"index": index}, **options)
        self.index = name if _PLAIN.fullmatch(name) else f"hex.{name.encode('utf-8', 'surrogatepass').hex()}"
        if len(self.index) > 204:
            raise ConfigError(f"the name {name[:40]!r}... is too long for an index: shorten it")
        self._settings = dict(settings or {})
        self._connection = self.connection(url, Login(user, api_key), self.timeout, client_options or {})
        self._alias = ""
        self._known: dict[str, str] = {}

    def _now(self, ask: Any) -> Any:
        return self._connection.ask(ask)

    async def _later(self, ask: Any) -> Any:
        return await self._connection.aask(ask)

    def _close(self) -> None:
        self._connection.close()

    async def _aclose(self) -> None:
        await self._connection.aclose()

    def forget(self) -> None:
        super().forget()
        self._known.clear()

    def _ask(self, method: str, path: str, body: Any = None, **params: str) -> Steps[Any]:
        """A request to the index; SearchError where it is gone."""
        try:
            return (yield ElasticRequest(method, f"/{self._alias}/{path}", body, params))
        except NoIndexError as error:
            raise self._gone() from error

    def _gone(self) -> SearchError:
        self.forget()
        return SearchError(f"collection {self.name!r} was replaced meanwhile, or removed: ask again")

    # The index.

    def _read_recipe(self) -> Steps[str | None]:
        try:
            told = yield ElasticRequest("GET", f"/{self.index}/_mapping")
        except NoIndexError:
            return None
        (held,) = told.values()
        recipe, made = bodies.told_of(held["mappings"])
        self._alias = f"{self.index}.{made}"
        return recipe

    def _vector_field(self, dimension: int, kind: str | None) -> Mapping[str, Any]:
        """The mapping of vectors, by the option `index`."""
        raise NotImplementedError

    def _create(self, recipe: Recipe) -> Steps[None]:
        made, entry = uuid4().hex, recipe.embedder
        vector = {} if entry is None else self._vector_field(entry.dimension, recipe.options.get("index"))
        body = bodies.index_of(recipe, made, f"{self.index}.{made}", vector, {**self._settings, **self.own_settings})
        try:
            yield ElasticRequest("PUT", f"/{self.index}", body)
        except CollectionExistsError:  # another client has just created it
            return

    def _drop(self) -> Steps[None]:
        try:
            yield ElasticRequest("DELETE", f"/{self.index}")
        except NoIndexError:
            return

    # Reading.

    def _documents(self, keys: Sequence[str], fields: Sequence[str]) -> Steps[dict[str, Mapping[str, Any]]]:
        """The documents of these keys that exist, by key; their `_source` has `fields`."""
        found: dict[str, Mapping[str, Any]] = {}
        for start in range(0, len(keys), PAGE):
            named = {document_id(key): key for key in keys[start : start + PAGE]}
            told = yield from self._ask("POST", "_mget", {"ids": [*named]}, _source_includes=",".join(["key", *fields]))
            for one in told["docs"]:
                self._check(one)
                if one.get("found"):
                    found[named[one["_id"]]] = one
        return found

    def _check(self, told: Mapping[str, Any]) -> None:
        """Raise what a part of an answer says failed."""
        if "error" in told:
            failure = self._connection.refusal(told.get("status"), told["error"])
            raise self._gone() if isinstance(failure, NoIndexError) else failure

    def _search(self, *asked: Search) -> Steps[list[Mapping[str, Any]]]:
        """The answers to searches, in one request."""
        lines: list[Any] = []
        for one in asked:
            lines += [{"search_type": "dfs_query_then_fetch"} if one.ranked else {}, one.body]
        told = yield from self._ask("POST", "_msearch", lines)
        for answer in told["responses"]:
            self._check(answer)
            if answer["timed_out"]:
                raise self._connection.slow()
            if answer["_shards"]["failed"]:
                raise SearchError(f"{self._connection.place} searched a part only: {str(answer['_shards'])[:300]}")
        return list(told["responses"])

    def _through(
        self, clauses: Sequence[Any], fields: Sequence[str], take: Callable[[list[Source]], object]
    ) -> Steps[None]:
        """Give all chunks that pass to `take`, page by page."""
        after: Any = None
        while True:
            (told,) = yield from self._search(bodies.listing(clauses, PAGE, fields, after))
            hits = told["hits"]["hits"]
            page = [hit["_source"] for hit in hits]
            yield Compute(partial(take, page))
            if len(hits) < PAGE:
                return
            after = hits[-1]["sort"]

    def _count(self) -> Steps[int]:
        query = {"bool": {"filter": bodies.passing(None)[0]}}
        return int((yield from self._ask("POST", "_count", {"query": query}))["count"])

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        found = yield from self._documents([key_of(one) for one in ids], ["digest"])
        return {id_of(key): one["_source"]["digest"] for key, one in found.items()}

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        found = yield from self._documents([key_of(one, "p" if parents else "c") for one in ids], CHUNK)
        return {id_of(key): chunk_of(one["_source"], self.name) for key, one in found.items()}

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        found = yield from self._documents([key_of(one) for one in ids], ["row"])
        return {id_of(key): bodies.vector_of(one["_source"]) for key, one in found.items() if "row" in one["_source"]}

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        limit = min(limit, PAGE)
        (told,) = yield from self._search(bodies.listing(bodies.passing(where)[0], limit, ["key", "digest"], cursor))
        hits = told["hits"]["hits"]
        page = [Stored(id_of(hit["_source"]["key"]), hit["_source"]["digest"]) for hit in hits]
        return page, hits[-1]["sort"] if len(hits) == limit else None

    # Writing.

    def _bulk(self, actions: Sequence[tuple[Mapping[str, Any], Source | None]]) -> Steps[list[Mapping[str, Any]]]:
        """Send actions, each with its document; returns what became of each. A later search finds what they wrote."""
        results: list[Mapping[str, Any]] = []
        for lines in _parts(actions):
            told = yield from self._ask("POST", "_bulk", lines, refresh="true", require_alias="true")
            results += [result for item in told["items"] for result in item.values()]
        return results

    def _written(self, results: Sequence[Mapping[str, Any]], but: Sequence[int] = ()) -> None:
        """Raise where an action failed, with how many did; not for statuses in `but`."""
        failed = [one for one in results if "error" in one and one["status"] not in but]
        if not failed:
            return
        first = self._connection.refusal(failed[0]["status"], failed[0]["error"])
        if isinstance(first, NoIndexError):
            raise self._gone() from first
        raise type(first)(f"{len(failed)} of {len(results)} documents were not written: {first}")

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        if any(record.digest != self.digest(record.chunk) for record in records[:1]):
            raise self._gone()  # they were analysed for another index
        before = yield from self._documents([key_of(record.chunk.id) for record in records], ["parent"])
        made = [bodies.chunk_document(record) for record in records]
        made += [bodies.parent_document(parent) for parent in parents]
        self._written((yield from self._bulk([({"index": {"_id": document_id(one["key"])}}, one) for one in made])))
        named = {one["parent"] for one in made} | {one["key"] for one in made}
        yield from self._tidy({one["_source"]["parent"] for one in before.values()} - named)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        held = yield from self._documents([key_of(one) for one in ids], ["parent"])
        results = yield from self._bulk([({"delete": {"_id": document_id(key)}}, None) for key in held])
        self._written(results)
        yield from self._tidy({one["_source"]["parent"] for one in held.values()})
        return sum(one["result"] == "deleted" for one in results)

    def _tidy(self, parents: set[str | None]) -> Steps[None]:
        """Remove parents that no chunk names, but for those that are written meanwhile.

        One that a chunk names again meanwhile is put back, where nothing else has put it there.
        """
        orphans = {one for one in parents if one is not None}
        kept = (yield from self._documents(sorted(orphans), [*CHUNK, "kind"])) if orphans else {}
        gone = set(kept) - ((yield from self._named(sorted(kept))) if kept else set())
        if not gone:
            return
        deleted = [
            {"_id": kept[key]["_id"], "if_seq_no": kept[key]["_seq_no"], "if_primary_term": kept[key]["_primary_term"]}
            for key in sorted(gone)
        ]
        self._written((yield from self._bulk([({"delete": one}, None) for one in deleted])), but=[404, 409])
        again = yield from self._named(sorted(gone))
        back = [({"create": {"_id": document_id(key)}}, kept[key]["_source"]) for key in sorted(again & gone)]
        self._written((yield from self._bulk(back)), but=[409])

    def _named(self, parents: Sequence[str]) -> Steps[set[str]]:
        """The given parents that chunks name."""
        (told,) = yield from self._search(bodies.naming(parents))
        return {one["key"] for one in told["aggregations"]["parents"]["buckets"]}


def _parts(actions: Sequence[tuple[Mapping[str, Any], Source | None]]) -> Iterator[list[Any]]:
    """The lines of bulk requests of at most `BYTES`, roughly."""
    lines: list[Any] = []
    size = 0
    for action, document in actions:
        new = 0 if document is None else _size(document)
        if lines and size + new > BYTES:
            yield lines
            lines, size = [], 0
        lines += [action] if document is None else [action, document]
        size += new
    if lines:
        yield lines


def _size(document: Source) -> int:
    """The bytes of a document as JSON, roughly."""
    vector = 22 * len(document.get("vector", ()))
    return vector + sum(len(value) for value in document.values() if isinstance(value, str))

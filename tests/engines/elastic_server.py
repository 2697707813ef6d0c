"""Elasticsearch's and OpenSearch's HTTP interfaces over dictionaries, for tests where no server can be had.

Small and strict: what a server does not know is refused with status 400, as are fields and parameters that it knows but
this package does not use. It is no server: what a real one does otherwise is not seen here. Shapes are those of these
pages (elastic.co/docs/api/doc/elasticsearch, docs.opensearch.org):

- index: "Create an index", "Get mapping definitions", "Delete indices"; "Similarity settings"; "Whitespace tokenizer"
- documents: "Bulk index or delete documents" (with `require_alias`, `if_seq_no`, `refresh`), "Get multiple documents",
  "Optimistic concurrency control"
- searches: "Run multiple searches", with bodies as of "Run a search"; "Count search results", "Sort search results",
  "Paginate search results" (`search_after`), and those that `elastic_queries` names
- errors: the object `error` with `root_cause`, `type` and `reason`, and `status`
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.engines.elastic_index import RefusedError, only, refused
from tests.engines.elastic_queries import Index
from tests.engines.http_server import serving

MAX_ID = 512
"""The most bytes of an `_id`."""


class FakeElastic:
    """What was asked, and what is answered instead: a status, nothing at all (`silent`), or what is no JSON (`raw`)."""

    def __init__(self, product: str) -> None:
        self.product = product
        self.mutex = threading.RLock()
        self.indexes: dict[str, Index] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.raw: bytes | None = None
        self.silent = threading.Event()
        self.over = threading.Event()
        self.failing: dict[str, tuple[int, str]] = {}
        """For an `_id`, the status and type of the error that its bulk actions end with."""
        self.failed_shards = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def scheme(self) -> str:
        return "elasticsearch" if self.product == "Elasticsearch" else "opensearch"

    def calls(self) -> list[str]:
        """The last part of each request's path."""
        return [path.rpartition("/")[2] for _, path, _ in self.asked]

    def answer(self, method: str, path: str, params: dict[str, str], body: Any) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        with self.mutex:
            try:
                return 200, self._answer(method, parts, params, body)
            except RefusedError as error:
                return error.status, {"error": error.told, "status": error.status}

    def _answer(self, method: str, parts: list[str], params: dict[str, str], body: Any) -> Any:
        match method, parts:
            case "PUT", [name]:
                only(params, (), "create index")
                return self._create(name, body)
            case "DELETE", [name]:
                only(params, (), "delete index")
                if name not in self.indexes:
                    raise self._missing(name)
                del self.indexes[name]
                return {"acknowledged": True}
            case "GET", [name, "_mapping"]:
                index = self._index(name)
                return {index.name: {"mappings": index.mappings}}
            case "POST", [name, "_bulk"]:
                only(params, ("refresh", "require_alias"), "bulk")
                return self._bulk(name, params, body)
            case "POST", [name, "_mget"]:
                only(params, ("_source_includes",), "mget")
                only(body, ("ids",), "mget")
                return {"docs": [self._got(name, one, params) for one in body["ids"]]}
            case "POST", [name, "_count"]:
                only(body, ("query",), "count")
                return {"count": len(self._index(name).scores(body["query"])), "_shards": self._shards()}
            case "POST", [name, "_msearch"]:
                only(params, (), "msearch")
                heads, bodies = body[::2], body[1::2]
                return {"took": 1, "responses": [self._one_of(name, *one) for one in zip(heads, bodies, strict=True)]}
        raise refused(f"no handler found for uri [{'/'.join(parts)}] and method [{method}]")

    def _create(self, name: str, body: Any) -> Any:
        only(body, ("settings", "mappings", "aliases"), "create index")
        if name in self.indexes:
            raise refused(f"index [{name}/x] already exists", "resource_already_exists_exception")
        if name != name.lower() or name[0] in "_-+" or set(name) & set('\\/*?"<>| ,#:') or len(name.encode()) > 255:
            raise refused(f"Invalid index name [{name}]", "invalid_index_name_exception")
        self.indexes[name] = Index(self.product, name, body)
        return {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def _missing(self, name: str) -> RefusedError:
        return refused(f"no such index [{name}]", "index_not_found_exception", 404)

    def _index(self, name: str) -> Index:
        for index in self.indexes.values():
            if name == index.name or name in index.aliases:
                return index
        raise self._missing(name)

    def _got(self, name: str, one: str, params: Mapping[str, str]) -> Any:
        try:
            index = self._index(name)
        except RefusedError as error:
            return {"_index": name, "_id": one, "error": error.told}
        held = index.documents.get(one)
        if held is None:
            return {"_index": index.name, "_id": one, "found": False}
        fields = params["_source_includes"].split(",")
        source = {key: value for key, value in held.stored.items() if key in fields}
        told = {"_index": index.name, "_id": one, "_version": 1, "_seq_no": held.seq_no, "_primary_term": 1}
        return {**told, "found": True, "_source": source}

    def _bulk(self, name: str, params: Mapping[str, str], lines: list[Any]) -> Any:
        if params.get("refresh") not in (None, "true", "false", "wait_for"):
            raise refused("Unknown value for refresh")
        items, rest = [], list(lines)
        while rest:
            ((action, told),) = rest.pop(0).items()
            document = None if action == "delete" else rest.pop(0)
            status, result = self._acted(name, params, action, told, document)
            items.append({action: {"_index": name, "_id": told["_id"], "status": status, **result}})
        if params.get("refresh") in ("true", "wait_for") and any(item for item in items):
            for index in self.indexes.values():
                if name == index.name or name in index.aliases:
                    index.refresh()
        errors = any("error" in result for item in items for result in item.values())
        return {"took": 1, "errors": errors, "items": items}

    def _acted(
        self, name: str, params: Mapping[str, str], action: str, told: Any, document: Any
    ) -> tuple[int, dict[str, Any]]:
        try:
            only(told, ("_id", "if_seq_no", "if_primary_term"), "Action/metadata line")
            if action not in ("index", "create", "delete"):
                raise refused("Malformed action/metadata line")
            if len(told["_id"].encode()) > MAX_ID:
                raise refused(f"id is too long, must be no longer than 512 bytes but was: {len(told['_id'])}")
            if told["_id"] in self.failing:
                status, kind = self.failing[told["_id"]]
                raise refused("it is told to fail", kind, status)
            if name in self.indexes and params.get("require_alias") == "true":
                raise self._missing(name)
            index = self._index(name)  # a server without require_alias would create it
            held = index.documents.get(told["_id"])
            if "if_seq_no" in told and (held is None or held.seq_no != told["if_seq_no"]):
                raise refused("version conflict", "version_conflict_engine_exception", 409)
            if action == "create" and held is not None:
                raise refused("version conflict", "version_conflict_engine_exception", 409)
            if action == "delete":
                index.delete(told["_id"])
                return (404, {"result": "not_found"}) if held is None else (200, {"result": "deleted"})
            index.put(told["_id"], document)
            return (201, {"result": "created"}) if held is None else (200, {"result": "updated"})
        except RefusedError as error:
            return error.status, {"error": error.told}

    def _shards(self) -> dict[str, int]:
        return {"total": 1, "successful": 1 - self.failed_shards, "skipped": 0, "failed": self.failed_shards}

    def _one_of(self, name: str, head: Any, body: Any) -> Any:
        try:
            only(head, ("search_type", "index"), "msearch header")
            if head.get("search_type", "query_then_fetch") not in ("query_then_fetch", "dfs_query_then_fetch"):
                raise refused("No search type for it")
            return {**self._searched(name, body), "status": 200}
        except RefusedError as error:
            return {"error": error.told, "status": error.status}

    def _searched(self, name: str, body: Any) -> Any:
        return {"took": 1, "timed_out": False, "_shards": self._shards(), **self._index(name).search(body)}


def _handler(fake: FakeElastic) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two packets

        def _serve(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            text, kind = self.rfile.read(size).decode(), self.headers.get("content-type", "")
            body: Any = None
            if "ndjson" in kind:
                body = [json.loads(line) for line in text.splitlines()]
            elif text:
                body = json.loads(text)
            url = urlsplit(self.path)
            fake.asked.append((self.command, url.path, body))
            fake.headers.append({key.lower(): value for key, value in self.headers.items()})
            if fake.silent.is_set():
                fake.over.wait(30)
                return
            if fake.status == 200:
                status, told = fake.answer(self.command, url.path, dict(parse_qsl(url.query)), body)
            else:
                cause = {"type": "told_exception", "reason": f"it is {fake.status}"}
                status, told = fake.status, {"error": {"root_cause": [cause], **cause}, "status": fake.status}
            sent = json.dumps(told).encode() if fake.raw is None else fake.raw
            status = status if fake.raw is None else 200
            self.send_response(status)
            if fake.product == "Elasticsearch":
                self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names of the library

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    return Handler


@contextmanager
def fake_elastic(product: str) -> Iterator[FakeElastic]:
    """One, of "Elasticsearch" or "OpenSearch", on a free port."""
    fake = FakeElastic(product)
    with serving(_handler(fake), fake.over) as fake.port:
        yield fake

"""Qdrant's HTTP interface over its client's local mode, for what is asked of a server where there is none.

Requests are read by the client's own models, which forbid what Qdrant does not know, and are kept. It is not Qdrant:
what a server does otherwise than local mode is not seen here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

import pydantic
from qdrant_client import QdrantClient
from qdrant_client import models as of
from qdrant_client.http import models as rest
from qdrant_client.http.models import models as all_of

from tests.engines.http_server import serving


class FakeQdrant:
    """What was asked, and what is answered instead: a status, nothing at all (`silent`), or what is no JSON."""

    def __init__(self) -> None:
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.mutex = threading.Lock()
        self.indexes: dict[str, Any] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.raw: bytes | None = None
        self.silent = threading.Event()
        self.over = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path: str) -> list[Any]:
        """What was sent to a path that ends so."""
        return [body for _, asked, body in self.asked if asked.endswith(path)]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        _, _, name, *rest_of = path.split("/")
        name = unquote(name)
        with self.mutex:
            known = self.client.collection_exists(name)
            if rest_of == ["exists"]:
                return 200, {"exists": known}
            if not rest_of and method == "PUT":
                return self._create(name, body, known)
            if not known:
                return 404, None
            return 200, self._known(method, name, "/".join(rest_of), body)

    def _create(self, name: str, body: Any, known: bool) -> tuple[int, Any]:
        if known:
            return 409, None
        made = rest.CreateCollection(**body)
        self.client.create_collection(
            name, vectors_config=made.vectors, sparse_vectors_config=made.sparse_vectors, metadata=made.metadata
        )
        return 200, True

    def _known(self, method: str, name: str, rest_of: str, body: Any) -> Any:
        done = {"operation_id": 0, "status": "completed"}
        if method == "GET":
            schema = {field: {"data_type": "keyword", "points": 0} for field in self.indexes}
            return {**self.client.get_collection(name).model_dump(mode="json"), "payload_schema": schema}
        if method == "DELETE":
            self.indexes.clear()
            return self.client.delete_collection(name)
        if rest_of == "index":
            made = rest.CreateFieldIndex(**body)
            self.indexes[made.field_name] = made.field_schema
            return done
        if (method, rest_of) == ("PUT", "points"):
            given = rest.PointsList(**body)
            self.client.upsert(name, given.points, update_filter=given.update_filter)
            return done
        if rest_of == "points/batch":
            self.client.batch_update_points(name, all_of.UpdateOperations(**body).operations)
            return [done for _ in body["operations"]]
        if rest_of == "points/delete":
            self.client.delete(name, of.FilterSelector(**body) if "filter" in body else of.PointIdsList(**body))
            return done
        return self._read(name, rest_of, body)

    def _read(self, name: str, rest_of: str, body: Any) -> Any:
        if rest_of == "points":
            asked: Any = all_of.PointRequest(**body)
            return self.client.retrieve(
                name, asked.ids, with_payload=asked.with_payload, with_vectors=asked.with_vector
            )
        if rest_of == "points/scroll":
            page: Any = all_of.ScrollRequest(**body)
            found, after = self.client.scroll(
                name, page.filter, limit=page.limit, offset=page.offset, with_payload=page.with_payload
            )
            return {"points": found, "next_page_offset": after}
        if rest_of == "points/count":
            return self.client.count(name, all_of.CountRequest(**body).filter)
        if rest_of == "facet":
            facet: Any = all_of.FacetRequest(**body)
            assert facet.key in self.indexes, f"no index for the facet {facet.key}"
            return self.client.facet(name, facet.key, facet.filter, limit=facet.limit, exact=facet.exact)
        assert rest_of == "points/query/batch", rest_of
        queries: Any = all_of.QueryRequestBatch(**body).searches
        for query in queries:  # params say how an index is searched, and there is none
            query.params = None
        return self.client.query_batch_points(name, queries)


def _handler(fake: FakeQdrant) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            path = urlsplit(self.path).path
            fake.asked.append((self.command, path, body))
            fake.headers.append({key.lower(): value for key, value in self.headers.items()})
            if fake.silent.is_set():
                fake.over.wait(30)
                return
            status, result = (fake.status, None) if fake.status != 200 else fake.answer(self.command, path, body)
            said = "ok" if status == 200 else {"error": f"it is {status}"}
            told = {"result": result, "status": said, "time": 0.0}
            sent = json.dumps(told, default=_plain).encode() if fake.raw is None else fake.raw
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - names of the library

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    return Handler


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, pydantic.BaseModel) else value.item()


@contextmanager
def fake_qdrant() -> Iterator[FakeQdrant]:
    """One on a free port."""
    fake = FakeQdrant()
    try:
        with serving(_handler(fake), fake.over) as fake.port:
            yield fake
    finally:
        fake.client.close()

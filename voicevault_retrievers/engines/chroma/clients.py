"""Requests to a Chroma over HTTP or in this process, in one form for both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import OTHERWISE, leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.steps import in_thread
from voicevault_retrievers.engines.clients import Clients
from voicevault_retrievers.errors import SearchError, SearchNotAvailableError, SearchTimeoutError

SPACE: Mapping[str, Any] = {"hnsw": {"space": "cosine", "ef_construction": 200, "ef_search": 400, "max_neighbors": 32}}
"""The index settings of a new collection. Chroma's defaults (100, 100, 16) miss more near neighbours."""


class ChromaRequest(NamedTuple):
    """One request: `find`, `create`, `mark` or `drop` a collection by name, or one of `OPERATIONS` on its `key`.

    `find` returns a `CollectionState` or None; `drop` returns whether there was a collection.
    """

    operation: str
    name: str
    key: Any = None
    options: Mapping[str, Any] = {}


class CollectionState(NamedTuple):
    """A collection as it is now: its id, the key that requests name it by, and its metadata."""

    id: str
    key: Any
    metadata: Mapping[str, Any]


OPERATIONS = ("add", "count", "delete", "get", "query", "upsert")


class GoneError(SearchNotAvailableError):
    """The collection has been removed since it was found."""


class HttpChroma:
    """A Chroma server through its REST interface (v2), with one client for threads and one for each event loop.

    Chroma's own clients have no timeout, send a request when they are created, and share one session, with the first
    server's headers, between all servers of an event loop. `timeout` is in seconds, for connecting and for each answer;
    None waits.
    """

    def __init__(
        self, url: str, *, timeout: float | None, token: str | None = None, tenant: str, database: str
    ) -> None:
        self.url = url
        self._collections = f"{url}/api/v2/tenants/{_part(tenant)}/databases/{_part(database)}/collections"
        headers = {} if token is None else {"x-chroma-token": token}
        self._options: dict[str, Any] = {"timeout": timeout, "headers": headers}
        self._timeout = timeout
        self._preparing = Mutex()
        self._verify: Any = None
        self._clients = Clients(self._connected)

    def ask(self, ask: ChromaRequest) -> Any:
        """The answer to a request."""
        client = self._clients.of_threads()
        try:
            return self._answer(ask, client.request(*self._line(ask), json=_body(ask)))
        except SearchError:
            raise
        except Exception as error:
            raise self._mapped(ask, error, client.is_closed) from error

    async def aask(self, ask: ChromaRequest) -> Any:
        """`ask` on the running event loop."""
        client = await self._clients.of_loop()
        try:
            return self._answer(ask, await client.request(*self._line(ask), json=_body(ask)))
        except SearchError:
            raise
        except Exception as error:
            raise self._mapped(ask, error, client.is_closed) from error

    def close(self) -> None:
        """Close the connections of threads."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()

    def _connected(self, awaited: bool) -> Any:
        self._prepare()
        httpx = require("httpx", extra="chroma")
        return (httpx.AsyncClient if awaited else httpx.Client)(verify=self._verify, **self._options)

    def _prepare(self) -> None:
        """Load the client's modules and the certificates, once, so that no event loop waits for them.

        Without TLS the certificates are not needed, and loading them would take most of the time of a first request.
        """
        with self._preparing:
            if self._verify is None:
                require("httpcore", extra="chroma")  # httpx imports it when a client is created
                httpx = require("httpx", extra="chroma")
                self._verify = False if self.url.startswith("http:") else httpx.create_ssl_context()

    def _line(self, ask: ChromaRequest) -> tuple[str, str]:
        """The method and the URL of a request."""
        by_name = f"{self._collections}/{_part(ask.name)}"
        own = f"{self._collections}/{ask.key}"
        if ask.operation in OPERATIONS:
            return ("GET" if ask.operation == "count" else "POST"), f"{own}/{ask.operation}"
        return {
            "find": ("GET", by_name),
            "create": ("POST", self._collections),
            "mark": ("PUT", own),
            "drop": ("DELETE", by_name),
        }[ask.operation]

    def _answer(self, ask: ChromaRequest, response: Any) -> Any:
        status = response.status_code
        if status == 404 and ask.operation in ("find", "drop"):
            return None if ask.operation == "find" else False
        if status == 409 and ask.operation == "create":
            return None
        if status >= 400:
            raise self._refused(ask, status, response.text)
        found = response.json()
        if ask.operation == "find":
            return CollectionState(found["id"], found["id"], found.get("metadata") or {})
        return True if ask.operation == "drop" else found

    def _refused(self, ask: ChromaRequest, status: int, text: str) -> SearchError:
        told = f"Chroma at {self.url} answers {ask.operation} of {ask.name!r} with {status}: {text[:300]}"
        if status == 404:
            return GoneError(f"{told}; the collection has been removed meanwhile, or it is another database's")
        if status in (408, 504):
            return SearchTimeoutError(told)
        if status in (401, 403, 429, 502, 503):
            return SearchNotAvailableError(told)
        return SearchError(told)

    def _mapped(self, ask: ChromaRequest, error: Exception, closed: bool) -> SearchError:
        httpx = require("httpx", extra="chroma")
        if isinstance(error, httpx.ConnectTimeout):
            return SearchNotAvailableError(f"Chroma at {self.url} cannot be reached within {self._timeout} s")
        if isinstance(error, httpx.TimeoutException):
            return SearchTimeoutError(f"Chroma at {self.url} did not answer within {self._timeout} s")
        if isinstance(error, httpx.TransportError | httpx.InvalidURL):
            return SearchNotAvailableError(f"Chroma at {self.url} cannot be reached: {error!r}")
        if closed:
            return SearchNotAvailableError(f"the connections to Chroma at {self.url} were closed meanwhile: ask again")
        return SearchError(f"Chroma at {self.url} gives no answer to {ask.operation} that can be read: {error!r}")

    def __repr__(self) -> str:
        return self.url


class LocalChroma:
    """A Chroma in a folder, opened in this process; no other may write to it while it is open.

    A process that was forked meanwhile cannot ask it: SearchNotAvailableError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place = os.path.realpath(folder)
        self._client: Any = None
        reset_in_child(self, LocalChroma._forked)

    def ask(self, ask: ChromaRequest) -> Any:
        """The answer to a request."""
        if self._place in _inherited:
            raise SearchNotAvailableError(
                f"Chroma in {self.folder} was open when this process was forked, and would hang here: {OTHERWISE}, or "
                "take a Chroma server"
            )
        if ask.operation == "find" and not (self.folder / "chroma.sqlite3").is_file():
            return None  # do not create the folder
        try:
            return self._asked(ask)
        except SearchError:
            raise
        except Exception as error:
            raise self._mapped(ask, error) from error

    async def aask(self, ask: ChromaRequest) -> Any:
        """`ask` in a worker thread."""
        return await in_thread(partial(self.ask, ask))

    def close(self) -> None:
        """Close the folder; it stays open while another client of this process has it open."""
        with _opening:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    async def aclose(self) -> None:
        """Does nothing: there are no connections of an event loop."""

    def _asked(self, ask: ChromaRequest) -> Any:
        if ask.operation in OPERATIONS:
            return getattr(ask.key, ask.operation)(**_plain(ask.options))
        client = self._opened()
        errors = require("chromadb.errors", extra="chroma")
        try:
            if ask.operation == "find":
                found = client.get_collection(ask.name, embedding_function=None)
                return CollectionState(str(found.id), found, found.metadata or {})
            if ask.operation == "create":
                client.create_collection(
                    ask.name, metadata=dict(ask.options["metadata"]), configuration=SPACE, embedding_function=None
                )
                return None
            if ask.operation == "mark":
                return ask.key.modify(metadata=dict(ask.options["metadata"]))
            client.delete_collection(ask.name)
        except errors.NotFoundError:
            if ask.operation == "mark":
                raise
            return None if ask.operation == "find" else False
        except (errors.UniqueConstraintError, errors.InternalError) as error:
            if ask.operation == "create" and "already exists" in str(error):
                return None
            raise
        return True

    def _opened(self) -> Any:
        with _opening:
            if self._client is None:
                chromadb = require("chromadb", extra="chroma")
                settings = chromadb.config.Settings(anonymized_telemetry=False)
                self._client = chromadb.PersistentClient(path=str(self.folder), settings=settings)
            return self._client

    def _forked(self) -> None:
        if self._client is not None:
            leave_to_parent(self._client)
            self._client = None
            _inherited.add(self._place)

    def _mapped(self, ask: ChromaRequest, error: Exception) -> SearchError:
        errors = require("chromadb.errors", extra="chroma")
        if self._client is None:
            return SearchNotAvailableError(f"Chroma in {self.folder} was closed meanwhile: ask again")
        told = f"Chroma in {self.folder} fails at {ask.operation} of {ask.name!r}: {error}"
        return GoneError(told) if isinstance(error, errors.NotFoundError) else SearchError(told)

    def __repr__(self) -> str:
        return str(self.folder)


_opening = Mutex()
"""Chroma shares an open folder among a process's clients, and miscounts them where two open it at once."""

_inherited: set[str] = set()
"""The folders that were open in the parent when this process was forked."""


def _body(ask: ChromaRequest) -> Mapping[str, Any] | None:
    if ask.operation == "create":
        return {"name": ask.name, "metadata": ask.options["metadata"], "configuration": SPACE, "get_or_create": False}
    if ask.operation == "mark":
        return {"new_metadata": ask.options["metadata"]}
    return ask.options if ask.operation in OPERATIONS and ask.operation != "count" else None


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without None, which Chroma's own client treats differently from an omitted option."""
    return {key: value for key, value in options.items() if value is not None}


def _part(name: str) -> str:
    return quote(name, safe="")

"""Access to Qdrant: a server, or the client's local mode."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakValueDictionary

from voicevault_retrievers._support.checks import header
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.steps import in_thread
from voicevault_retrievers.engines.clients import Clients
from voicevault_retrievers.errors import (
    ConfigError,
    LockedError,
    RetrievalError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)

_REFUSED = (401, 403)
_AWAY = (429, 502, 503)
_SLOW = (408, 504)
_PLACE = re.compile(r"https?://[^/@?#\\\s]+(/[^@?#\s]*)?")
_NO_COLLECTION = re.compile(r"Collection .* not found$", re.DOTALL)


@dataclass(frozen=True, eq=False)
class QdrantCall:
    """A method of Qdrant's client and its arguments."""

    method: str
    arguments: Mapping[str, Any]


class NoCollectionError(SearchError):
    """The collection does not exist."""


class QdrantCaller(Protocol):
    """A connection to Qdrant, sync and on an event loop."""

    local: bool

    def ask(self, asked: QdrantCall) -> Any: ...

    def shared(self) -> QdrantCaller: ...

    async def aask(self, asked: QdrantCall) -> Any: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class InThreads:
    """A synchronous client, called in worker threads from an event loop."""

    local: bool

    def ask(self, asked: QdrantCall) -> Any:
        """The result of the method."""
        raise NotImplementedError

    async def aask(self, asked: QdrantCall) -> Any:
        """`ask` in a worker thread."""
        return await in_thread(partial(self.ask, asked))

    async def aclose(self) -> None:
        """Does nothing: there are no connections of an event loop."""


class Lent(InThreads):
    """A client that its owner closes. Calls to one in local mode, which is not thread-safe, are serialised."""

    _mutexes: ClassVar[WeakKeyDictionary[Any, Mutex]] = WeakKeyDictionary()

    def __init__(self, client: Any) -> None:
        if isinstance(client, require("qdrant_client", extra="qdrant").AsyncQdrantClient):
            raise ConfigError("client= is a QdrantClient; for an event loop give url= or path=, which serve both")
        local = require("qdrant_client.local.qdrant_local", extra="qdrant").QdrantLocal
        self._client = client
        self.local = isinstance(getattr(client, "_client", None), local)
        self._mutex = self._mutexes.setdefault(client, Mutex())

    def shared(self) -> Lent:
        """The same object."""
        return self

    def close(self) -> None:
        """Does nothing: others use the client too."""

    def ask(self, asked: QdrantCall) -> Any:
        with _errors("Qdrant", None):
            if not self.local:
                return getattr(self._client, asked.method)(**asked.arguments)
            with self._mutex:
                return _call_local(self._client, asked)


class Folder(InThreads):
    """Local mode in a folder, or in memory (None). Engines of one folder share one client, as it locks the folder."""

    local = True
    _opened: ClassVar[WeakValueDictionary[str, _Opened]] = WeakValueDictionary()
    _opening = Mutex()

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else os.path.realpath(path)
        self._mine: _Opened | None = None
        reset_in_child(self, Folder._forked)

    def shared(self) -> Folder:
        """For memory the same object, as nothing there is closed."""
        return self if self.path is None else Folder(self.path)

    def ask(self, asked: QdrantCall) -> Any:
        opened = self._open()
        with _errors(f"Qdrant in {self.path or 'memory'}", None), opened.mutex:
            return _call_local(opened.client, asked)

    def close(self) -> None:
        """Release the folder; the last engine of this process closes it. Collections in memory stay."""
        with self._opening:
            mine = self._mine
            if mine is None or self.path is None:
                return
            self._mine = None
            mine.users -= 1
            if mine.users:
                return
            try:
                with mine.mutex:
                    mine.client.close()
            finally:
                self._opened.pop(self.path, None)  # any earlier, others find it locked

    def __repr__(self) -> str:
        return f"Folder({self.path!r})"

    def _forked(self) -> None:
        if self.path is not None and self._mine is not None:  # a folder belongs to one process
            leave_to_parent(self._mine)
            self._opened.pop(self.path, None)
            self._mine = None

    def _open(self) -> _Opened:
        with self._opening:
            if self._mine is None:
                found = None if self.path is None else self._opened.get(self.path)
                if found is None:
                    found = _Opened(self._connect())
                    if self.path is not None:
                        self._opened[self.path] = found
                found.users += 1
                self._mine = found
            return self._mine

    def _connect(self) -> Any:
        make = require("qdrant_client", extra="qdrant").QdrantClient
        if self.path is None:
            return make(":memory:", force_disable_check_same_thread=True)
        try:
            if _locked(self.path):
                raise LockedError(
                    f"the folder {self.path} is open in another process: local mode has one at a time. Close it there, "
                    "or start a Qdrant server"
                )
            return make(path=self.path, force_disable_check_same_thread=True)
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, RetrievalError):
                raise
            raise SearchNotAvailableError(f"the folder {self.path} cannot be opened: {error}") from error


def _locked(path: str) -> bool:
    """Whether another process has the folder open; the client's own check leaves the lock file open."""
    portalocker = require("portalocker", extra="qdrant")
    try:
        with open(os.path.join(path, ".lock"), "r+", encoding="utf-8") as lock:
            portalocker.lock(lock, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
            portalocker.unlock(lock)
    except FileNotFoundError:
        return False
    except portalocker.exceptions.LockException:
        return True
    return False


class _Opened:
    """A client in local mode, and the number of engines that use it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.mutex = Mutex()
        self.users = 0


class HttpServer:
    """A Qdrant server over HTTP: one client for all threads, and one for each event loop."""

    local = False

    def __init__(self, url: str, api_key: str | None, timeout: float | None) -> None:
        if not _is_place(url):
            raise ConfigError(
                "url= is like http://host:6333 or https://host:6333/prefix, without user and password: a key is given "
                "as api_key="
            )
        self.url = url
        self._key = None if api_key is None else header("api_key", api_key)
        self._timeout = timeout
        self._clients = Clients(self._connected)

    def shared(self) -> HttpServer:
        """The same server with separate connections."""
        return HttpServer(self.url, self._key, self._timeout)

    def ask(self, asked: QdrantCall) -> Any:
        client = self._clients.of_threads()
        with _errors(f"Qdrant at {self.url}", self._timeout):
            return getattr(client, asked.method)(**asked.arguments)

    async def aask(self, asked: QdrantCall) -> Any:
        client = await self._clients.of_loop()
        with _errors(f"Qdrant at {self.url}", self._timeout):
            return await getattr(client, asked.method)(**asked.arguments)

    def close(self) -> None:
        """Close the connections of threads."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()

    def __repr__(self) -> str:
        return f"HttpServer({self.url!r})"

    def _connected(self, awaited: bool) -> Any:
        library = require("qdrant_client", extra="qdrant")
        make, limit = (library.AsyncQdrantClient, self._alimit) if awaited else (library.QdrantClient, self._limit)
        headers = {"api-key": self._key} if self._key else {}
        with _errors(f"Qdrant at {self.url}", self._timeout):
            try:
                return make(url=self.url, headers=headers, check_compatibility=False, event_hooks={"request": [limit]})
            except (ValueError, require("httpx", extra="qdrant").InvalidURL) as error:
                raise ConfigError(f"url={self.url!r} is no address of a server: {error}") from error

    def _limit(self, request: Any) -> None:
        """Set the timeout: the client would round seconds up, and take None for 5."""
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)

    async def _alimit(self, request: Any) -> None:
        self._limit(request)


def _is_place(url: Any) -> bool:
    """Whether `url` is an address of a server, without user or password."""
    try:
        return bool(_PLACE.fullmatch(url) and urlsplit(url).hostname and urlsplit(url).port != 0)
    except (TypeError, ValueError):
        return False


def _call_local(client: Any, asked: QdrantCall) -> Any:
    if asked.method == "delete_collection":  # the client does not close the collection's file
        held = client._client.collections.get(asked.arguments["collection_name"])
        if held is not None:
            held.close()
    return getattr(client, asked.method)(**asked.arguments)


@contextmanager
def _errors(place: str, timeout: float | None) -> Iterator[None]:
    exceptions = require("qdrant_client.http.exceptions", extra="qdrant")
    busy = require("qdrant_client.common.client_exceptions", extra="qdrant").ResourceExhaustedResponse
    try:
        yield
    except RetrievalError:
        raise
    except exceptions.UnexpectedResponse as error:
        raise _of_answer(place, timeout, error) from error
    except exceptions.ResponseHandlingException as error:
        raise _of_transport(place, timeout, error.source) from error
    except busy as error:
        raise SearchNotAvailableError(f"{place} has too much to do: {error}") from error
    except (OSError, RuntimeError) as error:
        raise SearchNotAvailableError(f"{place} cannot be reached: {error}") from error
    except (ValueError, KeyError, TypeError, sqlite3.Error) as error:  # the errors of local mode for refused requests
        kind = NoCollectionError if _NO_COLLECTION.match(str(error)) else SearchError
        raise kind(f"{place} refused a request: {error}") from error


def _of_answer(place: str, timeout: float | None, error: Any) -> SearchError:
    status, said = error.status_code, error.content.decode("utf-8", "replace")[:300]
    if status in _REFUSED:
        return SearchNotAvailableError(f"{place} refuses the API key (HTTP {status})")
    if status in _AWAY:
        return SearchNotAvailableError(f"{place} cannot answer now (HTTP {status})")
    if status in _SLOW:
        return SearchTimeoutError(f"{place} did not answer within {timeout} s (HTTP {status})")
    kind = NoCollectionError if status == 404 and "No point" not in said else SearchError
    return kind(f"{place} refused a request (HTTP {status}): {said}")


def _of_transport(place: str, timeout: float | None, source: Exception) -> SearchError:
    httpx = require("httpx", extra="qdrant")
    if isinstance(source, httpx.TimeoutException):
        return SearchTimeoutError(f"{place} did not answer within {timeout} s")
    if isinstance(source, httpx.TransportError):
        return SearchNotAvailableError(f"{place} cannot be reached: {source}")
    return SearchError(f"{place} gave an answer that cannot be read: {type(source).__name__}")

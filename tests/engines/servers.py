"""Servers that tests start for themselves and only use, by their addresses; and what they answer in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.engines.engines import PATIENCE, ChromaServer, PostgresServer, running
from voicevault_retrievers.errors import SearchError

T = TypeVar("T")


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


def in_time(call: Callable[[], T], good: Callable[[T], object] = lambda result: True) -> T:
    """What a call gives in the end: a client may need some tries to connect anew, or within a timeout that is short."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(SearchError):
            result = call()
            if good(result):
                return result
    return call()

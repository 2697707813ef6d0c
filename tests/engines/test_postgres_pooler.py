"""PostgreSQL behind a PgBouncer, whose clients share connections: each has its own settings, filters and answers."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.engines.engines import SYSTEMS, PostgresServer, Program, running
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import SearchNotAvailableError, SearchTimeoutError

SYSTEMS["postgres"].skip()
from voicevault_retrievers.engines.postgres import PostgresEngine  # noqa: E402
from voicevault_retrievers.engines.postgres.asking import SqlStatement  # noqa: E402

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no pgbouncer: apt-get install pgbouncer")

EMBEDDER = HashEmbedder(16)
USERS = ("ann", "bob")
CHUNKS = [Chunk(f"c{n:02}", f"pump {n} " + "valve " * (n % 5), metadata={"user": USERS[n % 2]}) for n in range(40)]
QUERIES = ["pump valve", "valve 7", "pump 12", "valve valve 30"]
SHOWN = SqlStatement("SELECT current_setting('voicevault.user', true), current_setting('hnsw.ef_search', true)")


class PgBouncer(Program):
    """One that refuses settings of a connection, or ignores them."""

    def __init__(self, folder: Path, *, database: PostgresServer, mode: str, ignores: bool) -> None:
        super().__init__(folder)
        self.owner = database.owner
        folder.chmod(0o755)
        ignored = "extra_float_digits" + ",options" * ignores
        self.settings = {
            "listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": "", "auth_type": "any",
            "pool_mode": mode, "default_pool_size": 3 if mode == "transaction" else 40,
            "ignore_startup_parameters": ignored,
        }  # fmt: skip
        self.database = f"postgres = host=127.0.0.1 port={database.port} dbname=postgres user=postgres"

    @property
    def address(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> Sequence[str]:
        file = self.folder / "pgbouncer.ini"
        lines = ["[databases]", self.database, "[pgbouncer]", *(f"{key} = {one}" for key, one in self.settings.items())]
        file.write_text("\n".join(lines))
        return [str(PROGRAM), str(file)]

    def ready(self) -> bool:
        psycopg: Any = pytest.importorskip("psycopg")
        try:
            psycopg.connect(self.address).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running(PostgresServer) as one:
        yield one


@pytest.fixture(params=[("session", False), ("transaction", False), ("transaction", True)], ids=str)
def pooler(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[PgBouncer]:
    mode, ignores = request.param
    with running(partial(PgBouncer, database=server, mode=mode, ignores=ignores)) as one:
        yield one


def found(engine: PostgresEngine, at: int) -> list[tuple[str, float | None]]:
    """What one of several clients finds with its own rights."""
    query = Query(QUERIES[at % len(QUERIES)], require={"user": USERS[at % 2]})
    rankings = [engine.bm25().search(query, 10), engine.fused().search(query, 10)]
    return [(hit.id, hit.score) for ranking in rankings for hit in ranking]


async def afound(engine: PostgresEngine, at: int) -> list[tuple[str, float | None]]:
    query = Query(QUERIES[at % len(QUERIES)], require={"user": USERS[at % 2]})
    rankings = [await engine.bm25().asearch(query, 10), await engine.fused().asearch(query, 10)]
    return [(hit.id, hit.score) for ranking in rankings for hit in ranking]


def test_clients_find_what_they_would_without_it(pooler: PgBouncer, server: PostgresServer) -> None:
    opened = partial(PostgresEngine, embedder=EMBEDDER)
    collection = f"docs {pooler.port}"
    direct, engine = opened(collection, server.database()), opened(collection, pooler.address)
    other = opened("others", pooler.address)
    for start in range(0, len(CHUNKS), 10):
        engine.upsert(CHUNKS[start : start + 10])
    other.upsert([Chunk(chunk.id, f"{chunk.text} gear", metadata=chunk.metadata) for chunk in CHUNKS])
    expected = [[found(one, at) for at in range(4)] for one in (direct, other)]
    assert expected[0] != expected[1]

    def asked(client: int) -> bool:
        mine, hits = ((engine, expected[0]), (other, expected[1]))[client % 2]
        return all(found(mine, (at + client) % 4) == hits[(at + client) % 4] for at in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asked, range(8)))

    async def together() -> list[Any]:
        return await asyncio.gather(*[afound(one, at % 4) for at in range(12) for one in (engine, other)])

    assert asyncio.run(together()) == [hits[at % 4] for at in range(12) for hits in expected]
    assert engine.delete(["c00"]) == direct.delete(["c01"]) == 1
    assert found(engine, 0) == found(direct, 0)
    other.clear()
    for one in (direct, engine, other):
        one.close()


def test_each_has_its_own_settings_and_time(pooler: PgBouncer, server: PostgresServer) -> None:
    def opened(address: str, **options: Any) -> PostgresEngine:
        return PostgresEngine("none", address, **options)

    ann = opened(pooler.address, settings={"voicevault.user": "ann"}, ef_search=77, timeout=0.5)
    nobody = opened(pooler.address)
    direct = opened(server.database(), settings={"voicevault.user": "ann"}, ef_search=77)

    async def asked() -> Any:
        return await ann._pools.aask(SHOWN)

    for _ in range(8):
        assert ann._pools.ask(SHOWN) == asyncio.run(asked()) == direct._pools.ask(SHOWN) == [("ann", "77")]
        ((user, _),) = nobody._pools.ask(SHOWN)
        assert not user
    with pytest.raises(SearchTimeoutError):
        ann._pools.ask(SqlStatement("SELECT pg_sleep(60)"))
    for one in (ann, nobody, direct):
        one.close()


def test_the_first_that_ask_at_once_are_all_answered(pooler: PgBouncer) -> None:
    together = Barrier(4)

    def asked(engine: PostgresEngine) -> Any:
        together.wait()
        return engine._pools.ask(SHOWN)

    for _ in range(4):
        engine = PostgresEngine("none", pooler.address, settings={"voicevault.user": "ann"})
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(asked, [engine] * 4)) == [[("ann", "100")]] * 4

        async def first(engine: PostgresEngine = engine) -> Any:
            engine._pools._pooler = False
            return await asyncio.gather(*[engine._pools.aask(SHOWN) for _ in range(4)])

        assert asyncio.run(first()) == [[("ann", "100")]] * 4
        engine.close()


def test_what_is_no_matter_of_settings_is_an_error_as_ever(pooler: PgBouncer) -> None:
    engine = PostgresEngine("none", pooler.address.replace("/postgres", "/nowhere"))
    with pytest.raises(SearchNotAvailableError, match="cannot be used"):
        engine.bm25().search("pump")

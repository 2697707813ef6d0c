"""Servers that go away, hang or are slow, in the middle of ingest and of search."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.engines.engines import SYSTEMS, Server, running
from tests.engines.servers import in_time
from voicevault_retrievers.core.types import Chunk, Ranking
from voicevault_retrievers.engines import writing
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.postgres import asking
from voicevault_retrievers.errors import RetrievalError, SearchError, SearchNotAvailableError, SearchTimeoutError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.codec import same
from voicevault_retrievers.testing.clients import CollectionClient, Collections, ended
from voicevault_retrievers.testing.corpora import WordEmbedder, chunks_of, mixed, vectors_of
from voicevault_retrievers.testing.expect import alike, equal, held, that
from voicevault_retrievers.testing.suite import AUTO, EXACT

TIMEOUT = 0.5
"""Seconds that a client waits for a server that hangs."""

SECRET = "hush"  # noqa: S105 - of a server that asks for none
BATCH = 100
COUNT = 2 * BATCH + 20
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """A TCP proxy on a port of its own that can cut, swallow, hold back or delay what goes through it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.sent = 0
        self._hole = False
        self.delay = 0.0
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._left: int | None = None
        self._then: Callable[[], None] = self.cut

    def cut(self) -> None:
        """Break off all connections, and refuse new ones."""
        self._refusing = True
        self._reset()

    def cut_after(self, count: int, then: Callable[[], None] | None = None) -> None:
        """Once this many more bytes have gone to the server: `cut`, or something else."""
        with self._mutex:
            self._left, self._then = count, then or self.cut

    def hold_back(self) -> None:
        """Let nothing through until it is healed, which is longer than any client waits."""
        self._flowing.clear()

    def swallow(self) -> None:
        """Take all that is sent, and let nothing through."""
        self._hole = True

    def heal(self) -> None:
        """Let all through again; what was open is broken off, with what was held back."""
        with self._mutex:
            self._left = None
        self._reset()
        self._refusing, self._hole, self.delay = False, False, 0.0
        self._flowing.set()

    def close(self) -> None:
        self._refusing = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._reset()
        self._flowing.set()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._refusing:
                _abort(client)
                continue
            with self._mutex:
                self._open.add(client)
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=30)
            except OSError:
                self._end(client)
                continue
            server.settimeout(None)
            with self._mutex:
                self._open.add(server)
            for one, other, outward in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pump, args=(one, other, outward), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, outward: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flowing.wait()
                time.sleep(self.delay)
                if self._hole:
                    continue
                allowed = self._allowed(len(data)) if outward else len(data)
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    self._then()
                    return
        self._end(source)
        self._end(sink)

    def _allowed(self, count: int) -> int:
        with self._mutex:
            allowed = count if self._left is None else min(count, self._left)
            self._left = None if self._left is None else self._left - allowed
            self.sent += allowed
            return allowed

    def _reset(self) -> None:
        with self._mutex:
            ending = list(self._open)
        for one in ending:
            self._end(one)

    def _end(self, one: socket.socket) -> None:
        with self._mutex:
            if one not in self._open:
                return
            self._open.discard(one)
        _abort(one)


def _abort(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Batches are small, and PostgreSQL has less than the usual time to give a statement up by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BATCH", BATCH)
        patch.setattr(asking, "GRACE", TIMEOUT)
        yield


SERVED = [SYSTEMS["postgres"], SYSTEMS["chroma-http"]]
"""With pg_textsearch other statements go over the same connections; `test_postgres_bm25.py` kills such a server."""


@pytest.fixture(scope="module", params=SERVED, ids=lambda system: system.name)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    request.param.skip()
    with running(request.param.server) as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture(params=["sync", "async"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop | None]:
    made = asyncio.new_event_loop() if request.param == "async" else None
    yield made
    if made is not None:
        ended(made)


class Faulty:
    """A collection by way of a proxy, and the same by a way without faults."""

    def __init__(self, server: Server, proxy: Proxy, loop: asyncio.AbstractEventLoop | None, made: Collections) -> None:
        self.server = server
        self.proxy = proxy
        self.made = made
        self.sure = made(embedder=WordEmbedder(), analyzer=AUTO)
        address = server.address(proxy.port, self.sure.name)
        self.client = CollectionClient(connect(address, embedder=WordEmbedder(), analyzer=AUTO, timeout=TIMEOUT), loop)
        self.patient = CollectionClient(connect(address, embedder=WordEmbedder(), analyzer=AUTO), loop)

    def place(self, places: tuple[float, float], sent: int) -> int:
        """Where to cut what is sent: the sync and the async client each at places of its own."""
        return int(places[0 if self.client.loop is None else 1] * sent)

    def base(self, chunks: Sequence[Chunk]) -> KnowledgeBase:
        return self.made.base(chunks, embedder=WordEmbedder(), analyzer=AUTO)

    def end(self) -> None:
        self.proxy.heal()
        self.client.close()
        self.patient.close()


@pytest.fixture
def faulty(
    server: Server, proxy: Proxy, loop: asyncio.AbstractEventLoop | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Faulty]:
    made = Collections(server.connect, None, tmp_path_factory.mktemp("bases"))
    faulty = Faulty(server, proxy, loop, made)
    try:
        yield faulty
    finally:
        faulty.end()
        made.end()


CHUNKS = [replace(chunk, parent_id=f"p{at // 50}") for at, chunk in enumerate(chunks_of("en", COUNT))]
ROWS = vectors_of(WordEmbedder(), CHUNKS)
PARENTS = [Chunk(f"p{at}", f"parent {at}") for at in range(COUNT // 50)]


def ingest(client: CollectionClient, chunks: Sequence[Chunk] = CHUNKS, **options: Any) -> Any:
    return client.upsert(chunks, ROWS[: len(chunks)], parents=PARENTS, **options)


def whole(faulty: Faulty, possible: Sequence[Sequence[Chunk]]) -> dict[str, Chunk]:
    """What is there: fails unless each chunk is one of those possible, with its vector, and found by its words."""
    there = {chunk.id: chunk for chunk in faulty.sure.engine}
    equal(len(there), faulty.sure.count(), "count, beside chunks listed")
    for one, chunk in there.items():
        that(
            any(same(chunk, given) for part in possible for given in part if given.id == one), f"half a chunk: {chunk}"
        )
    equal(sorted(faulty.sure.engine.vectors(there)), sorted(there), "ids of vectors")
    alike(
        faulty.sure.bm25("pump valves", COUNT),
        faulty.base(list(there.values())).bm25().search("pump valves", COUNT),
        "bm25 of what is there",
        EXACT,
    )
    return there


def no_password(error: BaseException) -> None:
    shown, seen = "", error
    while seen is not None:
        shown += f"{seen!r} {seen}"
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]  # the last has none
    that(SECRET not in shown, f"the password is in the error: {shown:.600}")


@pytest.fixture(scope="module")
def sent(server: Server, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many bytes an ingest of `CHUNKS` sends."""
    proxy = Proxy(server.port)
    made = Collections(
        lambda name, **options: connect(server.address(proxy.port, name), **options),
        None,
        tmp_path_factory.mktemp("bases"),
    )
    try:
        ingest(made(embedder=WordEmbedder(), analyzer=AUTO))
        return proxy.sent
    finally:
        made.end()
        proxy.close()


@pytest.mark.parametrize("places", [(0.0, 0.01), (0.2, 0.4), (0.6, 0.8), (0.97, 0.9)], ids=str)
def test_ingest_cut_off_anywhere_goes_on(faulty: Faulty, sent: int, places: tuple[float, float]) -> None:
    faulty.proxy.cut_after(faulty.place(places, sent))
    with pytest.raises(SearchError) as raised:
        ingest(faulty.patient)
    no_password(raised.value)
    there = whole(faulty, [CHUNKS])
    faulty.proxy.heal()
    written = ingest(faulty.patient)
    equal(
        (written.added, written.replaced, written.unchanged),
        (COUNT - len(there), 0, len(there)),
        "written by the same call again",
    )
    held(whole(faulty, [CHUNKS]), CHUNKS, faulty.sure.name)
    held(faulty.sure.parents(parent.id for parent in PARENTS), PARENTS, faulty.sure.name)


@pytest.mark.parametrize("places", [(0.1, 0.3), (0.9, 0.6)], ids=str)
def test_replacing_cut_off_leaves_old_or_new(faulty: Faulty, sent: int, places: tuple[float, float]) -> None:
    ingest(faulty.patient)
    new = [replace(chunk, text=f"{chunk.text} giraffe", metadata={"new": True}) for chunk in CHUNKS]
    faulty.proxy.cut_after(faulty.place(places, sent))
    with pytest.raises(SearchError):
        faulty.patient.upsert(new, ROWS)
    there = whole(faulty, [CHUNKS, new])
    equal(len(there), COUNT, "chunks that are there")
    replaced = {one for one, chunk in there.items() if chunk.metadata.get("new")}
    equal(set(faulty.sure.bm25("giraffe", COUNT).ids), replaced, "found by the new word")
    faulty.proxy.heal()
    equal(faulty.patient.upsert(new, ROWS).replaced, COUNT - len(replaced), "replaced by the same call again")
    held(whole(faulty, [new]), new, faulty.sure.name)


def test_deleting_cut_off_goes_on(faulty: Faulty, sent: int) -> None:
    ingest(faulty.patient)
    gone = [chunk.id for chunk in CHUNKS[: 2 * BATCH]]
    faulty.proxy.cut_after(1800)
    with pytest.raises(SearchError):
        faulty.patient.delete(gone)
    whole(faulty, [CHUNKS])
    faulty.proxy.heal()
    faulty.patient.delete(gone)
    held(whole(faulty, [CHUNKS]), CHUNKS[2 * BATCH :], faulty.sure.name)


SLOW = (SearchTimeoutError, SearchNotAvailableError)
"""What a server that hangs may be called: it is slow where it was connected, and away where it was not."""

FAULTS = [
    pytest.param(Proxy.cut, (SearchNotAvailableError,), id="cut"),
    pytest.param(Proxy.swallow, SLOW, id="black-hole"),
    pytest.param(Proxy.hold_back, SLOW, id="delay"),
]


@pytest.mark.parametrize(("fault", "errors"), FAULTS)
def test_a_search_degrades_with_a_named_error_and_recovers(
    faulty: Faulty, fault: Callable[[Proxy], None], errors: tuple[type[Exception], ...]
) -> None:
    chunks = mixed(30)
    faulty.sure.upsert(chunks)
    engine, base = faulty.client.engine, faulty.base(chunks)
    pipeline = Pipeline(fuse({"local": base.bm25(), "bm25": engine.bm25(), "dense": engine.dense()}, method=RRF()))

    def search() -> Ranking:
        loop = faulty.client.loop
        result = (
            pipeline.search("leaking valves")
            if loop is None
            else loop.run_until_complete(pipeline.asearch("leaking valves"))
        )
        return result.ranking

    before = in_time(search, lambda ranking: not ranking.errors)
    equal(before.errors, (), "errors before the fault")
    fault(faulty.proxy)
    for _ in range(2):
        during = search()
        equal(
            {failure.stage for failure in during.errors},
            {"bm25", "dense"},
            f"channels with an error in {during.errors}",
        )
        kinds = {failure.kind for failure in during.errors}
        that(kinds <= {error.__name__ for error in errors}, f"errors {during.errors}")
        that(SECRET not in f"{during.errors}", "the password is in an error")
        that(during.hits, "what still works found nothing")
    faulty.proxy.heal()
    after = in_time(search, lambda ranking: not ranking.errors)
    equal([(hit.id, hit.score) for hit in after], [(hit.id, hit.score) for hit in before], "found after it is healed")
    equal(after.errors, (), "errors after it is healed")


def raised_by(client: CollectionClient) -> dict[str, BaseException]:
    """What every operation raises; each is called beside the others, so that they wait for a server together."""
    engine = client.engine
    functions: dict[str, Callable[[], object]] = {
        "vectors": lambda: engine.vectors(["en-00001"]),
        "stored": lambda: list(engine.stored()),
    }
    calls_of: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
        "get": (engine, "get", (["en-00001"],)),
        "parents": (engine, "parents", (["p"],)),
        "upsert": (engine, "upsert", ([Chunk("new", "pump")],)),
        "delete": (engine, "delete", (["en-00001"],)),
        "bm25": (engine.bm25(), "search", ("pump", 3)),
        "dense": (engine.dense(), "search", ("pump", 3)),
        "clear": (engine, "clear", ()),
    }
    tasks: dict[str, Callable[[], Awaitable[object]]] = {}
    if client.loop is None:
        functions["count"] = lambda: len(engine)
        functions |= {name: partial(getattr(of, method), *given) for name, (of, method, given) in calls_of.items()}
    else:
        tasks["count"] = engine.acount
        tasks |= {name: partial(getattr(of, f"a{method}"), *given) for name, (of, method, given) in calls_of.items()}
    with ThreadPoolExecutor(len(functions)) as pool:
        calls = {name: pool.submit(function) for name, function in functions.items()}
        raised = {} if client.loop is None else client.loop.run_until_complete(_raised(tasks))
        raised |= {name: call.exception() for name, call in calls.items()}
    that(all(isinstance(each, RetrievalError) for each in raised.values()), f"some raised no error: {raised}")
    return raised


async def _raised(tasks: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, Any]:
    found = await asyncio.gather(*(task() for task in tasks.values()), return_exceptions=True)
    return dict(zip(tasks, found, strict=True))


@pytest.mark.parametrize(("fault", "errors"), FAULTS)
def test_every_operation_raises_the_named_error(
    faulty: Faulty, fault: Callable[[Proxy], None], errors: tuple[type[Exception], ...]
) -> None:
    chunks = chunks_of("en", 30)
    client = faulty.client
    in_time(lambda: client.upsert(chunks))
    fault(faulty.proxy)
    for name, raised in raised_by(client).items():
        that(isinstance(raised, errors), f"{name} raised {raised!r}, expected {errors}")
        no_password(raised)
    faulty.proxy.heal()
    that({chunk.id for chunk in faulty.sure.engine} >= {c.id for c in chunks[2:]}, "chunks are gone though all failed")
    in_time(lambda: client.upsert(chunks))
    held(in_time(lambda: client.get(chunk.id for chunk in chunks)), chunks, client.name)
    that(in_time(lambda: client.bm25("pump", 99)).hits, "nothing was found after it is healed")


def test_a_slow_server_is_only_slow(faulty: Faulty) -> None:
    chunks = mixed(20)
    faulty.patient.upsert(chunks)
    before = faulty.patient.bm25("leaking valves", 10), faulty.patient.dense("leaking valves", 10)
    faulty.proxy.delay = 0.02
    after = faulty.patient.bm25("leaking valves", 10), faulty.patient.dense("leaking valves", 10)
    equal(after, before, "found slowly")


@pytest.mark.parametrize("place", [0.3, 0.7])
def test_a_server_killed_while_it_takes_in(faulty: Faulty, sent: int, place: float) -> None:
    faulty.proxy.cut_after(int(place * sent), faulty.server.kill)
    try:
        with pytest.raises(SearchError) as raised:
            ingest(faulty.patient)
        that(isinstance(raised.value, SearchNotAvailableError), f"raised {raised.value!r}")
        no_password(raised.value)
    finally:
        faulty.server.start()
        faulty.proxy.heal()
    faulty.sure.close()
    there = whole(faulty, [CHUNKS])
    equal(ingest(faulty.patient).added, COUNT - len(there), "added by the same call again")
    held(whole(faulty, [CHUNKS]), CHUNKS, faulty.sure.name)


def test_a_server_killed_between_searches(faulty: Faulty) -> None:
    chunks = mixed(30)
    client = faulty.patient
    client.upsert(chunks)
    before = client.bm25("leaking valves", 20), client.dense("leaking valves", 20)
    faulty.server.kill()
    try:
        for search in (client.bm25, client.dense):
            with pytest.raises(SearchNotAvailableError):
                search("leaking valves", 20)
    finally:
        faulty.server.start()
        faulty.proxy.heal()
    equal((client.bm25("leaking valves", 20), client.dense("leaking valves", 20)), before, "found when it is back")
    faulty.sure.close()
    held({chunk.id: chunk for chunk in faulty.sure.engine}, chunks, faulty.sure.name)


def test_connections_that_were_closed_meanwhile_cost_nothing(faulty: Faulty) -> None:
    client = faulty.patient
    client.upsert(mixed(30))
    for search in (client.bm25, client.dense):
        before = search("leaking valves", 20)
        faulty.proxy.heal()  # breaks off what is open, as a server or a balancer does with what is idle
        equal(search("leaking valves", 20), before, "found over new connections")
    faulty.proxy.heal()
    client.upsert([Chunk("late", "pump")])
    that("late" in client.get(["late"]), "what was written over a new connection is not there")


def test_a_server_that_is_not_there(server: Server, loop: asyncio.AbstractEventLoop | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    client = CollectionClient(
        connect(server.address(port, "none"), embedder=WordEmbedder(), analyzer=AUTO, timeout=5), loop
    )
    for operation in (client.count, lambda: client.bm25("pump", 3), lambda: client.upsert([Chunk("a", "b")])):
        with pytest.raises(SearchNotAvailableError) as raised:
            operation()
        no_password(raised.value)
    client.close()

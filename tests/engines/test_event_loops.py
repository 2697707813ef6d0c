"""A program that starts an event loop for each question keeps no connection of those that have ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import SYSTEMS
from tests.engines.graph_servers import falkordb_server
from tests.engines.servers import in_time
from tests.helpers import uncollected
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.structure.graph import GraphChannel
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph
from voicevault_retrievers.testing.corpora import WordEmbedder

OPEN = Path("/proc/self/fd")
LOOPS = 12


def sockets() -> int:
    """How many sockets this process has open, those of servers in it included."""
    names = []
    for one in OPEN.iterdir():
        try:
            names.append(os.readlink(one))
        except FileNotFoundError:  # closed meanwhile, such as the listing itself
            continue
    return sum(name.startswith("socket:") for name in names)


def stays_as_it_was(search: Any) -> None:
    """Each loop asks four times at once, so that some clients open several connections; no garbage is collected."""
    if not OPEN.is_dir():
        pytest.skip("this system does not list open files")

    async def asked() -> None:
        await asyncio.gather(*[search() for _ in range(4)])

    asyncio.run(asked())
    with uncollected():
        before = sockets()
        for _ in range(LOOPS):
            asyncio.run(asked())
        most = before + LOOPS - 1  # others in this process open some too; a client that stays has one at least for each
        assert in_time(sockets, lambda now: now <= most) <= most


@pytest.mark.parametrize("name", ["postgres", "chroma-http", "elasticsearch", "opensearch"])
def test_an_engine(name: str, tmp_path: Path) -> None:
    SYSTEMS[name].skip()
    with SYSTEMS[name].opened(tmp_path) as connecting:
        engine = connecting("loops", embedder=WordEmbedder())
        engine.upsert([Chunk("a", "pump")])
        stays_as_it_was(lambda: engine.bm25().asearch("pump"))
        engine.close()


def test_qdrant_over_http() -> None:
    with pytest.importorskip("tests.engines.qdrant_server").fake_qdrant() as fake:
        engine = connect(f"qdrant://127.0.0.1:{fake.port}/loops", embedder=WordEmbedder())
        engine.upsert([Chunk("a", "pump")])
        stays_as_it_was(lambda: engine.bm25().asearch("pump"))
        engine.close()


def test_a_graph(tmp_path: Path) -> None:
    with falkordb_server(tmp_path) as server:
        graph = FalkorDBGraph("loops", host="127.0.0.1", port=server.port)
        stays_as_it_was(lambda: GraphChannel(graph).asearch("section 1"))
        graph.close()


def test_a_client_is_made_once_for_a_loop_and_closed_at_its_end() -> None:
    made: list[int] = []
    closed: list[int] = []

    async def make() -> int:
        await asyncio.sleep(0)
        made.append(len(made))
        return made[-1]

    async def close(client: int) -> None:
        closed.append(client)

    clients = PerLoop(make, close)

    async def both() -> list[int]:
        return await asyncio.gather(clients.get(), clients.get())

    first, same = asyncio.run(both())
    assert first == same
    assert sorted(closed) == sorted(made) == [0, 1]  # the second was made beside the first, and closed at once
    assert clients._held == {}

    async def closing() -> tuple[int, int]:
        one = await clients.get()
        await clients.aclose(-1)  # not this loop's
        assert await clients.get() == one
        _, other = await asyncio.gather(clients.aclose(one), clients.get())  # it is not handed out once it closes
        await clients.aclose(one)
        return one, other

    assert asyncio.run(closing()) == (2, 3)
    assert closed[2:] == [2, 3]


def test_the_client_of_a_loop_that_was_closed_without_its_tasks_is_dropped() -> None:
    async def make() -> object:
        return object()

    async def close(client: object) -> None:
        return None

    async def held() -> int:
        await clients.get()
        return len(clients._held)

    clients, loop = PerLoop(make, close), asyncio.new_event_loop()
    loop.run_until_complete(clients.get())
    (left,) = clients._held.values()
    left.closing._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would log that it never ended
    loop.close()
    assert asyncio.run(held()) == 1
    del left

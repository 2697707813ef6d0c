"""A graph in a FalkorDB that dies, hangs, refuses the user, and comes back: queries degrade, say so, and recover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from tests.engines.graph_servers import FalkorDBServer, falkordb_server
from tests.helpers import ListChannel
from voicevault_retrievers import RRF, fuse
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Ranking
from voicevault_retrievers.errors import ConfigError, SearchError, SearchNotAvailableError, SearchTimeoutError
from voicevault_retrievers.structure.graph import GraphChannel, GraphExpansion, build_graph
from voicevault_retrievers.structure.graph.cypher import CypherStatement
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph
from voicevault_retrievers.structure.graph.neo4j import Neo4jGraph

CHUNKS = [
    Chunk("c420", "Section 420. Cheating. See section 415.", metadata={"act": "IPC"}),
    Chunk("c415", "Section 415. Deceit.", metadata={"act": "IPC"}),
]
SECONDS = 0.5


@pytest.fixture
def server(tmp_path: Path) -> AsyncIterator[FalkorDBServer]:
    with falkordb_server(tmp_path) as running:
        yield running  # type: ignore[misc]


@pytest.fixture
async def store(server: FalkorDBServer) -> AsyncIterator[FalkorDBGraph]:
    with closing(FalkorDBGraph("laws", host="127.0.0.1", port=server.port, timeout=SECONDS)) as graph:
        build_graph(CHUNKS, graph)
        yield graph
        await graph.aclose()


def beside(store: FalkorDBGraph) -> Channel:
    return fuse({"other": ListChannel([("a", 1.0)]), "graph": GraphChannel(store)}, method=RRF())


def check_degraded(found: Ranking, kind: str, stage: str = "graph") -> None:
    assert found.ids == ("a",)
    (failure,) = found.errors
    assert (failure.stage, failure.kind, failure.degrades) == (stage, kind, True)


async def check_well(store: FalkorDBGraph) -> None:
    for found in (beside(store).search("420 IPC"), await beside(store).asearch("420 IPC")):
        assert sorted(found.ids) == ["a", "c415", "c420"]
        assert found.errors == ()


async def test_a_server_that_dies_and_comes_back(server: FalkorDBServer, store: FalkorDBGraph) -> None:
    await check_well(store)
    server.kill()
    check_degraded(beside(store).search("420 IPC"), "SearchNotAvailableError")
    check_degraded(await beside(store).asearch("420 IPC"), "SearchNotAvailableError")
    check_degraded(
        (ListChannel([("a", 1.0)]) >> GraphExpansion(store)).search("q"), "SearchNotAvailableError", "graph_expansion"
    )
    assert GraphChannel(store).kg_direct_query("420 IPC") is None
    assert await GraphChannel(store).akg_direct_query("420 IPC") is None
    with pytest.raises(SearchNotAvailableError, match="cannot be reached"):
        GraphChannel(store).search("420 IPC")
    with pytest.raises(SearchNotAvailableError):
        store.delete(["c420"])
    server.start()  # with nothing in it
    assert GraphChannel(store).search("420 IPC") == Ranking()
    build_graph(CHUNKS, store)
    await check_well(store)
    indexed = store.ask(CypherStatement("CALL db.indexes() YIELD properties RETURN properties", {}))
    assert sorted(name for ((names),) in indexed for name in names) == ["id", "name"]


async def test_a_server_that_hangs(server: FalkorDBServer, store: FalkorDBGraph) -> None:
    await check_well(store)
    server.pause()
    check_degraded(beside(store).search("420 IPC"), "SearchTimeoutError")
    check_degraded(await beside(store).asearch("420 IPC"), "SearchTimeoutError")
    assert GraphChannel(store).kg_direct_query("420 IPC") is None
    server.resume()
    await check_well(store)


async def test_a_server_that_is_killed_while_it_is_asked(server: FalkorDBServer) -> None:
    with closing(FalkorDBGraph("laws", host="127.0.0.1", port=server.port, timeout=None)) as patient:
        build_graph(CHUNKS, patient)
        server.pause()  # it takes the question, and never answers
        found: list[Ranking] = []
        asking = Thread(target=lambda: found.append(beside(patient).search("420 IPC")))
        asking.start()
        asking.join(SECONDS)
        assert asking.is_alive()
        server.kill()
        asking.join()
        check_degraded(found[0], "SearchNotAvailableError")
        server.start()
        build_graph(CHUNKS, patient)
        assert len(beside(patient).search("420 IPC")) == 3


async def test_a_write_that_was_cut_off_can_be_done_again(server: FalkorDBServer, store: FalkorDBGraph) -> None:
    server.pause()
    with pytest.raises(SearchTimeoutError):
        build_graph([Chunk("new", "Section 7. See section 420.", metadata={"act": "IPC"})], store)
    server.resume()
    build_graph([*CHUNKS, Chunk("new", "Section 7. See section 420.", metadata={"act": "IPC"})], store)
    assert store.stats() == (3, 3, 5)


async def test_a_wrong_password(tmp_path: Path) -> None:
    with falkordb_server(tmp_path, password="right") as server:  # noqa: S106
        place = {"host": "127.0.0.1", "port": server.port}
        for wrong in ("wrong", None):
            with closing(FalkorDBGraph("laws", password=wrong, **place)) as store:  # type: ignore[arg-type]
                check_degraded(beside(store).search("420 IPC"), "SearchNotAvailableError")
                check_degraded(await beside(store).asearch("420 IPC"), "SearchNotAvailableError")
                with pytest.raises(SearchNotAvailableError, match="refuses the user or the password"):
                    build_graph(CHUNKS, store)
                assert "wrong" not in repr(store)
                await store.aclose()
        with closing(FalkorDBGraph("laws", password="right", **place)) as store:  # type: ignore[arg-type]  # noqa: S106
            build_graph(CHUNKS, store)
            await check_well(store)
            await store.aclose()


def test_a_statement_that_is_refused_says_so(store: FalkorDBGraph) -> None:
    with pytest.raises(SearchError, match="refused a statement"):
        store.ask(CypherStatement("MATCH n", {}))


def test_ids_that_no_index_takes_are_refused(store: FalkorDBGraph) -> None:
    build_graph([Chunk("x" * 1900, "Section 7.")], store)
    assert GraphChannel(store).search("section 7").ids == ("x" * 1900,)
    with pytest.raises(ConfigError, match="2000 bytes"):
        build_graph([Chunk("x" * 2000, "Section 7.")], store)
    assert store.chunks(["x" * 5000]) == {}


async def test_writing_is_not_async(store: FalkorDBGraph) -> None:
    with pytest.raises(ConfigError, match="thread"):
        await store.aask(CypherStatement("CREATE (n)", {}, writes=True))


@pytest.mark.parametrize("name", ["", None])
def test_a_graph_has_a_name(name: str) -> None:
    with pytest.raises(ConfigError):
        FalkorDBGraph(name)
    with pytest.raises(ConfigError):
        Neo4jGraph(name)


async def test_a_neo4j_that_is_not_there_degrades(server: FalkorDBServer) -> None:
    pytest.importorskip("neo4j", reason="neo4j is not installed")
    server.kill()
    with closing(Neo4jGraph("laws", uri=f"bolt://127.0.0.1:{server.port}", timeout=SECONDS)) as store:
        channel = fuse({"other": ListChannel([("a", 1.0)]), "graph": GraphChannel(store)}, method=RRF())
        check_degraded(channel.search("420 IPC"), "SearchNotAvailableError")
        check_degraded(await channel.asearch("420 IPC"), "SearchNotAvailableError")
        with pytest.raises(SearchNotAvailableError, match="cannot be reached"):
            store.put([])
        await store.aclose()

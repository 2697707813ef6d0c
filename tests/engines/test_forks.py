"""A forked child has connections of its own, and what belongs to one process is refused there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.engines.engines import SYSTEMS
from tests.engines.forks import CHILDREN, REFUSED, RIGHT, asked_at_once
from tests.engines.graph_servers import falkordb_server
from tests.forking import ended, fork
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.structure.graph import GraphChannel, build_graph
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph
from voicevault_retrievers.structure.graph.neo4j import Neo4jGraph

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.parametrize("name", ["postgres", "chroma-http", "elasticsearch", "opensearch"])
def test_of_a_server_each_gets_its_own_answers(name: str, tmp_path: Path) -> None:
    SYSTEMS[name].skip()
    with SYSTEMS[name].opened(tmp_path) as connecting:
        assert asked_at_once(connecting) == [RIGHT] * (1 + CHILDREN)


def test_of_a_qdrant_over_http_each_gets_its_own_answers() -> None:
    with pytest.importorskip("tests.engines.qdrant_server").fake_qdrant() as fake:

        def connecting(name: str, **options: object) -> object:
            return connect(f"qdrant://127.0.0.1:{fake.port}/{name}", **options)

        assert asked_at_once(connecting) == [RIGHT] * (1 + CHILDREN)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("embedded", RIGHT, ""),
        ("lancedb", REFUSED, "forked from one that used it"),
        ("milvus", RIGHT, ""),
        ("chroma", REFUSED, "was open when this process was forked"),
        ("qdrant", REFUSED, "is open in another process"),
    ],
)
def test_in_a_folder(name: str, code: int, said: str, tmp_path: Path) -> None:
    SYSTEMS[name].skip()
    program = [sys.executable, "-m", "tests.engines.forks", name, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    *told, codes = done.stdout.splitlines()
    assert codes == str([RIGHT] + [code] * CHILDREN), done.stderr
    assert len(told) == (CHILDREN if said else 0)
    assert all(said in line for line in told)


def test_of_a_graph_each_gets_its_own_answers(tmp_path: Path) -> None:
    with falkordb_server(tmp_path) as server, closing(FalkorDBGraph("forks", port=server.port)) as graph:
        build_graph([Chunk(f"s{n}", f"Section {n}. Cheating. See section {n - 1}.") for n in range(9)], graph)
        channel = GraphChannel(graph)
        found = [channel.search(f"section {n}", 5).ids for n in range(9)]

        def outcome(at: int) -> int:
            asked = [(at + round_) % 9 for round_ in range(30)]
            return RIGHT if [channel.search(f"section {n}", 5).ids for n in asked] == [found[n] for n in asked] else 1

        children = [fork(partial(outcome, at)) for at in range(CHILDREN)]
        assert [outcome(CHILDREN), *map(ended, children)] == [RIGHT] * (1 + CHILDREN)


def test_a_driver_of_neo4j_stays_with_the_parent() -> None:
    graph = Neo4jGraph("forks")
    graph.__dict__["_driver"] = object()
    assert ended(fork(lambda: RIGHT if "_driver" not in graph.__dict__ else 1)) == RIGHT

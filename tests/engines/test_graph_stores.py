"""One suite over all graph stores; FalkorDB is a real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import Relation

from tests.engines.graph_servers import FalkorDBServer, falkordb_server
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.property_graph import PropertyGraph
from voicevault_retrievers.structure.graph import (
    Edge,
    EmbeddedGraph,
    Entry,
    GraphChannel,
    GraphExpansion,
    GraphStats,
    GraphStore,
    Link,
)
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph
from voicevault_retrievers.structure.graph.neo4j import Neo4jGraph

HOSTILE = 'it\'s "quoted" \\ $ids }) DETACH DELETE n //\n\t\u2028 é 水 `x`'


class _OverFalkorDB:
    """The driver of Neo4j, as far as a graph uses it, over FalkorDB."""

    def __init__(self, graph: FalkorDBGraph) -> None:
        self.graph = graph._graph

    def session(self, **_: Any) -> _OverFalkorDB:
        return self

    def __enter__(self) -> _OverFalkorDB:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, query: Any, parameters: dict[str, Any]) -> list[dict[int, Any]]:
        rows = self.graph.query(getattr(query, "text", query), parameters).result_set
        return [dict(enumerate(row)) for row in rows]

    def execute_write(self, work: Callable[[Any], Any]) -> Any:
        return work(self)


class _Noting(_OverFalkorDB):
    """Notes the statements, and has no graph."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def run(self, query: Any, parameters: dict[str, Any]) -> list[dict[int, Any]]:
        self.texts.append(getattr(query, "text", query))
        return []


class _AsyncOverFalkorDB(_OverFalkorDB):
    """Its async driver."""

    async def __aenter__(self) -> _AsyncOverFalkorDB:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def run(self, query: Any, parameters: dict[str, Any]) -> Any:  # type: ignore[override]
        return _given(super().run(query, parameters))


async def _given(rows: list[dict[int, Any]]) -> AsyncIterator[dict[int, Any]]:
    for row in rows:
        yield row


class _AsyncStore(SimplePropertyGraphStore):
    """A property graph store with async methods of its own."""

    async def aget(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return self.get(*args, **options)

    async def aget_triplets(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return self.get_triplets(*args, **options)


def test_neo4j_has_its_indexes_before_anything_is_written() -> None:
    pytest.importorskip("neo4j", reason="neo4j is not installed")
    graph, driver = Neo4jGraph("one"), _Noting()
    graph.__dict__["_driver"] = driver
    graph.delete(["a"])
    made = [text for text in driver.texts if text.startswith("CREATE")]
    assert made == driver.texts[: len(made)]
    assert [text.split()[1:4:2] for text in made] == [["CONSTRAINT", "IF"], ["INDEX", "IF"]]
    graph.delete(["a"])
    assert [text for text in driver.texts if text.startswith("CREATE")] == made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FalkorDBServer]:
    with falkordb_server(tmp_path_factory.mktemp("falkordb")) as running:
        yield running


@pytest.fixture(params=["embedded", "saved", "falkordb", "neo4j", "property graph", "async property graph"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GraphStore]:
    if request.param == "embedded":
        yield EmbeddedGraph()
    elif request.param == "saved":
        EmbeddedGraph().save(tmp_path / "graph")
        yield EmbeddedGraph.load(tmp_path / "graph")
    elif request.param == "property graph":
        yield PropertyGraph(SimplePropertyGraphStore())
    elif request.param == "async property graph":
        yield PropertyGraph(_AsyncStore())
    else:
        running: FalkorDBServer = request.getfixturevalue("server")
        with closing(FalkorDBGraph(f"g{random.random()}", host="127.0.0.1", port=running.port)) as graph:
            if request.param == "falkordb":
                yield graph
                await graph.aclose()
            else:
                pytest.importorskip("neo4j", reason="neo4j is not installed")
                graph._index()
                neo4j = Neo4jGraph("one")
                neo4j.__dict__["_driver"] = _OverFalkorDB(graph)
                monkeypatch.setattr(neo4j._of_loop, "get", AsyncMock(return_value=_AsyncOverFalkorDB(graph)))
                neo4j._indexed = True
                other = Neo4jGraph("one more")
                other.__dict__["_driver"] = neo4j._driver
                other._indexed = True
                other.put([entry("c1", "section:1:a", team="hidden")])  # in the same database
                yield neo4j


def entry(chunk_id: str, *keys: str, relation: str = "cites", weight: float = 0.5, **metadata: Any) -> Entry:
    return Entry(
        Chunk(chunk_id, f"text of {chunk_id}", metadata=metadata), tuple(Link(relation, key, weight) for key in keys)
    )


def edge(chunk_id: str, key: str, relation: str = "cites", weight: float = 0.5) -> Edge:
    return Edge(f"chunk:{chunk_id}", relation, key, weight, chunk_id)


def test_an_empty_graph(store: GraphStore) -> None:
    assert isinstance(store, GraphStore)
    assert store.stats() == GraphStats(0, 0, 0)
    assert store.find(["section:1"]) == {"section:1": []}
    assert list(store.edges(["section:1:a", "chunk:c1"])) == []
    assert store.chunks(["c1"]) == {}
    store.delete(["c1"])
    store.put([])
    assert (list(store.edges([])), store.find([]), store.chunks([])) == ([], {}, {})
    assert GraphChannel(store).search("section 1") == Ranking()


def test_what_was_put_in_is_found(store: GraphStore) -> None:
    store.put([entry("c1", "section:1:a", "section:1:b"), entry("c2", "section:1:a", relation="is", weight=1.0)])
    assert store.stats() == GraphStats(2, 2, 3)
    assert store.find(["section:1", "section:2"]) == {"section:1": ["section:1:a", "section:1:b"], "section:2": []}
    assert sorted(store.edges(["section:1:a"])) == [edge("c1", "section:1:a"), edge("c2", "section:1:a", "is", 1.0)]
    assert sorted(store.edges(["chunk:c1", "section:1:b"])) == [edge("c1", "section:1:a"), edge("c1", "section:1:b")]
    assert store.chunks(["c2", "lost"]) == {"c2": Chunk("c2", "text of c2")}


def test_texts_and_metadata_come_back_as_they_were(store: GraphStore) -> None:
    metadata = {"n": 3, "f": 0.1, "none": None, "list": [1, "two"], "flag": True, "text": HOSTILE, "": 1}
    chunk = Chunk(HOSTILE, HOSTILE, "parent", metadata, "base")
    store.put([Entry(chunk, (Link(HOSTILE, f"section:1:{HOSTILE}".replace('"', "'")),))])
    (back,) = store.chunks([HOSTILE]).values()
    assert (back, back.text, back.parent_id, back.kb) == (chunk, HOSTILE, "parent", "base")
    assert dict(back.metadata) == metadata
    ((key,),) = store.find(["section:1"]).values()
    ((source, relation, target, weight, owner),) = store.edges([key])
    assert (source, relation, target, weight, owner) == (f"chunk:{HOSTILE}", HOSTILE, key, 1.0, HOSTILE)


def test_putting_a_chunk_again_replaces_what_it_stated(store: GraphStore) -> None:
    store.put([entry("c1", "section:1:a", "section:2:a"), entry("c2", "section:2:a")])
    store.put([entry("c1", "section:9:z"), entry("c1", "section:3:a", weight=0.25, new=True)])
    assert store.stats() == GraphStats(2, 2, 2)
    assert list(store.edges(["chunk:c1"])) == [edge("c1", "section:3:a", weight=0.25)]
    assert store.find(["section:1", "section:9"]) == {"section:1": [], "section:9": []}
    assert dict(store.chunks(["c1"])["c1"].metadata) == {"new": True}


def test_deleting_a_chunk_takes_with_it_what_only_it_stated(store: GraphStore) -> None:
    store.put([entry("c1", "section:1:a", "section:2:a"), entry("c2", "section:2:a")])
    store.delete(["c1", "lost"])
    assert store.stats() == GraphStats(1, 1, 1)
    assert store.find(["section:1", "section:2"]) == {"section:1": [], "section:2": ["section:2:a"]}
    assert list(store.edges(["section:2:a", "section:1:a", "chunk:c1"])) == [edge("c2", "section:2:a")]
    store.delete(["c2"])
    assert store.stats() == GraphStats(0, 0, 0)


def test_of_links_with_one_relation_the_heaviest_counts(store: GraphStore) -> None:
    links = (Link("cites", "section:1:a", 0.25), Link("cites", "section:1:a", 0.5), Link("is", "section:1:a", 0.125))
    store.put([Entry(Chunk("c1"), links)])
    found = {(one.relation, one.weight) for one in store.edges(["section:1:a"])}
    assert found == {("cites", 0.5), ("is", 0.125)}


@pytest.mark.parametrize(
    "link", [Link("", "section:1:a"), Link("cites", "chunk:c1:"), Link("cites", "1"), Link("cites", "a:1:", 0.0),
             Link("cites", "a:1:", 1.5)]
)  # fmt: skip
def test_what_is_no_link_is_refused(link: Link) -> None:
    with pytest.raises(ConfigError):
        Entry(Chunk("c"), (link,))


def random_entries(seed: int) -> list[Entry]:
    draw = random.Random(seed)
    return [
        Entry(
            Chunk(f"c{at}", metadata={"team": draw.choice(["red", "blue"])}),
            (
                Link("is", f"section:{at}:a", 1.0),
                *(Link("cites", f"section:{draw.randrange(30)}:a", draw.choice([0.25, 0.5])) for _ in range(3)),
            ),
        )
        for at in range(30)
    ]


def rows(ranking: Ranking) -> list[tuple[str, float | None, tuple[str, ...]]]:
    return [(hit.id, hit.score, hit.votes[0].via) for hit in ranking]


@pytest.mark.parametrize("require", [None, {"team": "red"}])
async def test_every_store_gives_the_same_walks(store: GraphStore, require: dict[str, str] | None) -> None:
    entries = random_entries(7)
    store.put(entries[:20])
    store.put(entries[10:])
    store.delete(["c3", "c4"])
    held = [e for e in entries if e.chunk.id not in ("c3", "c4")]
    permitted = [e for e in held if require is None or e.chunk.metadata["team"] == "red"]
    for text in ("section 5", "sections 3, 8 and 12"):
        query = Query(text, require=require)
        for options in ({}, {"depth": 3, "fan_out": 2}, {"depth": 1, "decay": 1.0}):
            expected = rows(GraphChannel(EmbeddedGraph(permitted), **options).search(text, 30))
            assert rows(GraphChannel(store, **options).search(query, 30)) == expected
            assert rows(await GraphChannel(store, **options).asearch(query, 30)) == expected
            assert expected


async def test_every_store_expands_alike(store: GraphStore) -> None:
    entries = random_entries(11)
    store.put(entries)
    found = Ranking(tuple(Hit(Chunk(f"c{at}"), 1.0 / at) for at in range(1, 6)))
    expected = GraphExpansion(EmbeddedGraph(entries)).refine(Query("q"), found)
    stage = GraphExpansion(store)
    assert stage.refine(Query("q"), found) == expected
    if stage.arefine is not None and hasattr(store, "aedges"):
        assert await stage.arefine(Query("q"), found) == expected
    assert len(expected) == len(found) + stage.limit


async def test_the_direct_answer_is_the_same(store: GraphStore) -> None:
    store.put(random_entries(7))
    expected = GraphChannel(EmbeddedGraph(random_entries(7))).kg_direct_query("section 5")
    assert expected is not None
    assert expected["chunk_id"] == "c5"
    assert GraphChannel(store).kg_direct_query("section 5") == expected
    assert await GraphChannel(store).akg_direct_query("section 5") == expected


def test_relations_of_others_are_walked_and_under_rights_only_those_whose_chunk_is_known() -> None:
    inner = SimplePropertyGraphStore()
    store = PropertyGraph(inner)
    store.put([entry("c1", "section:1:a", team="red"), entry("c2", "section:2:a", team="red")])
    inner.upsert_relations([Relation(label="PUNISHES", source_id="section:1:a", target_id="section:2:a")])
    channel = GraphChannel(store)
    found = channel.search("section 1")
    assert [(hit.id, hit.votes[0].via[1]) for hit in found] == [("c1", "cited by"), ("c2", "PUNISHES")]
    assert channel.search(Query("section 1", require={"team": "red"})).ids == ("c1",)
    told = Relation(
        label="AMENDS", source_id="section:1:a", target_id="section:2:a", properties={"triplet_source_id": "c2"}
    )
    inner.upsert_relations([told])
    assert channel.search(Query("section 1", require={"team": "red"})).ids == ("c1", "c2")


def test_a_property_graph_is_over_a_property_graph_store() -> None:
    with pytest.raises(ConfigError, match="PropertyGraphStore"):
        PropertyGraph(object())  # type: ignore[arg-type]

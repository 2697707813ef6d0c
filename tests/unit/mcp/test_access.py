"""What a client may not see does not exist for it; what fails or is broken off is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp")

from mcp import ClientSession, McpError
from mcp.types import CancelledNotification, CancelledNotificationParams, ClientNotification

from tests.helpers import FailingChannel, HeldChannel, ListChannel
from tests.unit.mcp.parts import KEYWORDS, PLANT, citations, make, offered, page, session, text, told
from voicevault_retrievers import KnowledgeBase, fuse
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.errors import SearchError
from voicevault_retrievers.mcp import bases
from voicevault_retrievers.mcp.bases import Library
from voicevault_retrievers.pipeline.pipeline import Pipeline


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kbs"))


@pytest.fixture
def slow() -> Iterator[HeldChannel]:
    channel = HeldChannel(name="slow")
    yield channel
    channel.go.set()


def _searched(monkeypatch: pytest.MonkeyPatch, **channels: Any) -> None:
    """Every base is these channels."""
    pipeline = Pipeline(fuse(channels))
    monkeypatch.setattr(Library, "pipeline", lambda *_: pipeline.within(bases.TIMEOUT))


async def _everything(client: ClientSession) -> str:
    """All that a client can learn."""
    said = [
        text(
            await client.call_tool("search", {"query": "pump secret code lever button bearings valve boiler", "k": 50})
        ),
        text(await client.call_tool("list_sources", {})),
        text(await client.call_tool("get_context", {"kb": "plant", "id": "p2", "neighbours": 5})),
        text(await client.call_tool("get_context", {"kb": "plant", "id": "p3"})),
        str(await client.list_tools()),
    ]
    return "\n".join(said)


@pytest.mark.parametrize("kind", ["require", "where"])
async def test_what_is_not_permitted_does_not_exist(root: Path, kind: str) -> None:
    shared = Library()
    rights = {kind: {"public": True}}
    async with (
        session(offered(root, "plant", **rights), shared) as guest,
        session(offered(root, "plant"), shared) as all_,
    ):
        seen = await _everything(guest)
        assert "4711" not in seen
        assert "manual.pdf, p.3" not in seen
        assert "manual.pdf (3 pages, 3 chunks)" in seen
        assert await told(guest, "get_context", kb="plant", id="p3") == (
            "There is no 'p3' in knowledge base 'plant', or it is there no more."
        )
        assert "4711" in await _everything(all_)
        read = citations(await all_.call_tool("get_context", {"kb": "plant", "id": "child"}))
        assert [one.text for one in read] == ["Before. The boiler holds steam. After."]


@pytest.mark.parametrize("kind", ["require", "where"])
async def test_a_chunk_that_is_not_permitted_takes_no_neighbours_away(tmp_path: Path, kind: str) -> None:
    public = [page(number, f"text {number}") for number in (1, 2, 4)]
    with KnowledgeBase.create("twice", root=tmp_path) as base, KnowledgeBase.create("once", root=tmp_path) as other:
        base.add([*public, page(2, "a draft", public=False).prefixed("draft")])
        other.add(public)
    (tmp_path / "keywords.yaml").write_text(KEYWORDS)
    read = []
    for name in ("twice", "once"):
        async with session(offered(tmp_path, name, **{kind: {"public": True}})) as client:
            found = await client.call_tool("get_context", {"id": "p2", "neighbours": 2})
            read.append([(one.index, one.chunk_id, one.text) for one in citations(found)])
    assert read[0] == read[1]
    assert [chunk_id for _, chunk_id, _ in read[0]] == ["p1", "p2", "p4"]


async def test_a_file_that_no_filter_can_say_has_no_neighbours_and_none_is_taken_for_it(tmp_path: Path) -> None:
    files = {"a": {"url": "http://x"}, "b": ["one.pdf", "two.pdf"], "c": "one.pdf", "d": "one.pdf"}
    with KnowledgeBase.create("kb", root=tmp_path) as base:
        base.add(
            [Chunk(one, one, None, {"source": file, "chunk_index": "abcd".index(one)}) for one, file in files.items()]
        )
    (tmp_path / "keywords.yaml").write_text(KEYWORDS)
    async with session(offered(tmp_path, "kb")) as client:
        read = {one: await client.call_tool("get_context", {"id": one, "neighbours": 5}) for one in files}
    shown = {one: [each.chunk_id for each in citations(found)] for one, found in read.items()}
    assert shown == {"a": ["a"], "b": ["b"], "c": ["c", "d"], "d": ["c", "d"]}


async def test_rights_count_in_the_statistics(root: Path) -> None:
    narrowed = offered(root, "plant", require={"public": True}), offered(root, "plant", where={"public": True})
    scores = []
    for offers in narrowed:
        async with session(offers) as client:
            found = citations(await client.call_tool("search", {"query": "pump lever"}))
            scores.append([(one.chunk_id, one.score) for one in found])
    assert [one for one, _ in scores[0]] == [one for one, _ in scores[1]] == ["p1", "p2"]
    assert scores[0] != scores[1]


async def test_a_parent_that_is_not_permitted_is_not_read(root: Path) -> None:
    async with session(offered(root, "plant", require={"source_file": {"$ne": "boiler.pdf"}})) as client:
        assert "There is no 'child'" in await told(client, "get_context", kb="plant", id="child")


async def test_what_the_owner_has_blocked_does_not_exist(tmp_path: Path) -> None:
    root = make(tmp_path)
    async with session(offered(root, "plant")) as client:
        assert "manual.pdf, p.2" in (before := await _everything(client))
        assert "boiler.pdf" in before
        (root / "plant" / "curation.yaml").write_text(
            "blocked: [{documents: [boiler.pdf]}, {chunks: [p2]}]\npinned: [{queries: [secret code], chunks: [p4]}]"
        )
        seen = await _everything(client)
        assert "red button" not in seen
        assert "boiler" not in seen
        assert "There is no 'p2'" in await told(client, "get_context", kb="plant", id="p2")
        read = citations(await client.call_tool("get_context", {"kb": "plant", "id": "p1", "neighbours": 3}))
        assert [one.chunk_id for one in read] == ["p1", "p3", "p4"]
        found = citations(await client.call_tool("search", {"query": "The secret codes"}))
        assert [one.chunk_id for one in found][:2] == ["p4", "p3"]


async def test_another_base_is_told_as_one_that_does_not_exist(root: Path) -> None:
    async with session(offered(root, "plant")) as client:
        for tool, given in (("search", {"query": "x"}), ("get_context", {"id": "p1"}), ("list_sources", {})):
            there = await told(client, tool, kb="office", **given)
            assert there == (await told(client, tool, kb="nobody", **given)).replace("nobody", "office")
            assert there == "unknown knowledge base 'office'. Known: plant."
        found = await client.call_tool("search", {"query": "coffee machine"})
        assert "Nothing was found." in text(found)


async def test_bases_with_rights_of_their_own_take_turns(root: Path) -> None:
    offers = (*offered(root, "plant", require={"public": True}), *offered(root, "office"))
    async with session(offers) as client:
        found = citations(await client.call_tool("search", {"query": "pump", "k": 3}))
        assert [(one.kb, one.chunk_id) for one in found] == [("plant", "p1"), ("office", "p1"), ("plant", "p2")]
        found = citations(await client.call_tool("search", {"query": "secret pump code"}))
        assert "p3" not in [one.chunk_id for one in found]


async def test_what_failed_is_said_without_its_inner_words(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FailingChannel(SearchError("/srv/kbs/secret-base is gone"), name="dense")
    _searched(monkeypatch, bm25=ListChannel([("a", 1.0)], name="bm25"), dense=broken)
    async with session(offered(root, "plant")) as client:
        found = await client.call_tool("search", {"query": "x"})
        assert "Not all was searched, so sources may be missing: dense: SearchError" in text(found)
        assert [one.chunk_id for one in citations(found)] == ["a"]
        _searched(monkeypatch, dense=broken)
        said = await told(client, "search", query="x")
        assert said == "search failed, so it gave nothing: SearchError. It may work later."


async def test_sources_that_hardly_answer_are_told_as_such(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubting = Pipeline(ListChannel([("a", 1.0)]), confidence=lambda _: "none")
    monkeypatch.setattr(Library, "pipeline", lambda *_: doubting)
    async with session(offered(root, "plant")) as client:
        found = await client.call_tool("search", {"query": "x"})
        assert text(found).startswith("None of these sources is likely to answer the question.\nAfter each statement")
        assert (found.structuredContent or {})["confidence"] == "none"


async def test_a_slow_part_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch, slow: HeldChannel) -> None:
    monkeypatch.setattr(bases, "TIMEOUT", 0.2)
    _searched(monkeypatch, slow=slow, fast=ListChannel([("b", 1.0)], name="fast"))
    async with session(offered(root, "plant")) as client:
        found = await client.call_tool("search", {"query": "x"})
        assert (found.structuredContent or {})["degraded"] == ["slow: SearchTimeoutError"]


async def test_a_cancelled_search_ends_and_others_go_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, slow: HeldChannel
) -> None:
    _searched(monkeypatch, slow=slow)
    async with session(offered(root, "plant")) as client, anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def ask() -> None:
            with pytest.raises(McpError, match="cancelled"):
                await client.call_tool("search", {"query": "x"})
            ended.set()

        request = client._request_id
        tasks.start_soon(ask)
        while not slow.began.is_set():
            await anyio.sleep(0.01)
        listed = await client.call_tool("list_sources", {})
        assert not listed.isError
        cancelled = CancelledNotification(params=CancelledNotificationParams(requestId=request))
        await client.send_notification(ClientNotification(cancelled))
        await ended.wait()
        assert not slow.go.is_set()


async def test_a_client_that_asks_is_told_of_progress(root: Path) -> None:
    heard: list[tuple[float, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, message))

    async with session(offered(root, "plant")) as client:
        await client.call_tool("search", {"query": "pump"}, progress_callback=progress)
        await client.send_ping()
    assert heard[0] == (1.0, "channel bm25")


async def test_an_engine_is_called_by_a_name(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    address = f"qdrant+file://{tmp_path}/collection"
    engine = connect(address)
    engine.upsert(PLANT)
    engine.close()
    (offer,) = offered(root, "archive", address=address, require={"public": True})
    async with session([offer]) as client:
        found = citations(await client.call_tool("search", {"query": "secret pump code"}))
        assert [(one.kb, one.chunk_id) for one in found] == [("archive", "p1"), ("archive", "p2")]
        read = citations(await client.call_tool("get_context", {"number": 2}))
        assert [(one.index, one.chunk_id) for one in read] == [(2, "p2")]
        assert "There is no 'p3'" in await told(client, "get_context", id="p3")
        listed = (await client.call_tool("list_sources", {})).structuredContent or {}
        assert [(one["kb"], one["chunks"]) for one in listed["bases"]] == [("archive", 5)]
        assert "collection" not in str(await client.list_tools())

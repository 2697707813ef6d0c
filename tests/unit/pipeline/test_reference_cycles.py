"""What a search has held is free as soon as its result is: nothing waits for the garbage collector."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, Chunk, KnowledgeBase, Pipeline, VectorChannel, fuse
from voicevault_retrievers.core.leaf import LeafChannel
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.store import commit

CHUNKS = [Chunk(f"c{at:03}", f"pump {at % 7} valve {at}", header="Pumps") for at in range(60)]
WAYS: dict[str, Callable[[Pipeline], Any]] = {
    "alone": lambda pipeline: pipeline.search("pump valve"),
    "a misspelled word": lambda pipeline: pipeline.search("pump valvf"),
    "within some time": lambda pipeline: pipeline.within(60).search("pump valve"),
    "watched": lambda pipeline: pipeline.search("pump valve", observe=lambda *_: None),
    "together": lambda pipeline: pipeline.search_many(["pump 3", "valve 4"]),
}
AWAITED: dict[str, Callable[[Pipeline], Awaitable[Any]]] = {
    "alone": lambda pipeline: pipeline.asearch("pump valve"),
    "within some time": lambda pipeline: pipeline.within(60).asearch("pump valve"),
    "together": lambda pipeline: pipeline.asearch_many(["pump 3", "valve 4"]),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """The queries and the matches of all searches, weakly; the garbage collector is off."""
    held: list[weakref.ref[Any]] = []
    allowed = LeafChannel._allowed

    def noted(self: LeafChannel, query: Any, found: Any, k: int) -> Any:
        held.extend(map(weakref.ref, [query, *found]))
        return allowed(self, query, found, k)

    monkeypatch.setattr(LeafChannel, "_allowed", noted)
    gc.collect()
    gc.disable()
    yield held
    gc.enable()


def free(seen: Sequence[weakref.ref[Any]]) -> bool:
    """Whether all is gone; a worker thread lets go of its call a moment after it has delivered the outcome."""
    until = time.monotonic() + 10
    while any(one() is not None for one in seen) and time.monotonic() < until:
        time.sleep(0.001)
    return all(one() is None for one in seen)


class Remote(BM25):
    """Waits for something, as far as anybody knows."""

    local = computes = False


def pipelines(folder: Path) -> Iterator[Pipeline]:
    """Over a knowledge base, over channels in memory, and over one that is searched in another thread."""
    embedder = HashEmbedder()
    base = KnowledgeBase.create("kb", root=folder, embedder=embedder)
    base.add(CHUNKS)
    yield Preset.of({"version": 1, "channels": {"bm25": {}, "dense": {}}}).over(base)
    yield Pipeline(
        fuse(bm25=BM25.from_chunks(CHUNKS, operators=True), dense=VectorChannel.from_chunks(CHUNKS, embedder))
    )
    yield Pipeline(fuse(bm25=BM25.from_chunks(CHUNKS), remote=Remote.from_chunks(CHUNKS)))


class AwaitedEmbedder(HashEmbedder):
    """With an async method."""

    async def aembed_queries(self, texts: Sequence[str]) -> Any:
        return self.embed_queries(texts)


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("embedder", [HashEmbedder(), AwaitedEmbedder()], ids=["blocking", "awaited"])
@pytest.mark.parametrize("seal_at", [1, commit.SEAL_AT], ids=["segments", "the log"])
def test_what_a_commit_has_replaced_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[weakref.ref[Any]], embedder: HashEmbedder, seal_at: int
) -> None:
    """The indexes, arrays and open files of an earlier commit are free when nobody searches them."""
    monkeypatch.setattr(commit, "SEAL_AT", seal_at)
    base = KnowledgeBase.create("kb", root=tmp_path, embedder=embedder)
    tables: list[weakref.ref[Any]] = []
    for at in range(0, len(CHUNKS), 20):
        base.add(CHUNKS[at : at + 20])
        pipeline = Preset.of({"version": 1, "channels": {"bm25": {}, "dense": {}}}).over(base)
        pipeline.search("pump valve")
        assert free(seen)
        assert seal_at == 1 or free(tables)  # segments stay until they are merged
        for leaf in pipeline.channel.leaves():
            index = leaf.index  # type: ignore[attr-defined]
            seen += map(weakref.ref, [leaf, index])
            tables += map(weakref.ref, index.segments if isinstance(leaf, BM25) else index.parts)
        del pipeline, leaf, index
    base.clear()
    assert free([*seen, *tables])


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("search", WAYS.values(), ids=list(WAYS))
def test_a_search_leaves_no_cycles(tmp_path: Path, seen: list[weakref.ref[Any]], search: Callable[..., Any]) -> None:
    for pipeline in pipelines(tmp_path):
        result = search(pipeline)
        assert seen
        del result
        assert free(seen)
        seen.clear()


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("search", AWAITED.values(), ids=list(AWAITED))
async def test_an_async_search_leaves_no_cycles(
    tmp_path: Path, seen: list[weakref.ref[Any]], search: Callable[..., Any]
) -> None:
    for pipeline in pipelines(tmp_path):
        result = await search(pipeline)
        assert seen
        del result
        assert free(seen)
        seen.clear()

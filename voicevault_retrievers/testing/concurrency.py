"""Concurrency tests: many clients at once, sync compared with async, and compositions of channels."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Variant
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.testing.clients import CollectionClient, Collections
from voicevault_retrievers.testing.corpora import MIXED, WordEmbedder, chunks_of, mixed
from voicevault_retrievers.testing.expect import alike, differences, equal, held, that
from voicevault_retrievers.testing.suite import AUTO, COSINE, EXACT, FLOAT, Suite, fill

CLIENTS = 8
EACH = 24
JOIN_SECONDS = 10.0


class Recorded(LeafChannel):
    """A channel that returns the hits of a given ranking for every query."""

    def __init__(self, found: Ranking, name: str) -> None:
        super().__init__(name, "keyword" if name == "bm25" else "semantic")
        self.found = found

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [[Match(hit.chunk, hit.score) for hit in self.found.hits[:k]] for _ in wordings]


class TogetherSuite(Suite):
    """Tests of concurrency, of sync against async, of compositions, and of open resources."""

    def test_many_write_and_search_at_once(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        base = collections.base(embedder=WordEmbedder(), analyzer=AUTO)
        every = [chunks_of("en", EACH, seed=at) for at in range(CLIENTS)]
        own = [
            [Chunk(f"{at}/{chunk.id}", chunk.text, f"p{at}", chunk.metadata) for chunk in part]
            for at, part in enumerate(every)
        ]
        at_once(client, [writer(part) for part in own], [awriter(part) for part in own])
        expected = [chunk for part in own for chunk in part]
        equal(client.count(), len(expected), "count")
        equal(client.ids(), sorted(chunk.id for chunk in expected), "ids, each once")
        held({chunk.id: chunk for chunk in client.engine}, expected, client.name)
        held(
            client.parents(f"p{at}" for at in range(CLIENTS)),
            [Chunk(f"p{at}", "parent") for at in range(CLIENTS)],
            client.name,
        )
        base.add(expected)
        self.agrees(client, base.bm25().search("leaking valves", 1000), "bm25 after all have written")

    def test_many_write_the_same_at_once(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        base = collections.base(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = chunks_of("en", EACH)
        at_once(client, [writer(chunks)] * CLIENTS, [awriter(chunks)] * CLIENTS)
        equal(client.ids(), [chunk.id for chunk in chunks], "ids, each once")
        held({chunk.id: chunk for chunk in client.engine}, chunks, client.name)
        base.add(chunks)
        self.agrees(client, base.bm25().search("leaking valves", 1000), "bm25, of chunks that many have written")

    def test_many_write_and_delete_at_once(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        base = collections.base(embedder=WordEmbedder(), analyzer=AUTO)
        parts = [[Chunk(f"{at}/{c.id}", c.text) for c in chunks_of("en", EACH, seed=at)] for at in range(CLIENTS)]
        at_once(client, [mover(part) for part in parts], [amover(part) for part in parts])
        left = [chunk for part in parts for chunk in part[1::2]]
        held({chunk.id: chunk for chunk in client.engine}, left, client.name)
        base.add(left)
        self.agrees(client, base.bm25().search("leaking valves", 1000), "bm25 after all have deleted")

    def agrees(self, client: CollectionClient, expected: Ranking, what: str) -> None:
        found = client.bm25("leaking valves", 1000)
        that(not (said := differences(found, expected, EXACT)), f"{what}: {said}")
        equal(sorted(found.ids), sorted(expected.ids), f"{what}: ids")

    def test_sync_equals_async(self, collections: Collections, loop: asyncio.AbstractEventLoop) -> None:
        client, _, chunks = fill(collections, mixed(60))
        sync, later = CollectionClient(client.engine, None), CollectionClient(client.engine, loop)
        for query in (
            *MIXED,
            Query("pump", where={"page": 1}),
            Query("pump", require={"even": True}),
            Query("Ventile", variants=(Variant("pump", 0.7),)),
        ):
            for name in ("bm25", "dense", "hybrid"):
                one, other = getattr(sync, name)(query, 20), getattr(later, name)(query, 20)
                alike(
                    other,
                    one,
                    f"{name}, async beside sync, of {query!r}",
                    EXACT if name == "bm25" else FLOAT,
                )
        ids = [chunk.id for chunk in chunks]
        equal(sync.get(ids), later.get(ids), "get")
        equal(sync.count(), later.count(), "count")
        client.engine.close()
        loop.run_until_complete(client.engine.aclose())

    def test_fused_orders_are_those_of_the_same_lists(self, collections: Collections) -> None:
        client, base, _ = fill(collections, mixed(60))
        for query in MIXED:
            lists = {"bm25": client.bm25(query, 100, statistics=None), "dense": client.dense(query, 100)}
            live = client.search(
                fuse({"bm25": client.engine.bm25(), "dense": client.engine.dense()}, method=RRF()), query, 50
            )
            told = fuse({name: Recorded(found, name) for name, found in lists.items()}, method=RRF()).search(query, 50)
            equal(scored(live), scored(told), f"fused over the engine, beside its lists, of {query!r}")
            own = {"bm25": base.bm25(), "dense": base.dense()}
            if all(own[name].search(query, 100).ids == found.ids for name, found in lists.items()):
                equal(
                    scored(live),
                    scored(fuse(own, method=RRF()).search(query, 50)),
                    f"fused, beside a base, of {query!r}",
                )

    def test_a_preset_searches_it(self, collections: Collections) -> None:
        client, base, _ = fill(collections, mixed(60))
        preset = load_preset("voicevault").with_stages(())
        for query in MIXED:
            found, expected = preset.over(client.engine).search(query), preset.over(base).search(query)
            equal((found.errors, found.degraded), ((), False), f"errors of {query!r}")
            if client.loop is not None:
                later = client.loop.run_until_complete(preset.over(client.engine).asearch(query))
                equal(scored(later.ranking), scored(found.ranking), f"async beside sync of {query!r}")
            if client.engine.capabilities.exact_vectors:
                alike(found.ranking, expected.ranking, f"{query!r}, beside a knowledge base", COSINE)
            equal(found.context.text != "", True, f"context of {query!r}")

    def test_nothing_is_left_open(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert(chunks_of("en", 20))
        client.close()
        sockets, threads = open_sockets(), set(threading.enumerate())
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            for _ in range(3):
                equal(client.count(), 20, "count by a client that was closed")
                that(client.bm25("pump", 3).ids and client.dense("pump", 3).ids, "nothing was found after closing")
                client.close()
            client.close()
            gc.collect()
        until = time.monotonic() + JOIN_SECONDS
        while (left := open_sockets()) > sockets and time.monotonic() < until:
            time.sleep(0.01)  # a server in this process may close its side a moment later
        that(left <= sockets, f"{left} sockets are open after closing, {sockets} at first")
        for thread in set(threading.enumerate()) - threads:  # a client's thread may end after the client is closed
            if threading.active_count() > len(threads) + self.threads_ending:
                thread.join(JOIN_SECONDS)
        that(
            threading.active_count() <= len(threads) + self.threads_ending,
            f"{threading.active_count()} threads after closing, {len(threads)} at first",
        )


def scored(ranking: Ranking) -> list[tuple[str, float | None]]:
    """The ids with their scores, for exact comparison."""
    return [(hit.id, hit.score) for hit in ranking]


def open_sockets() -> int:
    """The number of this process's open sockets, where the system reports it."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return 0
    found = 0
    for entry in folder.iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:  # the descriptor was closed meanwhile
            continue
    return found


def at_once(
    client: CollectionClient, functions: Sequence[Callable[[Engine], None]], tasks: Sequence[Callable[[Engine], Any]]
) -> None:
    """Call functions in threads, or run as many tasks; raises the first error."""
    engine = client.engine
    simultaneously(
        client.loop, [partial(function, engine) for function in functions], [partial(task, engine) for task in tasks]
    )


def simultaneously(
    loop: asyncio.AbstractEventLoop | None,
    functions: Sequence[Callable[[], object]],
    tasks: Sequence[Callable[[], Awaitable[object]]],
) -> None:
    """Call functions in threads, or, with an event loop, run as many tasks on it; raises the first error."""
    if loop is not None:

        async def all_tasks() -> None:
            await asyncio.gather(*(task() for task in tasks))

        loop.run_until_complete(all_tasks())
        return
    errors: list[BaseException] = []
    together = threading.Barrier(len(functions))

    def work(function: Callable[[], object]) -> None:
        try:
            together.wait()
            function()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def parents_of(chunks: Sequence[Chunk]) -> list[Chunk]:
    """A parent chunk for each parent id that chunks have."""
    return [Chunk(one, "parent") for one in dict.fromkeys(chunk.parent_id for chunk in chunks) if one is not None]


def writer(chunks: Sequence[Chunk]) -> Callable[[Engine], None]:
    """A function that upserts chunks in four calls and searches after each."""

    def write(engine: Engine) -> None:
        for start in range(0, len(chunks), EACH // 4):
            engine.upsert(chunks[start : start + EACH // 4], parents=parents_of(chunks))
            engine.bm25().search("leaking valves", 5)
            engine.dense().search("leaking valves", 5)

    return write


def awriter(chunks: Sequence[Chunk]) -> Callable[[Engine], Any]:
    """`writer` as a task."""

    async def write(engine: Engine) -> None:
        for start in range(0, len(chunks), EACH // 4):
            await engine.aupsert(chunks[start : start + EACH // 4], parents=parents_of(chunks))
            await engine.bm25().asearch("leaking valves", 5)
            await engine.dense().asearch("leaking valves", 5)

    return write


def mover(chunks: Sequence[Chunk]) -> Callable[[Engine], None]:
    """A function that upserts chunks, searches, and deletes every other chunk."""

    def move(engine: Engine) -> None:
        engine.upsert(chunks)
        engine.bm25().search("leaking valves", 5)
        engine.delete([chunk.id for chunk in chunks[::2]])

    return move


def amover(chunks: Sequence[Chunk]) -> Callable[[Engine], Any]:
    """`mover` as a task."""

    async def move(engine: Engine) -> None:
        await engine.aupsert(chunks)
        await engine.bm25().asearch("leaking valves", 5)
        await engine.adelete([chunk.id for chunk in chunks[::2]])

    return move

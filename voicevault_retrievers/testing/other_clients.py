"""Tests of a client whose collection another client clears, recreates, changes or creates at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.server import WriteCounts
from voicevault_retrievers.errors import IncompatibleIndexError, RetrievalError
from voicevault_retrievers.testing.clients import CollectionClient, Collections
from voicevault_retrievers.testing.concurrency import simultaneously
from voicevault_retrievers.testing.corpora import WordEmbedder, chunks_of, vectors_of
from voicevault_retrievers.testing.expect import alike, equal, held, that
from voicevault_retrievers.testing.suite import AUTO, EXACT, Suite, applies_where
from voicevault_retrievers.text import Analyzer

T = TypeVar("T")

CHUNKS = chunks_of("en", 20)
OTHERS = chunks_of("de", 20)
GIVEN: dict[str, Any] = {"embedder": WordEmbedder(), "analyzer": AUTO}
ROUNDS = 4
"""How often two clients create a collection, or one client changes chunks."""


def whole(found: Ranking) -> Ranking:
    """The ranking; RetrievalError where a part of the search failed."""
    if found.skipped:
        raise RetrievalError(str(found.skipped))
    return found


EMPTY: dict[str, tuple[Callable[[CollectionClient], object], object]] = {
    "bm25": (lambda client: client.bm25("leaking valves", 5).ids, ()),
    "dense": (lambda client: client.dense("leaking valves", 5).ids, ()),
    "hybrid": (lambda client: whole(client.hybrid("leaking valves", 5)).ids, ()),
    "scores": (lambda client: dict(client.engine.bm25().scan(Query("valves")).scores(["en-00000"])), {}),
    "count": (lambda client: client.count(), 0),
    "get": (lambda client: client.get(["en-00000"]), {}),
    "parents": (lambda client: client.parents(["p"]), {}),
    "vectors": (lambda client: client.engine.vectors(["en-00000"]), {}),
    "stored": (lambda client: client.ids(), []),
    "delete": (lambda client: client.delete(["en-00000"]), 0),
    "delete by a filter": (lambda client: client.delete(where={"page": 1}), 0),
    "upsert": (lambda client: client.upsert(CHUNKS), WriteCounts(added=len(CHUNKS))),
}
"""Calls to a collection that no longer exists, and their results."""

OTHER_MAKING = [{"embedder": WordEmbedder(24, "another")}, {"analyzer": Analyzer("en")}]


def settled(call: Callable[[], T]) -> T:
    """The result of a call, which is repeated once: the first may find that the collection was replaced."""
    try:
        return call()
    except RetrievalError:
        return call()


def made_anew(
    collections: Collections, client: CollectionClient, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Let other clients clear a collection and recreate it with `OTHERS`."""
    with collections.meanwhile(client, **before) as other:
        other.clear()
    with collections.meanwhile(client, **after) as other:
        other.upsert(OTHERS)


class Others(Suite):
    """Tests of several clients of one collection."""

    @pytest.mark.parametrize("first", EMPTY)
    def test_collection_that_another_client_cleared(self, collections: Collections, first: str) -> None:
        client = collections(**GIVEN)
        client.upsert(CHUNKS, parents=[Chunk("p", "a parent")])
        client.bm25("leaking valves", 5)
        client.dense("leaking valves", 5)
        with collections.meanwhile(client, **GIVEN) as other:
            other.clear()
        asked, expected = EMPTY[first]
        equal(settled(lambda: asked(client)), expected, first)
        settled(lambda: client.upsert(OTHERS))
        equal(settled(lambda: client.upsert(CHUNKS)).replaced, 0, "replaced of chunks that were cleared")
        every = [*CHUNKS, *OTHERS]
        held(client.get(chunk.id for chunk in every), every, client.name)
        equal(client.count(), len(every), "count")
        self.finds(client, collections, every, GIVEN)

    @pytest.mark.parametrize("first", ["upsert", "bm25", "dense", "hybrid", "count"])
    def test_collection_that_another_client_made_anew(self, collections: Collections, first: str) -> None:
        client = self.used(collections, **GIVEN)
        made_anew(collections, client, GIVEN, GIVEN)
        base = collections.base(OTHERS, **GIVEN)
        asked: dict[str, tuple[Callable[[], object], object]] = {
            "upsert": (lambda: client.upsert(OTHERS), WriteCounts(unchanged=len(OTHERS))),
            "bm25": (lambda: client.bm25("undichte Ventile", 5).ids, base.bm25().search("undichte Ventile", 5).ids),
            "dense": (lambda: client.dense("undichte Ventile", 5).ids, base.dense().search("undichte Ventile", 5).ids),
            "hybrid": (
                lambda: bool(whole(client.hybrid("leaking", 5)).ids),
                bool(base.hybrid_search("leaking", 5).ids),
            ),
            "count": (client.count, len(OTHERS)),
        }
        call, expected = asked[first]
        equal(settled(call), expected, first)
        settled(lambda: client.upsert(CHUNKS))
        self.finds(client, collections, [*CHUNKS, *OTHERS], GIVEN)

    @pytest.mark.parametrize("first", ["upsert", "upsert vectors", "bm25", "dense", "hybrid"])
    @pytest.mark.parametrize("making", OTHER_MAKING, ids=["embedder", "analyzer"])
    def test_collection_that_another_client_made_anew_otherwise(
        self, collections: Collections, making: dict[str, Any], first: str
    ) -> None:
        client, made = self.used(collections, **GIVEN), {**GIVEN, **making}
        made_anew(collections, client, GIVEN, made)
        uses: dict[str, Callable[[], object]] = {
            "upsert": lambda: client.upsert(CHUNKS),
            "upsert vectors": lambda: client.upsert(CHUNKS, vectors_of(WordEmbedder(), CHUNKS)),
            "bm25": lambda: client.bm25("pump Ventile", 5),
            "dense": lambda: client.dense("pump Ventile", 5),
            "hybrid": lambda: whole(client.hybrid("pump Ventile", 5)),
        }
        with pytest.raises(RetrievalError):
            that(uses[first]() is client, f"{first} was answered though the collection was made with {making}")
        for name in ("upsert", "upsert vectors", "bm25", "dense"):
            with pytest.raises(IncompatibleIndexError):
                that(uses[name]() is client, f"{name} was answered again though the collection was made with {making}")
        with collections.meanwhile(client, **made) as other:
            held({chunk.id: chunk for chunk in other.engine}, OTHERS, other.name)
            rows = other.engine.vectors(chunk.id for chunk in OTHERS)
            own = vectors_of(made["embedder"], OTHERS)
            off = max(float(np.abs(rows[c.id] - row).max()) for c, row in zip(OTHERS, own, strict=True))
            that(off < 1e-6, f"vectors that are not of the collection's embedder: off by up to {off}")
            self.finds(other, collections, OTHERS, made)

    @pytest.mark.parametrize("first", ["upsert", "bm25"])
    def test_another_analyzer_is_taken_where_none_was_given(self, collections: Collections, first: str) -> None:
        german = {"analyzer": Analyzer("de")}
        client = self.used(collections)
        made_anew(collections, client, {}, german)
        if first == "bm25":
            found = settled(lambda: client.bm25("undichte Ventile", 99)).ids
            expected = collections.base(OTHERS, **german).bm25().search("undichte Ventile", 99).ids
            equal(set(found), set(expected), "found by words")
        settled(lambda: client.upsert(CHUNKS))
        every = [*CHUNKS, *OTHERS]
        equal(client.upsert(every), WriteCounts(unchanged=len(every)), "written again")
        self.finds(client, collections, every, german)
        with collections.meanwhile(client, **german) as other:
            equal(other.upsert(every), WriteCounts(unchanged=len(every)), "written again by the other client")

    def used(self, collections: Collections, **options: Any) -> CollectionClient:
        """A client that has written and searched."""
        client = collections(**options)
        client.upsert(CHUNKS)
        that(client.bm25("leaking valves", 5).ids, "bm25 found nothing")
        if "embedder" in options:
            that(client.dense("leaking valves", 5).ids, "dense found nothing")
        return client

    def finds(
        self, client: CollectionClient, collections: Collections, chunks: Sequence[Chunk], options: dict[str, Any]
    ) -> None:
        """Fail unless a client finds the same as a knowledge base with these chunks."""
        base = collections.base(chunks, **options)
        for query in ("leaking valves", "undichte Ventile"):
            found, expected = client.bm25(query, 99), base.bm25().search(query, 99)
            alike(found, expected, f"bm25 of {query!r}", EXACT)
            equal(sorted(found.ids), sorted(expected.ids), f"found by the words {query!r}")
            if options.get("embedder") is not None:
                equal(client.dense(query, 1).ids, base.dense().search(query, 1).ids, f"nearest to {query!r}")

    @pytest.mark.parametrize("channel", ["bm25", "dense"])
    def test_search_finds_chunks_that_are_being_replaced(self, collections: Collections, channel: str) -> None:
        client = collections(**GIVEN)
        other = client if self.alone else collections(client.name, **GIVEN)
        chunks = [*(Chunk(f"en-{at}", f"giraffe giraffe {at}") for at in range(3)), *chunks_of("de", 30)]
        client.upsert(chunks)
        versions = [
            [replace(chunk, text=f"{chunk.text} version{at}") for chunk in chunks[:3]] for at in range(3 * ROUNDS)
        ]
        found: list[set[str]] = []

        def searched(engine: Engine) -> Any:
            return (engine.bm25 if channel == "bm25" else engine.dense)()

        if client.loop is not None:
            client.loop.run_until_complete(_amid(client.engine, searched(other.engine), versions, found))
        else:
            _amid_threads(client.engine, searched(other.engine), versions, found)
        least = 3 if client.engine.capabilities.atomic else 1
        wrong = [ids for ids in found if len(ids) < least]
        that(not wrong, f"{len(wrong)} of {len(found)} searches found {wrong[:3]!r} of 3 chunks that were replaced")
        expected = [*versions[-1], *chunks[3:]]
        held({chunk.id: chunk for chunk in client.engine}, expected, client.name)
        self.finds(client, collections, expected, GIVEN)

    @applies_where(lambda suite: not suite.alone)
    def test_two_clients_create_it_at_once(self, collections: Collections) -> None:
        parts = [CHUNKS, OTHERS]
        base = collections.base([*CHUNKS, *OTHERS], **GIVEN)
        for _ in range(ROUNDS):
            first = collections(**GIVEN)
            clients = [first, collections(first.name, **GIVEN)]
            simultaneously(
                first.loop,
                [lambda c=c, p=p: c.engine.upsert(p) for c, p in zip(clients, parts, strict=True)],  # type: ignore[misc]  # bound now
                [lambda c=c, p=p: c.engine.aupsert(p) for c, p in zip(clients, parts, strict=True)],  # type: ignore[misc]  # as above
            )
            for client in clients:
                held({chunk.id: chunk for chunk in client.engine}, [*CHUNKS, *OTHERS], first.name)
                equal(client.count(), len(CHUNKS) + len(OTHERS), "count")
            for query in ("leaking valves", "undichte Ventile"):
                one, two = (client.bm25(query, 99) for client in clients)
                alike(two, one, f"bm25 of {query!r} by the one and the other", EXACT)
                near, too = (client.dense(query, 9) for client in clients)
                alike(too, near, f"dense of {query!r} by the one and the other", EXACT)
                expected = base.bm25().search(query, 99)
                alike(one, expected, f"bm25 of {query!r}", EXACT)
                equal(sorted(one.ids), sorted(expected.ids), f"found by the words {query!r}")
            for client in clients:
                client.close()


def _replaced(ids: Sequence[str]) -> set[str]:
    return {one for one in ids if one.startswith("en")}


def _amid_threads(engine: Engine, channel: Any, versions: Sequence[Sequence[Chunk]], found: list[set[str]]) -> None:
    """Search while a thread replaces chunks, version by version."""
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for chunks in versions:
                engine.upsert(chunks)
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        found.append(_replaced(channel.search("giraffe", 99).ids))
    writer.join()
    if errors:
        raise errors[0]


async def _amid(engine: Engine, channel: Any, versions: Sequence[Sequence[Chunk]], found: list[set[str]]) -> None:
    async def write() -> None:
        for chunks in versions:
            await engine.aupsert(chunks)

    writer = asyncio.ensure_future(write())
    while not writer.done():
        found.append(_replaced((await channel.asearch("giraffe", 99)).ids))
        await asyncio.sleep(0)
    await writer

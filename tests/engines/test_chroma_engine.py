"""ChromaEngine over a real Chroma, in this process and served, sync and async: what every engine keeps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.engines.awkward import FILTERS, VALUES, WHERE, metadata
from tests.engines.meanwhile import meanwhile
from tests.helpers import HashEmbedder
from voicevault_retrievers import Chunk, KnowledgeBase, Query
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Ranking
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.chroma.clients import ChromaRequest
from voicevault_retrievers.engines.chroma.collection import OPEN, PARENTS
from voicevault_retrievers.engines.chroma.engine import ChromaEngine, at
from voicevault_retrievers.engines.server import Record, WriteCounts
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    NotIndexedError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)
from voicevault_retrievers.testing.expect import held
from voicevault_retrievers.text import Analyzer

pytest.importorskip("chromadb")

EMBEDDER = HashEmbedder(16)
PLAIN = Analyzer(language=None)
NAMES = count()
Make: TypeAlias = Callable[..., ChromaEngine]

WORDS = ("pump", "valve", "turbine", "oil", "blade", "rotor", "the", "and", "und", "der")


def some(size: int, start: int = 0) -> list[Chunk]:
    """Chunks of a few words that differ in their metadata."""
    return [
        Chunk(
            f"c{at:03d}",
            " ".join(WORDS[(at * step) % len(WORDS)] for step in range(1, 3 + at % 5)),
            f"p{at % 4}" if at % 3 else None,
            {"file_id": f"f{at % 3}", "chunk_index": at, "page": at / 2 if at % 2 else at},
        )
        for at in range(start, start + size)
    ]


def told(ranking: Ranking) -> list[tuple[str, float | None]]:
    return [(hit.id, hit.score) for hit in ranking]


def alike(theirs: Ranking, ours: Ranking, within: float) -> None:
    assert theirs.ids == ours.ids
    assert [hit.score for hit in theirs] == pytest.approx([hit.score for hit in ours], abs=within)


def base(folder: Path, chunks: Sequence[Chunk], vectors: Any = None, **options: Any) -> KnowledgeBase:
    kb = KnowledgeBase.create(f"kb{next(NAMES)}", root=folder, **{"embedder": EMBEDDER, "analyzer": PLAIN, **options})
    kb.add(chunks, vectors)
    return kb


@pytest.fixture(params=["embedded", "http"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """A function that opens the test's own collection; `name` says another."""
    own = f"test-{next(NAMES)}"
    made: list[ChromaEngine] = []
    where: dict[str, Any] = {"path": tmp_path / "chroma"}
    if request.param == "http":
        where = {"url": f"http://127.0.0.1:{request.getfixturevalue('chroma_port')}"}

    def opened(name: str = own, **options: Any) -> ChromaEngine:
        made.append(ChromaEngine(name, **{"embedder": EMBEDDER, "analyzer": PLAIN, **where, **options}))
        return made[-1]

    yield opened
    for engine in made:
        engine.close()
    gc.collect()  # what is still open warns, which is an error


def test_keys_and_ids_that_this_package_uses_may_be_the_users_too(make: Make) -> None:
    engine = make()
    keys = [
        "_voicevault", "_voicevault_others", "tokens", "doc_length", "$or", "a.b", "chroma:document",
        "#document", "", " ",
    ]  # fmt: skip
    ids = ["a\0b", "hex:6161", "\ud800", "..", "%2F"]
    chunks = [Chunk("keys", "text", metadata={key: [at, key] for at, key in enumerate(keys)})]
    chunks += [Chunk("keys too", "text", metadata=dict.fromkeys(keys, "mine"))]
    chunks += [Chunk(one, f"text {at}", parent_id=one) for at, one in enumerate(ids)]
    parents = [Chunk(one, f"parent \ud800 {one!r}", metadata={"tokens": [1]}) for one in ids]
    assert engine.upsert(chunks, parents=parents) == WriteCounts(added=len(chunks))
    held(engine.get([chunk.id for chunk in chunks]), chunks, engine.name)
    held(engine.parents([*ids, "none"]), parents, engine.name)
    assert engine.upsert(chunks) == WriteCounts(unchanged=len(chunks))
    assert engine.delete(ids) == len(ids)
    assert engine.parents(ids) == {}


@pytest.mark.parametrize("make", ["http"], indirect=True)
def test_filters_mean_what_they_mean_everywhere(make: Make, tmp_path: Path) -> None:
    engine = make()
    chunks = [
        Chunk(f"v{at:02d}", f"pump {'valve ' * (at % 3)}", metadata=own) for at, own in enumerate(metadata(VALUES))
    ]
    engine.upsert(chunks)
    kb = base(tmp_path, chunks)
    for where in FILTERS:
        asked = Query("pump valve", where=where)
        for k in (3, 100):
            assert told(engine.bm25().search(asked, k)) == told(kb.bm25().search(asked, k)), where
            alike(engine.dense().search(asked, k), kb.dense().search(asked, k), 1e-6)
        passes = compile_filter(where)
        passing = {chunk.id for chunk in chunks if passes(chunk.metadata)}
        assert set(engine.bm25().search(asked, 100).ids) == passing


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ChromaEngine, KnowledgeBase]]:
    chunks = [Chunk(f"v{at:02d}", "pump", metadata=own) for at, own in enumerate(metadata(VALUES))]
    engine = ChromaEngine("filtered", path=tmp_path_factory.mktemp("filtered"), embedder=EMBEDDER, analyzer=PLAIN)
    engine.upsert(chunks)
    yield engine, base(tmp_path_factory.mktemp("bases"), chunks)
    engine.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=WHERE)
def test_any_filter_finds_what_a_knowledge_base_finds(
    filtered: tuple[ChromaEngine, KnowledgeBase], where: dict[str, Any]
) -> None:
    engine, kb = filtered
    for asked in (Query("pump", where=where), Query("pump", require=where)):
        assert engine.dense().search(asked, 100).ids == kb.dense().search(asked, 100).ids
        assert told(engine.bm25().search(asked, 100)) == told(kb.bm25().search(asked, 100))


@pytest.mark.parametrize("make", ["embedded"], indirect=True)
@pytest.mark.parametrize("formula", ["lucene", "okapi", "bm25l", "bm25+", "robertson"])
def test_keywords_score_as_in_a_knowledge_base(make: Make, tmp_path: Path, formula: str) -> None:
    engine = make()
    chunks = [*some(60), Chunk("none", "")]
    engine.upsert(chunks)
    kb = base(tmp_path, chunks)
    for statistics in ("exact", "filtered"):
        ours, theirs = (one.bm25(formula=formula, statistics=statistics) for one in (kb, engine))
        for text in ("pump", "the oil pump pump", "rotor und turbine", "nothing", ""):
            for where, require in ((None, None), ({"file_id": "f1"}, None), (None, {"page": {"$gte": 9}})):
                asked = Query(text, where=where, require=require)
                assert told(theirs.search(asked, 7)) == told(ours.search(asked, 7))
                ids = ["c001", "c009", "c031", "none", "unknown"]
                assert theirs.scores(asked, ids) == ours.scores(asked, ids)
                assert [hit.vote("bm25") for hit in theirs.search(asked, 7)] == [
                    hit.vote("bm25") for hit in ours.search(asked, 7)
                ]


def test_equally_near_ones_come_by_their_ids(make: Make) -> None:
    engine = make()
    chunks = [Chunk(f"{at:03d}", "pump", metadata={"odd": at % 2 == 1}) for at in reversed(range(60))]
    engine.upsert(chunks)
    for k in (1, 7, 30):
        assert engine.dense().search("pump", k).ids == tuple(f"{at:03d}" for at in range(k))
        odd = engine.dense().search(Query("pump", where={"odd": True}), k)
        assert odd.ids == tuple(f"{at:03d}" for at in range(1, 2 * k, 2))
    assert engine.dense().search("pump", 1).hits[0].score == pytest.approx(1.0)


@pytest.mark.parametrize("where", [{"group": 9}, {"readers": "alice", "group": 9}, {"name": {"$text": "rare"}}])
def test_what_few_pass_is_found_among_many_equal_texts_and_lists(make: Make, where: dict[str, Any]) -> None:
    """Chroma's index misses much of what is equally near, and a list under another key says nothing of a filter."""
    boilerplate = [Chunk(f"a{at:04}", "the pump", metadata={"group": 1, "readers": ["alice"]}) for at in range(1200)]
    few = [
        Chunk(f"z{at}", f"the pump {at}", metadata={"group": 9, "readers": ["alice", "bob"], "name": "rare"})
        for at in range(12)
    ]
    engine = make(embedder=EMBEDDER, analyzer=PLAIN)
    engine.upsert([*boilerplate, *few])
    for query in (Query("pump", where=where), Query("pump", require=where)):
        assert len(engine.dense().search(query, 10)) == 10


def test_what_is_replaced_leaves_nothing(make: Make) -> None:
    engine = make()
    before = {"page": 1, "list": ["a"], "file": "x"}
    engine.upsert([Chunk("a", "pump", "p", before)], parents=[Chunk("p", "above", metadata=before)])
    engine.upsert([Chunk("a", "pump", None, {"file": "y"})], parents=[Chunk("p", "above", metadata={"b": 1})])
    assert engine.get(["a"])["a"] == Chunk("a", "pump", None, {"file": "y"}, engine.name)
    assert engine.parents(["p"])["p"] == Chunk("p", "above", None, {"b": 1}, engine.name)
    passed: list[dict[str, Any]] = [{"$not": {"page": 1}}, {"page": {"$exists": False}}, {"$not": {"file": "x"}}]
    for where in [*passed, {"file": "y"}]:
        assert engine.dense().search(Query("pump", where=where)).ids == ("a",)
    missed: list[dict[str, Any]] = [{"page": 1}, {"list": "a"}, {"file": "x"}]
    for where in missed:
        assert engine.dense().search(Query("pump", where=where)).ids == ()


def test_another_client_sees_every_change(make: Make) -> None:
    one, two = make(), make()
    assert (two.bm25().search("pump").ids, two.dense().search("pump").ids, len(two)) == ((), (), 0)
    one.upsert([Chunk("a", "pump"), Chunk("b", "valve")])
    assert two.bm25().search("pump").ids == ("a",)
    one.upsert([Chunk("b", "pump pump")])  # as many as before
    assert set(two.bm25().search("pump").ids) == {"a", "b"}
    one.delete(["a"])
    assert two.bm25().search("pump").ids == ("b",)
    one.clear()
    assert (two.bm25().search("pump").ids, two.dense().search("pump").ids, len(two)) == ((), (), 0)
    assert (two.get(["b"]), two.vectors(["b"]), two.delete(["b"]), list(two)) == ({}, {}, 0, [])
    one.upsert([Chunk("c", "pump")])
    assert two.bm25().search("pump").ids == two.dense().search("pump").ids == ("c",)
    german = make(analyzer=None)
    assert german.bm25().search("pump").ids == ("c",)
    two.clear()
    make(analyzer=Analyzer("de")).upsert([Chunk("d", "Pumpen")])
    with pytest.raises(SearchNotAvailableError, match="replaced by another"):
        german.bm25().search("Pumpe")
    assert german.bm25().search("Pumpe").ids == ("d",)


class Turned(HashEmbedder):
    """Another embedder of as many dimensions."""

    @property
    def fingerprint(self) -> str:
        return f"turned/{self.dimension}"

    def embed_documents(self, texts: Sequence[str]) -> Any:
        return np.roll(super().embed_documents(texts), 1, axis=1)


@pytest.mark.parametrize("later", [False, True])
def test_a_vector_of_another_embedder_is_not_compared(make: Make, monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    embedders = {one.fingerprint: one for one in (EMBEDDER, Turned(16))}
    monkeypatch.setattr("voicevault_retrievers.store.embedding.make", lambda entry, name: embedders[entry.fingerprint])
    chunks = [Chunk("a", "pump"), Chunk("b", "valve")]
    readers = [make(embedder=None) for _ in range(3)]
    now = EMBEDDER

    def searched(one: ChromaEngine) -> Any:
        if not later:
            return one.dense().search("valve", 1).ids

        async def ids() -> Any:
            try:
                return (await one.dense().asearch("valve", 1)).ids
            finally:
                await one.aclose()

        return asyncio.run(ids())

    operations: list[Callable[[ChromaEngine], Any]] = [
        searched,
        lambda one: one.dense().scores(Query("valve"), ["b"]),
        lambda one: {name: row.tolist() for name, row in one.vectors(["b"]).items()},
    ]
    for now in (EMBEDDER, Turned(16)):
        make(embedder=now).upsert(chunks)
        expected = [("b",), {"b": pytest.approx(1)}, {"b": pytest.approx(now.embed_documents(["valve"])[0].tolist())}]
        for reader, operation, wanted in zip(readers, operations, expected, strict=True):
            if now is not EMBEDDER:
                with pytest.raises(SearchNotAvailableError, match="replaced by another"):
                    operation(reader)
            assert operation(reader) == wanted
        make(embedder=None).clear()


def test_what_a_killed_writer_left_is_seen_and_the_next_one_tidies(make: Make) -> None:
    engine, reader = make(), make()
    engine.upsert([Chunk("a", "pump"), Chunk("b", "valve")])
    assert reader.bm25().search("pump").ids == ("a",)
    new = Chunk("b", "pump")
    steps = engine._write([Record(new, EMBEDDER.embed_documents(["pump"])[0], {"pump": 1}, engine.digest(new))], ())
    answer: Any = None
    for _ in range(4):  # found, marked, read, written; and killed before it is marked again
        asked = steps.send(answer)
        answer = engine._now(asked)
    assert asked.operation == "upsert"
    steps.close()
    for _ in range(2):
        assert reader.bm25().search("pump").ids == ("a", "b")
    assert engine.upsert([new]) == WriteCounts(unchanged=1)
    assert engine._now(ChromaRequest("find", engine.name)).metadata[OPEN] is False
    assert reader.bm25().search("pump").ids == ("a", "b")


@pytest.mark.parametrize("parents", [[], [Chunk("p", "anew")]], ids=["named", "given"])
def test_a_parent_that_is_named_while_it_is_removed_stays(make: Make, parents: list[Chunk]) -> None:
    engine, other = make(), make()
    engine.upsert([Chunk("a", "pump", "p")], parents=[Chunk("p", "above", metadata={"x": 1})])
    waiting = meanwhile(
        engine,
        lambda one: one.operation == "delete" and one.name.endswith(PARENTS),
        lambda: other.upsert([Chunk("b", "valve", "p")], parents=parents),
    )
    engine.upsert([Chunk("a", "pump")])
    assert not waiting
    assert set(engine.parents(["p"])) == {"p"}


def test_a_parent_that_is_removed_before_its_chunk_comes_is_written_again(make: Make) -> None:
    engine, other = make(), make()
    engine.upsert([Chunk("a", "pump", "p")], parents=[Chunk("p", "above")])
    waiting = meanwhile(
        engine,
        lambda one: (one.operation, one.name) == ("upsert", engine.name) and not one.options["ids"][0].startswith("p"),
        lambda: other.delete(["a"]),
    )
    engine.upsert([Chunk("b", "valve", "p")], parents=[Chunk("p", "anew")])
    assert not waiting
    assert engine.parents(["p"]) == {"p": Chunk("p", "anew", kb=engine.name)}


def test_the_statistics_stand_beside_the_vectors(make: Make) -> None:
    engine = make()
    engine.upsert([Chunk("a", "The pump, the VALVE!", metadata={"file_id": "f", "chunk_index": 3})])
    engine.upsert([Chunk("b", "oil", metadata={"file_id": "f", "tokens": "mine"})])
    key = engine._now(ChromaRequest("find", engine.name)).key
    got = engine._now(ChromaRequest("get", engine.name, key, {"ids": ["a", "b"], "include": ["metadatas"]}))
    a, b = got["metadatas"]
    assert json.loads(a["tokens"]) == ["the", "pump", "valve"]
    assert json.loads(a["term_frequencies"]) == {"the": 2, "pump": 1, "valve": 1}
    assert (a["doc_length"], a["avg_doc_length"], a["chunk_index"], a["file_id"]) == (4, 4.0, 3, "f")
    assert (json.loads(b["tokens"]), b["doc_length"], b["avg_doc_length"]) == (["oil"], 1, 2.5)


def test_a_keyword_search_of_too_many_chunks_is_refused_before_it_reads_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(keyword_limit=8)
    engine.upsert(some(9))
    monkeypatch.setattr(engine, "_scanned", None)  # which would read them
    with pytest.raises(NotIndexedError, match=r"9 chunks.*keyword_limit=8.*PostgreSQL.*or raise keyword_limit"):
        engine.bm25().search("pump", 3)
    found = engine.hybrid_search("pump", 3)
    assert found.ids
    assert [failure.stage for failure in found.errors] == ["bm25"]
    assert engine.sibling("_other").keyword_limit == 8
    with pytest.raises(ConfigError, match="keyword_limit"):
        make(keyword_limit=0)


def test_no_word_of_a_query_reaches_the_store(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    engine.upsert(some(20))
    ask, aask, asked = engine._client.ask, engine._client.aask, list[str]()

    def now(one: Any) -> Any:
        asked.append(str(one))
        return ask(one)

    async def later(one: Any) -> Any:
        asked.append(str(one))
        return await aask(one)

    monkeypatch.setattr(engine._client, "ask", now)
    monkeypatch.setattr(engine._client, "aask", later)

    async def search() -> None:
        assert (await engine.bm25().asearch("sesame pump")).ids
        assert (await engine.dense().asearch("sesame pump")).ids
        await engine.aclose()

    assert engine.bm25().search("sesame pump").ids
    assert engine.dense().search("sesame pump").ids
    asyncio.run(search())
    assert len(asked) > 8
    assert not any("sesame" in one for one in asked)


async def test_sync_and_async_agree(make: Make) -> None:
    engine, chunks = make(), some(40)
    assert await engine.acount() == 0
    assert await engine.aupsert(chunks, parents=[Chunk("p1", "above")]) == WriteCounts(added=40)
    assert await engine.aupsert(chunks) == WriteCounts(unchanged=40)
    assert await engine.acount() == len(engine) == 40
    assert await engine.aget(["c001", "c999"]) == engine.get(["c001", "c999"])
    assert await engine.afetch(["p1"]) == engine.fetch(["p1"]) != {}
    for asked in (
        Query("pump oil"),
        Query("rotor", where={"file_id": "f2"}),
        Query("oil", require={"page": {"$lt": 9}}),
    ):
        assert await engine.bm25().asearch(asked, 7) == engine.bm25().search(asked, 7)
        assert await engine.dense().asearch(asked, 7) == engine.dense().search(asked, 7)
    assert (await engine.ahybrid_search("pump oil")).ids == engine.hybrid_search("pump oil").ids
    assert await engine.adelete(where={"file_id": "f0"}) == 14
    assert await engine.adelete(["c001"]) == 1
    assert await engine.acount() == len(engine) == 25
    await engine.aclear()
    assert (await engine.acount(), len(engine)) == (0, 0)
    await engine.aclose()


def test_threads_and_tasks_of_clients_of_their_own_lose_nothing(make: Make, tmp_path: Path) -> None:
    chunks = some(160)
    engines = [make() for _ in range(8)]

    def write(at: int) -> int:
        for start in range(at * 10, at * 10 + 10, 5):
            engines[at].upsert(chunks[start : start + 5], parents=[Chunk(f"p{n}", "above") for n in range(4)])
            engines[at].bm25().search("pump")
        return engines[at].delete([f"c{at * 10:03d}"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, range(8))) == [1] * 8

    async def later(at: int) -> None:
        await engines[at].aupsert(chunks[80 + at * 10 : 90 + at * 10])
        await engines[at].bm25().asearch("pump")
        await engines[at].adelete([f"c{80 + at * 10:03d}"])

    async def all_of_them() -> None:
        await asyncio.gather(*map(later, range(8)))
        for engine in engines:
            await engine.aclose()

    asyncio.run(all_of_them())
    left = [chunk for chunk in chunks if int(chunk.id[1:]) % 10]
    kb = base(tmp_path, left)
    for engine in engines:
        assert {entry.id for entry in engine.stored()} == {chunk.id for chunk in left}
        assert told(engine.bm25().search("pump oil", 200)) == told(kb.bm25().search("pump oil", 200))
    assert set(engines[0].parents(["p0", "p1", "p2", "p3"])) == {"p0", "p1", "p2", "p3"}


def test_a_collection_of_others_is_refused(make: Make) -> None:
    engine = make()
    engine._now(ChromaRequest("create", engine.name, options={"metadata": {"of": "others"}}))
    for operation in (lambda: engine.bm25().search("pump"), lambda: len(engine), lambda: engine.upsert(some(1))):
        with pytest.raises(IncompatibleIndexError, match="not made by this package"):
            operation()
    engine._now(ChromaRequest("drop", engine.name))
    engine.upsert([Chunk("b", "pump")])
    key = engine._now(ChromaRequest("find", engine.name)).key
    row = {"ids": ["a"], "embeddings": [[1.0] * 16], "documents": ["pump"], "metadatas": [{"x": 1}]}
    engine._now(ChromaRequest("upsert", engine.name, key, row))
    for read in (lambda: make().bm25().search("pump"), lambda: engine.dense().search("pump"), lambda: list(engine)):
        with pytest.raises(IncompatibleIndexError, match=r"row 'a' .* was not written by this package"):
            read()


def test_a_sibling_is_beside(make: Make) -> None:
    engine = make()
    engine.upsert(some(2))
    beside = engine.sibling(".questions")
    beside.upsert(some(5))
    assert (len(engine), len(beside), beside.name) == (2, 5, engine.name + ".questions")
    beside.close()


def test_nothing_is_asked_before_the_first_operation(tmp_path: Path) -> None:
    engine = ChromaEngine("away", url="http://127.0.0.1:9", embedder=EMBEDDER, token="s3cret")  # noqa: S106 - of nobody
    channels = engine.bm25(), engine.dense()
    for operation in (lambda: len(engine), lambda: channels[0].search("a"), lambda: engine.upsert(some(1))):
        with pytest.raises(SearchNotAvailableError, match=r"127\.0\.0\.1:9") as caught:
            operation()
        assert "s3cret" not in f"{caught.value!r} {engine!r}"
    local = ChromaEngine("away", path=tmp_path / "chroma", embedder=EMBEDDER)
    assert (len(local), local.bm25().search("a").ids, local.get(["a"])) == (0, (), {})
    assert list(tmp_path.iterdir()) == []
    engine.close()


@pytest.mark.parametrize("token", ["s3cret\n", "s3cr\u20act", "s3cr et", "", 7])
def test_a_token_that_no_header_can_be_is_refused_and_not_told(token: Any) -> None:
    with pytest.raises(ConfigError, match="token is a string of printable ASCII") as caught:
        ChromaEngine("away", url="http://127.0.0.1:9", token=token)
    assert "s3cr" not in repr(caught.value)
    with pytest.raises(ConfigError, match="token is a string of printable ASCII"):
        at("chroma://s3cret%0A@127.0.0.1/away")


FIRST_USE = """
import asyncio, ssl, sys, threading
from voicevault_retrievers.engines.chroma import ChromaEngine
from voicevault_retrievers.errors import SearchNotAvailableError

loop, blocking, elsewhere = threading.get_ident(), [], []

def note(name):
    (blocking if threading.get_ident() == loop else elsewhere).append(name)

def made(*given, make=ssl.create_default_context, **options):
    note("certificates")
    return make(*given, **options)

async def first_use():
    sys.addaudithook(lambda event, told: note(told[0].split(".")[0]) if event == "import" else None)
    engine = ChromaEngine("away", url="https://127.0.0.1:9")
    for outcome in await asyncio.gather(*(engine.acount() for _ in range(4)), return_exceptions=True):
        assert isinstance(outcome, SearchNotAvailableError), outcome
    await engine.aclose()

ssl.create_default_context = made
asyncio.run(first_use())
watched = "certificates", "httpx", "httpcore", "certifi", "h11"
print([name for name in blocking if name in watched], elsewhere.count("certificates"))
"""


def test_an_event_loop_does_not_wait_for_what_a_first_request_loads() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] 1\n", "")


async def test_what_is_closed_while_it_is_asked_is_not_available(chroma_port: int, tmp_path: Path) -> None:
    engine = ChromaEngine("closing", url=f"http://127.0.0.1:{chroma_port}")
    assert (len(engine), await engine.acount()) == (0, 0)
    client: Any = engine._client
    client._clients.of_threads().close()  # as by another thread, once the client is taken
    with pytest.raises(SearchNotAvailableError, match="closed meanwhile"):
        len(engine)
    await (await client._clients.of_loop()).aclose()
    with pytest.raises(SearchNotAvailableError, match="closed meanwhile"):
        await engine.acount()
    engine.close()
    await engine.aclose()
    assert (len(engine), await engine.acount()) == (0, 0)
    engine.close()
    await engine.aclose()
    local = ChromaEngine("closing", path=tmp_path)
    local.upsert(some(1))
    key = local._now(ChromaRequest("find", "closing")).key
    local.close()
    with pytest.raises(SearchNotAvailableError, match="closed meanwhile"):
        local._now(ChromaRequest("count", "closing", key))


async def test_a_server_that_is_away_slow_or_wrong_is_told_apart() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    slow = ChromaEngine("slow", url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
    with pytest.raises(SearchTimeoutError, match=r"0\.2 s"):
        len(slow)
    with pytest.raises(SearchTimeoutError):
        await slow.acount()
    slow.close()
    await slow.aclose()
    silent.close()
    for status, kind in ((500, SearchError), (503, SearchNotAvailableError), (401, SearchNotAvailableError)):
        with _answering(status) as port:
            wrong = ChromaEngine("wrong", url=f"http://127.0.0.1:{port}")
            with pytest.raises(kind, match=str(status)) as caught:
                len(wrong)
            assert type(caught.value) is kind
            assert caught.value.__cause__ is None
            with pytest.raises(kind):
                await wrong.acount()
            wrong.close()
            await wrong.aclose()
    with _answering(200) as port:
        wrong = ChromaEngine("wrong", url=f"http://127.0.0.1:{port}")
        with pytest.raises(SearchError, match="no answer to find that can be read"):
            len(wrong)
        wrong.close()


@contextlib.contextmanager
def _answering(status: int) -> Iterator[int]:
    """A server that answers everything so."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(
                        f"HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}".encode()
                    )

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("chroma://localhost/docs", {"url": "http://localhost:8000"}),
        (
            "chroma://localhost:81/docs?tenant=t&database=d",
            {"url": "http://localhost:81", "tenant": "t", "database": "d"},
        ),
        ("chromas://s%40cret@host/docs", {"url": "https://host:8000", "token": "s@cret"}),
        ("chroma://[::1]:81/docs", {"url": "http://[::1]:81"}),
        ("chroma+file:///a%20b/c/docs", {"path": "/a b/c"}),
    ],
)
def test_an_address_says_where(address: str, where: dict[str, Any]) -> None:
    engine = connect(address)
    assert isinstance(engine, ChromaEngine)
    assert engine.name == "docs"
    assert where.items() <= engine._where.items()
    assert "cret" not in repr(engine)


@pytest.mark.parametrize(
    "address",
    [
        "chroma://host", "chroma://host/", "chroma:///docs", "chroma://host/a/docs", "chroma://host:port/docs",
        "chroma://user:s3cret@host/docs", "chroma://host/docs?x=1", "chroma://host/docs#x", "chroma+file://host/docs",
        "chroma+file:///docs", "chroma+file:///folder/docs?tenant=t", "chroma://host/a b", "chroma://host/no",
    ],
)  # fmt: skip
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        at(address)
    assert "s3cret" not in str(caught.value)

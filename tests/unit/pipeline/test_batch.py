"""Many queries at once: as they are given, and as files have them."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import Counting, FailingChannel, ListChannel
from voicevault_retrievers import BM25, Pipeline, VectorChannel, fuse
from voicevault_retrievers.core import telemetry
from voicevault_retrievers.core.execution.run import ABREAST
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk, Query, Result, Route, Variant, Vector
from voicevault_retrievers.dense import ExactVectors, VectorPart, passes
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.batch import TOGETHER
from voicevault_retrievers.pipeline.query_file import read_queries

CHUNKS = [Chunk(f"c{at}", text) for at, text in enumerate(("the pump hums", "the valve is shut", "the pump is red"))]


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(BM25.from_chunks(CHUNKS))


def _ids(results: list[Result]) -> list[tuple[str, ...]]:
    return [result.ranking.ids for result in results]


async def test_results_are_those_of_searches_in_their_order(pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    file.write_text('{"text": "valve", "k": 1}\n"red pump"\n')
    queries: list[str | Query] = ["pump", Query("the", where={"none": 1})]
    asked: list[tuple[str | Query, int]] = [(queries[0], 2), (queries[1], 2), ("valve", 1), ("red pump", 2)]
    expected = [pipeline.search(query, k).ranking.ids for query, k in asked]
    assert _ids(pipeline.run(queries, file, k=2)) == expected
    assert _ids(await pipeline.arun(queries, file, k=2)) == expected
    assert pipeline.run([]) == []


async def test_a_query_that_fails_does_not_stop_the_others(pipeline: Pipeline) -> None:
    given: list[str | Query] = ["pump", Query("pump", weights={"none": 1.0}), "valve"]
    for results in (pipeline.run(given), await pipeline.arun(given)):
        assert [bool(result.hits) for result in results] == [True, False, True]
        assert [result.degraded for result in results] == [False, True, False]
        (failure,) = results[1].errors
        assert (failure.stage, failure.kind) == ("query", "ConfigError")
        assert results[1].query == given[1]
    strict = Pipeline(BM25.from_chunks(CHUNKS), on_error="raise")
    with pytest.raises(ConfigError, match="unknown channel in weights"):
        strict.run(given)
    with pytest.raises(ConfigError, match="unknown channel in weights"):
        await strict.arun(given)


def test_whatever_a_channel_raises_is_the_querys_error() -> None:
    (result,) = Pipeline(FailingChannel(ZeroDivisionError("by zero"))).run(["pump"])
    (failure,) = result.errors
    assert (str(failure), str(failure.error)) == ("query: ZeroDivisionError", "by zero")
    (good,) = Pipeline(ListChannel([("a", 1.0)])).run(["pump"])
    assert good.ranking.ids == ("a",)


def test_queries_are_several(pipeline: Pipeline) -> None:
    for given in ("pump", Query("pump"), {"text": "pump"}):
        with pytest.raises(ConfigError, match="use search for one"):
            pipeline.run(given)  # type: ignore[arg-type]  # what is wrong
    with pytest.raises(ConfigError, match="give queries, or a queries_file"):
        pipeline.run()


def _hybrid(embedder: Counting, **options: Any) -> Pipeline:
    """Over two segments, of which a chunk is deleted."""
    words = "pump valve oil red green hums shut cold".split()
    texts = [" ".join(words[at % size] for size in (2, 3, 5, 8)) for at in range(60)]
    chunks = [Chunk(f"c{at:02d}", text, metadata={"n": at % 3}) for at, text in enumerate(texts)]
    bm25 = BM25.from_chunks(chunks[:40])
    bm25.add(chunks[40:])
    bm25.delete(["c07"])
    halves = [Rows(chunks[:30]), Rows(chunks[30:])]
    parts = [VectorPart(rows, embedder.embed_documents([chunk.text for chunk in rows.chunks])) for rows in halves]
    return Pipeline(
        fuse(bm25=bm25, dense=VectorChannel(ExactVectors(parts, embedder.dimension), embedder)), k=7, **options
    )


QUERIES: list[str | Query] = [
    "red pump",
    "red pump",
    "",
    "nothing of all that",
    Query("valve", where={"n": {"$lte": 1}}),
    Query("oil", require={"n": 0}),
    Query("shut", variants=(Variant("cold valve", 0.5), Variant("pump"))),
    Query("green", vectors={ANY_EMBEDDER: np.eye(16, dtype=np.float32)[3]}),
    Query("cold", weights={"dense": 0.0}),
    *(f"{one} pump" for one in ("red", "green", "cold", "oil")),
    *(Query(f"{one} valve", where={"n": {"$lte": 1}}) for one in ("red", "green", "cold", "oil")),
    *(f"hums {at}" for at in range(40)),
]


def _told(result: Result) -> tuple[object, ...]:
    hits = [(hit.id, hit.score, hit.votes, hit.chunk) for hit in result.hits]
    return hits, result.errors, result.channels_used, sorted(result.timings), result.confidence, result.context


async def test_queries_that_are_searched_together_find_what_each_finds_alone() -> None:
    embedder = Counting(16)
    pipeline = _hybrid(embedder)
    expected = [_told(pipeline.search(query)) for query in QUERIES]
    for many in (pipeline.search_many, pipeline.run):
        assert list(map(_told, many(QUERIES))) == expected
    for amany in (pipeline.asearch_many, pipeline.arun):
        assert list(map(_told, await amany(QUERIES))) == expected
    assert pipeline.search_many(["pump"], 2)[0].ranking.ids == pipeline.search("pump", 2).ranking.ids
    assert pipeline.search_many([]) == []


@pytest.mark.usefixtures("unrecorded")
async def test_their_texts_are_embedded_in_one_batch_and_the_vectors_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    products = passes.products

    def counted(vectors: Sequence[Vector], matrices: Sequence[Any]) -> Any:
        read.append((len(vectors), len(matrices)))
        return products(vectors, matrices)

    monkeypatch.setattr(passes, "products", counted)
    queries = [f"pump {at}" for at in range(TOGETHER)]
    for search in ("search_many", "asearch_many"):
        embedder = Counting(16)
        found = getattr(_hybrid(embedder), search)(queries)
        assert len(found if search == "search_many" else await found) == TOGETHER
        assert embedder.batches == [TOGETHER]
        assert read == [(TOGETHER, 2)]  # both halves
        read.clear()


async def test_where_searches_are_recorded_each_is_made_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [_told(result) for result in _hybrid(Counting(16)).search_many(QUERIES)]
    monkeypatch.setattr(telemetry, "records", lambda: True)
    for search in ("search_many", "asearch_many"):
        embedder = Counting(16)
        found: Any = getattr(_hybrid(embedder), search)(QUERIES)
        assert list(map(_told, found if search == "search_many" else await found)) == expected
        assert max(embedder.batches) < len(embedder.batches)


async def test_the_error_of_one_is_its_own() -> None:
    wrong = Query("pump", vectors={ANY_EMBEDDER: np.ones(5, np.float32)})
    given: list[str | Query] = ["red pump", wrong, "valve"]
    pipeline = _hybrid(Counting(16))
    with pytest.raises(ConfigError, match="dimension 5"):
        pipeline.search_many(given)
    with pytest.raises(ConfigError, match="dimension 5"):
        await pipeline.asearch_many(given)
    for results in (pipeline.run(given), await pipeline.arun(given)):
        assert [bool(result.hits) for result in results] == [True, False, True]


@pytest.mark.usefixtures("unrecorded")
def test_where_calls_fail_together_each_is_made_alone() -> None:
    class Fragile(ListChannel):
        def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
            if query.text == "bad":
                raise ZeroDivisionError("by zero")
            return super().find(query, wordings, k)

    fragile = Fragile([("a", 1.0)])
    fragile.local = fragile.computes = True
    results = Pipeline(fuse(one=fragile, other=BM25.from_chunks(CHUNKS))).search_many(["pump", "bad", "valve"])
    assert [result.degraded for result in results] == [False, True, False]
    assert [str(failure) for failure in results[1].errors] == ["one: ZeroDivisionError"]


class Remote(ListChannel):
    """Answers once as many wait as may at a time."""

    def __init__(self) -> None:
        super().__init__([("a", 1.0)])
        self.lock, self.full = threading.Lock(), threading.Event()
        self.now = self.most = 0

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if self.now >= ABREAST:
            self.full.set()
        assert self.full.wait(30)
        with self.lock:
            self.now -= 1
        return super().find(query, wordings, k)


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_what_waits_does_so_a_few_at_a_time(timeout: float | None) -> None:
    queries = [f"pump {at}" for at in range(3 * ABREAST)]
    sync, loop = Remote(), Remote()
    found = Pipeline(sync, timeout=timeout).search_many(queries)
    found += await Pipeline(loop, timeout=timeout).asearch_many(queries)
    assert [result.ranking.ids for result in found] == [("a",)] * len(queries) * 2
    assert (sync.most, loop.most) == (ABREAST, ABREAST)


@pytest.mark.parametrize(
    ("name", "text", "texts"),
    [
        ("q.txt", "\ufeffone\r\n\n  two \n", ["one", "two"]),
        ("q.txt", '{"text": "one"}\n["two"]', ['{"text": "one"}', '["two"]']),
        ("q.json", '["one", {"query": "two"}]', ["one", "two"]),
        ("q.json", '{"text": "one"}\n{"text": "two"}', ["one", "two"]),
        ("q.jsonl", '"one"\n\n{"text": "two"}\n', ["one", "two"]),
        ("q.NDJSON", '{"text": "one"}', ["one"]),
        ("q", '[\n"one",\n"two"]', ["one", "two"]),
        ("q", '{"text": "one"}\n"two"', ["one", "two"]),
        ("q", "one\n{two}", ["one", "{two}"]),
        ("q", "[420] IPC\n", ["[420] IPC"]),
        ("q", "[[a link]] {x}\n", ["[[a link]] {x}"]),
        ("q", '{\n"text": "one"\n}', ["one"]),
        ("q.json", '{\n"text": "one"\n}', ["one"]),
    ],
)
def test_a_file_is_what_its_name_says_or_what_it_looks_like(
    tmp_path: Path, name: str, text: str, texts: list[str]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    read = read_queries(tmp_path / name)
    assert [one.error for one in read] == [None] * len(texts)
    assert [one.query.text for one in read] == texts
    for stream in (io.BytesIO(text.encode()), io.StringIO(text)):
        if "." not in name:
            assert [one.query.text for one in read_queries(stream)] == texts


def test_an_object_has_what_a_query_has() -> None:
    told = {
        "_id": 7, "query": "pump", "max_results": 20, "route": "COMPLEX", "where": {"a": 1}, "require": {"b": 2},
        "weights": {"bm25": 2}, "variants": ["hums", {"text": "noise", "weight": 0.5, "channels": ["dense"]}],
        "vectors": [0.5, 1], "sparse": {"pump": 1}, "reference_date": "2026-01-31", "max_context_tokens": 30,
        "history": [["which?", "that one"]], "answers": ["unused"],
    }  # fmt: skip
    (asked,) = read_queries(io.BytesIO(json.dumps([told]).encode()))
    assert (asked.id, asked.k, asked.error) == ("7", 20, None)
    assert asked.query == Query(
        "pump",
        variants=(Variant("hums"), Variant("noise", 0.5, frozenset(["dense"]))),
        vectors=[0.5, 1],  # type: ignore[arg-type]  # a bare one
        sparse={"pump": 1},
        route=Route.COMPLEX,
        where={"a": 1},
        require={"b": 2},
        weights={"bm25": 2},
        reference_date=date(2026, 1, 31),
        max_context_tokens=30,
        history=(("which?", "that one"),),  # type: ignore[arg-type]  # a turn as a pair
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"text": "pump", "wher": {}}, "q.jsonl:1: unknown key in a query 'wher'. Did you mean 'where'?"),
        ({"id": "x"}, "a query has `text`; this one has id"),
        ({"text": "a", "query": "b"}, "'query' is 'text', which is there already"),
        ({"text": 5}, "not int"),
        (5, "a query is a text, or an object with `text`, not a int"),
        ({"text": "a", "k": -1}, "k is a whole number of at least 0"),
        ({"text": "a", "route": "direct"}, "unknown route 'direct'"),
        ({"text": "a", "where": {"x": {"$foo": 1}}}, "unknown filter operator '$foo'"),
        ({"text": "a", "reference_date": "yesterday"}, "yesterday"),
        ({"text": "a", "variants": 5}, "q.jsonl:1: "),
        ({"text": "a", "vectors": ["x"]}, "q.jsonl:1: "),
        ({"id": 5, "text": None}, "a query has `text`; this one has id"),
        ({"text": "a", "variants": "abc"}, "variants is a list, not 'abc'"),
        ({"text": "a", "variants": {"text": "b"}}, "variants is a list"),
        ({"text": "a", "history": ["ab"]}, "a pair, not 'ab'"),
        ({"text": "a", "history": "ab"}, "history is a list"),
        ({"text": "a", "weights": {"bm25": float("nan")}}, "NaN is no value of JSON"),
    ],
)
def test_what_is_wrong_with_a_query_is_its_error(tmp_path: Path, line: Any, said: str, pipeline: Pipeline) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(f"{json.dumps(line)}\nno json\n{'[' * 100_000}\n" + '{"text": "pump"}\n')
    wrong, unread, deep, good = read_queries(file)
    assert said in str(wrong.error)
    assert "q.jsonl:2 is not JSON" in str(unread.error)
    assert "q.jsonl:3 is not JSON" in str(deep.error)
    assert good.error is None
    assert [bool(result.hits) for result in pipeline.run(queries_file=file)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("q.txt", b" \n", "holds no queries"),
        ("q.json", b"[]", "holds no queries"),
        ("q.json", b"pump", "is not JSON"),
        ("q.json", b"5", "holds no list"),
        ("q.txt", b"\xff", "is not a text in UTF-8"),
        ("q", b'[\n"one",\n]', "is not JSON"),
        ("q", b'[{"text": "one"}', "is not JSON"),
        ("none/q.txt", None, "cannot be read"),
    ],
)
def test_what_is_no_file_of_queries_is_refused(tmp_path: Path, name: str, data: bytes | None, said: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        read_queries(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("q.jsonl", '{"text": "a", "require": {"x": 1}, "require": {"y": 1}}', "the key 'require' comes twice"),
        ("q", '{"text": "a', "q:1 is not JSON"),
    ],
)
def test_a_line_that_begins_as_an_object_is_one(tmp_path: Path, name: str, line: str, said: str) -> None:
    (tmp_path / name).write_text(f'{line}\n{{"text": "b"}}\n')
    wrong, good = read_queries(tmp_path / name)
    assert said in str(wrong.error)
    assert (good.error, good.query.text) == (None, "b")


def test_turns_of_a_history_are_pairs_or_objects() -> None:
    turns = [["which?", "that"], {"question": "which?", "answer": "that"}]
    (asked,) = read_queries(io.StringIO(json.dumps([{"text": "a", "history": turns}])))
    assert asked.error is None
    assert asked.query.history == (Turn("which?", "that"),) * 2

"""What all engines share: steps, exact BM25 from statistics, recipes; kept by an engine that is a dict in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from integrations.own_engine.memory_engine import MemoryEngine, Shelf
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.execution.steps import Compute, Steps, arun, in_thread, run
from voicevault_retrievers.core.queries import ANY_EMBEDDER
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.engines.addresses import SCHEMES, connect, is_address
from voicevault_retrievers.engines.keywords import (
    CollectionCounts,
    KeywordHit,
    Keywords,
    Weighted,
    best,
    score,
    scores_of,
    weigh,
)
from voicevault_retrievers.engines.recipe import VERSION, Recipe
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical.formulas import BM25Plus, Lucene, Okapi, Robertson
from voicevault_retrievers.testing import EngineConformance
from voicevault_retrievers.testing.clients import Connect
from voicevault_retrievers.text import Analyzer, CustomAnalyzer


class TestMemory(EngineConformance):
    other_options: ClassVar[dict[str, Any]] = {"size": 2}

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls) -> Connect:
        shelves: dict[str, Shelf] = {}

        def opened(name: str, *, size: int | None = None, **options: Any) -> MemoryEngine:
            kept = {} if size is None else {"size": size}
            return MemoryEngine(name, shelves=shelves, options=kept, **options)

        return opened


def engine(**options: Any) -> MemoryEngine:
    return MemoryEngine("memory", shelves={}, **options)


# Steps.


def counting() -> Steps[list[Any]]:
    got = []
    for at in range(3):
        got.append((yield at))
    try:
        yield "wrong"
    except KeyError as error:
        got.append(error.args[0])
    got.append((yield Compute(lambda: threading.current_thread() is threading.main_thread())))
    return got


def answer(ask: Any) -> Any:
    if ask == "wrong":
        raise KeyError("known")
    return ask * 10


async def later(ask: Any) -> Any:
    await asyncio.sleep(0)
    return answer(ask)


def test_steps_are_answered_in_turn_and_get_the_errors() -> None:
    assert run(counting(), answer) == [0, 10, 20, "known", True]


def test_steps_on_an_event_loop_do_their_work_in_a_thread() -> None:
    assert asyncio.run(arun(counting(), later)) == [0, 10, 20, "known", False]


@pytest.mark.parametrize("take", [lambda steps: run(steps, answer), lambda steps: asyncio.run(arun(steps, later))])
@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [("wrong", KeyError, "known"), (Compute(lambda: 1 // 0), ZeroDivisionError, "by zero")],
)
def test_an_error_that_steps_do_not_expect_is_raised_and_they_are_closed(
    take: Callable[[Steps[Any]], Any], ask: object, error: type[Exception], said: str
) -> None:
    seen: list[str] = []

    def asking_it() -> Steps[None]:
        try:
            yield ask
        finally:
            seen.append("closed")

    with pytest.raises(error, match=said):
        take(asking_it())
    assert seen == ["closed"]


def test_an_interrupt_ends_steps() -> None:
    seen: list[str] = []

    def interrupted() -> Steps[None]:
        try:
            yield "on"
        except Exception:  # which an interrupt is not
            seen.append("taken for an error")
        finally:
            seen.append("closed")

    def interrupt(ask: Any) -> Any:
        raise KeyboardInterrupt

    steps = interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(steps, interrupt)
    assert seen == ["closed"]


def test_a_task_that_is_cancelled_ends_its_steps() -> None:
    async def main() -> None:
        async def hang(ask: Any) -> None:
            await asyncio.sleep(3600)

        task = asyncio.ensure_future(arun(counting(), hang))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_in_thread_gives_the_result_or_raises() -> None:
    assert asyncio.run(in_thread(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(lambda: 1 // 0))


# Keywords.


def asked(*terms: tuple[str, ...], **options: Any) -> Keywords:
    return Keywords(dict.fromkeys(terms, 1.0), **options)


def test_what_counts_and_what_is_found() -> None:
    where, require = {"a": 1}, {"b": 2}
    assert asked(("x",)).counting is None
    assert asked(("x",), where=where).counting is None
    assert asked(("x",), where=where).passing == where
    assert asked(("x",), where=where, require=require).counting == require
    assert asked(("x",), where=where, require=require, statistics="filtered").counting == {"$and": [require, where]}
    assert asked(("x", "y"), ("y", "z")).forms == ["x", "y", "z"]


def test_a_term_that_no_chunk_has_is_left_out_and_forms_count_together() -> None:
    formula = Lucene()
    found = weigh(asked(("none",), ("a", "b")), CollectionCounts(10, 30, {"a": 2, "b": 3}))
    assert found == [Weighted(("a", "b"), formula.idf(5, 10))]


def test_a_score_is_the_papers_sum() -> None:
    among = CollectionCounts(4, 12, {"a": 2, "b": 1})
    formula = Lucene(k1=1.2, b=0.5)
    terms = weigh(Keywords({("a",): 2.0, ("b",): 1.0}, formula), among)
    norm = 1.2 * (1 - 0.5 + 0.5 * 6 / 3)
    expected = 2 * formula.idf(2, 4) * 3 / (3 + norm) + formula.idf(1, 4) * 1 / (1 + norm)
    found = score(formula, terms, among.mean, {"a": 3, "b": 1, "c": 2}, 6)
    assert found is not None
    assert found[0] == pytest.approx(expected, rel=1e-12)
    assert found[1] == ("a", "b")
    assert score(formula, terms, among.mean, {"c": 2}, 2) is None


def test_a_formula_with_a_floor_asks_for_a_histogram() -> None:
    question = asked(("a",), formula=Okapi())
    with pytest.raises(ConfigError, match="Lucene"):
        weigh(question, CollectionCounts(4, 8, {"a": 3}))
    (found,) = weigh(question, CollectionCounts(4, 8, {"a": 3}, lambda: [(3, 1), (1, 2)]))
    assert found.weight > 0
    (bare,) = weigh(asked(("a",), formula=Robertson()), CollectionCounts(4, 8, {"a": 3}))
    assert bare.weight == Robertson().idf(3, 4)


def test_what_is_absent_counts_where_the_formula_says_so() -> None:
    formula = BM25Plus()
    terms = [Weighted(("a",), 2.0), Weighted(("b",), 3.0)]
    both, one = score(formula, terms, 2.0, {"a": 1, "b": 1}, 2), score(formula, terms, 2.0, {"a": 1}, 2)
    assert both is not None
    assert one is not None
    tf = float(formula.tf(1, float(formula.norm(2, 2.0))))
    assert one[0] == pytest.approx(2.0 * tf + 3.0 * formula.absent())


def test_no_chunks_have_no_mean_length() -> None:
    assert CollectionCounts(0, 0, {}).mean == 0.0
    assert weigh(asked(("a",)), CollectionCounts(0, 0, {})) == []


def test_the_best_are_in_order_with_ties_by_id() -> None:
    hits = [
        KeywordHit(Chunk(one, one), value, ())
        for one, value in (("c", 1.0), ("b", 1.0), ("a", 0.0), ("d", -1.0), ("e", 2.0))
    ]
    assert [hit.chunk.id for hit in best(hits, 3)] == ["e", "b", "c"]
    assert [hit.chunk.id for hit in best(hits, 9, positive=True)] == ["e", "b", "c"]
    assert best(hits, 0) == []


# Recipes.


def test_a_recipe_reads_what_it_says() -> None:
    recipe = Recipe.of(Analyzer("de"), HashEmbedder(16), {"ef": 100})
    assert Recipe.parse(recipe.text(), "kb") == recipe
    assert recipe.text() == Recipe.parse(recipe.text(), "kb").text()
    assert Recipe.of(None, None, {}).embedder is None
    assert recipe.make_analyzer(None, "kb") == Analyzer("de")
    own = HashEmbedder(16)
    assert recipe.make_embedder(own, "kb") is own
    with pytest.raises(IncompatibleIndexError):
        recipe.make_embedder(HashEmbedder(8), "kb")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '"text"', "{}", '{"version": 1}', '{"version": "1"}'])
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(IncompatibleIndexError, match="another name"):
        Recipe.parse(text, "kb")


@pytest.mark.parametrize(
    "change",
    [
        {"embedder": {"unknown": 1}},
        {"embedder": 3},
        {"analyzer": 7},
        {"analyzer": None},
        {"options": 7},
        {"version": None},
    ],
    ids=str,
)
def test_a_recipe_with_a_wrong_part_is_refused(change: dict[str, Any]) -> None:
    told = json.loads(Recipe.of(None, HashEmbedder(16), {}).text()) | change
    with pytest.raises(IncompatibleIndexError, match="kb"):
        Recipe.parse(json.dumps(told), "kb").make_analyzer(None, "kb")


def test_a_newer_recipe_says_so() -> None:
    told = json.loads(Recipe.of(None, None, {}).text()) | {"version": VERSION + 1}
    with pytest.raises(IncompatibleIndexError, match="upgrade"):
        Recipe.parse(json.dumps(told), "kb")


def test_options_that_differ_are_refused() -> None:
    recipe = Recipe.of(None, None, {"ef": 100})
    recipe.check_options({"ef": 100}, "kb")
    recipe.check_options({}, "kb")
    with pytest.raises(ConfigError, match="ef=100, not 200"):
        recipe.check_options({"ef": 200}, "kb")


def test_a_custom_analyzer_is_kept_by_its_name() -> None:
    own = CustomAnalyzer(str.split, name="split")
    recipe = Recipe.of(own, None, {})
    assert recipe.make_analyzer(own, "kb") is own
    for given in (None, CustomAnalyzer(str.split, name="other"), Analyzer("en")):
        with pytest.raises(IncompatibleIndexError, match="split"):
            recipe.make_analyzer(given, "kb")
    with pytest.raises(IncompatibleIndexError):
        recipe.make_analyzer(CustomAnalyzer(list, name="split"), "kb")


# Engines and their channels.


@pytest.mark.parametrize("name", ["", 7, None])
def test_a_name_is_a_string(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        MemoryEngine(name, shelves={})


def test_nothing_is_asked_before_the_first_operation() -> None:
    class Deaf(MemoryEngine):
        def _now(self, ask: Any) -> Any:
            raise RuntimeError("asked")

    deaf = Deaf("deaf", shelves={}, embedder=HashEmbedder(), analyzer=Analyzer("en"))
    assert "Deaf" in repr(deaf.bm25()) + repr(deaf.dense())
    with pytest.raises(RuntimeError, match="asked"):
        len(deaf)


def test_vectors_that_do_not_fit_make_no_collection() -> None:
    made = engine(embedder=HashEmbedder(16))
    with pytest.raises(ConfigError, match="shape"):
        made.upsert([Chunk("a", "b")], np.ones((1, 3)))
    assert made.recipe is None
    wordy = engine()
    with pytest.raises(ConfigError, match="without an embedder"):
        wordy.upsert([Chunk("a", "b")], np.ones((1, 3)))
    assert wordy.recipe is None


@pytest.mark.parametrize(
    "options",
    [{"statistics": "other"}, {"operators": True}, {"fuzzy": 1}, {"formula": "none"}, {"exclude_nonpositive": 1}],
    ids=str,
)
def test_wrong_options_of_a_channel_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        engine().bm25(**options)


def test_access_that_permits_nothing_gives_no_scores() -> None:
    made = engine(embedder=HashEmbedder(16))
    made.upsert([Chunk("a", "pump"), Chunk("b", "pump")])
    for query in (Query("pump", require={}), Query("pump", require={"$or": []})):
        assert made.bm25().scores(query, ["a"]) == {}
        assert made.dense().scores(query, ["a"]) == {}
        assert made.dense().search(query, 5).ids == made.bm25().search(query, 5).ids == ()
    row = HashEmbedder(16).embed_queries(["pump"])[0]
    assert made.run(made.similarities(row, ["a"], None, {"$or": []})) == {}
    assert list(made.run(made.similarities(row, ["a"], None, None))) == ["a"]


def test_reload_tells_of_another_collection() -> None:
    shelves: dict[str, Shelf] = {}
    one, other = MemoryEngine("m", shelves=shelves), MemoryEngine("m", shelves=shelves, embedder=HashEmbedder(16))
    assert one.reload() is False
    other.upsert([Chunk("a", "pump")])
    assert one.reload() is True
    assert one.reload() is False
    assert one.recipe == other.recipe
    other.clear()
    assert one.reload() is True
    assert len(one) == 0


def test_an_iterator_of_ids_is_taken_once() -> None:
    made = engine()
    made.upsert(Chunk(str(at), "pump", "p") for at in range(5))
    assert sorted(made.get(str(at) for at in range(3))) == ["0", "1", "2"]
    assert made.delete(str(at) for at in range(2)) == 2
    for call in (made.get, made.parents, made.vectors, made.delete):
        with pytest.raises(ConfigError, match="list"):
            call("12")


def test_words_that_matched_are_the_querys() -> None:
    made = engine(analyzer=Analyzer("en"))
    made.upsert([Chunk("a", "leaking pumps")])
    (hit,) = made.bm25().search("Pump leaks everywhere", 5)
    assert hit.votes[0].terms == ("pump", "leaks")


def test_a_digest_tells_what_made_the_chunk() -> None:
    chunk = Chunk("a", "pump", None, {"page": 1})
    made, german, vectors = engine(), engine(analyzer=Analyzer("de")), engine(embedder=HashEmbedder(16))
    for one in (made, german, vectors):
        one.upsert([chunk])
    others = [replace(chunk, metadata={"page": True}), replace(chunk, parent_id=""), replace(chunk, text="pump ")]
    digests = {one.digest(chunk) for one in (made, german, vectors)} | {made.digest(other) for other in others}
    assert len(digests) == 6
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in digests)


# Addresses.


@pytest.mark.parametrize(
    "address", ["", "pump", "mysql://user:hush@host/db", "://x", "http://host/x", "Qdrant", "qdrant:/host"]
)
def test_an_unknown_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="engine address") as raised:
        connect(address)
    assert "hush" not in str(raised.value)


def test_what_is_an_address() -> None:
    assert [is_address(name) for name in ("qdrant://h/c", "manuals", "C:/kb", None, 7)] == [True, *[False] * 4]
    assert set(SCHEMES) >= {"qdrant", "postgresql", "chroma", "lancedb", "milvus"}


async def test_with_closes_the_connections() -> None:
    closed: list[str] = []

    class Closing(MemoryEngine):
        def _close(self) -> None:
            closed.append("close")

        async def _aclose(self) -> None:
            closed.append("aclose")

    with Closing("a", shelves={}) as engine:
        assert isinstance(engine, Closing)
    async with Closing("a", shelves={}) as engine:
        assert isinstance(engine, Closing)
    assert closed == ["close", "aclose", "close"]


def test_scores_of_many_chunks_are_those_of_each() -> None:
    frequencies = [{"a": 1, "b": 3}, {"c": 2}, {}, {"b": 1, "c": 1}]
    lengths = np.array([4, 5, 3, 9])
    terms = [Weighted(("a", "b"), 1.5), Weighted(("c",), 0.5), Weighted(("a",), 2.0)]
    counts = {form: np.array([each.get(form, 0) for each in frequencies]) for form in "abc"}
    for formula in (Lucene(), BM25Plus(), Okapi()):
        found = scores_of(formula, terms, 5.25, counts, lengths)
        one_by_one = zip(frequencies, lengths.tolist(), strict=True)
        expected = [score(formula, terms, 5.25, each, length) for each, length in one_by_one]
        assert found.tolist() == pytest.approx([0.0 if one is None else one[0] for one in expected])


@pytest.mark.parametrize("method", ["rrf", None])
def test_chunks_of_one_text_stay_apart_where_each_channel_finds_another(method: str | None) -> None:
    made = engine(embedder=HashEmbedder())
    made.upsert([Chunk("a", "pump"), Chunk("b", "pump")], np.eye(HashEmbedder().dimension, dtype=np.float32)[:2])
    query = Query("pump", vectors={ANY_EMBEDDER: made.vectors(["b"])["b"]})
    assert (made.bm25().search(query, 1).ids, made.dense().search(query, 1).ids) == (("a",), ("b",))
    (hit,) = fuse({"bm25": made.bm25(), "dense": made.dense()}, method=method, depth=1).search(query, 1)
    assert [vote.stage for vote in hit.votes if vote.rank] == [{"a": "bm25", "b": "dense"}[hit.id]]

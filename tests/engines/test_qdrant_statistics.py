"""Keyword statistics in Qdrant: its own, those that it counts for a query, and what reading them costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import awkward
from tests.engines.engines import SYSTEMS
from tests.engines.meanwhile import meanwhile
from tests.helpers import HashEmbedder
from voicevault_retrievers import fuse
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Chunk, Query, as_query
from voicevault_retrievers.engines.filters import nothing_passes
from voicevault_retrievers.engines.qdrant import QdrantEngine, collection, writing
from voicevault_retrievers.errors import ConfigError, IndexDamagedError
from voicevault_retrievers.lexical.formulas import Lucene, Okapi
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import Analyzer

qdrant_client = pytest.importorskip("qdrant_client")
EMBEDDER = HashEmbedder(16)
ANALYZER = Analyzer("en")
WORDS = "pump valve turbine blade oil pitch gear shaft rotor wind bearing seal hull mast anchor".split()


class Counting:
    """A connection that counts requests by method, and the points in answers."""

    def __init__(self, below: Any) -> None:
        self.below, self.local = below, below.local
        self.methods = Counter[str]()
        self.points = 0

    def ask(self, asked: Any) -> Any:
        return self._counted(asked, self.below.ask(asked))

    async def aask(self, asked: Any) -> Any:
        return self._counted(asked, await self.below.aask(asked))

    def close(self) -> None:
        self.below.close()

    def clear(self) -> None:
        self.methods.clear()
        self.points = 0

    def _counted(self, asked: Any, answer: Any) -> Any:
        self.methods[asked.method] += 1
        if asked.method == "query_batch_points":
            self.points += sum(len(one.points) for one in answer)
        elif asked.method == "scroll":
            self.points += len(answer[0])
        elif asked.method == "retrieve":
            self.points += len(answer)
        return answer


def chunks(count: int) -> list[Chunk]:
    """Chunks of one length with ever more pumps, so that no two score alike."""
    others = (" ".join(WORDS[1 + (n + at) % 14] for at in range(count - n)) for n in range(count))
    return [
        Chunk(f"c{n:03}", "pump " * (n + 1) + text, f"p{n % 9}", {"file": f"{n % 3}.pdf", "page": n % 7})
        for n, text in enumerate(others)
    ]


@pytest.fixture
def client() -> Iterator[Any]:
    made = qdrant_client.QdrantClient(":memory:")
    yield made
    made.close()


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Callable[[], QdrantEngine]]:
    """Opens a collection that a segment of Qdrant's own holds."""
    SYSTEMS["qdrant-edge"].skip()
    with SYSTEMS["qdrant-edge"].opened(tmp_path) as connect:
        yield lambda: connect("docs", embedder=EMBEDDER, analyzer=ANALYZER)


def based(folder: Any) -> KnowledgeBase:
    return KnowledgeBase.create("base", root=folder / "base", embedder=EMBEDDER, analyzer=ANALYZER)


def asking(method: str) -> Any:
    """Whether a request is of this method."""
    return lambda asked: getattr(asked, "method", None) == method


def opened(client: Any) -> QdrantEngine:
    return QdrantEngine("docs", client=client, embedder=EMBEDDER, analyzer=ANALYZER)


def counted(engine: QdrantEngine) -> Counting:
    engine._client = counting = Counting(engine._client)
    return counting


def hybrid(engine: QdrantEngine) -> Any:
    return fuse({"bm25": engine.bm25(), "dense": engine.dense()}, depth=5)


RIGHTS = {"file": "1.pdf"}
SEARCHES: dict[str, Any] = {
    "keywords": QdrantEngine.bm25,
    "vectors": QdrantEngine.dense,
    "fused": lambda engine: engine.fused(depth=5),
    "hybrid": hybrid,
}


@pytest.mark.parametrize("rights", [None, RIGHTS], ids=["all", "rights"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_reads_no_more_than_its_answer_after_a_write_of_another(
    segment: Callable[[], QdrantEngine], search: str, rights: dict[str, str] | None
) -> None:
    writer, reader = segment(), segment()
    writer.upsert(chunks(90))
    query, channel = Query("pump valve", require=rights), SEARCHES[search](reader)
    channel.search(query, 5)
    counting = counted(reader)
    for at in range(2):
        writer.upsert([Chunk(f"new{at}", "valve " * (at + 1) + "oil", None, {"file": "1.pdf"})])
        counting.clear()
        assert len(channel.search(query, 5)) == 5
        assert counting.methods["scroll"] == 0
        if search != "hybrid":
            counts = {"facet": 2, "count": 2} if rights and search != "vectors" else {}
            assert counting.methods == {"query_batch_points": 1, **counts}
        assert counting.points <= 2 * 5 + 16 + 1 if search != "hybrid" else 70


def test_a_hybrid_search_counts_nothing_without_rights(client: Any) -> None:
    engine = opened(client)
    engine.upsert(chunks(90))
    counting = counted(engine)
    hybrid(engine).search("pump valve", 5)
    assert set(counting.methods) <= {"query_batch_points", "retrieve"}


async def test_what_is_counted_for_a_query_is_asked_at_once(segment: Callable[[], QdrantEngine]) -> None:
    engine = segment()
    engine.upsert(chunks(30))
    asked: list[Any] = []
    below, later = engine._later, engine._later

    async def told(ask: Any) -> Any:
        asked.append([one.method for one in ask] if isinstance(ask, list) else ask.method)
        return await below(ask)

    engine._later = told  # type: ignore[method-assign]
    await engine.bm25(statistics="exact").asearch("pump valve", 5)
    assert asked == [["facet", "facet"], ["count", "count"], "query_batch_points"]
    engine._later = later  # type: ignore[method-assign]


@pytest.mark.parametrize("rights", [None, RIGHTS], ids=["all", "rights"])
def test_local_mode_goes_through_the_chunks_once_for_all_terms(client: Any, rights: dict[str, str] | None) -> None:
    """It has no index, so that each count would go through all of them."""
    engine = opened(client)
    engine.upsert(chunks(90))
    counting = counted(engine)
    found = engine.bm25(statistics="exact").search(Query("pump valve oil shaft", require=rights), 5)
    assert len(found) == 5
    assert counting.methods == {"scroll": 1, "query_batch_points": 1}


# Qdrant's own statistics.


def test_scores_by_qdrants_statistics_are_the_formulas(client: Any, tmp_path: Any) -> None:
    """While weights are of the present mean length, they are those of a knowledge base, in single precision."""
    engine, base = opened(client), based(tmp_path)
    for part in (chunks(90)[:10], chunks(90)[10:]):  # the collection doubles, so the weights are made anew
        engine.upsert(part)
        base.add(part)
    assert engine.status()["weights"]["drift"] == 0.0
    for query in (
        "pump valve",
        "rotor",
        "nothing",
        Query("pump oil", where=RIGHTS),
        Query("oil", where={"page": {"$gt": 4}}),
    ):
        found, expected = engine.bm25().search(query, 9), base.bm25().search(query, 9)
        assert {hit.id: hit.score for hit in found} == pytest.approx({hit.id: hit.score for hit in expected}, rel=1e-5)
        ids = [*base.ids()[::7], "nobody"]
        known, exact = engine.bm25().scan(as_query(query)).scores(ids), base.bm25().scan(as_query(query)).scores(ids)
        assert known == pytest.approx(exact, rel=1e-5)


def test_statistics_of_a_name(client: Any) -> None:
    engine = opened(client)
    engine.upsert(chunks(30))
    assert engine.capabilities.engine_statistics
    own = engine.bm25(statistics="engine")
    assert own.search("pump", 3).ids == engine.bm25().search("pump", 3).ids
    with pytest.raises(ConfigError, match=r"Lucene\(k1=1.5, b=0.75\) alone"):
        engine.bm25(statistics="engine", formula="okapi").search("pump", 3)
    with pytest.raises(ConfigError, match="parts of a score"):
        own.explain("pump", "c001")
    parts = engine.bm25().explain("pump valve", "c001")
    (hit,) = (hit for hit in engine.bm25(statistics="exact").search("pump valve", 30) if hit.id == "c001")
    assert sum(part.contribution for part in parts) == pytest.approx(hit.score)


def test_another_formula_is_exact_by_default(client: Any, tmp_path: Any) -> None:
    engine, base = opened(client), based(tmp_path)
    engine.upsert(chunks(30))
    base.add(chunks(30))
    for formula in (Lucene(0.9, 0.4), Okapi()):
        found, expected = (each.bm25(formula=formula).search("pump valve", 9) for each in (engine, base))
        assert {hit.id: hit.score for hit in found} == pytest.approx({hit.id: hit.score for hit in expected})


@pytest.mark.parametrize("statistics", [None, "exact", "filtered", "engine"])
@pytest.mark.parametrize("rights", [RIGHTS, {"page": {"$gte": 4}}, {"page": 3}, {"$or": []}], ids=str)
def test_rights_hold_by_all_statistics(client: Any, tmp_path: Any, statistics: Any, rights: dict[str, Any]) -> None:
    passes, engine, alone = compile_filter(rights), opened(client), based(tmp_path)
    engine.upsert(chunks(90))
    permitted = [chunk for chunk in chunks(90) if passes(chunk.metadata)]
    alone.add(permitted)
    asked, channel = Query("pump valve", require=rights), engine.bm25(statistics=statistics)
    found, expected = channel.search(asked, 99), alone.bm25().search("pump valve", 99)
    scores = channel.scan(asked).scores([chunk.id for chunk in chunks(90)])
    assert sorted(found.ids) == sorted(expected.ids) == sorted(chunk.id for chunk in permitted)
    assert scores == pytest.approx({hit.id: hit.score for hit in found}, rel=1e-5)
    if statistics != "engine":
        assert found.ids == expected.ids
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected])


def test_a_language_that_another_writes_is_searched(client: Any) -> None:
    writer, reader = (QdrantEngine("docs", client=client, analyzer=Analyzer("auto")) for _ in range(2))
    writer.upsert([Chunk("en", "The pumps are leaking and the valve is not.")])
    assert reader.bm25().search("pumps", 3).ids == ("en",)
    writer.upsert([Chunk("de", "Die Pumpen der Anlage sind undicht und werden repariert.")])
    assert "de" in reader.bm25().search("Pumpe", 3).ids


# Weights, and the mean length that they are made with.


def test_weights_are_made_anew_while_a_collection_is_small(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SETTLED", 40)
    engine = opened(client)
    engine.upsert([Chunk("first", "pump")])
    for at in range(6):
        engine.upsert([Chunk(f"{at}-{n}", "pump valve " * 10) for n in range(20)])
    told = engine.status()["weights"]
    assert told["mean_length"] == pytest.approx((1 + 120 * 20) / 121)
    assert told["weighed_with"] == pytest.approx((1 + 60 * 20) / 61)
    assert told["drift"] == round(told["mean_length"] / told["weighed_with"] - 1, 4)
    assert told["otherwise_weighed"] == 0


def test_drift_is_told_and_undone(client: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SETTLED", 0)
    monkeypatch.setattr(collection, "PAGE", 7)
    engine, base = opened(client), based(tmp_path)
    for part in ([Chunk(f"short{n}", f"pump {WORDS[n + 1]} oil") for n in range(10)], chunks(30)):
        engine.upsert(part, parents=[Chunk("p1", "above")])
        base.add(part)
    before = engine.status()["weights"]
    assert before["weighed_with"] == 3.0
    assert before["drift"] > 5
    assert engine.reweigh() == 40
    after = engine.status()["weights"]
    assert (after["mean_length"], after["drift"], after["otherwise_weighed"]) == (before["mean_length"], 0.0, 0)
    expected = {hit.id: hit.score for hit in base.bm25().search("pump valve", 99)}
    for late in (engine, opened(client)):
        assert {hit.id: hit.score for hit in late.bm25().search("pump valve", 99)} == pytest.approx(expected, rel=1e-5)
        assert late.reweigh() == 0
    assert engine.dense().search("pump", 99).ids == base.dense().search("pump", 99).ids
    assert engine.parents(["p1"])["p1"].text == "above"


def test_exact_scores_hold_for_weights_of_several_means(client: Any, tmp_path: Any) -> None:
    engine, base = opened(client), based(tmp_path)
    engine.upsert(chunks(60)[:30])
    base.add(chunks(60))
    other = opened(client)
    meanwhile(other, asking("batch_update_points"), engine.reweigh)
    meanwhile(other, asking("batch_update_points"), lambda: engine.upsert([Chunk("long", "oil " * 900)]))
    base.add([Chunk("long", "oil " * 900)])
    other.upsert(chunks(60)[30:])
    assert engine.status()["weights"]["otherwise_weighed"] in (0, 30)
    for query in ("pump valve", "oil", "rotor anchor"):
        for k in (1, 4, 99):
            found, expected = engine.bm25(statistics="exact").search(query, k), base.bm25().search(query, k)
            assert found.ids == expected.ids
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected])


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_what_is_written_beside_a_reweighing_stays(client: Any, tmp_path: Any, change: str) -> None:
    engine, other, base = opened(client), opened(client), based(tmp_path)
    engine.upsert([*chunks(30), Chunk("x", "oil")])
    base.add(chunks(30))
    monkey = Chunk("x", "pump seal hull")

    def meddle() -> None:
        if change == "replaced":
            other.upsert([monkey])
            base.add([monkey])
        else:
            other.delete(["x"])

    for _ in range(2):  # the first request stores the new mean, the second new weights
        engine.upsert([Chunk("drift", "oil " * 100)])
    base.add([Chunk("drift", "oil " * 100)])
    seen: list[None] = []

    def storing(asked: Any) -> bool:
        seen.extend([None] * asking("batch_update_points")(asked))
        return len(seen) == 2

    assert meanwhile(engine, storing, meddle) != []
    engine.reweigh()
    engine.reweigh()
    found = engine.bm25().search("pump seal", 99)
    assert {hit.id: hit.score for hit in found} == pytest.approx(
        {hit.id: hit.score for hit in base.bm25().search("pump seal", 99)}, rel=1e-5
    )


# What Qdrant is trusted to count.


def filled() -> QdrantEngine:
    engine = QdrantEngine("awkward")
    engine.upsert([Chunk(f"c{at}", "pump", None, each) for at, each in enumerate(awkward.metadata(awkward.VALUES))])
    return engine


AWKWARD = filled()
SCALARS = awkward.SCALARS.filter(lambda value: AWKWARD.tells({"v": value}))
TESTS = st.one_of(SCALARS, st.lists(SCALARS, max_size=3).map(lambda several: {"$in": several}))
TOLD = st.recursive(
    st.dictionaries(st.sampled_from("vw"), TESTS, min_size=1),
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(["$and", "$or"]), st.lists(below, max_size=3), min_size=1),
        st.fixed_dictionaries({"$not": below}),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(where=TOLD)
def test_filters_that_qdrant_tells_exactly(where: dict[str, Any]) -> None:
    assert AWKWARD.tells(where) or nothing_passes(where)
    passes = compile_filter(where)
    expected = sum(passes(held) for held in awkward.metadata(awkward.VALUES))
    assert AWKWARD.run(AWKWARD._sums(where)).total == expected


MANY = [*(f"none {at}" for at in range(150)), "a", "1"]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({"v": {"$in": MANY}}, True),
        ({"$or": [{"v": text} for text in MANY]}, True),
        ({"v": {"$in": [*MANY, 2]}}, False),
        ({"v": {"$in": list(range(150))}}, False),
    ],
    ids=["texts", "equalities", "texts and a number", "numbers"],
)
def test_of_more_values_than_conditions_qdrant_is_told_texts(where: dict[str, Any], told: bool) -> None:
    """Others are looked for here, and never counted as if Qdrant had been told."""
    assert AWKWARD.tells(where) is told
    assert (AWKWARD._clause(where) is not None) is told
    expected = sum(map(compile_filter(where), awkward.metadata(awkward.VALUES)))
    assert AWKWARD.run(AWKWARD._sums(where)).total == expected > 0


def test_a_vocabulary_is_kept(client: Any, tmp_path: Path) -> None:
    file = tmp_path / "words.json"
    engine, again = opened(client), opened(client)
    with pytest.raises(ConfigError, match="has no vocabulary"):
        engine.save_vocabulary(file)
    engine.upsert(chunks(100))
    exact = {query: engine.bm25(statistics="exact").search(query, 20) for query in ("pump valve", "oil", "nosuchword")}
    engine.save_vocabulary(file)
    told = json.loads(file.read_text())
    assert (told["count"], told["average_length"]) == (100, told["length"] / 100)
    assert again.load_vocabulary(file)
    again._client = counting = Counting(again._client)
    for query, found in exact.items():
        assert again.bm25(statistics="exact").search(query, 20) == found
        assert again.bm25(statistics="exact").scan(as_query(query)).coverage in (0.0, 1.0)
    assert not {"count", "facet", "scroll"} & set(counting.methods)
    rights = Query("pump valve", require=RIGHTS)
    assert again.bm25().search(rights, 20) == engine.bm25().search(rights, 20)
    again.upsert([Chunk("new", "pump valve pump")])  # its own write drops it
    assert again.bm25(statistics="exact").search("oil", 20) == engine.bm25(statistics="exact").search("oil", 20)
    assert not again.load_vocabulary(file)
    file.write_text("[1]")
    with pytest.raises(IndexDamagedError):
        again.load_vocabulary(file)

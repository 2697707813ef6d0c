"""Qdrant as an engine: its client's local mode in memory and in a folder, and a server's interface over local mode."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines import awkward
from tests.engines.engines import SYSTEMS
from tests.engines.meanwhile import meanwhile
from tests.helpers import HashEmbedder
from voicevault_retrievers import RRF, PageCap, fuse
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.qdrant import QdrantEngine, channels, points, requests, statistics
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    IncompatibleIndexError,
    LockedError,
    RetrievalError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)
from voicevault_retrievers.lexical.formulas import FORMULAS, Formula, RankBM25L
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import Analyzer

qdrant_client = pytest.importorskip("qdrant_client")
qdrant_server = pytest.importorskip("tests.engines.qdrant_server")

EMBEDDER = HashEmbedder(16)
ANALYZER = Analyzer("auto")
WORDS = {
    "en": "pump valve turbine blade oil pitch gear shaft rotor wind the of pumps valves leaking leak bearing".split(),
    "de": "Pumpe Ventil Turbine Schaufel Öl Getriebe Welle der die und Lager undicht Rotor".split(),
    "tr": "pompa vana türbin kanat yağ dişli mil ve bir için rulman sızıntı".split(),
    "zh": "水泵 阀门 涡轮 叶片 机油 齿轮 轴承 泄漏".split(),
}
QUERIES = [
    "pump valve",
    "leaking bearings of the pump",
    "die Pumpe",
    "türbin için",
    "水泵泄漏",
    "nothing here",
    "rotor",
]
PLACES = ["memory", "folder", "server"]
EXACT: dict[str, Any] = {"statistics": "exact"}

Opened = Callable[..., QdrantEngine]


@pytest.fixture(params=PLACES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens a collection, again the same by its name."""
    with ExitStack() as ending:
        made: Any = QdrantEngine
        place: dict[str, Any] = {}
        if request.param == "memory":
            place = {"client": ending.enter_context(closing(qdrant_client.QdrantClient(":memory:")))}
        elif request.param == "server":
            place = {"url": request.getfixturevalue("fake").url}
        elif request.param == "folder":
            place = {"path": tmp_path / "qdrant"}
        else:
            SYSTEMS["qdrant-edge"].skip()
            made = ending.enter_context(SYSTEMS["qdrant-edge"].opened(tmp_path / "segments"))

        def opening(name: str = "docs", **options: Any) -> QdrantEngine:
            engine: QdrantEngine = made(name, **{"embedder": EMBEDDER, "analyzer": ANALYZER, **place, **options})
            ending.callback(engine.close)
            return engine

        yield opening


@pytest.fixture
def fake() -> Iterator[Any]:
    with qdrant_server.fake_qdrant() as one:
        yield one


@pytest.fixture
def memory() -> QdrantEngine:
    return QdrantEngine("docs", embedder=EMBEDDER, analyzer=ANALYZER)


def text(rng: np.random.Generator, longest: int = 40) -> str:
    language = str(rng.choice(list(WORDS)))
    return " ".join(str(word) for word in rng.choice(WORDS[language], size=int(rng.integers(1, longest))))


def some(count: int, seed: int = 0, longest: int = 40) -> list[Chunk]:
    rng = np.random.default_rng(seed)
    return [
        Chunk(f"c{n:04}", text(rng, longest), f"p{n % 9}", {"file": f"{n % 3}.pdf", "page": n % 7, "even": n % 2 == 0})
        for n in range(count)
    ]


def base_of(tmp_path: Path, chunks: list[Chunk]) -> KnowledgeBase:
    base = KnowledgeBase.create("base", root=tmp_path / "base", embedder=EMBEDDER, analyzer=ANALYZER)
    base.add(chunks)
    return base


def alike(found: Ranking, expected: Ranking, tolerance: float = 1e-9) -> None:
    assert found.ids == expected.ids
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=tolerance)
    assert [hit.votes[0].terms for hit in found] == [hit.votes[0].terms for hit in expected]


# What a collection keeps.


def test_another_engine_of_a_folder(tmp_path: Path) -> None:
    address = f"qdrant+file://{tmp_path}/in%20one/docs"
    one = connect(address, embedder=EMBEDDER)
    other = connect(f"qdrant+file://{tmp_path}/in%20one/others", embedder=EMBEDDER)
    one.upsert(some(3))
    other.upsert(some(2))
    beside = one.sibling("_questions")
    beside.upsert(some(4))
    one.close()
    assert (len(one), len(other), len(beside)) == (3, 2, 4)
    for each in (one, other, beside):
        each.close()
    elsewhere = qdrant_client.QdrantClient(path=str(tmp_path / "in one"))
    with pytest.raises(LockedError, match="another process"):
        len(one)
    elsewhere.close()
    assert len(one) == 3
    one.close()


def test_memory_stays_where_it_was(memory: QdrantEngine) -> None:
    memory.upsert(some(5))
    memory.close()
    assert len(memory) == 5
    assert len(memory.sibling("_more")) == 0


def test_what_a_collection_was_made_with(opened: Opened) -> None:
    opened(prefix=4).upsert(some(3))
    assert len(opened()) == 3
    with pytest.raises(ConfigError, match="prefix=4, not 8"):
        len(opened(prefix=8))


def test_a_collection_of_others_is_refused() -> None:
    client = qdrant_client.QdrantClient(":memory:")
    client.create_collection("docs", vectors_config={})
    with pytest.raises(IncompatibleIndexError, match="not made by this package"):
        len(QdrantEngine("docs", client=client))
    client.close()


@pytest.mark.parametrize(
    "options",
    [
        {"prefix": 0}, {"quantization": "half"}, {"indexes": "page"}, {"indexes": [1]}, {"api_key": "k"},
        {"url": "http://x", "path": "y"}, {"exact": 1},
    ],
    ids=str,
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QdrantEngine("docs", **options)


@pytest.mark.parametrize("name", ["a/b", "..", "a\0", "x" * 256])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="Qdrant takes no collection"):
        QdrantEngine(name)


def test_a_prefix_is_shorter_than_the_vectors(memory: QdrantEngine) -> None:
    engine = memory.sibling("_cut", prefix=16)
    with pytest.raises(ConfigError, match="16 dimensions"):
        engine.upsert(some(2))


# Addresses.


def test_addresses() -> None:
    engine = connect("qdrant://k%2Fey@db.example/prefix/my%20docs")
    assert engine.name == "my docs"
    assert repr(engine) == "QdrantEngine('my docs', HttpServer('http://db.example:6333/prefix'))"
    assert repr(connect("qdrants://[::1]:7/docs")) == "QdrantEngine('docs', HttpServer('https://[::1]:7'))"
    assert "Folder('/data/q')" in repr(connect("qdrant+file:///data/q/docs"))


@pytest.mark.parametrize(
    "rest", ["", "//host", "//host/", "///docs", "//h/docs?x=1", "//h/docs#1", "//h:x/docs", "//a@b/c@d", "//h]/docs"]
)
def test_other_addresses_are_refused_without_their_key(rest: str) -> None:
    with pytest.raises(ConfigError, match="address") as error:
        connect(f"qdrant:{rest.replace('//', '//secret@', 1)}")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("rest", ["docs", "/docs", "host/folder/docs"])
def test_a_folder_is_a_whole_path(rest: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        connect(f"qdrant+file://{rest}")


@pytest.mark.parametrize("key", ["s3cret\n", "s3cr\u20act", "s3c ret", "s3cret\0"], ids=ascii)
def test_a_key_that_no_header_takes_is_not_repeated(key: str) -> None:
    places: tuple[Callable[[], Any], ...] = (
        lambda: QdrantEngine("docs", url="http://127.0.0.1:9", api_key=key),
        lambda: connect(f"qdrant://{quote(key)}@127.0.0.1:9/docs"),
    )
    for made in places:
        with pytest.raises(ConfigError, match="api_key") as raised:
            made()
        assert "s3c" not in f"{raised.value}{raised.value.__cause__}{raised.value.__context__}"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@host", "http://s3cret@host/a", "http://host/a@s3cret", "http://host?key=s3cret",
        "http://host#s3cret", "s3cret", "", "ftp://host", "http://host:99999", "http://host:x", "http://a b", "http://[::1",
        "http://:6333", "http://host:0",
    ],
    ids=str,
)  # fmt: skip
def test_urls_are_checked_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="url=") as raised:
        QdrantEngine("docs", url=url)
    assert "s3cret" not in str(raised.value)


async def test_a_host_that_is_none() -> None:
    for url in (f"http://{'a' * 70}.example", "http://host%zz:80"):
        for raised in await raised_by(QdrantEngine("docs", url=url, timeout=2)):
            assert isinstance(raised, RetrievalError)


def test_a_client_of_an_event_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="client= is a QdrantClient"):
        QdrantEngine("docs", client=qdrant_client.AsyncQdrantClient(":memory:"))


# Words.


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[QdrantEngine, KnowledgeBase]:
    """An engine and a knowledge base of the same chunks, which tests only read."""
    engine, chunks = QdrantEngine("docs", embedder=EMBEDDER, analyzer=ANALYZER), some(120)
    engine.upsert(chunks)
    return engine, base_of(tmp_path_factory.mktemp("pair"), chunks)


@pytest.mark.parametrize("formula", [*FORMULAS, "rank-bm25l"])
def test_every_formula_scores_as_in_a_knowledge_base(pair: tuple[QdrantEngine, KnowledgeBase], formula: str) -> None:
    engine, base = pair
    chosen: Formula | str = RankBM25L() if formula == "rank-bm25l" else formula
    for query in QUERIES:
        for k in (1, 5, 200):
            alike(engine.bm25(formula=chosen, **EXACT).search(query, k), base.bm25(formula=chosen).search(query, k))


@pytest.mark.parametrize("opened", ["memory", "folder", "segment"], indirect=True)
def test_scores_stay_exact_when_the_mean_length_moves(opened: Opened, tmp_path: Path) -> None:
    engine, other = opened(), opened()
    base = base_of(tmp_path, [])
    rng = np.random.default_rng(3)
    for round_ in range(6):
        chunks = some(30, seed=round_, longest=(4, 200)[round_ % 2])
        for store in (engine.upsert, base.add):
            store(chunks[: 10 + 4 * round_])
        gone = [f"c{n:04}" for n in rng.choice(30, size=5)]
        assert other.delete(gone) == base.delete(gone)
        late = opened()
        for query in QUERIES:
            for k in (1, 3, 100):
                for asked in (engine, other, late):
                    alike(asked.bm25(**EXACT).search(query, k), base.bm25().search(query, k))


def test_a_querys_sparse_vector_is_searched_in_place_of_its_text(memory: QdrantEngine, tmp_path: Path) -> None:
    chunks = some(60)
    memory.upsert(chunks)
    base = base_of(tmp_path, chunks)
    query = Query("nothing of the kind", sparse={"pump": 2.0, "rotor": 0.25})
    alike(memory.bm25(**EXACT).search(query, 7), base.bm25().search(query, 7))
    assert base.bm25().search(query, 1).ids


@pytest.mark.parametrize("option", ["where", "require", "filtered"])
def test_what_counts(memory: QdrantEngine, tmp_path: Path, option: str) -> None:
    chunks = some(90)
    memory.upsert(chunks)
    base = base_of(tmp_path, chunks)
    given: dict[str, Any] = {"statistics": {"where": "exact", "filtered": "filtered"}.get(option)}
    filters: list[Any] = [
        {"file": "1.pdf"},
        {"page": {"$gte": 3}},
        {"$not": {"even": True}},
        {"file": "none"},
        {"$or": []},
    ]
    for filter_ in filters:
        for step in range(2):
            for query in QUERIES:
                asked = replace(Query(query), **{"require" if option == "require" else "where": filter_})
                found, expected = (each.bm25(**given).search(asked, 7) for each in (memory, base))
                alike(found, expected)
                ids = ["c0001", "c0002", "c0013", "nobody"]
                assert memory.bm25(**given).scores(asked, ids) == pytest.approx(base.bm25(**given).scores(asked, ids))
            if step == 0:
                for store in (memory.upsert, base.add):
                    store(
                        [Chunk(f"more{filter_}", "pump valve " * 40, None, {"file": "1.pdf", "page": 5, "even": False})]
                    )


def test_terms_of_one_index_are_no_match(memory: QdrantEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = points.bucket
    monkeypatch.setattr(points, "bucket", lambda term: whole(term) % 5)
    chunks = some(80)
    memory.upsert(chunks)
    base = base_of(tmp_path, chunks)
    for query in [*QUERIES, "unheard words"]:
        for k in (1, 4, 100):
            alike(memory.bm25(**EXACT).search(query, k), base.bm25().search(query, k))


def test_few_candidates_are_enough(memory: QdrantEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.upsert(some(400))
    asked: list[int] = []
    now = memory._now

    def told(ask: Any) -> Any:
        if asking("query_batch_points")(ask):
            asked.append(ask.arguments["requests"][0].limit)
        return now(ask)

    monkeypatch.setattr(memory, "_now", told)
    assert len(memory.bm25(**EXACT).search("pump valve", 5)) == 5
    assert max(asked) <= 104


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    frequency=st.integers(1, 50),
    more=st.integers(0, 400),
    then=st.floats(0.5, 500),
    now=st.floats(0.5, 500),
    name=st.sampled_from([*FORMULAS]),
    constants=st.tuples(st.floats(0, 3), st.floats(0, 1)),
)
def test_the_bound_holds(
    frequency: int, more: int, then: float, now: float, name: str, constants: tuple[float, float]
) -> None:
    if name == "bm25l" and constants[0] < 1e-6:
        return
    formula, length = FORMULAS[name](*constants), frequency + more
    sums = statistics.Sums(1000, int(now * 1000), length, "", {then: 1})
    value = points.stored_tf(frequency, length, then)
    gained = float(formula.tf(frequency, float(formula.norm(length, sums.mean)))) - formula.absent()
    assert gained <= channels.bound(formula, sums) * value * (1 + 1e-9) + 1e-9


def test_lucenes_bound_is_the_ratio_of_the_means() -> None:
    sums = statistics.Sums(10, 500, 10**9, "", {20.0: 4, 60.0: 6})
    assert channels.bound(FORMULAS["lucene"](), sums) == pytest.approx(50 / 20, rel=1e-6)


# Vectors.


def test_cosines_are_those_of_a_knowledge_base(pair: tuple[QdrantEngine, KnowledgeBase]) -> None:
    engine, base = pair
    for query in ("pump valve", "die Pumpe und der Rotor"):
        for asked in (Query(query), Query(query, where={"page": {"$lt": 3}}), Query(query, require={"even": False})):
            for k in (1, 6, 100):
                alike(engine.dense().search(asked, k), base.dense().search(asked, k), 1e-6)


@pytest.fixture(scope="module")
def filled() -> tuple[QdrantEngine, Ranking]:
    """An engine of awkward metadata, and all that it holds."""
    engine = QdrantEngine("docs", embedder=EMBEDDER)
    held = awkward.metadata(awkward.VALUES)
    engine.upsert([Chunk(f"c{at:02}", f"pump {at}", None, each) for at, each in enumerate(held)])
    return engine, engine.dense().search("pump", 99)


@settings(max_examples=60)
@given(where=awkward.WHERE)
def test_drawn_filters_mean_the_same(filled: tuple[QdrantEngine, Ranking], where: dict[str, Any]) -> None:
    engine, ranking = filled
    found = engine.dense().search(Query("pump", where=where), 99)
    assert sorted(found.ids) == sorted(awkward.passing(ranking, where))


def test_a_funnel_is_one_request(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=EMBEDDER, prefix=4)
    engine.upsert(some(60))
    fake.asked.clear()
    found = engine.dense(funnel={"prefix": 4, "candidates": 10}).search(Query("pump valve", where={"even": True}), 5)
    ((body, _),) = (sent["searches"] for sent in fake.bodies("/points/query/batch"))
    assert (body["using"], body["prefetch"]["using"], body["prefetch"]["limit"]) == ("full", "fast", 10)
    assert body["filter"] == body["prefetch"]["filter"]
    assert np.linalg.norm(body["prefetch"]["query"]) == pytest.approx(1)
    assert len(body["prefetch"]["query"]) == 4
    rows = engine.vectors([f"c{n:04}" for n in range(0, 60, 2)])
    vector = EMBEDDER.embed_queries(["pump valve"])[0]
    short = sorted(rows, key=lambda one: -float(rows[one][:4] @ vector[:4] / np.linalg.norm(rows[one][:4])))[:10]
    expected = sorted(short, key=lambda one: -float(rows[one] @ vector))[:5]
    assert list(found.ids) == expected
    engine.close()


def test_a_funnel_asks_deeper_until_k_pass(opened: Opened) -> None:
    engine = opened(prefix=4)
    engine.upsert(some(60))
    found = engine.dense(funnel={"prefix": 4, "candidates": 2}).search(Query("pump", where={"page": {"$in": [1]}}), 5)
    assert len(found) == 5


def test_a_funnel_needs_its_prefix(memory: QdrantEngine) -> None:
    memory.upsert(some(3))
    with pytest.raises(ConfigError, match="prefix=None"):
        memory.dense(funnel={"prefix": 4}).search("pump", 3)
    for funnel in ({"prefix": 4, "depth": 3}, {"candidates": 9}):
        with pytest.raises(ConfigError):
            memory.dense(funnel=funnel)


def test_a_collection_has_the_vectors_full_and_fast_and_the_sparse_bm25(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=HashEmbedder(768), prefix=64)
    engine.upsert(some(3))
    made = next(body for method, path, body in fake.asked if method == "PUT" and path == "/collections/docs")
    assert made["vectors"] == {
        "full": {"size": 768, "distance": "Cosine"}, "fast": {"size": 64, "distance": "Cosine"},
    }  # fmt: skip
    assert made["sparse_vectors"] == {"bm25": {"modifier": "idf"}, "bm25_bounds": {}}
    points, _ = fake.client.scroll("docs", with_vectors=True)
    assert {"full", "fast", "bm25", "bm25_bounds"} in [set(point.vector or ()) for point in points]
    engine.close()


@pytest.mark.parametrize("kind", ["scalar", "binary"])
def test_quantisation_and_indexes_are_asked_for(fake: Any, memory: QdrantEngine, kind: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=EMBEDDER, quantization=kind, indexes=["page"], tenant="file")
    for each in (engine, memory):
        each.upsert(some(20))
    assert engine.dense(exact=True).search("pump", 3).ids == memory.dense().search("pump", 3).ids
    made = next(body for method, path, body in fake.asked if method == "PUT" and path == "/collections/docs")
    assert list(made["quantization_config"]) == [kind]
    assert made["vectors"]["full"] == {"size": 16, "distance": "Cosine"}
    assert [body["field_name"] for body in fake.bodies("/index")] == [
        "kind", "parent", "version", "sums", "mean", "terms", "metadata.file", "metadata.page",
    ]  # fmt: skip
    assert fake.bodies("/index")[7]["field_schema"] == "float"
    assert fake.bodies("/index")[6]["field_schema"] == {"type": "keyword", "is_tenant": True}
    params = fake.bodies("/points/query/batch")[-1]["searches"][0]["params"]
    assert params == {"exact": True, "quantization": {"rescore": True, "oversampling": requests.OVERSAMPLING}}
    engine.close()


def test_a_tenant_sees_its_own(opened: Opened, tmp_path: Path) -> None:
    engine, chunks = opened(tenant="file"), some(60)
    engine.upsert(chunks)
    alone = base_of(tmp_path, [c for c in chunks if c.metadata["file"] == "2.pdf"])
    for query in QUERIES:
        alike(engine.bm25().search(Query(query, require={"file": "2.pdf"}), 9), alone.bm25().search(query, 9))


def test_pages_are_capped_by_the_stage(memory: QdrantEngine) -> None:
    memory.upsert([Chunk(f"c{n:02}", "pump", None, {"source": "a.pdf", "page": n // 10}) for n in range(40)])
    found = (memory.dense() >> PageCap(2)).search("pump", 8)
    assert found.ids == ("c00", "c01", "c10", "c11", "c20", "c21", "c30", "c31")


# Fusion in Qdrant.


def graded(count: int) -> list[Chunk]:
    """Chunks of one length with ever more pumps, so that stored and exact scores rank them alike, without ties."""
    rng = np.random.default_rng(2)
    return [
        Chunk(f"c{n:02}", " ".join(["pump"] * (n + 1) + list(rng.choice(WORDS["en"][1:9], size=count - n))), None,
              {"file": f"{n % 2}.pdf", "page": n})
        for n in rng.permutation(count).tolist()
    ]  # fmt: skip


@pytest.mark.parametrize("k", [1, 60])
async def test_fusion_in_qdrant_is_our_rrf(opened: Opened, k: int) -> None:
    engine = opened()
    engine.upsert(graded(30))
    ours = fuse({"bm25": engine.bm25(), "dense": engine.dense()}, method=RRF(k=k), depth=20)
    for asked in (
        Query("pump"),
        Query("pump", where={"file": "1.pdf"}),
        Query("pump", require={"file": {"$in": ["0.pdf"]}}),
    ):
        found, expected = engine.fused(k=k, depth=20).search(asked, 12), ours.search(asked, 12)
        assert found.ids == expected.ids
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], rel=1e-6)
        alike(await engine.fused(k=k, depth=20).asearch(asked, 12), found, 1e-6)
        (vote,) = found.hits[0].votes
        assert (vote.kind, vote.via, vote.terms) == ("hybrid", (f"RRF in Qdrant, k {k}",), ("pump",))
        for where in (asked.where, asked.require):
            assert all(compile_filter(where)(hit.chunk.metadata) for hit in found)
    await engine.aclose()


def test_fusion_is_one_request_of_k_and_one(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=EMBEDDER)
    engine.upsert(some(20))
    engine.fused(k=60, depth=40).search("pump", 5)
    ((body, _),) = (sent["searches"] for sent in fake.bodies("/points/query/batch"))
    assert body["query"] == {"rrf": {"k": 61}}
    assert [(one["using"], one["limit"]) for one in body["prefetch"]] == [("bm25", 40), ("full", 40)]
    engine.close()


def test_fusion_refuses_rights_that_qdrant_cannot_tell(memory: QdrantEngine) -> None:
    memory.upsert(graded(10))
    for rights in ({"page": {"$gte": 3}}, {"page": 3.5}, {"file": {"$ne": "1.pdf"}}, {"a-b": "x"}):
        with pytest.raises(FilterNotSupportedError, match="fuse bm25"):
            memory.fused().search(Query("pump", require=rights), 3)
    assert memory.fused().search(Query("pump", require={}), 3).ids == ()
    denied = memory.fused().search(Query("pump", require={"$not": {"file": "1.pdf"}}), 99)
    assert set(denied.ids) == {chunk.id for chunk in graded(10) if chunk.metadata["file"] != "1.pdf"} != set()
    assert set(memory.fused().search(Query("pump", where={"page": {"$gte": 8}}), 9).ids) == {"c08", "c09"}


def test_fusion_needs_vectors_and_a_collection(memory: QdrantEngine) -> None:
    assert memory.fused().search("pump", 3).ids == ()
    bare = QdrantEngine("bare", analyzer=ANALYZER)
    bare.upsert(some(3))
    with pytest.raises(ConfigError, match="holds no vectors"):
        bare.fused().search("pump", 3)
    with pytest.raises(ConfigError, match="holds no vectors"):
        bare.dense().search("pump", 3)
    assert bare.bm25().search("pump", 3).ids == bare.hybrid_search("pump", 3).ids


# A server that is not well.


async def raised_by(engine: QdrantEngine) -> list[Any]:
    """What each use raises, sync and async at once."""
    uses = (lambda: len(engine), lambda: engine.bm25().search("pump", 3), lambda: engine.get(["c"]))
    awaited = engine.acount(), engine.bm25().asearch("pump", 3), engine.aget(["c"])
    found = await asyncio.gather(*map(asyncio.to_thread, uses), *awaited, return_exceptions=True)
    engine.close()
    await engine.aclose()
    return found


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, SearchNotAvailableError), (403, SearchNotAvailableError), (429, SearchNotAvailableError),
        (503, SearchNotAvailableError), (408, SearchTimeoutError), (504, SearchTimeoutError), (500, SearchError),
        (422, SearchError), (404, SearchError),
    ],
)  # fmt: skip
async def test_what_a_server_answers(fake: Any, status: int, error: type[SearchError]) -> None:
    engine = QdrantEngine("docs", url=fake.url, api_key="hushhush", embedder=EMBEDDER)
    engine.upsert(some(3))
    assert await engine.acount() == 3
    assert {asked.get("api-key") for asked in fake.headers} == {"hushhush"}
    fake.status = status
    for raised in await raised_by(engine):
        assert isinstance(raised, error)
        assert type(raised) is error or status == 404
        assert "hushhush" not in str(raised)
    fake.status = 200
    assert len(engine) == await engine.acount() == 3
    engine.close()
    await engine.aclose()


async def test_a_slow_server(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=EMBEDDER, timeout=0.2)
    fake.silent.set()
    for raised in await raised_by(engine):
        assert isinstance(raised, SearchTimeoutError)
        assert "0.2 s" in str(raised)


async def test_no_server() -> None:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        engine = QdrantEngine("docs", url=f"http://127.0.0.1:{probe.getsockname()[1]}", api_key="hushhush")
        for raised in await raised_by(engine):
            assert isinstance(raised, SearchNotAvailableError)
            assert "cannot be reached" in str(raised)
            assert "hushhush" not in str(raised)


def test_an_answer_that_is_none(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url)
    fake.raw = b"<html>"
    with pytest.raises(SearchError):
        len(engine)
    fake.raw = b'{"result": {"exists": "perhaps"}}'
    with pytest.raises(SearchError):
        len(engine)
    engine.close()


def test_a_collection_that_somebody_removed(opened: Opened) -> None:
    engine, other = opened(), opened()
    engine.upsert(some(3))
    other.clear()
    with pytest.raises(SearchError):
        engine.bm25().search("pump", 3)
    assert engine.bm25().search("pump", 3).ids == ()
    assert len(engine) == 0
    engine.upsert(some(2))
    assert len(engine) == 2


def test_nothing_is_asked_before_the_first_operation(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=EMBEDDER)
    engine.bm25()
    engine.dense()
    engine.fused()
    assert fake.asked == []
    assert repr(engine.fused()) == f"{engine!r}.fused(k=60, depth=100)"


def test_each_loop_has_its_connections(fake: Any) -> None:
    engine = QdrantEngine("docs", url=fake.url, embedder=EMBEDDER)
    engine.upsert(some(3))

    async def use() -> int:
        count = await engine.acount()
        await engine.aclose()
        return count

    assert [asyncio.run(use()) for _ in range(2)] == [3, 3]
    engine.close()


# Others at the same time.


def asking(method: str) -> Callable[[Any], bool]:
    """Whether a request is of this method."""
    return lambda asked: bool(getattr(asked, "method", None) == method)


def test_two_that_make_a_collection(opened: Opened, tmp_path: Path) -> None:
    chunks = some(12)
    one, other = opened(), opened()
    meanwhile(one, asking("create_collection"), lambda: other.upsert(chunks[:8]), after=True)
    one.upsert(chunks[8:])
    base = base_of(tmp_path, chunks)
    for engine in (one, other, opened()):
        for query in QUERIES:
            alike(engine.bm25(**EXACT).search(query, 20), base.bm25().search(query, 20))


def test_two_that_write_first(opened: Opened) -> None:
    """Whoever writes the state first, what the other tells of languages stays."""
    one, other = opened(), opened()
    german = [Chunk("b", "Die Pumpen der Anlage sind undicht.")]
    meanwhile(one, asking("upsert"), lambda: other.upsert(german))
    one.upsert([Chunk("a", "The pumps are leaking and the valve is not.")])
    assert "b" in opened().bm25().search("Pumpe", 3).ids
    assert "a" in opened().bm25().search("pumps", 3).ids


@pytest.mark.parametrize("filled", [True, False], ids=["filled", "empty"])
async def test_a_collection_that_was_made_anew_otherwise(opened: Opened, filled: bool) -> None:
    """Its words and vectors are not searched, nor written, as those of the old one."""
    old = [Chunk("1", "The pumps run"), Chunk("2", "The valve is shut")]
    made: dict[str, Any] = {"embedder": None, "analyzer": None}
    opened(embedder=None, analyzer=None).upsert(old)
    engines = [opened(**made) for _ in range(5)]
    for engine in engines:
        assert engine.bm25().search("pumps", 1).ids == ("1",)
    engines[0].clear()
    again = Analyzer(language=None)
    anew = opened(embedder=None, analyzer=again)
    anew.run(anew._ready(create=True))  # and no more, as long as nothing is written
    anew.upsert(old if filled else [])
    uses: tuple[Callable[[QdrantEngine], Any], ...] = (
        lambda engine: engine.bm25().search("pump", 3),
        lambda engine: engine.upsert([Chunk("3", "Many pumps stop")]),
        lambda engine: engine.delete(["9"]),
    )
    for use in uses:
        engine = engines.pop()
        with pytest.raises(SearchError, match="replaced"):
            use(engine)
        use(engine)
        assert engine.recipe is not None
        assert engine.recipe.analyzer == again.recipe()
    with pytest.raises(SearchError, match="replaced"):
        await engines[1].bm25().asearch("pump", 3)
    assert opened(**made).bm25().search("pump", 3).ids == ()
    assert set(opened(**made).bm25().search("pumps", 3).ids) == ({"1", "3"} if filled else {"3"})


def test_a_making_that_was_broken_off_is_gone_on_with(fake: Any) -> None:
    options: dict[str, Any] = {"url": fake.url, "tenant": "file", "indexes": ["page"]}

    def away() -> None:
        raise SearchTimeoutError("too slow")

    every = {"kind", "parent", "version", "sums", "mean", "terms", "metadata.file", "metadata.page"}
    for again in ("the same", "another"):
        engine = QdrantEngine("docs", **options)
        meanwhile(engine, asking("create_payload_index"), away)
        with pytest.raises(SearchTimeoutError):
            engine.upsert(some(2))
        assert not fake.indexes
        other = engine if again == "the same" else QdrantEngine("docs", **options)
        other.upsert(some(2))
        assert set(fake.indexes) == every
        asked = len(fake.bodies("/index"))
        late = QdrantEngine("docs", **options)
        late.upsert(some(3))
        assert len(fake.bodies("/index")) == asked
        other.clear()
        for one in (engine, other, late):
            one.close()


async def test_a_loop_does_not_make_its_client(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    make = qdrant_client.AsyncQdrantClient

    def making(**options: Any) -> Any:
        threads.append(threading.get_ident())
        return make(**options)

    monkeypatch.setattr(qdrant_client, "AsyncQdrantClient", making)
    engine = QdrantEngine("docs", url=fake.url)
    assert await asyncio.gather(*(engine.acount() for _ in range(4))) == [0] * 4
    assert threads
    assert threading.get_ident() not in threads
    await engine.aclose()


def test_ids_that_look_like_escaped_ones_and_numbers_that_json_has_no_room_for(memory: QdrantEngine) -> None:
    chunks = [Chunk("\ud800", "one"), Chunk("\0eda080", "two", None, {"1.5": 1e-7, "big": 10**400})]
    memory.upsert(chunks)
    assert len(memory) == 2
    assert memory.get(["\ud800", "\0eda080"]) == {each.id: replace(each, kb="docs") for each in chunks}


def test_a_folder_is_opened_while_another_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (QdrantEngine(name, path=tmp_path, analyzer=ANALYZER) for name in ("one", "other"))
    one.upsert(some(2))
    client: Any = one._client
    held = client._mine.client
    close, failures = held.close, list[Exception]()

    def use() -> None:
        try:
            other.upsert(some(3))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=use)

    def closing_slowly() -> None:
        thread.start()
        thread.join(0.3)
        close()

    monkeypatch.setattr(held, "close", closing_slowly)
    one.close()
    thread.join()
    assert failures == []
    assert len(other) == 3
    other.close()


@pytest.mark.parametrize("text_", ["new", None], ids=["anew", "as it is"])
def test_a_parent_that_another_names_meanwhile(opened: Opened, text_: str | None) -> None:
    one, other = opened(), opened()
    one.upsert([Chunk("a", "pump", "p")], parents=[Chunk("p", "old")])
    above = [] if text_ is None else [Chunk("p", text_)]
    meanwhile(one, asking("delete"), lambda: other.upsert([Chunk("b", "valve", "p")], parents=above))
    one.delete(["a"])
    assert other.parents(["p"])["p"].text == (text_ or "old")
    one.delete(["b"])
    assert other.parents(["p"]) == {}


def test_a_parent_written_after_it_was_removed_stays(opened: Opened) -> None:
    one, other = opened(), opened()
    one.upsert([Chunk("a", "pump", "p")], parents=[Chunk("p", "old")])
    meanwhile(
        one, asking("delete"), lambda: other.upsert([Chunk("b", "valve", "p")], parents=[Chunk("p", "new")]), after=True
    )
    one.delete(["a"])
    assert other.parents(["p"])["p"].text == "new"

"""Milvus, as far as Milvus Lite is it: in a file, and served to clients over gRPC."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import awkward
from tests.engines.engines import Program, running
from tests.engines.meanwhile import meanwhile
from tests.engines.servers import in_time
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.channels import AskedWording
from voicevault_retrievers.engines.filters import translate
from voicevault_retrievers.engines.keywords import CollectionCounts, Keywords, score, weigh
from voicevault_retrievers.engines.milvus import MilvusEngine, collection, schema
from voicevault_retrievers.engines.milvus import engine as engines
from voicevault_retrievers.engines.milvus.connection import MilvusAddress, ask
from voicevault_retrievers.engines.milvus.facets import CROWDED
from voicevault_retrievers.engines.milvus.language import Milvus
from voicevault_retrievers.engines.milvus.schema import checked_name
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError, SearchError, SearchNotAvailableError
from voicevault_retrievers.lexical.formulas import ATIRE, BM25L, BM25Plus, Formula, Lucene, RankBM25L, Robertson
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.testing.clients import Connect
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import KeywordSuite as KeywordSearch
from voicevault_retrievers.testing.suite import Suite
from voicevault_retrievers.text import Analyzer

pymilvus = pytest.importorskip("pymilvus")
manager = pytest.importorskip("milvus_lite.server_manager").server_manager_instance

EMBEDDER = HashEmbedder(16)
WORDS = ["pump", "valve", "turbine", "blade", "oil", "hall", "gate", "river"]


def chunks_of(count: int, *, longest: int = 40) -> list[Chunk]:
    """Chunks of few words, of very different lengths."""
    random = np.random.default_rng(7)
    sizes = random.integers(1, longest, count)
    texts = [" ".join(random.choice(WORDS, size, p=np.arange(8, 0, -1) / 36)) for size in sizes]
    return [Chunk(f"c{at}", text, None, {"at": at, "even": at % 2 == 0}) for at, text in enumerate(texts)]


class AsServer(MilvusEngine):
    """Searched as a server is, though it may be Milvus Lite that answers: slowly, and alike."""

    @property
    def _counts_here(self) -> bool:
        return False


class MilvusProgram(Program):
    """Milvus Lite in a process of its own."""

    def command(self) -> Sequence[str]:
        program = [sys.executable, "-c", "from milvus_lite.cmdline import main; main()", "server"]
        return [*program, "--data-dir", str(self.folder / "data"), "--host", "127.0.0.1", "--port", str(self.port)]

    def ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """That of a Milvus Lite which is served."""
    with running(MilvusProgram) as program:
        yield program.port


def served(port: int, name: str, **options: Any) -> AsServer:
    return AsServer(name, place=MilvusAddress(f"http://127.0.0.1:{port}"), **options)


class Served(Suite):
    """Collections of a server."""

    values = awkward.VALUES
    filters = awkward.FILTERS

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls, port: int) -> Connect:
        return lambda name, **options: served(port, name, **options)


class TestAsAServer(Served, KeywordSearch, Filters):
    """Where Milvus counts, and a sparse index says what may be among the best."""

    ways = ("sync",)
    formulas = (Lucene(), BM25Plus())  # this package scores the rows


class TestAsAServerOnAnEventLoop(Served, TogetherSuite):
    """The client of event loops, beside the other and many times at once."""

    ways = ("async",)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[MilvusEngine]:
    found = connect(f"milvus+file://{tmp_path}/a.db/docs", embedder=EMBEDDER)
    assert isinstance(found, MilvusEngine)
    yield found
    found.close()


Opened = Callable[..., MilvusEngine]


@pytest.fixture(params=["file", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens a collection in a file, or one that is searched as a server's."""
    made: list[MilvusEngine] = []

    def opening(name: str, **options: Any) -> MilvusEngine:
        if request.param == "server":
            made.append(served(request.getfixturevalue("port"), name, **options))
        else:
            made.append(MilvusEngine(name, place=MilvusAddress(file=tmp_path / "a.db"), **options))
        return made[-1]

    yield opening
    for engine in made:
        engine.close()


@pytest.mark.parametrize(
    ("address", "place", "name"),
    [
        ("milvus://host/docs", MilvusAddress("http://host:19530"), "docs"),
        ("milvuss://me:p%40ss@host:1234/a%2Db", MilvusAddress("https://host:1234", token="me:p@ss"), "a-b"),  # noqa: S106
        (
            "milvus://key@[::1]/docs?database=own",
            MilvusAddress("http://[::1]:19530", token="key", database="own"),  # noqa: S106
            "docs",
        ),
        ("milvus+file:///a/b.db/docs", MilvusAddress(file=Path("/a/b.db")), "docs"),
    ],
)
def test_an_address_says_the_place_and_the_collection(address: str, place: MilvusAddress, name: str) -> None:
    assert MilvusAddress.of(address) == (place, name)


@pytest.mark.parametrize(
    "address",
    [
        "milvus://me:hush@host",
        "milvus://me:hush@host:port/docs",
        "milvus://me:hush@host/docs/more",
        "milvus://me:hush@host/docs?user=me",
        "milvus:///docs",
        "milvus+file://me:hush@host/a.db/docs",
        "milvus+file:///a/docs",
    ],
)
def test_a_wrong_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(address)
    assert "hush" not in str(raised.value)


def test_names_that_milvus_does_not_take_are_coded_and_never_meet() -> None:
    names = ["docs", "Docs", "größe", "../x", "a b", "1a", checked_name("a b"), "_", "a'b", "a\0b", "class"]
    coded = [checked_name(name) for name in names]
    assert len(set(coded)) == len(names)
    assert all(name.isascii() and name.isidentifier() for name in coded)
    assert coded[0] == "docs"
    with pytest.raises(ConfigError, match="shorten"):
        checked_name("a" * 241)


@pytest.mark.parametrize(
    "formula", [Lucene(), Lucene(0.9, 0.4), ATIRE(), Robertson(), BM25L(), BM25Plus(), RankBM25L()], ids=repr
)
def test_no_score_exceeds_its_bound_and_estimates_are_near(formula: Formula) -> None:
    random = np.random.default_rng(3)
    documents = [dict.fromkeys(WORDS[:4], 0) for _ in range(120)]
    for document in documents:
        for word in WORDS[:4]:
            document[word] = int(random.choice([0, 1, 1, 2, 3, 5, 9, 30, 200]))
    lengths = [sum(each.values()) + int(random.integers(1, 2000)) for each in documents]
    known = {word: sum(each[word] > 0 for each in documents) for word in WORDS[:4]}
    population = CollectionCounts(400, sum(lengths), known)
    terms = weigh(Keywords({(word,): 1.0 for word in WORDS[:4]}, formula), population)
    upper = schema.bounds(formula, terms, population.mean, max(lengths))
    about = schema.estimates(formula, terms, population.mean, max(lengths))
    offset = sum(term.weight * formula.absent() for term in terms)
    far = []
    for at, (document, length) in enumerate(zip(documents, lengths, strict=True)):
        held = {word: count for word, count in document.items() if count}
        rest = {"other": length - sum(held.values())}
        own = schema.row(Record(Chunk(f"c{at}", ""), None, held | rest, ""))["sparse"]
        exact = score(formula, terms, population.mean, held, length)
        if exact is not None:
            assert sum(own[one] * upper.get(one, 0.0) for one in own) + offset >= exact[0] - 1e-12
            far.append(abs(sum(own[one] * about.get(one, 0.0) for one in own) + offset - exact[0]) / max(exact[0], 1))
    assert float(np.mean(far)) < 0.08


def test_what_milvus_is_told_passes_what_the_filter_passes_and_no_more_where_it_says_so(engine: MilvusEngine) -> None:
    metadata = awkward.metadata(awkward.VALUES)
    engine.upsert([Chunk(f"c{at}", "pump", None, each) for at, each in enumerate(metadata)])
    language, exact = Milvus(), 0
    for where in awkward.FILTERS:
        clause, is_exact = translate(where, language)
        passes = compile_filter(where)
        passing = sum(passes(each) for each in metadata)
        if clause is None:
            continue
        counted = engine.run(engine._counting(clause))
        assert counted >= passing, where
        if is_exact:
            assert counted == passing, where
            exact += 1
    assert exact >= 20


@pytest.mark.parametrize("operator", ["$and", "$or"])
def test_a_composed_filter_is_told_exactly_where_all_its_parts_are(operator: str) -> None:
    exact, wide = {"a": 1}, {"b": {"$contains": "x"}}
    assert translate({operator: [exact, {"c": "y"}]}, Milvus()).exact
    assert not translate({operator: [exact, wide]}, Milvus()).exact
    assert not translate({operator: [wide, exact]}, Milvus()).exact


def test_a_value_of_more_members_than_an_array_holds_is_found_by_filters(engine: MilvusEngine) -> None:
    many = [Chunk("many", "pump", None, {"v": list(range(5000)), "w": "x"}), Chunk("few", "pump", None, {"v": [1]})]
    engine.upsert(many)
    assert engine.run(engine._counting(f"array_contains(facets, {CROWDED})")) == 1
    assert engine.bm25().search(Query("pump", where={"v": 4321}), 5).ids == ("many",)
    assert engine.dense().search(Query("pump", require={"v": 1}), 5).ids == ("few", "many")


@pytest.mark.parametrize("deepest", [16, 16_384])
@pytest.mark.parametrize("formula", ["lucene", "bm25+", "robertson"])
def test_the_best_are_exact_however_deep_that_is(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deepest: int, formula: str
) -> None:
    monkeypatch.setattr(engines, "DEEPEST", deepest)
    monkeypatch.setattr(engines, "FIRST", 4)
    monkeypatch.setattr(engines, "PAGE", 50)
    held = served(port, f"deep_{deepest}_{formula.strip('+')}")
    chunks = chunks_of(300, longest=400)
    held.upsert(chunks)
    with KnowledgeBase.create("base", root=tmp_path) as base:
        base.add(chunks)
        for text in ("river", "pump gate", "oil hall river"):
            ours = held.bm25(formula=formula, statistics="exact").search(text, 5)
            theirs = base.bm25(formula=formula).search(text, 5)
            assert ours.ids == theirs.ids
            assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-9)
    held.close()


def test_what_was_counted_is_counted_anew_after_another_client_has_written(opened: Opened, tmp_path: Path) -> None:
    one, other = opened("counted"), opened("counted")
    one.upsert([Chunk("a", "pump pump"), Chunk("b", "valve")])
    exact = one.bm25(statistics="exact")
    before = exact.search("pump", 1).hits[0].score
    other.upsert([Chunk("c", "pump and a longer text")])
    other.delete(["b"])
    with KnowledgeBase.create("base", root=tmp_path) as base:
        base.add([Chunk("a", "pump pump"), Chunk("c", "pump and a longer text")])
        expected = base.bm25().search("pump", 1).hits[0].score
    assert before != expected
    assert exact.search("pump", 1).hits[0].score == pytest.approx(expected, abs=1e-9)


def test_milvus_fuses_by_ranks_from_1(opened: Opened) -> None:
    texts = ["pump", "pump valve", "valve turbine blade", "turbine oil hall gate", "pump oil river hall gate blade"]
    chunks = [Chunk(f"c{at}", text, None, {"at": at}) for at, text in enumerate(texts)]
    held = opened("fused", embedder=EMBEDDER)
    assert held.fused().search("pump", 3).ids == ()
    held.upsert(chunks)
    for where in (None, {"at": {"$gte": 1}}, {"at": {"$ne": 1}}):
        query = Query("pump valve", where=where)
        lists = [held.bm25().search(query, 100).ids, held.dense().search(query, 100).ids]
        expected: dict[str, float] = {}
        for ids in lists:
            for rank, one in enumerate(ids, start=1):
                expected[one] = expected.get(one, 0.0) + 1 / (9 + rank)
        found = held.fused(k=9).search(query, 10)
        assert {hit.id: hit.score for hit in found} == pytest.approx(expected, abs=1e-6)
        assert found.ids == held_async(held, query, found.ids)
        assert all(hit.votes[0].stage == "milvus" for hit in found)
    with pytest.raises(SearchError, match="exactly"):
        held.fused().search(Query("pump", require={"at": {"$text": "1"}}), 3)


def noted(held: MilvusEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of Milvus that are called from now on."""
    called: list[str] = []
    now = held._connection.now

    def noting(asking: Any) -> Any:
        called.append(asking.method)
        return now(asking)

    monkeypatch.setattr(held._connection, "now", noting)
    return called


def test_milvus_ranks_keywords_in_one_request_whoever_has_written(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = chunks_of(60)
    held = served(port, "ranked", analyzer=Analyzer("en"))
    held.upsert(chunks)
    called = noted(held, monkeypatch)
    exact = held.bm25(statistics="exact").search("pump gate", 10)
    assert held.bm25().search("pump gate", 10).ids == exact.ids
    other = MilvusEngine("ranked", place=held.place, analyzer=Analyzer("en"))
    other.upsert([Chunk("new", "gate gate pump")])
    called.clear()
    found = held.bm25().search("pump gate", 10)
    assert (called, found.ids[0]) == (["describe_collection", "search"], "new")
    several = served(port, "languages")
    several.upsert([Chunk("de", "Die Pumpe der Turbine ist gewartet worden"), Chunk("en", "the pump of the gate")])
    called = noted(several, monkeypatch)
    for _ in range(2):
        found = several.bm25().search("the pump", 10)
    assert (called.count("search"), called.count("query"), found.ids) == (3, 0, ("en", "de"))
    for one in (other, held, several):
        one.close()


def test_words_weigh_as_the_query_says(port: int) -> None:
    held = served(port, "weighed", analyzer=Analyzer("en"))
    held.upsert(chunks_of(60))
    exact = held.bm25(statistics="exact")
    for query in (Query("pump", variants=(Variant("gate", 0.3),)), Query("gate gate pump"), Query("oil valve hall")):
        expected, found = exact.search(query, 60), held.bm25().search(query, 60)
        assert {hit.id: hit.score for hit in found} == pytest.approx({hit.id: hit.score for hit in expected}, rel=1e-5)
        assert {hit.id: hit.votes[0].terms for hit in found} == {hit.id: hit.votes[0].terms for hit in expected}
    for where in ({"at": 7}, {"at": {"$text": "x"}}, {"even": True}):  # of which Milvus Lite counts what passes
        query = Query("pump oil", where=where)
        assert sorted(held.bm25().search(query, 60).ids) == sorted(exact.search(query, 60).ids)
    held.close()


def test_milvus_lite_has_no_statistics_of_a_collection(engine: MilvusEngine) -> None:
    engine.upsert(chunks_of(60))
    assert engine.bm25().search("pump", 9) == engine.bm25(statistics="exact").search("pump", 9)
    with pytest.raises(ConfigError, match='search with "exact"'):
        engine.bm25(statistics="engine").search("pump", 9)


def test_an_overlong_chunk_is_ranked_by_words_in_proportion(port: int) -> None:
    assert schema.words({}) == schema.NO_TERM
    counts = {f"w{number}": number for number in range(1, 300)}
    words = schema.words(counts).split()
    assert max(len(schema.words(one)) for one in (counts, {f"w{n}": 9 for n in range(4096)})) < 65_535
    assert (words.count(schema.word("w299")), words.count(schema.word("w150"))) == (51, 26)
    held = served(port, "overlong", analyzer=Analyzer("en"))
    held.upsert([Chunk("long", "pump " * 30_000 + "valve"), Chunk("short", "pump valve gate"), Chunk("none", "...")])
    assert held.bm25().search("pump", 3).ids == held.bm25(statistics="exact").search("pump", 3).ids
    held.close()


def held_async(held: MilvusEngine, query: Query, expected: tuple[str, ...]) -> tuple[str, ...]:
    async def asked() -> tuple[str, ...]:
        try:
            return (await held.fused(k=9).asearch(query, len(expected))).ids
        finally:
            await held.aclose()

    return in_time(lambda: asyncio.run(asked()))  # a server may refuse a client that comes soon after another's pings


@pytest.mark.parametrize("rights", [{"at": {"$text": "a"}}, {"page-number": 1}, {"$not": {"at": {"$gt": 1}}}], ids=str)
def test_rights_that_milvus_cannot_tell_are_counted_here_unless_too_many_may_pass(
    port: int, engine: MilvusEngine, rights: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [Chunk("a", "pump", None, {"at": "a", "page-number": 1}), Chunk("b", "pump pump", None, {"at": 2})]
    held = served(port, f"rights_{len(str(rights))}")
    held.upsert(chunks)
    engine.upsert(chunks[:1])
    alone = engine.bm25(statistics="exact").search("pump", 3).hits
    for one in (held, engine):
        one.upsert(chunks)
        assert one.bm25().search(Query("pump", require=rights), 3).hits[0].score == alone[0].score
    monkeypatch.setattr(engines, "READ", 0)
    held.upsert([Chunk("c", "pump")])
    with pytest.raises(FilterNotSupportedError, match="say rights with"):
        held.bm25().search(Query("pump", require=rights), 3)
    assert held.bm25().search(Query("pump", where={"at": {"$text": "a"}}), 3).ids == ("a",)
    held.close()


def test_long_texts_come_back_and_too_many_terms_are_refused(engine: MilvusEngine) -> None:
    text = "größe 😀 " * 9000
    engine.upsert([Chunk("long", text), Chunk("\ud800", "half a pair")])
    assert engine.get(["long"])["long"].text == text
    assert engine.get(["\ud800"])["\ud800"].id == "\ud800"
    with pytest.raises(ConfigError, match="split it"):
        engine.upsert([Chunk("many", " ".join(f"w{number}" for number in range(5000)))])


def test_a_file_is_of_one_process_and_closed_with_its_last_engine(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first, second = (engines.at(f"milvus+file://{path}/{name}") for name in ("one", "two"))
    first.upsert([Chunk("a", "pump")])
    second.upsert([Chunk("b", "pump")])
    first.close()
    assert second.bm25().search("pump", 1).ids == ("b",)
    program = (
        "import sys; from voicevault_retrievers.engines.addresses import connect\n"
        "try: len(connect(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__)"
    )
    command = [sys.executable, "-c", program, f"milvus+file://{path}/one"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "SearchNotAvailableError\n"
    second.close()
    assert str(path) not in manager._servers
    with closing(first):
        assert first.get(["a"])["a"].text == "pump"


def test_a_file_that_the_application_has_opened_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    client = pymilvus.MilvusClient(str(path))
    held = engines.at(f"milvus+file://{path}/docs")
    held.upsert([Chunk("a", "pump")])
    held.close()
    assert sorted(client.list_collections()) == ["docs", "docs__side"]
    client.close()
    manager.release_server(str(path))


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        held = engines.at(f"milvus://me:hush@127.0.0.1:{taken.getsockname()[1]}/docs", timeout=1.0)

        async def asked() -> None:
            with pytest.raises(SearchNotAvailableError) as later:
                await held.acount()
            assert "hush" not in str(later.value)
            await held.aclose()

        with pytest.raises(SearchNotAvailableError) as now:
            len(held)
        assert "hush" not in str(now.value)
        assert "hush" not in repr(held)
        asyncio.run(asked())
        held.close()


def test_each_event_loop_has_a_client_of_its_own(port: int) -> None:
    held = served(port, "loops", embedder=EMBEDDER)
    chunks = chunks_of(40)

    async def wrote(part: list[Chunk]) -> int:
        await held.aupsert(part)
        found = await asyncio.gather(*(held.bm25().asearch("pump", 3) for _ in range(8)))
        assert len({each.ids for each in found}) == 1
        await held.aclose()
        return await held.acount()

    async def counted(part: list[Chunk]) -> int:
        try:
            return await wrote(part)
        finally:
            await held.aclose()

    for part, total in ((chunks[:20], 20), (chunks[20:], 40)):
        # As above: a server may refuse a client that comes soon after another's pings.
        assert in_time(lambda part=part: asyncio.run(counted(part))) == total  # type: ignore[misc]
    held.close()


def test_a_collection_that_another_client_has_removed_is_looked_for_anew(engine: MilvusEngine) -> None:
    other = MilvusEngine("docs", place=engine.place, embedder=EMBEDDER)
    engine.upsert([Chunk("a", "pump")])
    assert len(other) == 1
    engine.clear()
    with pytest.raises(SearchError):
        len(other)
    assert len(other) == 0
    other.close()


def test_what_a_request_holds_is_bounded(engine: MilvusEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "MESSAGE", 3000)
    asked: list[int] = []
    now = engine._connection.now

    def watched(asking: Any) -> Any:
        asked.append(len(asking.options["data"])) if asking.method == "upsert" else None
        return now(asking)

    monkeypatch.setattr(engine._connection, "now", watched)
    engine.upsert(chunks_of(30))
    assert len(engine) == 30
    assert max(asked) < 30
    assert engine._now(ask("has_collection", collection_name="docs"))


def test_languages_of_chunks_without_rights_that_milvus_cannot_tell_change_nothing(opened: Opened) -> None:
    english = "The guideline of the ICH says when the pump stops and the water is gone for a long while."
    german = "Die Pumpe der Turbine hat ein Ventil und die Leitung ist aus Stahl gemacht worden."
    held = opened("tags")
    chunks = [Chunk("en", english, metadata={"who": "a"}), Chunk("de", german, metadata={"who": "b"})]
    held.upsert(chunks[:1])
    query = Query("ICH", require={"who": {"$text": "a"}})
    alone = held.bm25().search(query, 3).hits
    held.upsert(chunks)
    found = held.bm25().search(query, 3).hits
    assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in alone]
    assert [hit.id for hit in found] == ["en"]
    assert held.bm25().search("ICH", 3).ids == ()
    assert held.bm25().search(Query("ICH", require={"who": {"$in": []}}), 3).ids == ()


ASKING: dict[str, Callable[[MilvusEngine], Any]] = {
    "upsert": lambda held: held.upsert([Chunk("b", "valve")]),
    "dense": lambda held: held.dense().search("pump", 3),
    "bm25": lambda held: held.bm25().search("pump", 3),
    "bm25-scores": lambda held: held.bm25().scores(Query("pump"), ["a"]),
    "dense-scores": lambda held: held.dense().scores(Query("pump"), ["a"]),
    "fused": lambda held: held.fused().search("pump", 3),
    "vectors": lambda held: held.vectors(["a"]),
}
ANOTHER: dict[str, dict[str, Any]] = {
    "embedder": {"embedder": HashEmbedder(16, "other")},
    "dimension": {"embedder": HashEmbedder(8)},
    "analyzer": {"embedder": EMBEDDER, "analyzer": Analyzer("de")},
}


@pytest.mark.parametrize(
    ("made", "asking"),
    [*(("embedder", one) for one in ASKING), ("dimension", "dense"), ("dimension", "upsert"), ("analyzer", "bm25")],
)
def test_a_collection_that_another_client_has_replaced_is_said_once_and_read_anew(
    engine: MilvusEngine, made: str, asking: str
) -> None:
    first = MilvusEngine("docs", place=engine.place, embedder=EMBEDDER)
    engine.upsert([Chunk("a", "pump")])
    ASKING[asking](first)
    first.delete(["b"])
    engine.clear()
    other = MilvusEngine("docs", place=engine.place, **ANOTHER[made])
    other.upsert([Chunk("a", "pump")])
    assert first._recipe is not None
    with pytest.raises(SearchError, match="replaced meanwhile: ask again"):
        ASKING[asking](first)
    assert [chunk.id for chunk in other] == ["a"]
    assert first._recipe is None
    first.close()
    other.close()


@pytest.mark.parametrize("where", [{"title": {"$text": "rar"}}, {"title": "rare"}, None], ids=str)
def test_the_nearest_are_exact_however_deep_they_are(
    engine: MilvusEngine, monkeypatch: pytest.MonkeyPatch, where: Mapping[str, Any] | None
) -> None:
    engine.upsert([Chunk(f"d{at}", f"pump {at}", None, {"title": "x" * at}) for at in range(100)])
    engine.upsert([Chunk(f"rare{at}", f"far {at} away", None, {"title": "rare"}) for at in range(30)])
    query = Query("pump", where=where)
    passing = 130 if where is None else 30
    wanted = {k: [(hit.id, hit.score) for hit in engine.dense().search(query, k)] for k in (3, 25, passing)}
    assert {one for one, _ in wanted[25]} <= {f"rare{at}" for at in range(30)} or where is None
    monkeypatch.setattr(engines, "DEEPEST", 20)
    monkeypatch.setattr(engines, "PAGE", 7)
    for k, hits in wanted.items():
        assert [(hit.id, hit.score) for hit in engine.dense().search(query, k)] == hits


def test_nearest_that_a_server_would_have_to_give_too_many_for_are_refused(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = served(port, "far", embedder=EMBEDDER)
    held.upsert([Chunk(f"d{at}", f"pump {at}", None, {"title": "rare" if at > 47 else "x"}) for at in range(50)])
    held._lite = False
    monkeypatch.setattr(engines, "DEEPEST", 20)
    query = Query("pump", where={"title": {"$text": "rar"}})
    assert {hit.id for hit in held.dense().search(query, 5)} <= {"d48", "d49"}
    monkeypatch.setattr(engines, "READ", 49)
    with pytest.raises(FilterNotSupportedError, match="narrow it"):
        held.dense().search(query, 5)
    assert len(held.dense().search(Query("pump", where={"title": "x"}), 5)) == 5
    held.close()


def test_rows_are_made_read_and_scored_outside_the_event_loop(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    held = opened("threads", embedder=EMBEDDER)
    called: dict[str, set[int]] = {}

    def watched(name: str) -> Callable[..., Any]:
        function = getattr(schema, name)

        def noted(*given: Any, **options: Any) -> Any:
            called.setdefault(name, set()).add(threading.get_ident())
            return function(*given, **options)

        return noted

    scored = "bounds" if isinstance(held, AsServer) else "matching"
    names = ("row", "pieces", "chunk_of", "counts_of", scored, "estimates")
    for name in names:
        monkeypatch.setattr(schema, name, watched(name))

    async def searched() -> None:
        try:
            await held.aupsert([Chunk("a", "pump", "P", {"at": 1})], parents=[Chunk("P", "whole")])
            await held.aget(["a"])
            for require in (None, {"at": 1}, {"at": {"$gt": 0}}, {"$not": {"at": {"$gt": 1}}}):
                query = Query("pump", require=require)
                assert (await held.bm25().asearch(query, 3)).ids == ("a",)
                assert (await held.dense().asearch(query, 3)).ids == ("a",)
                asked = AskedWording(held.bm25(), query, Variant("pump"))
                assert (await held.arun(held.keyword_scores(asked, ["a"])))["a"] > 0
            assert (await held.fused(statistics="exact").asearch("pump", 3)).ids == ("a",)
        finally:
            await held.aclose()

    asyncio.run(searched())
    assert set(called) == set(names)
    assert [name for name, threads in called.items() if threading.get_ident() in threads] == []


def test_a_parent_that_is_named_again_while_it_is_removed_is_put_back(engine: MilvusEngine) -> None:
    other = MilvusEngine("docs", place=engine.place, embedder=EMBEDDER)
    engine.upsert([Chunk("1", "pump", "P")], parents=[Chunk("P", "whole", None, {"at": 1})])
    waiting = meanwhile(
        engine,
        lambda one: one.method == "delete" and one.options["collection_name"].endswith("__side"),
        lambda: other.upsert([Chunk("2", "valve", "P")]),
    )
    engine.delete(["1"])
    assert not waiting
    assert engine.parents(["P"])["P"].metadata == {"at": 1}
    other.close()


def test_a_name_that_what_stands_beside_a_collection_has_is_refused(engine: MilvusEngine) -> None:
    with pytest.raises(ConfigError, match="end its name otherwise"):
        MilvusEngine("docs__side", place=engine.place)


def test_a_drop_that_is_broken_off_leaves_no_parents_and_is_done_again(
    engine: MilvusEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = Chunk("1", "pump", "P")
    engine.upsert([chunk], parents=[Chunk("P", "old")])
    now, gone = engine._connection.now, list[str]()

    def broken(asking: Any) -> Any:
        if asking.method == "drop_collection":
            if gone:
                raise SearchNotAvailableError("away")
            gone.append(asking.options["collection_name"])
        return now(asking)

    monkeypatch.setattr(engine._connection, "now", broken)
    with pytest.raises(SearchNotAvailableError):
        engine.clear()
    monkeypatch.undo()
    other = MilvusEngine("docs", place=engine.place, embedder=EMBEDDER)
    other.upsert([chunk])
    assert other.parents(["P"]) == {}
    other.clear()
    assert len(other) == 0
    other.upsert([chunk])
    assert other.parents(["P"]) == {}
    other.close()

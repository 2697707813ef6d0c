"""The default ranking over an engine, and `fusion="engine"`, which lets the engine fuse in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.engines import SYSTEMS, System
from tests.engines.presets import THROUGH
from tests.helpers import HashEmbedder
from voicevault_retrievers import Chunk, KnowledgeBase
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.fusion import RRF, EngineRRF, fuse
from voicevault_retrievers.pipeline.presets import Preset

WORDS = "pump valve harbour pilot buoy tide crane ledger master lamp oil gauge".split()
CHUNKS = [
    Chunk(
        f"c{at:03}", " ".join(WORDS[at * step % 12] for step in (1, 5, 7, at % 11 + 1)), metadata={"side": "ab"[at % 2]}
    )
    for at in range(120)
]
FUSED = "embedded qdrant postgres postgres-bm25 chroma milvus lancedb elasticsearch opensearch".split()
FUSING = "qdrant postgres postgres-bm25 milvus elasticsearch opensearch".split()
ASKED = ["pump of the harbour", "pilot ledger", "tide", "gauge crane nosuchword", "oil lamp master buoy"]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.create("port", root=tmp_path_factory.mktemp("port"), embedder=HashEmbedder()) as base:
        base.add(CHUNKS)
        yield base


@pytest.fixture(scope="module", params=FUSED)
def engine(
    request: pytest.FixtureRequest, kb: KnowledgeBase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    system: System = SYSTEMS[request.param]
    system.skip()
    with system.opened(tmp_path_factory.mktemp(request.param)) as connect:
        opened = connect("port", embedder=HashEmbedder(), analyzer=kb.analyzer)
        opened.upsert(CHUNKS)
        yield opened
        opened.close()


def preset(**bm25: Any) -> Preset:
    return Preset.of({"version": 1, "channels": {"bm25": bm25, "dense": {}}})


@pytest.mark.parametrize("rights", [None, {"side": "a"}], ids=["all", "rights"])
def test_exact_statistics_rank_as_a_knowledge_base_does(kb: KnowledgeBase, engine: Engine, rights: Any) -> None:
    for text in ASKED:
        query = Query(text, require=rights)
        ours, theirs = (preset(statistics="exact").over(base).search(query, k=20) for base in (engine, kb))
        assert ours.ranking.errors == theirs.ranking.errors
        assert [hit.id for hit in ours.hits] == [hit.id for hit in theirs.hits]
        assert [hit.score for hit in ours.hits] == pytest.approx([hit.score for hit in theirs.hits], abs=1e-5)


def test_the_default_fusion_has_all_exact_scores(engine: Engine) -> None:
    for text in ASKED:
        result = preset().over(engine).search(text, k=20)
        assert result.ranking.errors == ()  # a score that is not known would be noted


async def _closing(engine: Engine, search: Any) -> Any:
    try:
        return await search
    finally:
        await engine.aclose()


@THROUGH
def test_an_engine_fuses_in_one_request(engine: Engine, through: Any) -> None:
    asked = Preset.of({"version": 1, "fusion": {"method": "engine", "k": 9, "depth": 30}})
    if not engine.capabilities.server_fusion:
        with pytest.raises(ConfigError, match="cannot fuse"):
            through(asked, engine).search("pump")
        return
    searched = through(asked, engine)
    for text in ASKED:
        found = searched.search(text)
        expected = engine.fused(k=9, depth=30).search(text, 5)
        assert [hit.id for hit in found.hits] == list(expected.ids)
        assert len(found.hits) == 5
        later = asyncio.run(_closing(engine, searched.asearch(text)))
        assert [hit.id for hit in later.hits] == list(expected.ids)
    permitted = searched.search(Query("pump harbour", require={"side": "a"}))
    assert permitted.hits
    assert all(hit.chunk.metadata["side"] == "a" for hit in permitted.hits)


def test_what_an_engine_cannot_fuse_is_refused(kb: KnowledgeBase, engine: Engine) -> None:
    with pytest.raises(ConfigError, match="other channels are fused by"):
        Preset.of({"version": 1, "fusion": {"method": "engine"}}).over(kb)
    with pytest.raises(ConfigError, match="use 'rrf' here"):
        fuse({"bm25": kb.bm25(), "dense": kb.dense()}, method=EngineRRF())
    with pytest.raises(ConfigError, match="without weights"):
        Preset.of({"version": 1, "fusion": {"method": "engine", "weights": {"bm25": 0.5}}}).over(engine)
    with pytest.raises(ConfigError, match="channels bm25 and dense"):
        Preset.of({"version": 1, "channels": {"bm25": {}}, "fusion": {"method": "engine"}}).over(engine)
    assert EngineRRF(9) != RRF(9)


def test_what_a_single_request_cannot_say_is_searched_channel_by_channel(engine: Engine) -> None:
    if not engine.capabilities.server_fusion:
        pytest.skip("it cannot fuse")
    apart = fuse({"bm25": engine.bm25(), "dense": engine.dense()}, method=RRF(9), depth=30)
    for query in (
        Query("pump harbour", weights={"bm25": 0}),
        Query("pump harbour", weights={"dense": 0.2}),
        Query("pump harbour", (Variant("tide crane", 0.5),)),
        Query("pump harbour", (Variant("tide", channels=frozenset({"dense"})),)),
    ):
        found, expected = engine.fused(k=9, depth=30).search(query, 7), apart.search(query, 7)
        assert found.ids == expected.ids
        assert len(found.hits[0].votes) == len(expected.hits[0].votes)


def test_options_that_a_single_request_would_not_have_are_refused(engine: Engine) -> None:
    for data in (
        {"channels": {"bm25": {"depth": 20}, "dense": {}}},
        {"channels": {"bm25": {}, "dense": {"timeout": 3}}},
    ):
        with pytest.raises(ConfigError, match="one depth, and no options of dense"):
            Preset.of({"version": 1, "fusion": {"method": "engine"}, **data}).over(engine)
    with pytest.raises(ConfigError, match="whole number"):
        Preset.of({"version": 1, "fusion": {"method": "engine", "k": 6.5}})


@pytest.mark.parametrize("engine", FUSING, indirect=True)
@pytest.mark.parametrize("where", [{"side": {"$text": "a"}}, {"number": {"$gte": "2024-06"}}, {"number": {"$lt": 99}}])
def test_under_any_filter_a_fused_search_finds_what_the_channels_find(engine: Engine, where: Any) -> None:
    query = Query("pump of the harbour", where=where)
    apart = fuse(bm25=engine.bm25(), dense=engine.dense(), method=RRF()).search(query, 20)
    try:
        found = engine.fused().search(query, 20)
    except FilterNotSupportedError as error:
        assert "fuse" in str(error)  # noqa: PT017 - raised by some engines, for some filters
    else:
        assert len(found) == len(apart)


@pytest.mark.parametrize("engine", [one for one in FUSING if one != "milvus"], indirect=True)  # as its docstring says
def test_a_fused_search_finds_nothing_that_no_channel_finds(engine: Engine) -> None:
    for text in ASKED:
        channels = {*engine.bm25().search(text, 200).ids, *engine.dense().search(text, 200).ids}
        assert set(engine.fused().search(text, 200).ids) <= channels


@pytest.mark.parametrize("engine", FUSING, indirect=True)
def test_rm3_has_the_keywords_of_a_search_that_an_engine_fuses(engine: Engine) -> None:
    pipeline = Preset.of(
        {
            "version": 1,
            "channels": {"bm25": {}, "dense": {}},
            "fusion": {"method": "engine"},
            "expansion": {"method": "rm3"},
        }
    ).over(engine)
    assert pipeline.search("pump", k=5).errors == ()

"""Presets: the shipped one, one's own, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.errors import ConfigError, RerankerNotAvailableError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.lexical import Okapi
from voicevault_retrievers.pipeline import presets
from voicevault_retrievers.pipeline.presets import Preset, load_preset, preset_data, preset_names
from voicevault_retrievers.rerank import CALIBRATIONS, PROFILES, Calibration, CrossEncoderRerank, PageCap, Threshold
from voicevault_retrievers.rerank.calibration import any_hit
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.structure.addresses import graph_store, parent_store
from voicevault_retrievers.structure.graph import EmbeddedGraph
from voicevault_retrievers.text import Analyzer

A, B = ListChannel([("x", 1.0), ("y", 0.5)]), ListChannel([("y", 1.0)], kind="keyword")


def test_the_shipped_preset_has_the_numbers_of_its_capability() -> None:
    preset = load_preset("voicevault")
    assert "voicevault" in preset_names()
    assert (preset.k, preset.method, preset.model, preset.context.history_turns) == (5, RRF(60), "all-MiniLM-L6-v2", 5)
    assert preset.channels["bm25"]["formula"] == Okapi(k1=1.5, b=0.75, epsilon=0.25)
    rerank, cap = preset.stages
    assert isinstance(rerank, CrossEncoderRerank)
    assert (rerank.scorer, rerank.depth) == ("ms-marco-MiniLM-L-12-v2", 20)
    assert isinstance(cap, PageCap)
    assert cap.max_chunks_per_page == 2
    assert repr(preset.expansion) == "RuleExpansion(3)"


def test_legal_has_the_depths_and_budgets_of_its_capability() -> None:
    preset, data = load_preset("legal"), preset_data("legal")
    assert (preset.k, preset.method, preset.context.max_tokens) == (20, RRF(60), 30_000)
    assert (preset.depths["bm25"], preset.depths["dense"], preset.depths["questions"]) == (100, 100, 50)
    rerank, parents = data["stages"][0]["rerank"], data["stages"][1]["parents"]
    assert PROFILES[rerank["model"]] == "BAAI/bge-reranker-v2-m3"
    assert (parents["max_tokens"], parents["header_key"]) == (30_000, "header_id")
    assert (data["route"]["simple"], data["route"]["simple_fallback"]) == (["graph"], False)
    assert (data["flare"]["enabled"], data["flare"]["max_retrievals"]) == ("auto", 5)
    assert (rerank["depth"], rerank["blend"]) == (150, 1.0)
    assert data["channels"]["dense"]["funnel"] == {"prefix": 64, "candidates": 1000, "on_loss": "full"}


def test_casefile_has_the_numbers_of_its_capability() -> None:
    preset = load_preset("casefile")
    assert (preset.k, preset.method) == (10, RRF(60))
    assert dict(preset.depths) == {"bm25": 50, "dense": 50}
    data = preset_data("casefile")
    rerank, parents = (next(iter(stage.values())) for stage in data["stages"])
    assert (rerank["depth"], rerank["top_n"], rerank["timeout"], data["llm"]) == (50, 10, 3, {"ollama": "qwen3:8b"})
    assert (parents["max_chars"], preset.context.max_chars) == (12_000, 12_000)


def test_a_preset_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANKER", "my/model")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "version: 1\nk: 3\nchannels: {bm25: {depth: 7}, dense: {timeout: 2}}\n"
        "fusion: {method: rrf, k: 10, weights: {bm25: 2}}\nstages: [page_cap, {rerank: {model: '${RERANKER}'}}]\n"
        "context: {max_chars: 100}\n"
    )
    preset = load_preset(path)
    assert (preset.name, preset.k, preset.context.max_chars) == ("mine", 3, 100)
    assert dict(preset.depths) == {"bm25": 7, "dense": 100}
    assert preset.channels["dense"] == {"timeout": 2}
    assert "my/model" in repr(preset.stages[1])
    pipeline = Preset.of({"version": 1, "fusion": {"method": "rrf", "k": 10, "weights": {"bm25": 2}}}).build(
        {"bm25": B, "dense": A}
    )
    assert [(hit.id, hit.score) for hit in pipeline.search("q").hits] == [("y", 2 / 11 + 1 / 12), ("x", 1 / 11)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "version: 1"),
        ({"version": 2}, "version: 1"),
        ({"version": 1, "chanels": {}}, "Did you mean 'channels'"),
        ({"version": 1, "channels": {"bm52": {}}}, "Did you mean 'bm25'"),
        ({"version": 1, "channels": {"bm25": {"k2": 1}}}, "unknown key in bm25 'k2'"),
        ({"version": 1, "channels": {"bm25": {"formula": "tfidf"}}}, "unknown BM25 formula"),
        ({"version": 1, "channels": {"bm25": {"delta": 1}}}, "Lucene does not take"),
        ({"version": 1, "channels": {"bm25": {"b": 2}}}, "b is between 0 and 1"),
        ({"version": 1, "channels": ["bm25"]}, "a mapping of options"),
        ({"version": 1, "fusion": {"method": "rrf", "k": -1}}, "at least 0"),
        ({"version": 1, "fusion": {"k": 60}}, "'k' is not of 'adaptive_sum', but of rrf: say `method: rrf`"),
        ({"version": 1, "fusion": {"method": "rrf", "k": "sixty"}}, "at least 0"),
        ({"version": 1, "fusion": {"weights": [1]}}, "a mapping of channel names"),
        ({"version": True}, "version: 1"),
        ({"version": 1, "k": "three"}, "k is a whole number"),
        ({"version": 1, "timeout": "soon"}, "timeout is a number"),
        ({"version": 1, "on_error": "ignore"}, "unknown on_error"),
        ({"version": 1, "stages": {"page_cap": {}}}, "stages is a list"),
        ({"version": 1, "stages": [{"page_cap": 2}]}, "a mapping of options"),
        ({"version": 1, "stages": [{"rerank": {"depth": 2.5}}]}, "depth is a whole number"),
        ({"version": 1, "stages": [{"rerank": {"backend": "banana"}}]}, "unknown backend"),
        ({"version": 1, "channels": {"dense": {"backend": "banana"}}}, "unknown backend"),
        ({"version": 1, "channels": {"bm25": {"exclude_nonpositive": "false"}}}, "true or false"),
        ({"version": 1, "channels": {"bm25": {"formula": "okapi", "epsilon": "x"}}}, "epsilon is a number"),
        ({"version": 1, "context": {"history_turns": 2.5}}, "history_turns is a whole number"),
        ({"version": 1, "stages": [{"page_cap": {"max_per_page": 1}}]}, "Did you mean 'max_chunks_per_page'"),
        ({"version": 1, "stages": [{"page_cap": {}, "rerank": {}}]}, "one name with its options"),
        ({"version": 1, "stages": [{"weighted": {"weights": {"fussed": 1}}}]}, "Did you mean 'fused'"),
        ({"version": 1, "stages": [{"recency": {"half_life_days": 0}}]}, "half_life_days"),
        ({"version": 1, "stages": ["rerankk"]}, "Did you mean 'rerank'"),
        ({"version": 1, "expansion": {"method": "llm"}}, "unknown expansion method"),
        ({"version": 1, "context": {"max_tokens": 0}}, "max_tokens"),
        ({"version": 1, "name": "${NOT_SET_ANYWHERE}"}, "NOT_SET_ANYWHERE"),
        (
            {"version": 1, "stages": [{"parents": {"store": "falkor://h/x"}}]},
            "redis://, rediss:// or unix://, not falk",
        ),
        ({"version": 1, "stages": [{"parents": {"store": 6379}}]}, "parents are in a knowledge base"),
        ({"version": 1, "stages": [{"parents": {"key": "p:{id}"}}]}, "name it with store: redis://"),
        ({"version": 1, "stages": [{"graph_expansion": {"store": "redis://h/0"}}]}, "falkor://, falkors://, bolt://"),
        (
            {"version": 1, "channels": {"graph": {"store": "falkor://host"}}},
            "ends in its name: falkor://host:port/name",
        ),
        ({"version": 1, "channels": {"graph": {"store": 1}}}, "a graph store has put"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preset.of(data)


def test_a_file_that_is_no_preset_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.yaml").write_text("version: [1")
    with pytest.raises(ConfigError, match=r"broken\.yaml is not YAML"):
        load_preset(tmp_path / "broken.yaml")
    with pytest.raises(ConfigError, match="there is no preset file"):
        load_preset(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Did you mean 'voicevault'"):
        load_preset("voicevalt")
    monkeypatch.setenv("TOPK", "3")
    (tmp_path / "mine.yaml").write_text("version: 1\nk: ${TOPK}")
    assert load_preset(tmp_path / "mine.yaml").k == 3


def test_channels_must_be_those_of_the_preset() -> None:
    with pytest.raises(ConfigError, match=r"\['bm25', 'dense'\], given \['bm25'\]"):
        load_preset("voicevault").build({"bm25": B})


def test_a_reranker_that_cannot_be_loaded_raises() -> None:
    preset = Preset.of({"version": 1, "fusion": {"method": "rrf"}, "stages": [{"rerank": {"model": "no/such-model"}}]})
    with pytest.raises(RerankerNotAvailableError, match="no/such-model"):
        preset.build({"bm25": B, "dense": A}).search("q")


def test_the_preset_of_the_documentation_is_one() -> None:
    yaml = pytest.importorskip("yaml")
    (shown,) = re.findall(r"```yaml\n(.*?)```", presets.__doc__ or "", re.DOTALL)
    made = Preset.of(yaml.safe_load(shown))
    assert [stage.name for stage in made.stages] == [
        "graph_expansion", "rerank", "relevance", "relevance_threshold", "weighted", "recency", "near_duplicates",
        "mmr", "llm_rerank", "page_cap", "parents",
    ]  # fmt: skip


def test_confidence_does_not_judge_another_reranker() -> None:
    preset = Preset.of({"version": 1, "stages": [{"rerank": {"model": "accurate"}}], "confidence": {"least": 0.4}})
    own = Calibration(1.0, 0.0)
    other = preset.with_stages([CrossEncoderRerank("my/model", calibration=own, name="mine")])
    assert other.confidence == Threshold(own, 0.4, "mine")
    for stages in ([], [CrossEncoderRerank("my/model")]):
        assert preset.with_stages(stages).confidence is any_hit


def test_confidence_goes_by_a_calibrated_reranker() -> None:
    data = {"version": 1, "stages": [{"rerank": {"model": "accurate"}}], "confidence": {"least": 0.4}}
    known = Preset.of(data).confidence
    assert known == Threshold(CALIBRATIONS["ms-marco-MiniLM-L-12-v2"], 0.4)
    own = {"slope": 1.0, "intercept": 0.0}
    stages = [{"rerank": {"model": "my/model", "calibration": own}}]
    assert Preset.of({**data, "stages": stages}).confidence == Threshold(Calibration(**own), 0.4)
    for stages in ([], [{"rerank": {"model": "my/model"}}]):
        with pytest.raises(ConfigError, match="probabilities of a reranker"):
            Preset.of({**data, "stages": stages})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://:p%40ss@h:7/2", "RedisParents('redis://***@h:7/2', key='parent:{id}', timeout=2.0)"),
        ("rediss://u:secret@h", "RedisParents('rediss://***@h', key='parent:{id}', timeout=2.0)"),
        ("unix://:secret@/run/r.sock", "RedisParents('unix://***@/run/r.sock', key='parent:{id}', timeout=2.0)"),
    ],
)
def test_an_address_of_parents(address: str, said: str) -> None:
    assert repr(parent_store(address)) == said
    assert parent_store(address, key="p:{id}", timeout=None).timeout is None


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("falkor://h/laws", "FalkorDBGraph('laws', host='h', port=6379, timeout=5.0)"),
        ("falkors://u:secret@[::1]:7/a%20b", "FalkorDBGraph('a b', host='::1', port=7, timeout=5.0)"),
        ("bolt://h/laws", "Neo4jGraph('laws', uri='bolt://h', database=None, timeout=5.0)"),
        (
            "neo4j+s://u:secret@h:7687/laws?database=books",
            "Neo4jGraph('laws', uri='neo4j+s://h:7687', database='books', timeout=5.0)",
        ),
    ],
)
def test_an_address_of_a_graph(address: str, said: str) -> None:
    assert repr(graph_store(address)) == said


@pytest.mark.parametrize(
    "address",
    [
        "secret", "secret:6379/0", "http://:secret@h/x", "redis://:se/secret@h:6379/0", "redis://:1?secret@h",
        "redis://h:secret/0", "redis://h/0?password=secret", "redis://[secret/0", "redis://h:0/secret",
    ],
)  # fmt: skip
def test_what_is_no_address_is_not_repeated(address: str) -> None:
    for opened, given in ((parent_store, address), (graph_store, address.replace("redis", "falkor"))):
        with pytest.raises(ConfigError) as raised:
            opened(given)
        assert "secret" not in str(raised.value)


def test_a_store_that_nothing_would_read_is_refused() -> None:
    graph, parents = EmbeddedGraph(), dict[str, Chunk]()
    channels = {"bm25": B, "dense": A}
    with pytest.raises(ConfigError, match="no stage parents without a store of its own"):
        load_preset("voicevault", parents=parents).build(channels)
    with pytest.raises(ConfigError, match="neither a channel graph nor a stage graph_expansion"):
        load_preset("casefile", graph=graph).build(channels)
    named = {"channels": {"bm25": {}, "graph": {"store": EmbeddedGraph()}}, "stages": [{"parents": {"store": {}}}]}
    preset = Preset.of({"version": 1, **named})
    for given in ({"parents": parents}, {"graph": graph}):
        with pytest.raises(ConfigError, match="of its own"):
            preset.given(**given)
    assert preset.build({"bm25": B}).search("q").ranking.ids == ("y",)


def test_a_store_waits_as_long_as_what_reads_it() -> None:
    stages = [
        {"parents": {"store": "redis://h", "timeout": 7, "key": "p:{id}"}},
        {"graph_expansion": {"store": "falkor://h/x"}},
    ]
    preset = Preset.of({"version": 1, "channels": {"graph": {"store": "bolt://h/x", "timeout": 3}}, "stages": stages})
    assert preset.channels["graph"]["store"].timeout == 3
    assert [stage.store.timeout for stage in preset.stages] == [7, 5.0]  # type: ignore[attr-defined]
    assert "p:{id}" in repr(preset.stages[0])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"stages": {"parents": {"store": "redis://:hush@h/0"}}}, id="no list"),
        pytest.param({"stages": [{"parents": "redis://:hush@h/0"}]}, id="no mapping"),
        pytest.param({"stages": [{"parents": {"store": "redis://:hush@h/0"}, "page_cap": {}}]}, id="two in one"),
        pytest.param({"channels": {"bm25": {}, "graph": "falkor://:hush@h/g"}}, id="channel"),
        pytest.param({"stages": [{"parents": {"store": "redis://:hush@h/0?nope=1"}}]}, id="option"),
        pytest.param({"stages": [{"parents": {"store": "redis://:hush@h/abc"}}]}, id="database"),
    ],
)
def test_no_error_repeats_what_may_hold_a_password(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        Preset.of({"version": 1, **data})
    assert "hush" not in str(raised.value)


def test_pdf_chat_says_once_that_a_base_is_stemmed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = preset_data("pdf-chat")
    data["channels"] = {"bm25": data["channels"]["bm25"]}
    data["stages"] = []
    chunk, warned = Chunk("a", "The pumps hum", metadata={"file_id": "f"}), []
    for analyzer in (Analyzer(), Analyzer("en"), Analyzer(language=None), Analyzer("en", stemming=False)):
        name = f"kb-{len(warned)}"
        with KnowledgeBase.create(name, root=tmp_path, analyzer=analyzer) as base:
            base.add([chunk])
        engine = EmbeddedEngine(f"engine-{len(warned)}", root=tmp_path, analyzer=analyzer)
        engine.upsert([chunk])
        caplog.clear()
        for pipeline in (Preset.of(data).over(base), Preset.of(data).over(engine)):
            for _ in range(2):
                found = pipeline.search("pumps")
                assert (found.ranking.ids, found.errors) == (("a",), ())
        warned.append([record.getMessage() for record in caplog.records])
        engine.close()
    assert [len(lines) for lines in warned] == [2, 2, 0, 0]
    assert all("plain_words" in line and "--language none" in line for line in warned[0] + warned[1])
    with pytest.raises(ConfigError, match="plain_words"):
        Preset.of({"version": 1, "channels": {"bm25": {"plain_words": "yes"}}})


def test_newsroom_reads_in_batches_of_32() -> None:
    (reranker,) = (stage for stage in load_preset("newsroom").stages if isinstance(stage, CrossEncoderRerank))
    assert (reranker.batch_size, reranker.max_candidates, reranker.max_chars) == (32, 100, 2000)

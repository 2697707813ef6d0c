"""Presets: the shipped one, one's own, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers import presets
from voicevault_retrievers.diversity import PageCap
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.lexical import Okapi
from voicevault_retrievers.presets import Preset, load_preset, preset_names
from voicevault_retrievers.rerank import CALIBRATIONS, Calibration, CrossEncoderRerank, Threshold
from voicevault_retrievers.rerank.calibration import any_hit

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
        ({"version": 1, "fusion": {"method": "bordda"}}, "Did you mean 'borda'"),
        ({"version": 1, "fusion": {"method": "rrf", "k": -1}}, "at least 0"),
        ({"version": 1, "fusion": {"k": 60}}, "'k' is not of 'standardised', but of rrf: say `method: rrf`"),
        ({"version": 1, "fusion": {"method": "rrf", "k": "sixty"}}, "at least 0"),
        ({"version": 1, "fusion": {"weights": [1]}}, "a mapping of options"),
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
    monkeypatch.setenv("TOPK", "3")
    (tmp_path / "mine.yaml").write_text("version: 1\nk: ${TOPK}")
    assert load_preset(tmp_path / "mine.yaml").k == 3


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'voicevault'"):
        load_preset("voicevalt")


def test_channels_must_be_those_of_the_preset() -> None:
    with pytest.raises(ConfigError, match=r"\['bm25', 'dense'\], given \['bm25'\]"):
        load_preset("voicevault").build({"bm25": B})


def test_a_reranker_that_cannot_be_loaded_leaves_the_fused_order() -> None:
    preset = Preset.of({"version": 1, "fusion": {"method": "rrf"}, "stages": [{"rerank": {"model": "no/such-model"}}]})
    result = preset.build({"bm25": B, "dense": A}).search("q")
    assert result.ranking.ids == ("y", "x")
    assert result.degraded
    assert [failure.stage for failure in result.errors] == ["rerank"]


def test_the_preset_of_the_documentation_is_one() -> None:
    yaml = pytest.importorskip("yaml")
    (shown,) = re.findall(r"```yaml\n(.*?)```", presets.__doc__ or "", re.DOTALL)
    made = Preset.of(yaml.safe_load(shown))
    assert [stage.name for stage in made.stages] == [
        "graph_expansion", "rerank", "weighted", "recency", "near_duplicates", "mmr", "llm_rerank", "page_cap",
        "parents",
    ]  # fmt: skip


def test_confidence_does_not_judge_another_reranker() -> None:
    preset = Preset.of({"version": 1, "stages": [{"rerank": {"model": "accurate"}}], "confidence": {"least": 0.4}})
    own = Calibration(1.0, 0.0)
    other = preset.reranked([CrossEncoderRerank("my/model", calibration=own, name="mine")])
    assert other.confidence == Threshold(own, 0.4, "mine")
    for stages in ([], [CrossEncoderRerank("my/model")]):
        assert preset.reranked(stages).confidence is any_hit


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

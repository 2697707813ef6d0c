"""A preset is written as data of which an equal one is read, or the error says what no file can say."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.dense import VectorChannel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import METHODS, RRF
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.presets import Preset, load_preset, preset_names, preset_to_data, save_preset
from voicevault_retrievers.query import AcronymExpansion, RuleExpansion, RuleRouter
from voicevault_retrievers.query.routing import Rule
from voicevault_retrievers.rerank import (
    MMR,
    CrossEncoderRerank,
    LLMRerank,
    NearDuplicates,
    PageCap,
    RecencyRerank,
    WeightedRerank,
)

pytest.importorskip("yaml")

SERVED = {"ollama": "small", "base_url": "http://127.0.0.1:9", "request": {"options": {"seed": 1}}}
CALIBRATION = {"intercept": 0.5, "slope": 2.0}
SECTIONS: dict[str, dict[str, Any]] = {
    "constants of a formula": {"channels": {"bm25": {"formula": "okapi", "k1": 1.2, "depth": 7, "operators": True}}},
    "statistics": {"channels": {"bm25": {"statistics": "filtered", "timeout": 2.0, "plain_words": True}}},
    "misspelled words": {"channels": {"bm25": {"fuzzy": True, "operators": True}}},
    "an edit": {"channels": {"bm25": {"fuzzy": 1}}},
    "a funnel": {"channels": {"dense": {"funnel": {"prefix": 64, "candidates": 9}, "model": "minishlab/potion"}}},
    "structure": {"channels": {"bm25": {}, "questions": {"by": "dense"}, "graph": {"hops": 3, "decay": 0.4}}},
    "a route by rules": {"route": {"simple": ["bm25"], "simple_fallback": True}},
    "a route by the preset's model": {"route": {"method": "model", "simple": ["bm25"], "timeout": 3.0}},
    "a route by a model": {"route": {"method": "model", "prompt": "Which? {query}", **SERVED}},
    "an expansion by rules": {"expansion": {"size": 5}},
    "expansions": {
        "expansion": [
            {"method": "acronyms", "least": 0.6, "timeout": 2.0},
            {"method": "compounds", "language": "sv", "least": 5},
            {"method": "synonyms", "synonyms": {"pump": ["feeder"]}, "size": 2},
            {"method": "spelling", "timeout": 1.0},
            {"method": "rm3", "documents": 5, "original": 0.7},
            {"method": "follow_up", "turns": 1},
        ]
    },
    "expansions by models": {
        "expansion": [
            {"method": "hyde", "weight": 0.5},
            {"method": "model", "size": 4, "prompt": "{count} of {query}", **SERVED},
            {"method": "model_follow_up", "turns": 2, "timeout": None, **SERVED},
        ]
    },
    "weights": {"fusion": {"method": "rrf", "k": 20, "depth": 30, "weights": {"bm25": 2.0, "dense": 0.5}}},
    "a cross-encoder": {"stages": [{"rerank": {"depth": 9, "max_chars": 500, "calibration": CALIBRATION}}]},
    "a cross-encoder's backend": {"stages": [{"rerank": {"model": "fast", "backend": "onnx", "blend": 1.0}}]},
    "stages": {
        "stages": [
            {"weighted": {"weights": {"fused": 0.9}, "depth": 8, "scale_fused": True}},
            {"recency": {"weight": 0.3, "date_key": ["date", "time"], "reference_date": "2026-01-31"}},
            {"near_duplicates": {"threshold": 0.7, "timeout": 1.0}},
            {"mmr": {"lambda_mult": 0.4, "by": "vectors", "depth": 4}},
            {"llm_rerank": {"window": 6, "stride": 3, "timeout": 2.0}},
            {"llm_rerank": {"top_n": 3, **SERVED}},
            {"page_cap": {"max_chunks_per_page": 1, "max_chunks_per_document": 4}},
            {"graph_expansion": {"hops": 2, "weight": 0.5}},
            {"parents": {"max_chars": 900, "merge": False}},
        ]
    },
    "bounds": {"k": 9, "timeout": 3.0, "on_error": "raise", "access": "mandatory", "llm": SERVED},
    "a context": {"context": {"max_tokens": 50, "markers": "numbered", "reorder": True}},
    "FLARE": {"flare": {"enabled": "auto", "max_retrievals": 2}},
    "confidence": {"stages": [{"rerank": {"calibration": CALIBRATION}}], "confidence": {"least": 0.6}},
}


def read(data: dict[str, Any]) -> Preset:
    return Preset.of({"version": 1, **data})


def parts_of(preset: Preset) -> dict[str, str]:
    return {name: repr(getattr(preset, name)) for name in Preset.__dataclass_fields__}


@pytest.mark.parametrize("case", SECTIONS)
def test_what_is_written_is_read_as_an_equal_preset(case: str, tmp_path: Path) -> None:
    preset, path = read(SECTIONS[case]), tmp_path / "custom.yaml"
    save_preset(preset, path)
    again = load_preset(path)
    assert parts_of(again) == parts_of(preset)
    assert preset_to_data(again) == preset_to_data(preset)
    for name, section in SECTIONS[case].items():
        written = preset_to_data(preset)[name]
        assert all(key in str(written) for key in (section if isinstance(section, dict) else []) if key != "depth")


@pytest.mark.parametrize("name", preset_names())
def test_each_shipped_preset_is_written_and_read_back(name: str) -> None:
    preset = load_preset(name)
    assert parts_of(Preset.of(preset_to_data(preset))) == parts_of(preset)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_written_by_its_name(name: str) -> None:
    assert preset_to_data(read({"fusion": {"method": name}}))["fusion"] == {"method": name}


def test_options_are_written_with_the_preset_that_they_are_over() -> None:
    over = read({}).with_options(
        Expand(RuleExpansion(4), route=RuleRouter({"simple": ["bm25"]})),
        Fusion(RRF(7), weights={"bm25": 2.0}, depth={"dense": 5}, on_error="raise"),
        Rerank("small", depth=3, max_chunks_per_page=1),
    )
    data = preset_to_data(over)
    assert data["expansion"] == {"method": "rules", "size": 4}
    assert data["route"] == {"method": "rules", "simple": ["bm25"]}
    assert data["fusion"] == {"method": "rrf", "k": 7, "weights": {"bm25": 2.0}}
    assert [data["channels"][name]["depth"] for name in ("bm25", "dense")] == [100, 5]
    assert data["stages"] == [{"rerank": {"model": "small", "depth": 3}}, {"page_cap": {"max_chunks_per_page": 1}}]
    assert parts_of(Preset.of(data)) == parts_of(over)


class Own(Stage):
    """A stage of one's own."""

    name = "own"

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return ranking


class OwnMethod(RRF):
    """A fusion method of one's own."""


class OwnScorer:
    """A scorer of one's own."""

    name = "own"

    def score(self, query: str, passages: Any) -> list[float]:
        return [0.0 for _ in passages]


UNSAID: dict[str, Any] = {
    "a stage": lambda preset: preset.with_stages([Own()]),
    "a scorer": lambda preset: preset.with_stages([CrossEncoderRerank(OwnScorer())]),
    "by": lambda preset: preset.with_stages([MMR(by=HashEmbedder())]),
    "the fusion method": lambda preset: preset.with_options(fusion=Fusion(OwnMethod())),
    "the router": lambda preset: preset.with_options(Expand(route=RuleRouter(rules=[Rule("simple", "short", str)]))),  # type: ignore[arg-type]
    "the expansion": lambda preset: preset.with_options(Expand(AcronymExpansion(BM25.from_chunks([])))),
    "FLARE": lambda preset: preset.with_options(Expand(flare=CallableTextModel(str))),
    "leave out the open ones": lambda preset: read({"stages": ["parents"]}).given(parents={}),
    "'web' is none of these": lambda preset: Preset.plain(["bm25", "web"]),
}


@pytest.mark.parametrize("case", UNSAID)
def test_what_no_file_can_say_is_named(case: str, tmp_path: Path) -> None:
    preset = UNSAID[case](read({}))
    with pytest.raises(ConfigError, match=case):
        save_preset(preset, tmp_path / "own.yaml")
    assert not (tmp_path / "own.yaml").exists()


WITHOUT_WORDS: dict[str, Stage] = {
    "a vector channel": WeightedRerank(dense=VectorChannel.from_chunks([], HashEmbedder())),
    "a clock": RecencyRerank(clock=lambda: datetime(2026, 1, 31, tzinfo=timezone.utc)),
    "a name": MMR(name="again"),
    "a model's timeout": LLMRerank(OllamaModel("small", timeout=5.0)),
    "a model's key": LLMRerank(OpenAIModel("small", api_key="hush")),
}
"""Options that the section of a stage does not have."""


@pytest.mark.parametrize("case", WITHOUT_WORDS)
def test_an_option_that_a_section_does_not_have_is_not_lost_unsaid(case: str) -> None:
    with pytest.raises(ConfigError, match="a preset's file cannot say") as raised:
        preset_to_data(read({}).with_stages([WITHOUT_WORDS[case]]))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "section",
    [
        {"llm": {"ollama": "small", "base_url": "https://me:hush@host"}},
        {"flare": {"enabled": True, "ollama": "small", "base_url": "https://me:hush@host"}},
    ],
)
def test_a_password_is_not_written(section: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$\{NAME\}") as raised:
        save_preset(read(section), tmp_path / "own.yaml")
    assert "hush" not in str(raised.value)
    assert not (tmp_path / "own.yaml").exists()


def test_synonyms_of_a_file_are_written_as_they_were_read(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("pump, feeder\n", encoding="utf-8")
    preset = read({"expansion": {"method": "synonyms", "file": str(tmp_path / "words.txt"), "size": 2}})
    written = preset_to_data(preset)["expansion"]
    assert (written["method"], written["size"], sorted(written["synonyms"])) == ("synonyms", 2, ["feeder", "pump"])
    assert parts_of(Preset.of(preset_to_data(preset))) == parts_of(preset)


def test_stages_made_by_hand_are_written_as_those_of_a_file() -> None:
    made = read({}).with_stages([NearDuplicates(0.9), MMR(0.5), PageCap(3)])
    assert preset_to_data(made)["stages"] == [
        {"near_duplicates": {"threshold": 0.9}},
        {"mmr": {"lambda_mult": 0.5}},
        {"page_cap": {"max_chunks_per_page": 3}},
    ]

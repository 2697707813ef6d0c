"""Settings from labelled questions: the right ones where labels show them, and none where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, VectorChannel
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import ChannelKind, Chunk, KnownScores, Query, Variant
from voicevault_retrievers.errors import ConfigError, RerankerNotAvailableError
from voicevault_retrievers.evaluation import Judged, ndcg, paired
from voicevault_retrievers.evaluation.bench import Bench
from voicevault_retrievers.evaluation.run_cache import RememberedBase
from voicevault_retrievers.evaluation.settings import Settings
from voicevault_retrievers.evaluation.tuning import (
    FOLDS,
    LEVEL,
    REPEATS,
    Tuned,
    chosen,
    cross_validated,
    folds,
    one_standard_error,
    reason_to_keep,
    tune,
)
from voicevault_retrievers.pipeline.presets import Preset, load_preset, preset_data, save_preset
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank

DATA: Mapping[str, Any] = {"version": 1, "fusion": {"method": "rrf"}, "k": 10}
Scores = Mapping[str, Mapping[str, float]]


class Table(LeafChannel):
    """Knows the score of every chunk for every question."""

    def __init__(self, name: str, kind: ChannelKind, scores: Scores, metadata: Mapping[str, Any]) -> None:
        super().__init__(name, kind)
        self.table = scores
        self.metadata = metadata
        self.searched: list[tuple[str, int]] = []

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.searched.append((query.text, k))
        scores = self.table[query.text]
        best = sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))[:k]
        return [[Match(Chunk(one, one, metadata=self.metadata.get(one, {})), scores[one]) for one in best]]

    def scan(self, query: Query, found: object = ()) -> KnownScores:
        return KnownScores(lambda ids: {chunk_id: self.table[query.text][chunk_id] for chunk_id in ids})


@dataclass
class Base:
    """Two channels over the same chunks."""

    keyword: Table
    semantic: Table

    def bm25(self, **options: Any) -> Channel:
        return self.keyword

    def dense(self, **options: Any) -> Channel:
        return self.semantic


def made(count: int, signals: tuple[float, float], seed: int, chunks: int = 30) -> tuple[Base, list[Judged]]:
    """Questions with one relevant chunk each, whose score in a channel stands out by its signal from noise."""
    rng = np.random.default_rng(seed)
    names = [f"c{at:02d}" for at in range(chunks)]
    metadata = {name: {"source_file": "f", "page_number": at // 3} for at, name in enumerate(names)}
    questions = list[Judged]()
    tables: tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]] = ({}, {})
    for at in range(count):
        relevant = int(rng.integers(chunks))
        for table, signal in zip(tables, signals, strict=True):
            scores = rng.normal(5, 1, chunks)
            scores[relevant] += signal
            table[f"q{at}"] = dict(zip(names, scores.tolist(), strict=True))
        questions.append(Judged(f"q{at}", f"q{at}", {names[relevant]: 1}))
    return Base(
        Table("bm25", "keyword", tables[0], metadata), Table("dense", "semantic", tables[1], metadata)
    ), questions


def by_id(chunk: Chunk) -> str:
    return chunk.id


def tuned(base: Any, questions: Sequence[Judged], make: Callable[[Any], Any] = Preset.of, **options: Any) -> Tuned:
    return tune(options.pop("data", DATA), make, base, questions, place=by_id, **options)


@pytest.fixture(scope="module")
def misled() -> tuple[Base, list[Judged], Tuned]:
    """A base with a channel that misleads, its questions, and what tuning found; no test changes them."""
    base, questions = made(40, (3.0, 0.0), 0)
    return base, questions, tuned(base, questions)


def test_a_channel_that_misleads_gets_less_weight(misled: tuple[Base, list[Judged], Tuned]) -> None:
    done = misled[2]
    assert not done.abstained
    weights = Preset.of(done.data).weights
    assert weights["bm25"] > weights["dense"]
    assert weights["bm25"] + weights["dense"] == pytest.approx(2)
    assert 0 < done.gain.low < done.gain.difference
    assert done.gain.p < LEVEL
    assert done.data == done.choice != DATA
    assert (done.questions, done.found, done.k) == (40, 40, 10)
    assert done.left == {"rerank": "the preset has no reranker"}
    others, asked = made(200, (3.0, 0.0), 1)
    assert mean(done.data, others, asked) > mean(DATA, others, asked) + 0.05


def mean(data: Mapping[str, Any], base: Any, questions: Sequence[Judged]) -> float:
    return float(np.mean(values(data, base, questions)))


def values(data: Mapping[str, Any], base: Any, questions: Sequence[Judged]) -> list[float]:
    pipeline = Preset.of(data).over(base)
    return [ndcg(pipeline.search(one.text, 10).ranking.ids, one.grades, 10) for one in questions]


def test_all_settings_are_measured_as_their_pipeline_ranks() -> None:
    base, questions = made(12, (1.0, 1.5), 2, chunks=90)
    default = Settings({**DATA, "expansion": {"method": "rules"}}, Preset.of)
    bench = Bench(default, base, questions, by_id, 10, None)
    options = [
        default,
        *default.methods(),
        *default.ks(),
        *default.weightings("bm25"),
        *default.depths(),
        *default.caps(),
    ]
    options += [settings for method in default.methods() for settings in method.weightings("dense")]
    assert len({tuple(settings.said.values()) for settings in options}) == len(options) == 41
    for settings in options:
        assert bench.of(settings).tolist() == values(settings.data, base, questions)


def test_real_channels_and_what_goes_by_their_type_are_measured_as_they_rank() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([f"word{at}" for at in range(40)], 12).tolist()) for _ in range(60)]
    chunks = [Chunk(f"c{at}", text) for at, text in enumerate(texts)]

    class Real:
        def bm25(self, **options: Any) -> Channel:
            return BM25.from_chunks(chunks, **options)

        def dense(self, **options: Any) -> Channel:
            return VectorChannel.from_chunks(chunks, HashEmbedder(), **options)

    data = {
        "version": 1,
        "route": "rules",
        "expansion": [{"method": "rm3"}, {"method": "spelling"}, {"method": "rules"}],
        "fusion": {"method": "adaptive_sum"},
        "stages": ["near_duplicates", "mmr"],
    }
    questions = [Judged(f"q{at}", text[:30], {f"c{at}": 1}) for at, text in enumerate(texts[:12])]
    default = Settings(data, Preset.of)
    bench = Bench(default, Real(), questions, by_id, 10, None)
    for settings in (default, *default.weightings("bm25")[2:], *default.depths()):
        assert bench.of(settings).tolist() == values(settings.data, Real(), questions)


def test_every_search_is_made_once() -> None:
    base, questions = made(12, (1.0, 1.0), 3)
    searched = RememberedBase(base)
    assert tuned(searched, questions) == tuned(searched, questions)
    for channel in (base.keyword, base.semantic):
        assert sorted(channel.searched) == sorted((one.text, depth) for one in questions for depth in (50, 100, 200))


def test_where_there_is_nothing_to_learn_the_default_stays() -> None:
    base, questions = made(20, (2.0, 2.0), 4)
    done = tuned(base, questions)
    assert done.abstained
    assert done.data == DATA
    assert done.reason


def test_false_alarms_are_as_rare_as_said() -> None:
    """Of two settings with ten values each, whose gains over the default are noise, with near values alike."""

    def alarm(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        default = rng.random(24)
        noise = np.cumsum(rng.normal(0, 0.1, (2, 10, 24)), axis=1)
        axes = [("one", lambda held: [(at, held[1]) for at in range(1, 11)]),
                ("two", lambda held: [(held[0], at) for at in range(1, 11)])]  # fmt: skip

        def value(settings: tuple[int, int]) -> Any:
            gains = [noise[axis][at - 1] for axis, at in enumerate(settings) if at]
            return sum(gains, default)

        best = chosen((0, 0), axes, value, np.arange(24))
        gains, _ = cross_validated((0, 0), axes, value, 24, 0)
        return not reason_to_keep(best == (0, 0), paired([0.0] * 24, gains.tolist()))

    alarms = sum(alarm(seed) for seed in range(100))
    assert 0 < alarms <= 9  # at a rate of .05 there are more than 9 of 100 with a probability of .03


def test_the_nearest_within_one_standard_error_is_chosen() -> None:
    best = np.array([1.0, 0.0, 1.0, 1.0])
    lost = np.array([0.5, 0.0, 0.0, 0.0])  # mean 1/8, standard error sqrt(1/16) / sqrt(4) = 1/8
    more = np.array([0.3, 0.3, 0.3, 0.2])  # mean far above its standard error
    assert one_standard_error(np.stack([best - lost, best])) == 0
    assert one_standard_error(np.stack([best - more, best - lost, best])) == 1
    assert one_standard_error(np.stack([best - more, best - more, best])) == 2
    assert one_standard_error(np.stack([best, best])) == 0


def test_folds_part_the_questions_anew_each_time() -> None:
    parts = list(folds(23, 0))
    assert len(parts) == FOLDS * REPEATS
    for train, test in parts:
        assert sorted([*train, *test]) == list(range(23))
    tested = [tuple(sorted(np.concatenate([test for _, test in parts[at : at + FOLDS]]))) for at in range(0, 50, FOLDS)]
    assert set(tested) == {tuple(range(23))}
    assert len({tuple(test) for _, test in parts}) == len(parts)


def test_equal_arguments_give_equal_results() -> None:
    base, questions = made(20, (2.0, 1.0), 5)
    again, _ = made(20, (2.0, 1.0), 5)
    told: list[tuple[int, int]] = []
    assert tuned(base, questions) == tuned(again, questions, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_the_saved_preset_ranks_as_the_chosen_settings(
    misled: tuple[Base, list[Judged], Tuned], tmp_path: Path
) -> None:
    base, questions, done = misled
    save_preset(done.data, tmp_path / "mine.yaml")
    loaded, own = load_preset(tmp_path / "mine.yaml"), Preset.of(done.data)
    assert repr(replace(loaded, name=own.name)) == repr(own)
    for question in questions[:5]:
        ranking = loaded.over(base).search(question.text).ranking
        assert [(hit.id, hit.score) for hit in ranking] == [
            (hit.id, hit.score) for hit in own.over(base).search(question.text).ranking
        ]
        assert len(ranking) == 10


def test_a_preset_is_saved_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "secret/model")
    data = {**preset_data("voicevault"), "channels": {"bm25": None, "dense": {"model": "${MODEL}"}}}
    save_preset(data, tmp_path / "mine.yml")
    assert preset_data(tmp_path / "mine.yml") == data
    assert load_preset(tmp_path / "mine.yml").model == "secret/model"
    with pytest.raises(ConfigError, match=r"ends in \.yaml"):
        save_preset(data, tmp_path / "mine.json")
    with pytest.raises(ConfigError, match="unknown key"):
        save_preset({**data, "what": 1}, tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


def reranking_by(score: Callable[[str, Sequence[str]], list[float]]) -> Callable[[Mapping[str, Any]], Preset]:
    """What makes presets whose reranker has scores of one's own."""

    def make(data: Mapping[str, Any]) -> Preset:
        preset = Preset.of(data)
        mine = CrossEncoderRerank(CallableScorer(score, name="mine"), depth=5, blend=1)
        return replace(preset, stages=tuple(mine if stage.name == "rerank" else stage for stage in preset.stages))

    return make


@pytest.mark.parametrize("helps", [True, False])
def test_the_reranker_stays_where_it_helps(helps: bool) -> None:
    base, questions = made(24, (1.0, 1.0), 6)
    relevant = {question.text: next(iter(question.grades)) for question in questions}
    read: list[tuple[str, str]] = []

    def score(query: str, passages: Sequence[str]) -> list[float]:
        read.extend((query, passage) for passage in passages)
        return [float((passage == relevant.get(query)) == helps) for passage in passages]

    done = tuned(base, questions, reranking_by(score), data={**DATA, "stages": ["rerank", "page_cap"]})
    assert done.best["rerank"] == ("yes" if helps else "no")
    assert ("rerank" in done.data["stages"]) is helps
    assert len(read) == len(set(read))


def test_a_reranker_that_cannot_be_had_is_left_and_kept() -> None:
    base, questions = made(40, (3.0, 0.0), 0)

    def score(query: str, passages: Sequence[str]) -> list[float]:
        raise RerankerNotAvailableError("there is no such model")

    done = tuned(base, questions, reranking_by(score), data={**DATA, "stages": ["rerank"]})
    assert done.left["rerank"] == "there is no such model"
    assert not done.abstained
    assert done.data["stages"] == ["rerank"]


def test_a_page_that_is_judged_as_one_is_shown_once() -> None:
    base, questions = made(30, (4.0, 4.0), 7, chunks=60)
    for channel in (base.keyword, base.semantic):
        for question in questions:  # the second page in all rankings has three chunks above the relevant one
            scores = dict(channel.table[question.text])
            page = [name for name in scores if name not in question.grades][:3]
            channel.table = {**channel.table, question.text: {**scores, **dict.fromkeys(page, 20.0)}}
    judged = [replace(one, grades={f"f#p{int(next(iter(one.grades))[1:]) // 3}": 1}) for one in questions]
    done = tune(DATA, Preset.of, base, judged, k=3)
    assert done.best["page_cap"] != "none"
    assert not done.abstained
    assert next(iter(done.data["stages"][-1])) == "page_cap"


def test_what_cannot_be_tuned_is_said() -> None:
    base, questions = made(12, (1.0, 1.0), 8)
    with pytest.raises(ConfigError, match="at least 10 questions"):
        tuned(base, [*questions[:9], replace(questions[9], grades={"c01": 0})])
    with pytest.raises(ConfigError, match=r"such as 'x'.* is named as 'c"):
        tuned(base, [replace(question, grades={"x": 1}) for question in questions])
    base.semantic.table = {}
    with pytest.raises(KeyError):
        tuned(base, questions)


def test_settings_of_many_channels_keep_the_sum_of_weights() -> None:
    @dataclass(frozen=True)
    class Recipe:
        weights: Mapping[str, float]
        depths: Mapping[str, int]

    def make(data: Mapping[str, Any]) -> Any:
        return Recipe(data["fusion"]["weights"], dict.fromkeys("abc", 100))

    settings = Settings({"fusion": {"weights": {"a": 2, "b": 1, "c": 1}}}, make)
    shares = [option.weights for option in settings.weightings("a")]
    assert shares[:2] == [{"a": 1.6, "b": 1.2, "c": 1.2}, {"a": 2.4, "b": 0.8, "c": 0.8}]
    assert all(sum(weights.values()) == pytest.approx(4) for weights in shares)
    assert len(shares) == 10
    alone = Settings({"fusion": {"weights": {"a": 2, "b": 0, "c": 0}}}, make)
    assert alone.weightings("a") == []


@pytest.mark.parametrize(
    ("stages", "caps"),
    [
        ([], [3, 2, 1]),
        (["page_cap"], [1, 3, None]),
        ([{"page_cap": {"max_chunks_per_page": 3}}], [2, None, 1]),
        ([{"page_cap": {"max_chunks_per_page": None, "max_chunks_per_document": 5}}], [3, 2, 1]),
        ([{"page_cap": {"max_chunks_per_document": 5}}], [1, 3, None]),
    ],
)
def test_caps_go_from_near_to_far_and_leave_other_options(stages: list[Any], caps: list[int | None]) -> None:
    settings = Settings({**DATA, "stages": ["mmr", *stages]}, Preset.of)
    assert [option.cap for option in settings.caps()] == caps
    per_document = {"max_chunks_per_document=5" in repr(option.recipe.stages) for option in settings.caps()}
    assert per_document == {"5" in str(stages)}
    assert all(repr(option.recipe.stages[0]) == repr(settings.recipe.stages[0]) for option in settings.caps())

"""Judged questions: their files, what they are judged by, the means over them and the table of stages."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import FailingChannel, ListChannel
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.stages import skippable
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.dense import CallableEmbedder, VectorChannel
from voicevault_retrievers.errors import ConfigError, RerankerError, SearchError
from voicevault_retrievers.evaluation import (
    Judged,
    Judgements,
    ablation,
    evaluate,
    judge,
    load_judged,
    load_qrels,
    load_questions,
    paired,
    place_of,
    plot,
    steps,
)
from voicevault_retrievers.evaluation.ablation import _Costs
from voicevault_retrievers.evaluation.judgements import normalised
from voicevault_retrievers.evaluation.runs import EvaluationRun
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import RuleExpansion
from voicevault_retrievers.rerank import PageCap


class Broken(Stage):
    """A reranker whose server is down, at the questions whose text begins with one of these."""

    name = "rerank"

    def __init__(self, beginnings: tuple[str, ...] = ("",)) -> None:
        super().__init__()
        self.beginnings = beginnings

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        if query.text.startswith(self.beginnings):
            raise RerankerError("it is down")
        return ranking


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ({"source_file": "a.pdf", "page_number": 3, "section": "S"}, "a.pdf#p3"),
        ({"source_file": "a.md", "section": "S"}, "a.md#S"),
        ({"source_file": "a.txt"}, "a.txt"),
        ({}, "id"),
    ],
)
def test_places(metadata: dict[str, object], place: str) -> None:
    assert place_of(Chunk("id", metadata=metadata)) == place


def test_a_place_counts_at_its_best_hit() -> None:
    metadata = {name: {"source_file": "f", "page_number": page} for name, page in (("a", 1), ("b", 1), ("c", 2))}
    channel = ListChannel([("a", 3.0), ("b", 2.0), ("c", 1.0)], metadata=metadata)
    questions = [Judged("q", "q", {"f#p2": 1})]
    assert evaluate(channel, questions) == {"recall@5": 1.0, "nDCG@10": 1 / math.log2(3)}
    (row,) = ablation({"list": channel}, questions, by="place", measures=("R@5", "nDCG@10")).rows
    assert row.means == {"R@5": 1.0, "nDCG@10": pytest.approx(1 / math.log2(3))}


def test_questions_without_judgements_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"_id": "1", "text": "one"}\n\n{"_id": 2, "text": "two"}\n')
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n2\tx\t1\n2\ty\t2\n")
    assert load_judged(tmp_path / "q.jsonl", tmp_path / "qrels.tsv") == [Judged("2", "two", {"x": 1, "y": 2})]
    (tmp_path / "qrels.tsv").write_text("two\tx\t1\n")
    with pytest.raises(ConfigError, match="their ids are such as '1' and 'two'"):
        load_judged(tmp_path / "q.jsonl", tmp_path / "qrels.tsv")


@pytest.mark.parametrize(
    "text",
    [
        "Query-ID\tCorpus-ID\tScore\nq\ta.md#Two words\t2\nq\tb\t0\n",
        "q\ta.md#Two words\t2\r\n\r\nq\tb\t0\r\n",
        "q\t0\ta.md#Two words\t2\nq Q0 b 0\n",
        "\ufeffq\t0\ta.md#Two words\t2.0\nq\t0\tb\t0\nq\t0\tb\t0",
    ],
    ids=["header", "no header, CRLF", "TREC", "byte-order mark"],
)
def test_qrels_of_beir_and_trec(tmp_path: Path, text: str) -> None:
    (tmp_path / "qrels").write_text(text, newline="", encoding="utf-8")
    assert load_qrels(tmp_path / "qrels") == {"q": {"a.md#Two words": 2, "b": 0}}


@pytest.mark.parametrize("line", ["q\tx", "q\tx\thigh", "q\tx\t0.5", "q\tx\t2", "q\t0\tx\ty\t1", "\tx\t1", "q\tx\tinf"])
def test_a_judgement_that_cannot_be_read_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "qrels").write_text(f"q\tx\t1\n\n{line}\n")
    with pytest.raises(ConfigError, match="qrels:3: "):
        load_qrels(tmp_path / "qrels")


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"_id": "2"}', '{"_id": "2", "text": ""}', '{"_id": null, "text": "x"}', '{"_id": "1", "text": "x"}',
     '{"_id": "2", "text": "x", "answers": ["!"]}', '{"_id": "2", "text": "x", "answers": 3}',
     '{"_id": "2", "text": "x", "synthetic": "no"}'],
)  # fmt: skip
def test_a_question_that_cannot_be_read_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "q.jsonl").write_text(f'{{"_id": "1", "text": "one", "answer": "a"}}\n{line}\n')
    with pytest.raises(ConfigError, match=r"q\.jsonl:2: "):
        load_questions(tmp_path / "q.jsonl")


@pytest.mark.parametrize(
    ("answer", "text", "held"),
    [
        ("90 bar", "restored to 90\n bar.", True),
        ("Öl-Druck", "der O\u0308L\u2010DRUCK", True),
        ("ﬁlter", "the FIL\u00adTER", True),
        ("1,800 hours", "every 1.800 hours", True),
        ("art", "the party", False),
        ("bar 90", "90 bar", False),
        ("电池", "浮标的电池多久检查一次", True),
        ("पानी", "गर्म पानी।", True),
        ("पान", "गर्म पानी।", False),
        ("STRASSE", "Straße", True),
    ],
)
def test_an_answer_is_held_where_its_words_stand(answer: str, text: str, held: bool) -> None:
    assert (f" {normalised(answer)} " in f" {normalised(text)} ") is held
    chunks = [Chunk("a", text), Chunk("b", "nothing of it, and other things")]
    questions = [Judged("q", "?", {}, (answer, "other things"))]
    assert judge(questions, chunks).questions[0].grades == ({"a": 1, "b": 1} if held else {"b": 1})


def test_what_is_judged_is_found_out_and_what_is_not_held_is_said() -> None:
    pages = [Chunk(f"c{page}", metadata={"source_file": "a.pdf", "page_number": page}) for page in (1, 2)]
    by_place = [Judged("q", "?", {"a.pdf#p1": 1, "a.pdf#p7": 2, "a.pdf#p8": 0})]
    found = judge(by_place, pages)
    assert (found.by, found.notes) == ("place", ("1 of 2 judged places are not in the base: a.pdf#p7",))
    assert judge([Judged("q", "?", {"c1": 1, "a.pdf#p7": 1})], pages).by == "chunk"
    with pytest.raises(ConfigError, match=r"judged chunks are not in the base.*such as 'c2'"):
        judge(by_place, pages, "chunk")
    asked = [Judged("1", "?", {}, ("yes",)), Judged("2", "?", {}, ("no",)), Judged("3", "?", {})]
    found = judge(asked, [Chunk("a", "Yes!")])
    assert (found.by, [question.id for question in found.questions]) == ("answer", ["1"])
    assert found.notes == ("1 of 2 questions are left out: no chunk holds their answer",)
    for questions in (asked[1:2], asked[2:]):
        with pytest.raises(ConfigError, match=r"no chunk of the base holds|have no judgements"):
            judge(questions, [Chunk("a", "Yes!")])


def test_the_steps_of_a_composition_end_with_itself() -> None:
    a, b = ListChannel([("a", 1.0)], name="a"), ListChannel([("b", 1.0)], name="b")
    whole = (RuleExpansion() >> fuse(bm25=a, dense=b)) >> PageCap(2) >> PageCap(1)
    found = steps(whole)
    assert list(found) == ["bm25", "dense", "fused", "+ expansion", "+ page_cap", "+ page_cap (2)"]
    assert list(found.values())[-1] is whole
    assert list(steps(a)) == ["a"]
    assert steps(Pipeline(whole)) == found


def test_each_row_is_compared_with_the_one_before_it() -> None:
    questions = [Judged("1", "one", {"x": 1}), Judged("2", "two", {"x": 1, "y": 1}), Judged("3", "three", {"z": 1})]
    before = ListChannel([("x", 3.0), ("z", 2.0)], name="before")
    after = ListChannel([("y", 3.0), ("x", 2.0)], name="after")
    told: list[tuple[int, int]] = []
    report = ablation(
        {"before": before, "failing": FailingChannel(SearchError("down")), "after": after},
        questions, measures=("RR@10", "Success@1"), progress=lambda *at: told.append(at),
    )  # fmt: skip
    first, failing, last = report.rows
    assert first.values == {"RR@10": (1.0, 1.0, 1 / 2), "Success@1": (1.0, 1.0, 0.0)}
    assert last.values["RR@10"] == (1 / 2, 1.0, 0.0)
    assert (failing.unavailable, last.over, told[-1]) == ("SearchError: down", "before", (6, 9))
    assert last.gains["RR@10"] == paired(first.values["RR@10"], last.values["RR@10"])
    assert [(one.id, one.before, one.after) for one in last.worse] == [("1", 1.0, 1 / 2), ("3", 1 / 2, 0.0)]
    assert "failing: not available: SearchError: down" in report.notes
    assert "failing" in str(report)
    assert json.loads(json.dumps(report.as_data()))["rows"][2]["measures"]["RR@10"]["values"]["2"] == 1.0


def test_a_stage_that_never_works_is_not_available_and_one_that_fails_at_times_is_noted() -> None:
    questions = [Judged(name, name, {"x": 1}) for name in ("one", "two")]
    found = ListChannel([("x", 1.0)])
    never, at_times = (ablation(steps(found >> skippable(Broken(at))), questions).rows[1] for at in (("",), ("two",)))
    assert never.unavailable == "rerank: RerankerError: it is down"
    assert at_times.notes == ("1 of 2 questions degraded: rerank: RerankerError: it is down",)


def test_what_a_stage_keeps_is_counted_as_it_took_at_first() -> None:
    costs, reranked = _Costs(), ListChannel([]) >> Broken()
    assert list(costs.of(reranked, EvaluationRun(seconds=(1.0, 1.5), parts={"rerank": (0.75, 1.0)}))) == [1.0, 1.5]
    capped = EvaluationRun(seconds=(0.5, 0.75), parts={"rerank": (0.0, 0.25), "page_cap": (0.125, 0.125)})
    assert list(costs.of(reranked >> PageCap(), capped)) == [0.5 + 0.75, 0.75 + 0.75]
    assert list(costs.of(ListChannel([]) >> Broken(), capped)) == [0.5, 0.75]


def test_no_measure_no_question_and_no_channel_is_an_error() -> None:
    channel, questions = ListChannel([]), [Judged("q", "q", {"x": 1})]
    for measure in ("nDCG10", "nDCG@0", "P", "1+1", ""):
        with pytest.raises(ConfigError, match="measure"):
            ablation({"list": channel}, questions, measures=(measure,))
    for channels, asked in (({}, questions), ({"list": channel}, [])):
        with pytest.raises(ConfigError, match="at least one"):
            ablation(channels, asked)


def test_as_many_hits_are_asked_for_as_the_measures_count() -> None:
    for measures, depth in ((("nDCG@10",), 50), (("nDCG@10", "R@200"), 200)):
        channel = ListChannel([("x", 1.0)])
        assert ablation({"list": channel}, [Judged("q", "q", {"x": 1})], measures=measures).depth == depth
        assert channel.asked[-1] == ("q", depth)


def test_synthetic_questions_are_said_to_be(tmp_path: Path) -> None:
    asked = [Judged("1", "one", {"x": 1}), Judged("2", "two", {"x": 1}, synthetic=True)]
    channel = ListChannel([("x", 1.0)])
    mixed, made = (ablation({"list": channel}, Judgements(some, "chunk")) for some in (asked, asked[1:]))
    assert mixed.heading.startswith("2 questions, judged by chunk; 1 SYNTHETIC")
    assert made.heading.startswith("1 questions, judged by chunk; all SYNTHETIC")
    assert (made.as_data()["synthetic"], str(made).splitlines()[0]) == (1, made.heading)


def test_a_report_is_drawn_without_the_state_of_pyplot() -> None:
    report = ablation({"list": ListChannel([("x", 1.0)]), "down": FailingChannel(SearchError("down"))},
                      [Judged("q", "q", {"x": 1}, synthetic=True)])  # fmt: skip
    figure: Any = plot(report)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["list", "down"]
    assert [bar.get_height() for bar in axes.patches] == [1.0] * len(report.measures)
    assert ([text.get_text() for text in axes.texts], axes.get_title()) == (["not available"], report.heading)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_every_row_embeds_the_questions_anew() -> None:
    asked: list[str] = []

    class Counting(CallableEmbedder):
        def _asked(self, texts: Sequence[str]) -> Any:
            asked.extend(texts)
            return super()._asked(texts)

    embedder = Counting(lambda texts: [[1.0, len(text)] for text in texts], name="counting", dimension=2)
    dense = VectorChannel.from_chunks([Chunk("x", "x")], embedder)
    ablation({"dense": dense, "again": dense}, [Judged("q", "one", {"x": 1})])
    assert asked.count("one") == 2
    dense.search("one")
    dense.search("one")
    assert asked.count("one") == 3


@pytest.mark.parametrize("grade", [1.0, 0.5, 10**12, "1", None])
def test_a_grade_that_cannot_be_counted_is_refused_before_anything_is_searched(grade: Any) -> None:
    with pytest.raises(ConfigError, match="the grade of 'x' for question 'q' is a whole number"):
        ablation({"list": FailingChannel(SearchError("asked"))}, [Judged("q", "q", {"x": grade})])


def test_a_grade_of_a_file_is_of_32_bits(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text(f"q\tx\t{2**31}\n")
    with pytest.raises(ConfigError, match="beyond 32 bits"):
        load_qrels(tmp_path / "qrels.tsv")


def test_a_measure_that_cannot_be_computed_and_two_questions_of_one_id_are_refused() -> None:
    channel = ListChannel([("a", 2.0), ("b", 1.0)])
    with pytest.raises(ConfigError, match="Accuracy divides by the irrelevant results"):
        ablation({"list": channel}, [Judged("q", "q", {"a": 1, "b": 1})], measures=["Accuracy"])
    with pytest.raises(ConfigError, match="two questions have the id 'q'"):
        ablation({"list": channel}, [Judged("q", "one", {"a": 1}), Judged("q", "two", {"b": 1})])


def test_questions_without_grades_beside_others_are_left_out_and_noted() -> None:
    told = judge([Judged("q", "x", {"a": 1}), Judged("r", "y", {}, ("pump",))], [Chunk("a", "pump")])
    assert [question.id for question in told.questions] == ["q"]
    assert told.notes == ("1 of 2 questions are left out: they have no grades",)


def test_a_pipeline_that_groups_is_measured_as_it_groups() -> None:
    many = [Chunk(f"a{at}", "pump pump", metadata={"source_file": "a"}) for at in range(12)]
    many.append(Chunk("b", "the pump is in a long sentence", metadata={"source_file": "b"}))
    pipeline = Pipeline(BM25.from_chunks(many), k=10, group_by="document")
    report = ablation(steps(pipeline), [Judged("q", "pump", {"b": 1})], measures=["RR@20"])
    assert [(row.name, row.means["RR@20"]) for row in report.rows] == [("bm25", 1 / 13), ("+ group_by", 1 / 2)]

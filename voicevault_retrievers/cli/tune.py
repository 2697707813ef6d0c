"""`voicevault tune`: tuning of a preset on labelled questions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.files import load_judged, load_questions
from voicevault_retrievers.evaluation.judgements import By, judge, unit_of
from voicevault_retrievers.evaluation.tuning import Tuned, tune
from voicevault_retrievers.pipeline.presets import Preset, preset_data, preset_file, save_preset
from voicevault_retrievers.store import KnowledgeBase

JSON_VERSION = 1
_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    "tune",
    epilog=options.examples("voicevault tune --kb plant --queries q.jsonl --qrels qrels.tsv --out plant.yaml"),
)
@click.option("--kb", required=True, metavar="NAME", help="The knowledge base.", shell_complete=options.known_bases)
@click.option("--queries", required=True, type=_file, help="Questions, JSON Lines.")
@click.option("--qrels", type=_file, help="Judgements, TSV; without them a chunk is relevant that holds an answer.")
@click.option("--by", type=click.Choice(get_args(By)), help="What is judged.  [default: what the base holds]")
@options.preset
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The YAML file to write the preset to.")
@click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {JSON_VERSION}).")
@options.root
@options.reporting
def tune_(
    kb: str,
    queries: Path,
    qrels: Path | None,
    by: By | None,
    preset: str,
    out: Path | None,
    as_json: bool,
    root: Path | None,
) -> None:
    """Choose a preset's fusion, depths, page cap and reranking by a few dozen labelled questions.

    The default stays where the labels do not show that something else is better: --out then holds the preset as it was.
    Questions have `_id` and `text`. Judgements name chunks or places, with a grade above 0 for what is relevant.
    """
    if out is not None and not preset_file(out).parent.is_dir():  # fail before minutes of work
        raise ConfigError(f"--out: there is no folder {out.parent}")
    data = preset_data(preset)
    questions = load_judged(queries, qrels) if qrels else load_questions(queries)
    with KnowledgeBase.open(kb, root=root) as base, bar(Console(stderr=True), "tuning") as progress:
        judged, kind, notes = judge(questions, base, by)
        tuned = tune(data, Preset.of, base, judged, place=unit_of(kind), progress=progress)
    if out is not None:
        save_preset({**tuned.data, "name": out.stem}, out)
    if as_json:
        named = {"kb": kb, "preset": preset, "out": str(out) if out else None}
        click.echo(mask_credentials(options.as_json(_as_data(tuned, named, notes))))
    else:
        _show(Console(markup=False, highlight=False, soft_wrap=not sys.stdout.isatty()), tuned, notes)
        if out is not None:
            click.echo(f"{'the preset as it was' if tuned.abstained else 'the tuned preset'} is in {out}")


def _as_data(tuned: Tuned, named: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    """A report as plain data: the fields of `Tuned`, with `data` renamed to `preset_data`."""
    report = asdict(tuned)
    chosen = report.pop("data")
    return {"version": JSON_VERSION, **named, **report, "notes": list(notes), "preset_data": chosen}


def _show(console: Console, tuned: Tuned, notes: Sequence[str]) -> None:
    table = Table("setting", "default", "chosen", "folds that agree", "others tried", box=None)
    for name, tried in tuned.tried.items():
        table.add_row(name, tuned.default[name], tuned.best[name], f"{tuned.agreement[name]:.0%}", str(len(tried)))
    console.print(table)
    for name, why in tuned.left.items():
        console.print(f"{name} is left as it is: {why}")
    console.print(f"{tuned.questions} judged questions; {tuned.found} with a relevant hit among the first {tuned.k}")
    for note in notes:
        console.print(note)
    gain = tuned.gain
    interval = f"95 % interval {gain.low:+.3f} to {gain.high:+.3f}, p = {gain.p:.3f}"
    console.print(f"nDCG@{tuned.k} of the default: {tuned.mean:.3f}")
    console.print(f"cross-validated gain over it: {gain.difference:+.3f}, {interval}")
    console.print(f"{'abstained, the default stays' if tuned.abstained else 'tuned'}: {tuned.reason}")

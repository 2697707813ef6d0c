"""What can be typed after `voicevault`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from voicevault_retrievers.cli import options, render
from voicevault_retrievers.cli.demo import run_demo
from voicevault_retrievers.cli.engine import engine
from voicevault_retrievers.cli.eval import eval_
from voicevault_retrievers.cli.index import index
from voicevault_retrievers.cli.kb import kb
from voicevault_retrievers.cli.tune import tune_
from voicevault_retrievers.engines.opening import is_address, open_bases
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.presets import load_preset
from voicevault_retrievers.store import default_root
from voicevault_retrievers.types import Query


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="voicevault-retrievers")
def voicevault() -> None:
    """Hybrid retrieval on your own documents."""


voicevault.add_command(engine)
voicevault.add_command(eval_)
voicevault.add_command(index)
voicevault.add_command(kb)
voicevault.add_command(tune_)


@voicevault.command()
@click.argument("query")
@click.option("--kb", required=True, metavar="A,B", help="Knowledge bases, or an engine's address.")
@click.option("--top-k", type=click.IntRange(min=0), help="How many results; the preset's number otherwise.")
@click.option("--preset", "preset_name", default="voicevault", show_default=True, help="A preset, or a YAML file.")
@click.option("--where", help='A filter as JSON, such as \'{"source_file": "a.pdf"}\'.')
@click.option("--explain", is_flag=True, help="Say why each result is there.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output (version 1).")
@options.root
@options.reporting
def search(
    query: str,
    kb: str,
    top_k: int | None,
    preset_name: str,
    where: str | None,
    explain: bool,
    as_json: bool,
    root: Path | None,
) -> None:
    """Ask one or several knowledge bases."""
    names = [kb] if is_address(kb) else [name.strip() for name in kb.split(",") if name.strip()]
    if not names:
        raise ConfigError("--kb names at least one knowledge base")
    asked = Query(query, where=_filter(where))
    result = load_preset(preset_name).over(open_bases(names, root=root)).search(asked, top_k)
    if as_json:
        click.echo(json.dumps(render.as_data(result, names), ensure_ascii=False, indent=2))
    else:
        render.show(Console(soft_wrap=not sys.stdout.isatty()), result, explain=explain)


def _filter(where: str | None) -> Any:
    if where is None:
        return None
    try:
        return json.loads(where)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--where is not JSON: {error}") from error


@voicevault.command()
@click.option("--no-measure", is_flag=True, help="Answer the questions only; measure nothing.")
@options.root
@options.reporting
def demo(no_measure: bool, root: Path | None) -> None:
    """Index the sample documents, answer three questions, and measure on forty."""
    run_demo(Console(), root or default_root().parent / "demo", measure=not no_measure)

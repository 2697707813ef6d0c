"""What can be typed after `voicevault`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from voicevault_retrievers.cli import render
from voicevault_retrievers.cli.demo import run_demo
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import read
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.presets import DEFAULT_MODEL, load_preset
from voicevault_retrievers.store import Bases, KnowledgeBase, default_root
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.analyzer import AUTO
from voicevault_retrievers.types import Chunk, Query

Command = Callable[..., Any]


def _reporting(command: Command) -> Command:
    """Errors of the package as one line and exit code 1, or 2 where an option is wrong."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
        except (RetrievalError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="voicevault-retrievers")
def voicevault() -> None:
    """Hybrid retrieval on your own documents."""


_root = click.option("--root", type=click.Path(file_okay=False, path_type=Path), help="Folder of the knowledge bases.")


@voicevault.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kb", required=True, metavar="NAME", help="The knowledge base; made where there is none.")
@click.option(
    "--language", default=AUTO, show_default=True, help="An ISO 639-1 code, or auto: each document's is found."
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="The embedding model.")
@click.option("--max-chars", default=900, show_default=True, type=click.IntRange(min=50), help="Length of a chunk.")
@_root
@_reporting
def index(
    paths: tuple[Path, ...],
    kb: str,
    language: str,
    model: str,
    max_chars: int,
    root: Path | None,
) -> None:
    """Read PDF, Markdown, HTML, DOCX and text files, and folders of them, into a knowledge base.

    A file that was read before is brought up to date; only what has changed is embedded.
    """
    console = Console(stderr=True)
    with bar(console, "reading") as progress:
        ingest = read(paths, max_chars=max_chars, progress=progress)
    for skipped in ingest.skipped:
        console.print(f"[yellow]skipped[/] {escape(skipped.source_file)}: {escape(skipped.reason)}", highlight=False)
    if not ingest.chunks:
        raise click.ClickException("there is no text in what was given; nothing was indexed")
    with _writing(kb, root, language, model) as base, bar(console, "indexing") as progress:
        changes = base.add(ingest.chunks, progress=progress)
        gone = base.delete(_stale(base, ingest.chunks))
    console.print(
        f"{kb}: {ingest.files} files, {changes.added} chunks added, {changes.replaced} replaced, "
        f"{changes.unchanged} unchanged, {gone} removed; {len(base)} in all"
    )


def _stale(base: KnowledgeBase, chunks: Iterable[Chunk]) -> list[str]:
    """What the base holds of these files that is in them no more."""
    present = {chunk.id: chunk.metadata["source_file"] for chunk in chunks}
    files = set(present.values())
    return [chunk.id for chunk in base if chunk.metadata.get("source_file") in files and chunk.id not in present]


@contextmanager
def _writing(name: str, root: Path | None, language: str, model: str) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open_or_create(
        name, root=root, analyzer=Analyzer(language), embedder=load_embedder(model)
    ) as base:
        yield base


@voicevault.command()
@click.argument("query")
@click.option("--kb", required=True, metavar="A,B", help="Knowledge bases, with commas between.")
@click.option("--top-k", type=click.IntRange(min=0), help="How many results; the preset's number otherwise.")
@click.option("--preset", "preset_name", default="voicevault", show_default=True, help="A preset, or a YAML file.")
@click.option("--where", help='A filter as JSON, such as \'{"source_file": "a.pdf"}\'.')
@click.option("--explain", is_flag=True, help="Say why each result is there.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output (version 1).")
@_root
@_reporting
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
    names = [name.strip() for name in kb.split(",") if name.strip()]
    if not names:
        raise ConfigError("--kb names at least one knowledge base")
    asked = Query(query, where=_filter(where))
    result = load_preset(preset_name).over(Bases(names, root=root)).search(asked, top_k)
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
@click.argument("name")
@_root
@_reporting
def repair(name: str, root: Path | None) -> None:
    """Make the keyword index of a knowledge base again from its chunks.

    For one that is refused because the stemmer has changed, or whose index is damaged. Vectors stay as they are.
    """
    console = Console(stderr=True)
    with bar(console, "repairing") as progress:
        base = KnowledgeBase.repair(name, root=root, progress=progress)
    console.print(f"{name}: {len(base)} chunks indexed again")


@voicevault.command()
@click.option("--no-measure", is_flag=True, help="Answer the questions only; measure nothing.")
@_root
@_reporting
def demo(no_measure: bool, root: Path | None) -> None:
    """Index the sample documents, answer three questions, and measure on forty."""
    run_demo(Console(), root or default_root().parent / "demo", measure=not no_measure)

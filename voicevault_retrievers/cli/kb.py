"""`voicevault kb`: operations on whole knowledge bases."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import DownloadColumn
from rich.table import Table

from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.curation import curation
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.cli.structure import contexts, graph, parents, questions
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.store import KnowledgeBase, default_root, export, remove, restore
from voicevault_retrievers.store.names import existing
from voicevault_retrievers.store.reader import keywords_only
from voicevault_retrievers.store.repair import problems
from voicevault_retrievers.store.voicevault import import_voicevault

JSON_VERSION = 1

_name = click.argument("name", shell_complete=options.known_bases)
_json = click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {JSON_VERSION}).")


@click.group(epilog=options.examples("voicevault kb list"))
def kb() -> None:
    """Look after knowledge bases: list, check, mend, move and delete them."""


kb.add_command(graph)
kb.add_command(parents)
kb.add_command(questions)
kb.add_command(contexts)
kb.add_command(curation)


@kb.command("list", epilog=options.examples("voicevault kb list", "voicevault kb list --json"))
@_json
@options.root
@options.reporting
def list_(as_json: bool, root: Path | None) -> None:
    """Name the knowledge bases and their sizes."""
    folder = root or default_root()
    found = {path.name: _listed(path) for path in options.bases_in(folder)}
    if as_json:
        _print_json({"kbs": [{"name": name, **entry} for name, entry in found.items()]})
        return
    table = Table("name", "chunks", "size", box=None)
    for name, entry in found.items():
        table.add_row(name, *((entry["error"], "") if "error" in entry else (str(entry["chunks"]), _room(entry))))
    Console(markup=False).print(table if found else f"There are no knowledge bases in {folder}.")


@kb.command(epilog=options.examples("voicevault kb stats plant", "voicevault kb stats plant --json"))
@_name
@_json
@options.root
@options.reporting
def stats(name: str, as_json: bool, root: Path | None) -> None:
    """What a knowledge base holds, in numbers."""
    found = asdict(KnowledgeBase.open(name, root=root).stats())
    if as_json:
        _print_json(found)
        return
    for key, value in found.items():
        click.echo(f"{key}: {_room(found) if key == 'size' else value}")


@kb.command(epilog=options.examples("voicevault kb verify plant"))
@_name
@options.root
@options.reporting
def verify(name: str, root: Path | None) -> None:
    """Read a knowledge base in full.

    Says what is wrong in it, and exits with 1 where something is.
    """
    with bar(Console(stderr=True), "reading", counts=DownloadColumn()) as progress:
        found = problems(existing(name, root), progress=progress)
    for line in found:
        click.echo(options.said(line))
    if found:
        raise click.exceptions.Exit(1)
    click.echo(f"{name}: all is sound")


@kb.command(epilog=options.examples("voicevault kb repair plant"))
@_name
@options.root
@options.reporting
def repair(name: str, root: Path | None) -> None:
    """Make the index again from the chunks.

    For one that is refused because the stemmer has changed, or whose index is damaged. Vectors stay as they are.
    """
    with bar(Console(stderr=True), "repairing") as progress:
        base = KnowledgeBase.repair(name, root=root, progress=progress)
    click.echo(f"{name}: {len(base)} chunks indexed again", err=True)


@kb.command(epilog=options.examples("voicevault kb compact plant"))
@_name
@options.wait
@options.root
@options.reporting
def compact(name: str, wait: float, root: Path | None) -> None:
    """Free the room of what was deleted.

    All chunks are written anew, as one segment.
    """
    with KnowledgeBase.open(name, root=root, wait=wait) as base:
        before = asdict(base.stats())
        with Console(stderr=True).status(f"writing {name} anew"):
            base.compact()
        click.echo(f"{name}: {_room(before)} before, {_room(asdict(base.stats()))} now", err=True)


@kb.command("export", epilog=options.examples("voicevault kb export plant -o plant.jsonl"))
@_name
@click.option(
    "-o", "--output", "file", default="-", type=click.Path(dir_okay=False), help="A file; - is the standard output."
)
@click.option("--no-vectors", is_flag=True, help="Leave the vectors out: import makes them again.")
@options.root
@options.reporting
def export_(name: str, file: str, no_vectors: bool, root: Path | None) -> None:
    """Write a knowledge base as JSON Lines.

    `voicevault kb import` makes a knowledge base of them again, anywhere.
    """
    base = KnowledgeBase.open(name, root=root)
    with bar(Console(stderr=True), "exporting") as progress:
        count = export(base, sys.stdout.buffer if file == "-" else file, vectors=not no_vectors, progress=progress)
    click.echo(f"{name}: {count} chunks exported", err=True)


@kb.command("import", epilog=options.examples("voicevault kb import plant.jsonl --kb copy"))
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--voicevault", "folder", type=click.Path(path_type=Path), help="A folder that VoiceVault made, for FILE."
)
@click.option("--collection", help="Which collection of that folder's Chroma, where there are several.")
@click.option("--kb", "name", required=True, metavar="NAME", help="The new knowledge base.")
@click.option("--model", help="The embedding model, of VoiceVault's vectors or where there are none.")
@click.option("--language", help=f"Index the texts as of this language; {options.UNSTEMMED} does not stem.")
@options.root
@options.reporting
def import_(
    file: str | None,
    folder: Path | None,
    collection: str | None,
    name: str,
    model: str | None,
    language: str | None,
    root: Path | None,
) -> None:
    """Make a knowledge base of an export.

    FILE is what `voicevault kb export` wrote (- is the standard input).
    """
    if (file is None) == (folder is None):
        raise ConfigError("give either a FILE that was exported or --voicevault FOLDER")
    given: dict[str, Any] = {
        "root": root,
        "embedder": load_embedder(model) if model else None,
        "analyzer": options.analyzer_of(language),
    }
    with bar(Console(stderr=True), "importing") as progress:
        if folder is not None:
            base = import_voicevault(folder, name, collection=collection, progress=progress, **given)
        else:
            base = restore(sys.stdin.buffer if file in (None, "-") else file, name, progress=progress, **given)
    kind = "" if base.manifest.embedder else f", for keywords only\n{keywords_only(name)}"
    click.echo(f"{name}: {len(base)} chunks imported{kind}", err=True)


@kb.command(epilog=options.examples("voicevault kb delete plant --yes"))
@_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.wait
@options.root
@options.reporting
def delete(name: str, yes: bool, wait: float, root: Path | None) -> None:
    """Remove a knowledge base from disk.

    All that is in its folder goes.
    """
    folder = existing(name, root)
    if not yes:
        click.confirm(f"Remove knowledge base {name!r}, the folder {folder}?", abort=True)
    remove(name, root=root, wait=wait)
    click.echo(f"{name}: removed", err=True)


def _listed(folder: Path) -> dict[str, Any]:
    """The entry of a knowledge base in `list`, also of a damaged one."""
    try:
        found = KnowledgeBase.open(folder).stats()
    except (RetrievalError, OSError) as error:
        return {"error": options.said(error)}
    return {"chunks": found.chunks, "size": found.size}


def _room(entry: dict[str, Any]) -> str:
    return f"{entry['size'] / 1e6:.1f} MB"


def _print_json(data: dict[str, Any]) -> None:
    click.echo(options.as_json({"version": JSON_VERSION, **data}))

"""`voicevault engine`: copies into collections of engines, and comparisons of their rankings."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.engines.addresses import connect, is_address
from voicevault_retrievers.engines.copy import Copied, copy
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.parity import CAUSES, Parity, parity
from voicevault_retrievers.evaluation import load_questions, rule_questions
from voicevault_retrievers.pipeline.presets.sections import filled
from voicevault_retrievers.store import KnowledgeBase

JSON_VERSION = 1

_from = click.option(
    "--from",
    "source",
    required=True,
    metavar="NAME|ADDRESS",
    help="A knowledge base, or an engine's.",
    shell_complete=options.known_bases,
)
_to = click.option("--to", "target", required=True, metavar="ADDRESS", help="A collection of an engine.")
_json = click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {JSON_VERSION}).")


@click.group(epilog=options.examples("voicevault engine info 'qdrant+file://${PWD}/qdrant/plant'"))
def engine() -> None:
    """Copy knowledge bases into engines, and compare what they find.

    \b
    An address names an engine and a collection:
      qdrant://host:6333/COLLECTION          qdrant+file:///FOLDER/COLLECTION
      postgresql://user@host/DB#COLLECTION   chroma://host:8000/COLLECTION
      milvus://host:19530/COLLECTION         milvus+file:///FILE.db/COLLECTION
      elasticsearch://host:9200/COLLECTION   opensearch://host:9200/COLLECTION
      lancedb:///FOLDER/COLLECTION
    '${NAME}' in it reads the environment, which keeps a password out of the shell's history.
    """  # noqa: D301 - click reads the backspace


@engine.command(
    "copy",
    epilog=options.examples("voicevault engine copy --from plant --to 'qdrant+file://${PWD}/qdrant/plant'"),
)
@_from
@_to
@click.option("--prune", is_flag=True, help="Remove from the collection what the source does not have.")
@click.option(
    "--patience", default=60.0, show_default=True, type=click.FloatRange(min=0), help="Seconds to wait for it."
)
@_json
@options.root
@options.reporting
def copy_(source: str, target: str, prune: bool, patience: float, as_json: bool, root: Path | None) -> None:
    """Copy chunks, vectors, parents and questions into an engine, and verify the copy by count and checksum.

    What was copied before and has not changed is left as it is. When it is broken off, the same command goes on from
    there. Exits with 1 where the collection then does not hold what the source does.
    """
    with closing(_opened(source, root)) as base:
        opened = connect(filled(target), embedder=base.embedder, analyzer=base.analyzer)
        with closing(opened) as made, bar(Console(stderr=True), "copying") as progress:
            done = copy(base, made, prune=prune, patience=patience, progress=progress)
    if as_json:
        _print_json({**asdict(done), "verified": done.verified})
    else:
        click.echo(_told(done))
    if not done.verified:
        raise click.exceptions.Exit(1)


@engine.command(
    epilog=options.examples(
        "voicevault engine diff --from plant --to 'qdrant+file://${PWD}/qdrant/plant' --queries q.jsonl",
        "voicevault engine diff --from plant --to 'qdrant+file://${PWD}/qdrant/plant' --synthetic 20 --json",
    )
)
@_from
@_to
@click.option(
    "--queries",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Questions, JSON Lines: _id, text.  [default: made from the source by rules]",
)
@click.option("--synthetic", default=50, show_default=True, type=click.IntRange(min=1), help="How many are made.")
@click.option("--k", default=10, show_default=True, type=click.IntRange(min=1), help="How many hits are compared.")
@_json
@options.root
@options.reporting
def diff(
    source: str, target: str, queries: Path | None, synthetic: int, k: int, as_json: bool, root: Path | None
) -> None:
    """How alike two bases rank the same questions, and why lists differ."""
    with closing(_opened(source, root)) as base, closing(_opened(target, root)) as other:
        asked = _questions(base, queries, synthetic)
        channels = ["bm25"] if base.embedder is None else ["bm25", "dense"]
        with Console(stderr=True).status(f"asking {len(asked)} questions of both"):
            found = parity(base, other, asked, k=k, channels=channels)
    if as_json:
        _print_json({"channels": [asdict(each) for each in found]})
        return
    console = Console(markup=False, soft_wrap=True)
    table = Table("channel", "questions", f"overlap@{k}", "same lists", "score error", "only in one", box=None)
    for each in found:
        numbers = f"{each.overlap:.3f}", f"{each.same}", f"{each.score_error:.1e}", f"{sum(each.causes.values())}"
        table.add_row(each.channel, str(each.queries), *numbers)
    console.print(table)
    for line in _causes(found):
        console.print(line)


@engine.command(epilog=options.examples("voicevault engine info 'qdrant+file://${PWD}/qdrant/plant'"))
@click.argument("address")
@_json
@options.reporting
def info(address: str, as_json: bool) -> None:
    """What a collection holds, what its engine does as a knowledge base does, and how far its weights have drifted."""
    with closing(connect(filled(address))) as found:
        there = found.run(found.exists())
        told = {
            "collection": found.name,
            "exists": there,
            "chunks": len(found),
            "made_with": json.loads(found.recipe.text()) if found.recipe else None,
            "capabilities": asdict(found.capabilities),
            **found.status(),
        }
    if as_json:
        _print_json(told)
        return
    for key, value in told.items():
        click.echo(f"{key}: {json.dumps(value) if isinstance(value, dict) else value}")


@engine.command(epilog=options.examples("voicevault engine reweigh 'qdrant+file://${PWD}/qdrant/plant'"))
@click.argument("address")
@_json
@options.reporting
def reweigh(address: str, as_json: bool) -> None:
    """Make the stored keyword weights of a collection with its present mean length.

    `voicevault engine info` shows as drift how far the mean has moved since. Only Qdrant stores such weights.
    """
    with closing(connect(filled(address))) as found:
        changed = found.reweigh()
    if as_json:
        _print_json({"reweighed": changed})
    else:
        click.echo(f"{changed} chunks have new weights")


def _opened(name: str, root: Path | None) -> KnowledgeBase | Engine:
    return connect(filled(name)) if is_address(name) else KnowledgeBase.open(name, root=root)


def _questions(base: KnowledgeBase | Engine, queries: Path | None, synthetic: int) -> list[str]:
    found = rule_questions(base, synthetic) if queries is None else load_questions(queries)
    return [one.text for one in found]


def _told(done: Copied) -> str:
    rate = done.written / done.seconds if done.seconds else 0.0
    extra = (
        f"{done.extra} more {'were removed' if done.pruned else 'are in the collection'}" if done.extra else "no others"
    )
    asked = "" if done.questions is None else f", {done.questions.source.chunks} questions"
    return (
        f"{done.written} chunks written ({rate:.0f} a second), {done.unchanged} unchanged, {done.parents} parents"
        f"{asked}; {extra}\n{done.target.chunks} of {done.source.chunks} chunks, checksum {done.target.checksum}: "
        f"{'verified' if done.verified else 'NOT the same as the source'}"
    )


def _causes(found: list[Parity]) -> list[str]:
    return [f"{each.channel}: {count} x {CAUSES[cause]}" for each in found for cause, count in each.causes.items()]


def _print_json(data: dict[str, Any]) -> None:
    click.echo(options.as_json({"version": JSON_VERSION, **data}))

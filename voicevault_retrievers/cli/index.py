"""`voicevault index`: files into a knowledge base."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from rich.console import Console
from rich.markup import escape

from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.progress import bars
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import CHILD_CHARS, PARENT_CHARS, discover
from voicevault_retrievers.presets import DEFAULT_MODEL
from voicevault_retrievers.store import KnowledgeBase, Update, update
from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.analyzer import AUTO


@click.command(epilog="Example: voicevault index manuals/ notes.md --kb plant")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kb", required=True, metavar="NAME", help="The knowledge base; made where there is none.")
@click.option("--language", help=f"An ISO 639-1 code, or {AUTO}: each document's is found.  [default: {AUTO}]")
@click.option("--model", help=f"The embedding model.  [default: {DEFAULT_MODEL}]")
@click.option("--vectors", type=click.Choice(get_args(VectorSearch)), help="How they are searched.  [default: exact]")
@click.option("--max-chars", default=900, show_default=True, type=click.IntRange(min=50), help="Length of a chunk.")
@click.option(
    "--parents", type=click.IntRange(min=200), help=f"Length of the parents that a model reads, such as {PARENT_CHARS}."
)
@click.option("--children", type=click.IntRange(min=50), help=f"Length of their chunks.  [default: {CHILD_CHARS}]")
@click.option("--prune", is_flag=True, help="Remove files that are on disk no more.")
@options.wait
@options.root
@options.reporting
def index(
    paths: tuple[Path, ...],
    kb: str,
    language: str | None,
    model: str | None,
    vectors: VectorSearch | None,
    max_chars: int,
    parents: int | None,
    children: int | None,
    prune: bool,
    wait: float,
    root: Path | None,
) -> None:
    """Read PDF, Markdown, HTML, DOCX and text files, and folders of them, into a knowledge base.

    What was read before and has not changed is left as it is. When it is broken off, the same command goes on from
    there. With --parents chunks are --children long, and each belongs to a parent, which is kept beside and not
    searched. --language, --model and --vectors are for a new knowledge base; one that is there keeps its own.
    """
    if parents is None and children is not None:
        raise click.UsageError("--children are of --parents: give their length too")
    console = Console(stderr=True, soft_wrap=True)
    base = _base(kb, root, paths, language, model, vectors, wait)
    with base, bars(console, "reading", "embedding") as (progress, embedding):
        try:
            done = update(
                base,
                paths,
                max_chars=max_chars,
                parents=parents,
                children=children or CHILD_CHARS,
                prune="gone" if prune else None,
                progress=progress,
                embedding=embedding,
            )
        except KeyboardInterrupt:
            console.print(f"{kb} holds {len(base)} chunks; the same command goes on from here", markup=False)
            raise
    _say(console, base, done, prune)
    if not done.read and not done.unchanged and done.skipped:
        raise click.ClickException("nothing of what was given could be read")


def _base(
    name: str,
    root: Path | None,
    paths: tuple[Path, ...],
    language: str | None,
    model: str | None,
    vectors: VectorSearch | None,
    wait: float,
) -> KnowledgeBase:
    if vacant(locate(name, root)):
        if not discover(paths):
            raise click.ClickException("there are no files of a known type in what was given; nothing was indexed")
        language, model = language or AUTO, model or DEFAULT_MODEL
    return KnowledgeBase.open_or_create(
        name,
        root=root,
        analyzer=Analyzer(language) if language else None,
        embedder=load_embedder(model) if model else None,
        vectors=vectors,
        wait=wait,
    )


def _say(console: Console, base: KnowledgeBase, done: Update, pruned: bool) -> None:
    for skipped in done.skipped:
        console.print(f"[yellow]skipped[/] {escape(skipped.source_file)}: {escape(skipped.reason)}", highlight=False)
    for name in () if pruned else done.gone:
        console.print(
            f"[yellow]gone[/] {escape(name)}: still in the knowledge base; --prune removes it", highlight=False
        )
    changes = done.changes
    console.print(
        f"{base.name}: {done.read} files read, {done.unchanged} unchanged; {changes.added} chunks added, "
        f"{changes.replaced} replaced, {changes.removed} removed; {len(base)} in all",
        highlight=False,
    )

"""`voicevault index`: indexing of files into a knowledge base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.markup import escape

from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.live import following, interruptible
from voicevault_retrievers.cli.metered import metered
from voicevault_retrievers.cli.progress import shown
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import CHILD_CHARS, LIMITS, PARENT_CHARS, discover
from voicevault_retrievers.pipeline.presets import DEFAULT_MODEL
from voicevault_retrievers.store import KnowledgeBase, Update, update
from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.text.analyzer import AUTO


@click.command(
    epilog=options.examples(
        "voicevault index manuals/ notes.md --kb plant",
        "voicevault index manuals/ --kb plant --prune",
    )
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--kb",
    required=True,
    metavar="NAME",
    help="The knowledge base; made where there is none.",
    shell_complete=options.known_bases,
)
@click.option(
    "--language",
    help=f"An ISO 639-1 code; {AUTO}: each document's is found; {options.UNSTEMMED}: words as they are, lowercase, not "
    f"stemmed.  [default: {AUTO}]",
)
@click.option("--model", help=f"The embedding model.  [default: {DEFAULT_MODEL}]")
@click.option("--vectors", type=click.Choice(get_args(VectorSearch)), help="How they are searched.  [default: exact]")
@click.option("--max-chars", default=900, show_default=True, type=click.IntRange(min=50), help="Length of a chunk.")
@click.option(
    "--parents", type=click.IntRange(min=200), help=f"Length of the parents that a model reads, such as {PARENT_CHARS}."
)
@click.option("--children", type=click.IntRange(min=50), help=f"Length of their chunks.  [default: {CHILD_CHARS}]")
@click.option(
    "--headers/--no-headers", default=True, help="Index title and headings before each chunk.  [default: yes]"
)
@click.option("--prune", is_flag=True, help="Remove files that are on disk no more.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=LIMITS.seconds,
    show_default=True,
    help="How long the reading of a file may take.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@options.wait
@options.root
@options.reporting
@metered
def index(
    paths: tuple[Path, ...],
    kb: str,
    language: str | None,
    model: str | None,
    vectors: VectorSearch | None,
    max_chars: int,
    parents: int | None,
    children: int | None,
    headers: bool,
    prune: bool,
    max_seconds: float,
    quiet: bool,
    wait: float,
    root: Path | None,
) -> None:
    """Read PDF, Markdown, HTML, DOCX and text files, and folders of them, into a knowledge base.

    Files are read in a separate process that is limited in time, memory and text; one that exceeds them is skipped.

    What was read before and has not changed is left as it is. When it is broken off, the same command goes on from
    there. With --parents chunks are --children long, and each belongs to a parent, which is kept beside and not
    searched. --language, --model and --vectors are for a new knowledge base; one that is there keeps its own.
    """
    if parents is None and children is not None:
        raise click.UsageError("--children are of --parents: give their length too")
    console = Console(stderr=True, soft_wrap=True)
    given: dict[str, Any] = {
        "max_chars": max_chars,
        "parents": parents,
        "children": children or CHILD_CHARS,
        "headers": headers,
        "limits": replace(LIMITS, seconds=max_seconds),
    }
    with interruptible():
        base = _base(kb, root, paths, language, model, vectors, wait)
        with base:
            done = _update(console, base, paths, quiet=quiet, prune="gone" if prune else None, **given)
    _say(console, base, done, prune, quiet)
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
        analyzer=options.analyzer_of(language),
        embedder=load_embedder(model) if model else None,
        vectors=vectors,
        wait=wait,
    )


def _update(console: Console, base: KnowledgeBase, paths: tuple[Path, ...], *, quiet: bool, **given: Any) -> Update:
    try:
        with following(console, base.path, quiet=quiet) as observe:
            return update(base, paths, observe=observe, **given)
    except KeyboardInterrupt:
        base.reload()  # an interrupted commit may have reached the disk
        if console.is_terminal:
            console.line()  # the terminal has echoed ^C
        said = f"{base.name} holds {len(base)} chunks; the same command goes on from here"
        console.print(said, markup=False, highlight=False)
        raise


def _say(console: Console, base: KnowledgeBase, done: Update, pruned: bool, quiet: bool) -> None:
    for skipped in done.skipped:
        console.print(f"[yellow]skipped[/] {_safe(skipped.source_file)}: {_safe(skipped.reason)}", highlight=False)
    for name in () if pruned else done.gone:
        console.print(
            f"[yellow]gone[/] {_safe(name)}: still in the knowledge base; --prune removes it", highlight=False
        )
    for note in done.notes:
        console.print(f"[yellow]note[/] {_safe(note)}", highlight=False)
    if quiet:
        return
    changes = done.changes
    console.print(
        f"{base.name}: {done.read} files read, {done.unchanged} unchanged; {changes.added} chunks added, "
        f"{changes.replaced} replaced, {changes.removed} removed; {len(base)} in all",
        highlight=False,
    )


def _safe(text: str) -> str:
    return escape(shown(text))

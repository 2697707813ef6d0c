"""`voicevault index`: indexing of files into a knowledge base."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.markup import escape

from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.live import following, interruptible
from voicevault_retrievers.cli.metered import metered
from voicevault_retrievers.cli.progress import shown
from voicevault_retrievers.cli.unread import note_lines, unread_lines
from voicevault_retrievers.cli.watching import each_change
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import CHILD_CHARS, CHOSEN, LIMITS, PARENT_CHARS, discover
from voicevault_retrievers.pipeline.presets import DEFAULT_MODEL
from voicevault_retrievers.store import KnowledgeBase, Update, update
from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.text.analyzer import AUTO


@click.command(
    epilog=options.examples(
        "voicevault index manuals/ notes.md --kb plant",
        "voicevault index manuals/ --kb plant --prune",
        "voicevault index manuals/ --kb plant --include '*.md'",
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
@click.option("--text-field", metavar="NAME", help="The field or column that is the text of JSON and table records.")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Read only these files, as '*.pdf'; may be given several times."
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these files and folders out, as 'drafts/'.")
@click.option("--prune", is_flag=True, help="Remove files that are on disk no more.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=LIMITS.seconds,
    show_default=True,
    help="How long the reading of a file may take.",
)
@click.option("--watch", is_flag=True, help="Go on, and index what changes, until Ctrl-C; no other process can write.")
@click.option("-v", "--verbose", is_flag=True, help="Name each file that was not read.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with each file that was not read.")
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
    text_field: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    prune: bool,
    max_seconds: float,
    watch: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    wait: float,
    root: Path | None,
) -> None:
    """Read documents, tables, e-mails, JSON, source code, and folders of them, into a knowledge base.

    Files are read in a separate process that is limited in time, memory and text; one that exceeds them is skipped. In
    folders, hidden files and what .gitignore names are left out. What was read before and has not changed is left as it
    is. When it is broken off, the same command goes on from there. With --parents chunks are --children long, and each
    belongs to a parent, which is kept beside and not searched. --language, --model and --vectors are for a new
    knowledge base; one that is there keeps its own.
    """
    if parents is None and children is not None:
        raise click.UsageError("--children are of --parents: give their length too")
    children = children or CHILD_CHARS
    if parents is not None and children > parents:
        raise click.UsageError(f"children, of {children} characters, are at most as long as --parents")
    console = Console(stderr=True, soft_wrap=True)
    given: dict[str, Any] = {
        "max_chars": max_chars,
        "parents": parents,
        "children": children,
        "headers": headers,
        "limits": replace(LIMITS, seconds=max_seconds),
        "text_field": text_field,
        "include": include,
        "exclude": exclude,
    }
    told: set[Any] = set()
    with interruptible():
        rules = {"include": include, "exclude": exclude}
        with _base(kb, root, paths, language, model, vectors, wait, None if watch else rules) as base:
            for _ in each_change(paths) if watch else (None,):
                done = _update(console, base, paths, quiet=quiet, prune="gone" if prune else None, **given)
                if not told and watch and base.embedder is not None:
                    base.dense().warm_up()  # so that the first change does not wait for the model
                if told and not _news(done, told):
                    continue
                told |= {*done.skipped, *done.gone, None}
                if as_json:
                    click.echo(json.dumps(asdict(done) | {"chunks": len(base)}))
                else:
                    _say(console, base, done, prune, quiet=quiet, verbose=verbose)
    if not watch and not done.read and not done.unchanged and any(one.why not in CHOSEN for one in done.skipped):
        raise click.ClickException("nothing of what was given could be read")


def _news(done: Update, told: Container[Any]) -> bool:
    """Whether a turn of --watch did or met anything that was not told before."""
    return bool(done.read or done.changes.removed) or any(one not in told for one in (*done.skipped, *done.gone))


def _base(
    name: str,
    root: Path | None,
    paths: tuple[Path, ...],
    language: str | None,
    model: str | None,
    vectors: VectorSearch | None,
    wait: float,
    rules: Mapping[str, tuple[str, ...]] | None,
) -> KnowledgeBase:
    """The base; a new one is made where the `rules` leave files to read, or are None."""
    if vacant(locate(name, root)):
        if rules is not None and not discover(paths, **rules):
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


def _say(console: Console, base: KnowledgeBase, done: Update, pruned: bool, *, quiet: bool, verbose: bool) -> None:
    for label, line in unread_lines(done.skipped, verbose=verbose, quiet=quiet):
        console.print(f"[yellow]{label}[/] {_safe(line)}", highlight=False)
    for name in () if pruned else done.gone:
        console.print(
            f"[yellow]gone[/] {_safe(name)}: still in the knowledge base; --prune removes it", highlight=False
        )
    for note in (*note_lines(done.file_notes, verbose=verbose), *done.notes):
        console.print(f"[yellow]note[/] {_safe(note)}", highlight=False)
    if quiet:
        return
    changes = done.changes
    unread = f"; {len(done.skipped)} not read" if done.skipped else ""
    console.print(
        f"{base.name}: {done.read} files read, {done.unchanged} unchanged; {changes.added} chunks added, "
        f"{changes.replaced} replaced, {changes.removed} removed; {len(base)} in all{unread}",
        highlight=False,
    )


def _safe(text: str) -> str:
    return escape(shown(text))

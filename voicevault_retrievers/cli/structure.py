"""`voicevault kb questions`, `contexts`, `graph`, `parents`: what is made from a base's chunks, also on servers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel, ServedModel
from voicevault_retrievers.pipeline.presets.sections import filled
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.graphs import update_graph
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure.addresses import graph_store, parent_store
from voicevault_retrievers.structure.context_writer import ContextWriter, has_context
from voicevault_retrievers.structure.graph import Entry, GraphStats, RuleReferences
from voicevault_retrievers.structure.graph.building import DOCUMENTS, LAWS
from voicevault_retrievers.structure.graph.cypher import CypherStatement
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph
from voicevault_retrievers.structure.graph.neo4j import Neo4jGraph
from voicevault_retrievers.structure.questions import ModelQuestions, QuestionUpdate
from voicevault_retrievers.structure.redis import BATCH
from voicevault_retrievers.text.references.reference import chunk_id, work_of

T = TypeVar("T")

ENTRIES = 500
"""The number of chunks that one request adds to a graph server."""

SHOWN = 5
"""How many failures or laws are listed by name."""

_IDS = "MATCH (n:VVNode) WHERE n.chunk IS NOT NULL AND n.id STARTS WITH $prefix RETURN n.id"

_name = click.argument("name", shell_complete=options.known_bases)

_MODEL = (
    click.option("--ollama", metavar="MODEL", help="A model of an Ollama writes them."),
    click.option("--openai", metavar="MODEL", help="A model of OpenAI, or of a server that speaks its API, does."),
    click.option("--base-url", metavar="URL", help="Where that server is, if not where it is usually."),
    click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds for a chunk.  [default: 60]"),
    click.option(
        "--at-once", default=4, show_default=True, type=click.IntRange(min=1), help="Chunks asked for at a time."
    ),
    click.option("--again", is_flag=True, help="Ask for all chunks, whatever there is."),
)


def _by_model(command: options.Command) -> options.Command:
    """Add the options of a command for which a language model writes."""
    for option in reversed(_MODEL):
        command = option(command)
    return command


@click.command(
    epilog=options.examples(
        "voicevault kb questions plant --ollama qwen3:8b", "voicevault kb questions plant --file questions.json"
    )
)
@_name
@_by_model
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSON: {"chunk id": ["question", ...]}.',
)
@click.option("--per-chunk", type=click.IntRange(min=1), help="How many a model writes.  [default: 3]")
@options.wait
@options.root
@options.reporting
def questions(
    name: str,
    ollama: str | None,
    openai: str | None,
    base_url: str | None,
    file: Path | None,
    per_chunk: int | None,
    timeout: float | None,
    at_once: int,
    again: bool,
    wait: float,
    root: Path | None,
) -> None:
    """Bring the questions that chunks answer up to date.

    A language model is asked for those of chunks that are new or whose text is another; --file gives them instead.
    When it is broken off, the same command goes on from there. Exits with 1 where some chunks failed.
    """
    if sum(given is not None for given in (ollama, openai, file)) != 1:
        raise ConfigError("say who makes the questions: one of --ollama MODEL, --openai MODEL and --file FILE")
    if file is not None:
        if base_url or per_chunk or timeout or again:
            raise ConfigError("--base-url, --per-chunk, --timeout and --again are for a model, not for --file")
        questioner: Any = _given(file)
    else:
        seconds = timeout or 60.0
        questioner = ModelQuestions(_served(ollama, openai, base_url, seconds), per_chunk or 3, timeout=seconds)
    console = Console(stderr=True, soft_wrap=True)
    with KnowledgeBase.open(name, root=root, wait=wait) as kb, bar(console, "asking") as progress:
        index = question_index(kb, wait=wait)
        try:
            done = index.update(questioner, again=again, at_once=at_once, progress=progress)
        except KeyboardInterrupt:
            kept = sum(1 for _ in index.questions.view().ids())
            console.print(f"{kb.name}: {kept} questions are kept; the same command goes on from here", markup=False)
            raise
        total = sum(1 for _ in index.questions.view().ids())
    _tell(console, name, done, total)
    if done.failed:
        raise click.exceptions.Exit(1)


@click.command(
    epilog=options.examples(
        "voicevault kb contexts plant --ollama qwen3:8b --dry-run", "voicevault kb contexts plant --ollama qwen3:8b"
    )
)
@_name
@_by_model
@click.option("--dry-run", is_flag=True, help="Ask nothing; print how many calls and tokens it would be.")
@options.wait
@options.root
@options.reporting
def contexts(
    name: str,
    ollama: str | None,
    openai: str | None,
    base_url: str | None,
    timeout: float | None,
    at_once: int,
    again: bool,
    dry_run: bool,
    wait: float,
    root: Path | None,
) -> None:
    """Write before each chunk where it stands in its document.

    A language model reads the document and the chunk, and what it writes is searched with the chunk. Only chunks
    without it are asked for: when it is broken off, the same command goes on from there. Exits with 1 where some chunks
    failed.
    """
    if (ollama is None) == (openai is None):
        raise ConfigError("say which model writes: one of --ollama MODEL and --openai MODEL")
    seconds = timeout or 60.0
    writer = ContextWriter(_served(ollama, openai, base_url, seconds), timeout=seconds)
    console = Console(stderr=True, soft_wrap=True)
    with KnowledgeBase.open(name, root=root, wait=wait) as kb:
        if dry_run:
            cost = writer.estimate(kb, again=again)
            click.echo(f"{name}: {cost.calls} calls, about {cost.prompt_tokens} tokens of prompts")
            return
        try:
            with bar(console, "asking") as progress:
                done = writer.write(kb, again=again, at_once=at_once, progress=progress)
        except KeyboardInterrupt:
            kept = sum(map(has_context, kb))
            console.print(f"{kb.name}: {kept} contexts are kept; the same command goes on from here", markup=False)
            raise
    _tell_failed(console, done.failed)
    said = f"{name}: {done.written} contexts written, {done.unchanged} chunks unchanged, {len(done.failed)} failed"
    console.print(said, highlight=False, markup=False)
    if done.failed:
        raise click.exceptions.Exit(1)


@click.command(
    epilog=options.examples(
        "voicevault kb graph plant",
        "voicevault kb graph plant --to 'falkor://:${FALKOR_PASSWORD}@localhost:6379/plant'",
    )
)
@_name
@click.option("--to", metavar="ADDRESS", help="A graph server: falkor://host:6379/name, neo4j://user@host:7687/name.")
@click.option("--prune", is_flag=True, help="Of --to: remove chunks from there that the base has no more.")
@options.root
@options.reporting
def graph(name: str, to: str | None, prune: bool, root: Path | None) -> None:
    """Bring the graph of what chunks refer to up to date.

    It is kept in a file in the base's folder, or put into a graph server, where what was put before is replaced. In the
    ADDRESS, ${NAME} is read from the environment.
    """
    if prune and to is None:
        raise ConfigError("--prune is of --to")
    console = Console(stderr=True, soft_wrap=True)
    kb = KnowledgeBase.open(name, root=root)
    if to is not None:
        with closing(graph_store(filled(to))) as store, bar(console, "writing") as progress:
            said = _put(store, kb.references().graph.entries(), progress, prune=prune)
    else:
        with bar(console, "reading") as progress:
            done = update_graph(kb, lambda count: progress(count, len(kb)))
        said = f"{done.read} chunks read, {done.removed} removed, {done.unchanged} unchanged"
        said += f"; {_counted(kb.references().stats())}"
    _say(console, name, said, kb)


@click.command(epilog=options.examples("voicevault kb parents plant --to redis://localhost:6379/0"))
@_name
@click.option("--to", required=True, metavar="ADDRESS", help="A Redis: redis://host:6379/0, rediss://, unix://.")
@click.option("--key", default="parent:{id}", show_default=True, help="Under which key each is.")
@options.root
@options.reporting
def parents(name: str, to: str, key: str, root: Path | None) -> None:
    """Write the parents into a Redis.

    Each takes the place of the one of its id; nothing is removed. In the ADDRESS, ${NAME} is read from the environment.
    """
    snapshot = KnowledgeBase.open(name, root=root).view().snapshot
    ids = list(snapshot.parent_ids())
    if not ids:
        raise click.ClickException(f"{name} has no parents: voicevault index --parents makes some")
    store, console = parent_store(filled(to), key=key), Console(stderr=True, soft_wrap=True)
    redis = require("redis", extra="redis")
    with closing(store.client), bar(console, "writing") as progress:
        try:
            for done, batch in _batches(ids, BATCH):
                store.put(_present(map(snapshot.parent, batch)))
                progress(done, len(ids))
        except redis.RedisError as error:
            raise click.ClickException(f"{store!r} cannot be written to: {error}") from error
    console.print(f"{name}: {len(ids)} parents written to {store!r}", highlight=False, markup=False)


def _tell_failed(console: Console, failed: Mapping[str, str]) -> None:
    for one, why in islice(failed.items(), SHOWN):
        console.print(f"[yellow]failed[/] {escape(without_controls(f'{one}: {why}'))}", highlight=False)
    if len(failed) > SHOWN:
        console.print(f"and {len(failed) - SHOWN} more", highlight=False)


def _tell(console: Console, name: str, done: QuestionUpdate, total: int) -> None:
    _tell_failed(console, done.failed)
    console.print(
        f"{name}: {done.asked} chunks asked, {done.unchanged} unchanged, {done.moved} with other metadata, "
        f"{done.removed} gone, {len(done.failed)} failed; {done.questions} questions made, {total} in all",
        highlight=False,
        markup=False,
    )


def _served(ollama: str | None, openai: str | None, base_url: str | None, timeout: float) -> ServedModel:
    """A server's language model."""
    place: dict[str, Any] = {"base_url": base_url} if base_url else {}
    served: Any = OllamaModel if openai is None else OpenAIModel
    model: ServedModel = served(openai or ollama, timeout=timeout, **place)
    return model


def _given(file: Path) -> dict[str, list[str]]:
    """Questions by chunk id, from a file; ConfigError for another content."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise ConfigError(f"{file} holds a {type(said).__name__}, not an object of chunk ids with lists of questions")
    return said


def _batches(items: Sequence[T], size: int) -> Iterator[tuple[int, Sequence[T]]]:
    """The items in batches of a size, each with the number of items up to its end."""
    for start in range(0, len(items), size):
        batch = items[start : start + size]
        yield start + len(batch), batch


def _present(found: Iterable[Chunk | None]) -> list[Chunk]:
    return [one for one in found if one is not None]


def _counted(held: GraphStats) -> str:
    return f"{held.chunks} chunks, {held.references} references, {held.edges} edges"


def _put(
    store: FalkorDBGraph | Neo4jGraph, entries: Sequence[Entry], progress: Callable[[int, int], None], *, prune: bool
) -> str:
    """Add a graph to a server's, and remove other chunks if `prune`; returns a summary."""
    for done, batch in _batches(entries, ENTRIES):
        store.put(batch)
        progress(done, len(entries))
    others = _others(store, entries)
    said = f"{len(entries)} chunks written to {store!r}"
    if others and prune:
        store.delete(others)
        said += f", {len(others)} others removed"
    elif others:
        said += f"; {len(others)} others are there, of another base, or gone from this one: --prune removes them"
    return f"{said}; {_counted(store.stats())}"


def _others(store: FalkorDBGraph | Neo4jGraph, entries: Sequence[Entry]) -> list[str]:
    """The ids of chunks that a graph server holds and these entries lack."""
    own = {entry.chunk.id for entry in entries}
    prefix = f"{store.name}/" if isinstance(store, Neo4jGraph) else ""
    rows = store.ask(CypherStatement(_IDS, {"prefix": prefix}))
    ids = (chunk_id(json.loads(f'"{row[0][len(prefix) :]}"')) for row in rows)
    return sorted(one for one in ids if one not in own)


def _elsewhere(entries: Sequence[Entry], reader: RuleReferences) -> tuple[int, list[tuple[str, int]]]:
    """The number of references without a target chunk; and the laws without a chunk, with how many chunks cite each."""
    stated = {link.key for entry in entries for link in entry.links if link.relation in ("is", "defines")}
    keys = (*LAWS, *DOCUMENTS)
    named = (entry.chunk.metadata.get(key) for entry in entries for key in keys)
    own = {reader.laws.canonical(name) for name in named if isinstance(name, str)} | {work_of(key) for key in stated}
    cited = [{link.key for link in entry.links if link.relation == "cites"} - stated for entry in entries]
    numbered = ({work_of(key) for key in some if not key.startswith(("case:", "term:"))} for some in cited)
    laws = Counter(law for works in numbered for law in works - own - {""})
    return len(set().union(*cited)), sorted(laws.items(), key=lambda law: (-law[1], law[0]))


def _say(console: Console, name: str, said: str, kb: KnowledgeBase) -> None:
    references = kb.references()
    count, laws = _elsewhere(references.graph.entries(), references.reader)
    console.print(f"{name}: {said}", highlight=False, markup=False)
    if count:
        console.print(f"{count} of the references lead to nothing that a chunk is", highlight=False)
    shown = ", ".join(f"{law} (named by {count} chunks)" for law, count in laws[:SHOWN])
    if laws:
        more = f" and {len(laws) - SHOWN} more" if len(laws) > SHOWN else ""
        console.print(without_controls(f"laws of which no chunk is: {shown}{more}"), highlight=False, markup=False)

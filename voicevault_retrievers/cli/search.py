"""`voicevault search`: a single query, several queries, or an interactive session."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from voicevault_retrievers.cli import options, render
from voicevault_retrievers.cli.dry_run import rehearse
from voicevault_retrievers.cli.interactive import InteractiveSession
from voicevault_retrievers.cli.progress import bar
from voicevault_retrievers.cli.search_options import SearchOptions, check_exist
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.batch import answer
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.query_file import FileQuery, read_queries
from voicevault_retrievers.rerank.grouping import GroupBy

_EXAMPLES = options.examples(
    "voicevault search 'how is the pump reset' --kb plant --top-k 3 --explain",
    "voicevault search --query 'what is ERR_2043' --query 'which oil' --kb plant --json",
    "voicevault search --queries-file queries.jsonl --kb plant --json",
    "voicevault search 'the pump' --kb plant --where '{\"source_file\": \"manual.md\"}' --dry-run",
    "voicevault search 'the pump' --config search.yaml",
    "voicevault search --interactive --kb plant",
)


@click.command(epilog=_EXAMPLES)
@click.argument("query", required=False)
@click.option("--query", "queries", multiple=True, metavar="TEXT", help="A query; several may be given.")
@click.option(
    "--queries-file",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Queries: a JSON list, JSON Lines, or a query a line; - is the standard input.",
)
@click.option("--interactive", is_flag=True, help="Ask for queries, until Ctrl-D.")
@click.option(
    "--kb", "kbs", required=True, type=options.BasesOption(), metavar="A,B", help="Bases, or an engine's address."
)
@click.option("--top-k", type=click.IntRange(min=0), help="How many results; the preset's number otherwise.")
@click.option("--group-by", metavar="KEY", help="Results are groups: document, for the file, or a metadata key.")
@click.option(
    "--preset",
    help="A preset, or a YAML file; without one keywords and vectors under the default fusion.",
    shell_complete=options.known_presets,
)
@click.option("--ollama", metavar="MODEL", help="A model of an Ollama, where the preset asks a language model.")
@click.option("--openai", metavar="MODEL", help="A model of OpenAI, or of a server that speaks its API.")
@click.option("--base-url", metavar="URL", help="Where that server is, if not where it is usually.")
@click.option("--where", type=options.JsonFilter(), help='A filter as JSON, such as \'{"source_file": "a.pdf"}\'.')
@click.option("--require", type=options.JsonFilter(), help="Access rights, as JSON: what may be found, and counted.")
@click.option("--dry-run", is_flag=True, help="Check it all, say what would be asked, and search nothing.")
@click.option("--explain", is_flag=True, help="Say why each result is there.")
@click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {render.JSON_VERSION}).")
@options.config
@options.root
@options.reporting
def search(
    query: str | None,
    queries: tuple[str, ...],
    queries_file: str | None,
    interactive: bool,
    kbs: tuple[str, ...],
    top_k: int | None,
    group_by: str | None,
    preset: str | None,
    ollama: str | None,
    openai: str | None,
    base_url: str | None,
    where: Mapping[str, Any] | None,
    require: Mapping[str, Any] | None,
    dry_run: bool,
    explain: bool,
    as_json: bool,
    root: Path | None,
) -> None:
    """Ask one or several knowledge bases.

    Of several queries one that fails does not stop the others: it exits with 1 in the end. With --json one query gives
    an object, --queries-file or several give an object a line.
    """
    named = {"ollama": ollama, "openai": openai, "base_url": base_url}
    llm = {name: given for name, given in named.items() if given is not None}
    asking = SearchOptions(kbs, preset, top_k, where, require, root, llm, GroupBy.of(group_by))
    asked = [FileQuery(Query(text)) for text in ((query,) if query is not None else ()) + queries]
    if interactive and (asked or queries_file or dry_run):
        raise ConfigError("--interactive asks for its queries: give none, and no --dry-run")
    if not dry_run:
        check_exist(kbs, root)
    if interactive:
        with asking.opened() as base:
            InteractiveSession(asking, base, explain=explain, as_json=as_json).run()
        return
    if queries_file is not None:
        asked += read_queries(sys.stdin.buffer if queries_file == "-" else queries_file)
    if dry_run:
        rehearse(asking, asked, as_json=as_json)
        return
    if not asked:
        raise ConfigError("give a QUERY, --query, --queries-file or --interactive")
    with asking.opened() as base:
        pipeline = asking.over(base)
        if queries_file is None and len(asked) == 1:
            _one(pipeline, asking, asked[0], explain=explain, as_json=as_json)
        else:
            _many(pipeline, asking, asked, explain=explain, as_json=as_json)


def _one(pipeline: Pipeline, asking: SearchOptions, asked: FileQuery, *, explain: bool, as_json: bool) -> None:
    one = asking.narrowed(asked)
    render.put(pipeline.search(one.query, one.k), asking.shown, explain=explain, as_json=as_json)


def _many(
    pipeline: Pipeline, asking: SearchOptions, asked: Iterable[FileQuery], *, explain: bool, as_json: bool
) -> None:
    """Print each result as soon as it is complete. Exits with 1 where a query failed."""
    given, failed = list(asked), 0
    console, said = render.output(), Console(stderr=True, soft_wrap=True)
    # On a terminal the results themselves show the progress.
    with nullcontext(lambda *_: None) if sys.stdout.isatty() else bar(said, "asking") as progress:
        for done, one in enumerate(given, 1):
            result, error = answer(pipeline.search, asking.narrowed(one), None)
            failed += error is not None
            if as_json:
                data = {**render.as_data(result, asking.shown), "id": one.id, "failed": error is not None}
                click.echo(options.as_json(data, indent=None))
            else:
                render.titled(console, result, failed=error is not None, explain=explain)
            progress(done, len(given))
    if failed:
        said.print(f"{failed} of {len(given)} queries failed", highlight=False)
        raise click.exceptions.Exit(1)

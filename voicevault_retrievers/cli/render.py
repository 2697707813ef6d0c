"""Output of results, as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.answers import header
from voicevault_retrievers.answers.citations import citation_of
from voicevault_retrievers.cli import options
from voicevault_retrievers.core.explanation import explain as explained
from voicevault_retrievers.core.explanation import provenance, told_wordings, wordings
from voicevault_retrievers.core.types import Hit, Result
from voicevault_retrievers.rerank.grouping import copies_of
from voicevault_retrievers.rerank.relevance import is_irrelevant

JSON_VERSION = 1


def as_data(result: Result, kbs: Sequence[str]) -> dict[str, Any]:
    """A result as plain data, with the keys listed here.

    `query`, `wordings` (text, weight, channels), `route`, `kbs`, `hits` (rank, id, kb, text, metadata, score,
    provenance, irrelevant, and `passages` of a group or of a text with several sources), `context`, `citations`,
    `channels_used`, `timings_ms`, `confidence`, `degraded`, `errors`.
    """
    return {
        "version": JSON_VERSION,
        "query": result.query.text,
        "wordings": wordings(result),
        "route": result.route.value if result.route else None,
        "kbs": list(kbs),
        "hits": [
            {**_hit(rank, hit), "irrelevant": is_irrelevant(hit, result.confidence)}
            for rank, hit in enumerate(result.hits, 1)
        ],
        "context": result.context.text,
        "context_tokens": result.context_tokens,
        "citations": [asdict(citation) for citation in result.context.citations],
        "channels_used": list(result.channels_used),
        "timings_ms": {name: seconds * 1e3 for name, seconds in result.timings.items()},
        "confidence": result.confidence,
        "degraded": result.degraded,
        "errors": [str(failure) for failure in result.errors],
    }


def output() -> Console:
    """The console for results; lines are not wrapped where they go to a file or another program."""
    return Console(soft_wrap=not sys.stdout.isatty())


def put(result: Result, kbs: Sequence[str], *, explain: bool, as_json: bool) -> None:
    """Print a result to the standard output."""
    if as_json:
        click.echo(options.as_json(as_data(result, kbs)))
    else:
        show(output(), result, explain=explain)


def titled(console: Console, result: Result, *, failed: bool, explain: bool = False) -> None:
    """Print one of several results below its query; for a failed query only the error."""
    console.print(f"[bold cyan]{escape(without_controls(result.query.text))}[/]", highlight=False)
    if failed:
        console.print(f"[red]failed[/] {escape(without_controls(str(result.errors[0])))}", highlight=False)
    else:
        show(console, result, explain=explain)
    console.print()


def show(console: Console, result: Result, *, explain: bool = False) -> None:
    """Print ranked hits with their sources, how each was found, and what was skipped."""
    if not result.hits:
        console.print("Nothing found.")
    for rank, hit in enumerate(result.hits, 1):
        source = without_controls(header(citation_of(rank, hit, "")))
        doubt = " [red]irrelevant[/]" if is_irrelevant(hit, result.confidence) else ""
        console.print(f"[bold]{rank}. {escape(source)}[/]{doubt} {escape(score_line(hit))}", highlight=False)
        first, *others = hit.passages or (hit,)
        console.print(f"   {escape(excerpt(first.text or first.chunk.text))}", highlight=False)
        copies = copies_of(hit)
        for passage in others:
            own = without_controls(header(citation_of(rank, passage, "")))
            own += "" if passage in copies else f" {excerpt(passage.text or passage.chunk.text)}"
            console.print(f"   + {escape(own)}", highlight=False)
        if explain:
            console.print(escape("\n".join(explained(hit).splitlines()[1:])), highlight=False, style="dim")
    if explain:
        for line in told_wordings(result):
            console.print(escape(without_controls(line)), highlight=False, style="dim")
    for failure in result.errors:
        label = "[red]degraded[/]" if failure.degrades else "[yellow]note[/]"
        console.print(f"{label} {escape(without_controls(str(failure)))}", highlight=False)


def score_line(hit: Hit) -> str:
    """How a hit was found, and the parts of its score, on one line."""
    parts = [
        f"{vote.stage} #{vote.rank or '–'}" + (f" +{vote.contribution:.4f}" if vote.contribution is not None else "")
        for vote in hit.votes
        if vote.stage != "rerank"
    ]
    rerank = hit.vote("rerank")
    scored = "" if rerank is None or rerank.score is None else f"; rerank {rerank.score:+.2f}"
    fused = "" if hit.fused is None else f" = {hit.fused:.4f}"
    return f"{hit.found_by}: {', '.join(parts)}{fused}{scored}"


def excerpt(text: str, length: int = 160) -> str:
    """The beginning of a text on one line."""
    line = " ".join(without_controls(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def metrics_table(rows: dict[str, dict[str, float]]) -> Table:
    """A table with one row per system and one column per metric."""
    table = Table(title="40 questions on the sample documents, judged by page and section")
    names = list(next(iter(rows.values())))
    for column in ("system", *names):
        table.add_column(column, justify="left" if column == "system" else "right")
    for system, values in rows.items():
        table.add_row(system, *(f"{values[name]:.3f}" for name in names))
    return table


def _hit(rank: int, hit: Hit) -> dict[str, Any]:
    told = {
        "rank": rank,
        "id": hit.chunk.id,
        "kb": hit.chunk.kb,
        "text": hit.text,
        "metadata": dict(hit.chunk.metadata),
        "score": hit.score,
        "provenance": provenance(hit),
    }
    return told | ({"passages": [_passage(passage) for passage in hit.passages]} if hit.passages else {})


def _passage(hit: Hit) -> dict[str, Any]:
    return {"id": hit.chunk.id, "text": hit.text, "metadata": dict(hit.chunk.metadata), "score": hit.score}

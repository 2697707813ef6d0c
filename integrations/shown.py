"""How the examples print what a search found."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

from voicevault_retrievers import Hit, Result
from voicevault_retrievers.answers import header
from voicevault_retrievers.answers.citations import citation_of


def show_hits(result: Result) -> None:
    """Each hit with its source, how it was found, and at which rank of each channel; then what was left out."""
    for rank, hit in enumerate(result.hits, 1):
        print(f"   {rank}. {source(hit)} {found(hit)}")
    for failure in result.errors:
        print(f"   {'degraded' if failure.degrades else 'note'}: {failure}")


def source(hit: Hit) -> str:
    """The header of a hit: file, page and section."""
    return header(citation_of(1, hit, hit.text))


def found(hit: Hit) -> str:
    """The badge of a hit, and the ranks that channels and rerankers gave it."""
    ranks = [f"{vote.stage} {vote.rank}" for vote in hit.votes if vote.rank is not None]
    return f"{hit.found_by} ({', '.join(ranks)})"

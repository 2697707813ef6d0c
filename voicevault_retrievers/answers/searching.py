"""What the sentences of an answer are searched with, under the filters and rights of the question and its hits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from voicevault_retrievers.core.access_control import found_under
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import scope
from voicevault_retrievers.core.types import Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError, SearchError


class SentenceSearch(NamedTuple):
    """A search as a function of a text, and its async variant, if any; both give a Ranking, or raise SearchError."""

    search: Callable[[str], Ranking]
    asearch: Callable[[str], Awaitable[Ranking]] | None = None


def check_search(search: Any) -> None:
    """Raises ConfigError for what `sentence_search` cannot search."""
    _functions(search)


def sentence_search(search: Any, question: Query, hits: Iterable[Hit], top_k: int) -> SentenceSearch:
    """The search of an answer's sentences: for the `top_k` best chunks that the question and its hits permit.

    `search` is a channel, has `hybrid_ranking` or `hybrid_search`, or is a function, sync or async, of a text and
    `top_k`; each returns a Ranking, or hits, of which the order counts. All but a function are given the filters and
    rights. Of what any of them finds, only what the rights permit is kept.
    """
    rights = scope(question.require, *(hit.require for hit in hits))
    run, arun, is_function = _functions(search)

    def asked(text: str) -> str | Query:
        if is_function:
            return text
        return Query(text, where=question.where, require=rights, reference_date=question.reference_date)

    def found(outcome: Any) -> Ranking:
        if isinstance(outcome, list | tuple) and all(isinstance(hit, Hit) for hit in outcome):
            first = {hit.id: hit for hit in reversed(outcome)}
            outcome = Ranking(tuple(replace(hit, score=None) for hit in outcome if hit is first[hit.id]))
        if not isinstance(outcome, Ranking):
            raise SearchError(f"a search gives a Ranking or a list of hits, not a {type(outcome).__name__}")
        return found_under(outcome, rights)

    async def asearch(text: str) -> Ranking:
        return found(await arun(asked(text), top_k))  # type: ignore[misc]  # used where there is one

    return SentenceSearch(lambda text: found(run(asked(text), top_k)), None if arun is None else asearch)


def _functions(search: Any) -> tuple[Callable[..., Any], Callable[..., Any] | None, bool]:
    """The search, its async variant, and whether these are functions of a text, and not of a Query."""
    if isinstance(search, Channel):
        return search.search, search.asearch, False
    for name in ("hybrid_ranking", "hybrid_search"):
        if callable(run := getattr(search, name, None)):
            return run, getattr(search, f"a{name}", None), False
    if iscoroutinefunction(search):
        return _refused, search, True
    if callable(search):
        return search, None, True
    raise ConfigError(
        "search is a channel, has hybrid_search(query, top_k), or is a function of a text and top_k, not a "
        f"{type(search).__name__}"
    )


def _refused(text: str, top_k: int) -> Any:
    raise SearchError("this search is async alone: answer and check with the async methods")

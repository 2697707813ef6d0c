"""Access rights: whether a search names any, and over what it found, for no channel or stage is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.types import Failure, Query, Ranking
from voicevault_retrievers.errors import AccessError, FilterNotSupportedError

Access: TypeAlias = Literal["optional", "mandatory"]


def admitted(query: Query, access: Access) -> Query:
    """The query; AccessError where it names no access rights and they are mandatory."""
    if access == "mandatory" and query.require is None:
        raise AccessError(
            "this search names no access rights, and they are mandatory here (access: mandatory): say which chunks "
            "whoever asks may see, with require={...}; an empty one permits nothing"
        )
    return query


def permitted(ranking: Ranking, require: Filter | None) -> Ranking:
    """The hits that access rights permit; that there were others is a failure, which does not say how many."""
    if require is None:
        return ranking
    passes = compile_filter(require)
    hits = tuple(hit for hit in ranking if passes(hit.access_metadata))
    if len(hits) == len(ranking):
        return ranking
    return replace(ranking, hits=hits).failing(withheld())


def withheld() -> Failure:
    """That there were hits which access rights do not permit; it does not say how many."""
    error = FilterNotSupportedError(
        "a channel or stage gave chunks that this search's `require` does not permit; they are left out: it must apply "
        "Query.require before it ranks, or raise FilterNotSupportedError"
    )
    return Failure.of("require", error)

"""Checks of access rights: searches name them, and hits satisfy them, whatever channels and stages do."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Literal, TypeAlias

from voicevault_retrievers.core.blocking import Blocked
from voicevault_retrievers.core.filters import NOTHING, Filter, compile_filter, scope
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking
from voicevault_retrievers.errors import AccessError, FilterNotSupportedError

Access: TypeAlias = Literal["optional", "mandatory"]


def admitted(query: Query, access: Access) -> Query:
    """Return the query. Raises AccessError where access rights are mandatory and the query names none."""
    if access == "mandatory" and query.require is None:
        raise AccessError(
            "this search names no access rights, and they are mandatory here (access: mandatory): say which chunks "
            "whoever asks may see, with require={...}; an empty one permits nothing"
        )
    return query


def permitted(ranking: Ranking, require: Filter | None, among: Set[str] | None = None) -> Ranking:
    """The hits that access rights permit; those without an id in `among`, where it is given, stay.

    Where hits were removed, a failure says so, without their number.
    """
    if require is None:
        return ranking
    passes = compile_filter(require)
    hits = tuple(hit for hit in ranking if (among is not None and hit.id not in among) or passes(hit.access_metadata))
    if len(hits) == len(ranking):
        return ranking
    return replace(ranking, hits=hits).failing(withheld())


def found_under(ranking: Ranking, require: Filter | None) -> Ranking:
    """The hits that access rights permit, each with these rights: see `Hit.require`."""
    if require is None:
        return ranking

    def under(hit: Hit) -> Hit:
        return replace(hit, require=require if hit.require is None else scope(hit.require, require))

    ranking = permitted(ranking, require)
    return replace(ranking, hits=tuple(map(under, ranking)))


def with_rights_of(query: Query, ranking: Ranking) -> Query:
    """The query under the access rights of a ranking's hits too, which what a stage adds to them has to pass."""
    rights = [hit.require for hit in ranking if hit.require is not None]
    return replace(query, require=scope(query.require, *rights)) if rights else query


def unblocked(ranking: Ranking, blocked: Blocked | None) -> Ranking:
    """The hits that are not blocked."""
    if not blocked:
        return ranking
    hits = blocked.left(ranking.hits)
    return ranking if hits is ranking.hits else replace(ranking, hits=tuple(hits))


def empty_rights(query: Query) -> tuple[Failure, ...]:
    """The note that a query's access rights are empty: nothing was searched, whatever the bases hold."""
    said = "the access rights (require) are empty: they permit nothing, whatever is asked"
    return (Failure("require", "EmptyRights", said, degrades=False),) if query.require == NOTHING else ()


_WITHHELD = (
    "a channel or stage gave chunks that this search's `require` does not permit; they are left out: it must apply "
    "Query.require before it ranks, or raise FilterNotSupportedError"
)


def withheld(said: str = _WITHHELD) -> Failure:
    """The failure that reports hits that access rights do not permit; it does not say how many."""
    return Failure.of("require", FilterNotSupportedError(said))

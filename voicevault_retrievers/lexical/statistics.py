"""Which chunks BM25 counts: the values of the option `statistics` of every keyword channel."""

from __future__ import annotations

from typing import Literal, TypeAlias

from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.errors import ConfigError, unknown

Statistics: TypeAlias = Literal["exact", "filtered", "engine"]
"""Where the document frequencies and the lengths of a keyword search come from.

"exact" counts every chunk that `Query.require` permits: all chunks where there are no access rights. "filtered" counts
those that also pass `Query.where`. "engine" uses what an engine keeps itself, which is fast, approximate, and counts
chunks that are not permitted too. None is "exact" in knowledge bases and for queries with `require`, else "engine"
where an engine keeps statistics.
"""

STATISTICS: tuple[Statistics, ...] = ("exact", "filtered", "engine")


def statistics_of(value: object, *, engine: bool) -> Statistics | None:
    """The option's value, checked; `engine` says whether the channel searches an engine's collection."""
    if value is None:
        return None
    if value == "engine" and not engine:
        raise ConfigError('statistics="engine" is for collections of engines: a knowledge base counts exactly')
    found = next((known for known in STATISTICS if value == known), None)
    if found is None:
        raise unknown("statistics", value, STATISTICS if engine else STATISTICS[:2])
    return found


def counting_of(where: Filter | None, require: Filter | None, filtered: bool) -> Filter | None:
    """The filter of the chunks that count in exact statistics; None for all."""
    return both(require, where) if filtered else require

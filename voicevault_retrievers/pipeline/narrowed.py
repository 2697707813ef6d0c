"""A pipeline's search as a channel of another pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from voicevault_retrievers.core.access_control import Access, admitted, found_under
from voicevault_retrievers.core.channel import Channel, Over, Through
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.filters import Filter, both, scope
from voicevault_retrievers.core.types import Failure, Query, Ranking


class HasFilters(Protocol):
    """What has filters, such as a retriever, whose owner may set others."""

    @property
    def where(self) -> Filter | None: ...
    @property
    def require(self) -> Filter | None: ...


class FixedFilters(NamedTuple):
    """FixedFilters that stay."""

    where: Filter | None
    require: Filter | None


class Narrowed(Through, Over):
    """A channel under further filters, as they are at each search, and with notes that each of its rankings has.

    See `Pipeline.narrowed`.
    """

    def __init__(
        self, below: Channel, filters: HasFilters, *, access: Access = "optional", notes: Sequence[Failure] = ()
    ) -> None:
        super().__init__(below)
        self.filters = filters
        self.access = access
        self.notes = notes

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        asked = self.asked(query)
        ranking = yield from self.below.plan(asked, k)
        return found_under(ranking, asked.require).failing(*self.notes)

    def asked(self, query: Query) -> Query:
        where, require = both(self.filters.where, query.where), scope(self.filters.require, query.require)
        return admitted(replace(query, where=where, require=require), self.access)

    def __repr__(self) -> str:
        narrowed = both(self.filters.require, self.filters.where)
        return f"{self.below!r} where {narrowed}" if narrowed else repr(self.below)

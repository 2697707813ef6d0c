"""A pipeline's search as a channel of another pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voicevault_retrievers.core.access_control import Access, admitted, found_under
from voicevault_retrievers.core.channel import Channel, Over, Through
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.filters import Filter, both, scope
from voicevault_retrievers.core.types import Failure, Query, Ranking


class Narrowed(Through, Over):
    """A channel under further filters, and with notes that each of its rankings has; see `Pipeline.narrowed`."""

    def __init__(
        self,
        below: Channel,
        where: Filter | None = None,
        require: Filter | None = None,
        *,
        access: Access = "optional",
        notes: Sequence[Failure] = (),
    ) -> None:
        super().__init__(below)
        self.where = where
        self.require = require
        self.access = access
        self.notes = notes

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        asked = self.asked(query)
        ranking = yield from self.below.plan(asked, k)
        return found_under(ranking, asked.require).failing(*self.notes)

    def asked(self, query: Query) -> Query:
        where, require = both(self.where, query.where), scope(self.require, query.require)
        return admitted(replace(query, where=where, require=require), self.access)

    def __repr__(self) -> str:
        narrowed = both(self.require, self.where)
        return f"{self.below!r} where {narrowed}" if narrowed else repr(self.below)

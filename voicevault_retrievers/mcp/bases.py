"""The knowledge bases of a server: opened at first use, and searched at their present commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import TypeVar

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Call, Plan, value_of
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.types import Hit, Query, Result
from voicevault_retrievers.engines.addresses import connect, open_bases
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import is_setup_error, told
from voicevault_retrievers.mcp.configuration import Offer
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.names import locate
from voicevault_retrievers.store.reload import Present, Remade, state_of

T = TypeVar("T")

TIMEOUT = 55.0
"""The time limit of a search in seconds, for presets without one: most clients give up after a minute."""

_ABSENT = ("empty", "missing")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundInBases:
    """The result of a search: hits, each with its base and its own id there, and the failures.

    `confident` is false where the preset judges that no hit is likely relevant.
    """

    hits: tuple[Hit, ...] = ()
    degraded: tuple[str, ...] = ()
    confident: bool = True


class Library:
    """Opens bases and builds pipelines over them; shared by clients, as it holds no access rights."""

    def __init__(self) -> None:
        self._pipelines: dict[Hashable, Remade[Pipeline]] = {}
        self._sources: dict[Hashable, Present | Engine] = {}
        self._mutex = Mutex()

    def open(self, offers: Iterable[Offer]) -> None:
        """Open local bases in advance, so that errors are raised at once; a missing base is logged.

        Raises what `pipeline` raises.
        """
        for group in _grouped(offer for offer in offers if offer.address is None):
            for note in self.pipeline(group).notes:
                _LOG.warning("%s", note.message)

    async def search(
        self,
        offers: Sequence[Offer],
        query: str,
        *,
        where: Filter | None = None,
        k: int | None = None,
        observe: AsyncObserver | None = None,
    ) -> FoundInBases:
        """Search bases: those with the same settings as one collection, with the rankings of the groups interleaved.

        A group that fails is left out and reported. If all fail, the first error is raised; set-up errors are always
        raised.
        """
        if not query.strip():
            return FoundInBases()
        groups = _grouped(offers)
        asked = (self._searched(group, query, where, k, observe) for group in groups)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        results = [one for one in outcomes if not isinstance(one, BaseException)]
        failed = [(group, one) for group, one in zip(groups, outcomes, strict=True) if isinstance(one, BaseException)]
        for group, error in failed:
            if not results or not isinstance(error, Exception) or is_setup_error(error):
                raise error
            _LOG.warning("%s was not searched: %s", ", ".join(offer.name for offer in group), told(error))
            results.append(FoundInBases(degraded=tuple(f"{offer.name}: {type(error).__name__}" for offer in group)))
        hits = [hit for hit in chain(*zip_longest(*(one.hits for one in results))) if hit is not None]
        limit = k or max((len(one.hits) for one in results), default=0)
        return FoundInBases(
            tuple(hits[:limit]),
            tuple(dict.fromkeys(chain(*(one.degraded for one in results)))),
            any(one.confident for one in results if one.hits) or not hits,
        )

    async def _searched(
        self, group: Sequence[Offer], query: str, where: Filter | None, k: int | None, observe: AsyncObserver | None
    ) -> FoundInBases:
        first = group[0]
        pipeline = await in_thread("open", partial(self.pipeline, group))
        asked = Query(query, where=both(first.where, where), require=first.require)
        result = await pipeline.asearch(asked, k or first.k, observe=observe)
        return FoundInBases(
            tuple(_own(hit, group) for hit in pipeline.read(result)), _told(result), result.confidence == "ok"
        )

    def pipeline(self, group: Sequence[Offer]) -> Pipeline:
        """The pipeline over the bases of one group at their present commits; raises what opening them raises."""
        first, names = group[0], tuple(offer.name for offer in group)
        kept = self._pipelines.setdefault((first.address, first.root, first.preset, names), Remade())
        bases = [self.base(offer) for offer in group]

        def made() -> Pipeline:
            named = (
                locate(one.name, one.root) if base is None else base for one, base in zip(group, bases, strict=True)
            )
            pipeline = load_preset(first.preset).over(open_bases(named))
            return pipeline.within(pipeline.timeout or TIMEOUT)

        return kept.now([base.recipe if isinstance(base, Engine) else state_of(base) for base in bases], made)

    def base(self, offer: Offer) -> KnowledgeBase | Engine | None:
        """The base of an offer at its present commit; None where it does not exist yet."""
        source = self._source(offer)
        if isinstance(source, Present):
            return source.base()
        source.reload()
        return source

    def _source(self, offer: Offer) -> Present | Engine:
        key = offer.address, offer.root, offer.name
        with self._mutex:
            if key not in self._sources:
                made = connect(offer.address) if offer.address else Present(locate(offer.name, offer.root))
                self._sources[key] = made
            return self._sources[key]


async def in_thread(name: str, function: Callable[[], T]) -> T:
    """Call a function that reads files or a server in a worker thread, without blocking the event loop."""

    def plan() -> Plan[T]:
        (outcome,) = yield (Call(name, function),)
        returned: T = value_of(outcome)
        return returned

    return await aexecute(plan())


def _grouped(offers: Iterable[Offer]) -> list[list[Offer]]:
    groups: dict[Hashable, list[Offer]] = {}
    for offer in offers:
        groups.setdefault(offer.group, []).append(offer)
    return list(groups.values())


def _own(hit: Hit, group: Sequence[Offer]) -> Hit:
    """The hit with its base's name and its own id there, so that a source is the same whichever bases are searched."""
    several = len(group) > 1
    kb = hit.chunk.kb if several else group[0].name
    own = hit.id.removeprefix(f"{kb}:") if several else hit.id
    return replace(hit, chunk=replace(hit.chunk, id=own, kb=kb))


def _told(result: Result) -> tuple[str, ...]:
    """The failures without the errors' texts, which name folders and addresses and belong only in the log."""
    failures = [one for one in result.errors if one.degrades or one.kind in _ABSENT]
    return tuple(dict.fromkeys(f"{one.stage}: {one.kind}" for one in failures))

"""Runs of plans: which calls are to be made now, their deadlines, and where their outcomes go.

The drivers make and await the calls, see `driver`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableSequence, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.core.execution.event_loop import LoopBridge
from voicevault_retrievers.core.execution.plan import (
    MAX_ABANDONED,
    Call,
    CircuitBreaker,
    Plan,
    Span,
    Step,
    outcome_of,
    value_of,
)
from voicevault_retrievers.core.execution.workers import WORKERS
from voicevault_retrievers.errors import SearchNotAvailableError, SearchTimeoutError

if TYPE_CHECKING:
    import asyncio

_group: ContextVar[Hashable] = ContextVar("voicevault_group", default=None)
"""The worker group of the call whose coroutine is running."""

LONGEST_WAIT = 3600.0
"""The longest wait of a driver in seconds; a lock cannot wait for any length."""
ABREAST = 4
"""The most runs that wait for remote calls at a time: waiting behind other runs would use up a call's deadline."""


def ignore(*values: object) -> None:
    """Do nothing."""


@dataclass(eq=False)
class Ticket:
    """A started call of a run, with its deadline (none where it is inline) and the receivers of its outcome."""

    run: Run
    call: Call
    deliver: list[Callable[[Any], None]]
    began: float
    deadline: float
    abandon: Callable[[], object] = ignore
    """Called at the deadline. A call that keeps running counts against its breaker."""
    drop: Callable[[], object] = ignore
    """Called when the outcome is no longer wanted. The call may be ended."""
    outcome: Any = None
    """What the call ended with, once it is no longer pending."""

    @property
    def local(self) -> bool:
        """Whether the call waits for nothing remote, has no coroutine, and has no deadline."""
        return self.call.local and self.call.coroutine is None and math.isinf(self.deadline)

    def end(self, outcome: Any) -> list[Callable[[Any], None]]:
        """Keep the outcome, and return its receivers. What refers back to the ticket is not kept."""
        deliver, self.deliver = self.deliver, []
        self.outcome, self.abandon, self.drop = outcome, ignore, ignore
        return deliver

    def in_thread(self, done: Callable[[Any], None], bridge: LoopBridge | None = None) -> None:
        breaker = self.call.breaker or CircuitBreaker()
        function = self.call.run if bridge is None else partial(bridge.run, self.call.run)
        task = WORKERS.submit(function, done, self._group())

        def abandon() -> None:
            breaker.count(1)
            if not WORKERS.abandon(task, release=lambda: breaker.count(-1)):
                breaker.count(-1)

        self.abandon = abandon
        # Frees the worker of a call whose run has ended, which may hang.
        self.drop = partial(WORKERS.abandon, task, release=ignore)

    def _group(self) -> Hashable:
        """The worker group of the call: its breaker, else the enclosing call's group, else its name."""
        return self.call.breaker or _group.get() or self.call.name

    def on_loop(self, loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[tuple[Ticket, Any] | None]) -> None:
        async def awaited() -> None:
            _group.set(self._group())
            outcome: Any
            try:
                outcome = await self.call.arun()
            except BaseException as error:  # noqa: BLE001 - an outcome; `finish` raises a BaseException
                outcome = error
            inbox.put_nowait((self, outcome))

        self.abandon = self.drop = loop.create_task(awaited()).cancel


class Ready(NamedTuple):
    """Calls to be made: the local ones, and the others."""

    local: list[Ticket]
    others: list[Ticket]

    @property
    def computes(self) -> bool:
        """Whether all calls only compute."""
        return bool(self.local) and not self.others and all(ticket.call.computes for ticket in self.local)


class Runs:
    """Runs that are driven together, so that calls of the same breaker can be made at once.

    With `awaited` the driver makes inline calls too: they are recorded on its event loop.
    """

    def __init__(self, runs: Sequence[Run], *, awaited: bool = False) -> None:
        self._runs = runs
        self._awaited = awaited
        self._left = Ready([], [])
        self._lock = RLock()
        self._computing = self._closed = False

    @property
    def done(self) -> bool:
        return all(run.done for run in self._runs)

    @property
    def outcomes(self) -> list[Any]:
        return [run.outcome for run in self._runs]

    def ready(self) -> Ready:
        """The calls to be made now."""
        ready, self._left = self._left, Ready([], [])
        waiting = sum(bool(run.pending) for run in self._runs)
        for run in self._runs:
            if run.asks_others and not run.pending:
                if waiting >= ABREAST:
                    continue
                waiting += 1
            for ticket in run.start(at_home=not self._computing, awaited=self._awaited and not self._computing):
                (ready.local if ticket.local else ready.others).append(ticket)
        return ready

    def together(self, tickets: Sequence[Ticket]) -> Iterable[Sequence[Ticket]]:
        """Groups of tickets whose calls can be made at once: over several searches, the calls of one channel."""
        if len(self._runs) == 1:
            return [(ticket,) for ticket in tickets]
        groups: defaultdict[Hashable, list[Ticket]] = defaultdict(list)
        for ticket in tickets:
            groups[ticket if ticket.call.each is None else ticket.call.breaker].append(ticket)
        return groups.values()

    def compute(self, ready: Ready, watch: Callable[[], None] | None = None) -> None:
        """Make calls that only compute, and the calls that follow, in this thread, until other calls are to be made.

        `watch` is called after each round. Meanwhile no other thread may touch the runs but to close them, after which
        no further call is made.
        """
        with self._lock:
            self._computing = not self._closed
        try:
            with BATON.held():
                while ready.computes:
                    for tickets in self.together(ready.local):
                        if self._closed:
                            return
                        finish(tickets)
                    if watch is not None:
                        with BATON.aside():
                            watch()
                    ready = self.ready()
            self._left = ready
        finally:
            with self._lock:
                late, self._computing = self._computing and self._closed, False
            if late:
                self._shut()

    def waits_for_nothing_but(self, ready: Ready) -> bool:
        """Whether the given calls are the only ones that have not ended."""
        return sum(len(run.pending) for run in self._runs) == len(ready.local) + len(ready.others)

    def patience(self) -> float | None:
        """Seconds until the next deadline; None when there is none."""
        first = min((ticket.deadline for run in self._runs for ticket in run.pending), default=math.inf)
        return None if math.isinf(first) else min(max(0.0, first - time.monotonic()), LONGEST_WAIT)

    def expire(self) -> list[tuple[Call, SearchTimeoutError]]:
        """Abandon every call past its deadline. Returns these calls with their errors."""
        now = time.monotonic()
        late = [(ticket, _late(ticket)) for run in self._runs for ticket in run.pending if ticket.deadline <= now]
        for ticket, error in late:
            ticket.abandon()
            ticket.run.finish(ticket, error)
        return [(ticket.call, error) for ticket, error in late]

    def news(self) -> list[tuple[Span, Any]]:
        """The calls that have ended since the last request for news, with their outcomes."""
        return [one for run in self._runs for one in run.news()]

    def close(self) -> None:
        """Drop pending calls and close the generators, the latest first, once `compute` has ended."""
        with self._lock:
            self._closed = True
            if self._computing:
                return
        self._shut()

    def _shut(self) -> None:
        for run in self._runs:
            run.shut()


class Run:
    """Advances the generators of a plan and keeps the deadlines. The drivers make and await the calls."""

    def __init__(
        self, plan: Plan[Any], timeout: float | None, spans: MutableSequence[Span] | None, *, watched: bool = False
    ) -> None:
        self.done = False
        self.outcome: Any = None
        self._began = time.monotonic()
        self._end = math.inf if timeout is None else self._began + timeout
        self._spans = spans
        self._news: list[tuple[Span, Any]] | None = [] if watched else None
        self._queued: list[tuple[Call, Callable[[Any], None]]] = []
        self.pending: dict[Ticket, None] = {}
        self._asked: dict[Hashable, Ticket] = {}
        self._deadlines: dict[CircuitBreaker, float] = {}
        self._plans: list[Plan[Any]] = []
        self._begin(plan, self._finish)

    @property
    def asks_others(self) -> bool:
        """Whether a queued call may wait for something."""
        return any(not (call.local or call.inline) for call, _ in self._queued)

    def start(self, *, at_home: bool, awaited: bool = False) -> Iterator[Ticket]:
        """Yield the calls to be made now. Repeated calls, and unless `awaited` inline and refused ones, are settled."""
        kept: list[tuple[Call, Callable[[Any], None]]] = []
        while self._queued:
            call, deliver = self._queued.pop(0)
            if call.at_home and not at_home:
                kept.append((call, deliver))
            elif call.key is not None and (earlier := self._asked.get(call.key)) is not None:
                if earlier in self.pending:
                    earlier.deliver.append(deliver)
                else:
                    deliver(earlier.outcome)
            else:
                ticket = self._ticket(call, deliver)
                if (refusal := self._refusal(ticket)) is not None:
                    ticket.call = replace(call, function=partial(value_of, refusal), coroutine=None, inline=True)
                if ticket.call.inline:
                    ticket.deadline = math.inf
                if ticket.call.inline and not awaited:
                    self.finish(ticket, outcome_of(ticket.call.run))
                else:
                    yield ticket
        self._queued = kept

    def finish(self, ticket: Ticket, outcome: Any) -> None:
        """Deliver an outcome to the plans that wait for it. The outcome of an abandoned call is dropped."""
        if ticket not in self.pending:
            return
        del self.pending[ticket]
        if _is_cancelled(outcome):  # the call cancelled itself; the search goes on
            outcome = SearchNotAvailableError(f"{ticket.call.name} was cancelled")
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            raise outcome
        self._note(ticket, outcome)
        for deliver in ticket.end(outcome):
            deliver(outcome)

    def news(self) -> list[tuple[Span, Any]]:
        """The calls that have ended since the last request for news, with their outcomes."""
        latest, self._news = self._news or [], []
        return latest

    def _note(self, ticket: Ticket, outcome: Any) -> None:
        if (self._spans is None and self._news is None) or ticket.call.at_home or ticket.call.silent:
            return
        call, error = ticket.call, outcome if isinstance(outcome, Exception) else None
        query = outcome if call.kind == "rewriter" and error is None else None
        seconds, started = time.monotonic() - ticket.began, ticket.began - self._began
        span = Span(call.name, call.kind, seconds, error, call.texts, call.k, query, started)
        if self._spans is not None:
            self._spans.append(span)
        if self._news is not None:
            self._news.append((span, outcome))

    def shut(self) -> None:
        """Drop all calls and close the generators, the latest first."""
        for ticket in self.pending:
            ticket.drop()
            ticket.end(None)
        self.pending.clear()
        self._asked.clear()
        for plan in reversed(self._plans):
            plan.close()

    def _ticket(self, call: Call, deliver: Callable[[Any], None]) -> Ticket:
        now = time.monotonic()
        own = math.inf if call.timeout is None else now + call.timeout
        own = own if call.breaker is None else self._deadlines.setdefault(call.breaker, own)
        ticket = Ticket(self, call, [deliver], now, min(own, self._end))
        self.pending[ticket] = None
        if call.key is not None:
            self._asked[call.key] = ticket
        return ticket

    def _refusal(self, ticket: Ticket) -> Exception | None:
        if ticket.call.inline:
            return None
        if ticket.call.breaker is not None and ticket.call.breaker.is_open:
            return SearchNotAvailableError(
                f"{ticket.call.name} has {MAX_ABANDONED} calls that never ended; it is skipped until one of them does"
            )
        return _late(ticket) if ticket.deadline <= ticket.began else None

    def _begin(self, plan: Plan[Any], deliver: Callable[[Any], None]) -> None:
        self._plans.append(plan)
        self._advance(plan, lambda: next(plan), deliver)

    def _advance(self, plan: Plan[Any], resume: Callable[[], tuple[Step, ...]], deliver: Callable[[Any], None]) -> None:
        try:
            steps = resume()
            while not steps:
                steps = plan.send([])
        except StopIteration as stop:
            self._plans.remove(plan)
            deliver(stop.value)
        except Exception as error:  # noqa: BLE001 - an outcome: the parent plan decides how to handle it
            self._plans.remove(plan)
            deliver(error)
        else:
            self._await(plan, steps, deliver)

    def _await(self, plan: Plan[Any], steps: Sequence[Step], deliver: Callable[[Any], None]) -> None:
        outcomes: list[Any] = [None] * len(steps)
        missing = len(steps)

        def arrived(at: int, outcome: Any) -> None:
            nonlocal missing
            outcomes[at] = outcome
            missing -= 1
            if not missing:
                self._advance(plan, lambda: plan.send(outcomes), deliver)

        for at, step in enumerate(steps):
            receive = _bound(arrived, at)
            if isinstance(step, Call):
                self._queued.append((step, receive))
            else:
                self._begin(step, receive)

    def _finish(self, outcome: Any) -> None:
        self.outcome, self.done = outcome, True


def _bound(receive: Callable[[int, Any], None], at: int) -> Callable[[Any], None]:
    return lambda outcome: receive(at, outcome)


def finish(tickets: Sequence[Ticket]) -> None:
    """Make calls that can be made at once, and deliver their outcomes."""
    for ticket, outcome in zip(tickets, outcomes_of(tickets), strict=True):
        ticket.run.finish(ticket, outcome)


def outcomes_of(tickets: Sequence[Ticket]) -> Sequence[Any]:
    """The outcomes of calls that can be made at once. Where the joint call fails, each call is made alone."""
    each = tickets[0].call.each
    if each is not None and len(tickets) > 1:
        outcomes = outcome_of(partial(each, [ticket.call.argument for ticket in tickets]))
        if not isinstance(outcomes, Exception):
            return list(outcomes)
    return [outcome_of(ticket.call.run) for ticket in tickets]


def _is_cancelled(outcome: Any) -> bool:
    # Without asyncio loaded, or while another thread imports it, nothing can have been cancelled.
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", ())
    return isinstance(outcome, cancelled)


def _late(ticket: Ticket) -> SearchTimeoutError:
    allowed = ticket.call.timeout
    limit = "its deadline" if allowed is None else f"its {allowed:g} s"
    return SearchTimeoutError(f"{ticket.call.name} did not answer within {limit}")

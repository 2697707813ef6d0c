"""Runs plans: generators that say what to call, driven synchronously or on an event loop.

See `plan` for what a plan yields and receives. The sync and the async driver share `Runs`, so both give the same
result. Only calls that are not inline leave the caller's thread. Under an event loop, plans leave it too while they
only compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.core.execution.event_loop import LoopBridge
from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, Plan, Span, value_of
from voicevault_retrievers.core.execution.recording import aabandoned, abandoned
from voicevault_retrievers.core.execution.run import Ready, Run, Runs, Ticket, finish, outcomes_of
from voicevault_retrievers.core.execution.workers import COMPUTING, WORKERS
from voicevault_retrievers.core.tracing import RECORDER

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def execute(
    plan: Plan[T],
    *,
    timeout: float | None = None,
    spans: MutableSequence[Span] | None = None,
    observe: Observer | None = None,
) -> T:
    """Run a plan to its end, in this thread and worker threads; calls still running after `timeout` seconds time out.

    `spans` collects the calls. `observe` receives each call and its outcome as it ends, in this thread.
    """
    (outcome,) = _drive(Runs([Run(plan, timeout, spans, watched=observe is not None)]), observe)
    result: T = value_of(outcome)
    return result


def execute_all(plans: Iterable[tuple[Plan[Any], MutableSequence[Span]]], *, timeout: float | None = None) -> list[Any]:
    """Run plans together, each with its own spans. Returns for each plan its value, or the exception that it raised."""
    return _drive(Runs([Run(plan, timeout, spans) for plan, spans in plans]), None)


def _drive(runs: Runs, observe: Observer | None) -> list[Any]:
    inbox: SimpleQueue[tuple[Ticket, Any]] = SimpleQueue()

    def tell() -> None:
        for span, outcome in runs.news():
            if observe is not None:
                observe(span, outcome)

    try:
        while True:
            ready = runs.ready()
            if ready.computes:
                runs.compute(ready, None if observe is None else tell)
                continue
            for ticket in ready.others:
                ticket.in_thread(_paired(ticket, inbox.put))
            for tickets in runs.together(ready.local):
                finish(tickets)
            tell()
            if runs.done:
                return runs.outcomes
            if not ready.local:  # the outcomes of local calls may have queued further calls
                _await(runs, inbox)
    finally:
        runs.close()


def _await(runs: Runs, inbox: SimpleQueue[tuple[Ticket, Any]]) -> None:
    """Wait for the next outcome or deadline."""
    try:
        with BATON.aside():
            ticket, outcome = inbox.get(timeout=runs.patience())
    except Empty:
        abandoned(runs.expire())
    else:
        ticket.run.finish(ticket, outcome)


async def aexecute(
    plan: Plan[T],
    *,
    timeout: float | None = None,
    spans: MutableSequence[Span] | None = None,
    observe: AsyncObserver | None = None,
) -> T:
    """`execute` on the running event loop, which only inline calls block."""
    run = Run(plan, timeout, spans, watched=observe is not None)
    (outcome,) = await _adrive(Runs([run], awaited=RECORDER.get() is not None), observe)
    result: T = value_of(outcome)
    return result


async def aexecute_all(
    plans: Iterable[tuple[Plan[Any], MutableSequence[Span]]], *, timeout: float | None = None
) -> list[Any]:
    """`execute_all` on the running event loop."""
    return await _adrive(Runs([Run(plan, timeout, spans) for plan, spans in plans]), None)


async def _adrive(runs: Runs, observe: AsyncObserver | None) -> list[Any]:
    import asyncio  # takes a third of the package's import time, and is loaded where a loop runs

    loop = asyncio.get_running_loop()
    bridge = LoopBridge(loop)
    inbox: asyncio.Queue[tuple[Ticket, Any] | None] = asyncio.Queue()

    def from_thread(arrived: tuple[Ticket, Any]) -> None:
        _call_soon(loop, inbox.put_nowait, arrived)

    try:
        while True:
            ready = runs.ready()
            if ready.computes and runs.waits_for_nothing_but(ready):
                await _aside(runs, ready, loop, bridge, observe)
                continue
            _in_one_thread(ready.local, list(runs.together(ready.local)), from_thread, bridge)
            for ticket in ready.others:
                if ticket.call.coroutine is not None or ticket.call.inline:
                    ticket.on_loop(loop, inbox)
                else:
                    ticket.in_thread(_paired(ticket, from_thread), bridge)
            if observe is not None:
                for span, outcome in runs.news():
                    await observe(span, outcome)
            if runs.done:
                return runs.outcomes
            arrived = await _arrival(loop, inbox, runs.patience())
            if arrived is None:
                await aabandoned(runs.expire())
            else:
                ticket, outcome = arrived
                ticket.run.finish(ticket, outcome)
    finally:
        runs.close()
        bridge.close()


async def _aside(
    runs: Runs, ready: Ready, loop: asyncio.AbstractEventLoop, bridge: LoopBridge, observe: AsyncObserver | None
) -> None:
    """Run in a worker thread all calls that only compute.

    Context variables that plans set there are set here too.
    """
    import asyncio

    told: asyncio.Queue[Any] = asyncio.Queue()
    tell = None if observe is None else lambda: _call_soon(loop, told.put_nowait, runs.news())

    def compute() -> tuple[tuple[ContextVar[Any], Any], ...]:
        before = copy_context()
        runs.compute(ready, tell)
        return tuple((name, value) for name, value in copy_context().items() if before.get(name, before) is not value)

    task = COMPUTING.submit(partial(bridge.run, compute), partial(_call_soon, loop, told.put_nowait), "computing")
    try:
        while isinstance(news := await told.get(), list):
            for span, outcome in news:
                if observe is not None:
                    await observe(span, outcome)
    except BaseException:
        COMPUTING.drop(task)
        raise
    if isinstance(news, BaseException):
        raise news
    for name, value in news:
        name.set(value)


async def _arrival(
    loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[tuple[Ticket, Any] | None], patience: float | None
) -> tuple[Ticket, Any] | None:
    """The next outcome; None where none arrives within `patience` seconds."""
    alarm = None if patience is None else loop.call_later(patience, inbox.put_nowait, None)
    try:
        return await inbox.get()
    finally:
        if alarm is not None:
            alarm.cancel()


def _in_one_thread(
    tickets: Sequence[Ticket],
    groups: Sequence[Sequence[Ticket]],
    deliver: Callable[[tuple[Ticket, Any]], None],
    bridge: LoopBridge,
) -> None:
    """Make calls in one worker thread, one group after the other; a group is made at once.

    Groups that have not begun when all their callers have given up are never made.
    """
    if not tickets:
        return
    wanted = True

    def run() -> None:
        for group in groups:
            if wanted:
                for one in zip(group, bridge.run(partial(outcomes_of, group)), strict=True):
                    deliver(one)

    def drop() -> None:
        nonlocal wanted
        wanted = False
        workers.drop(task)

    def ended(outcome: Any) -> None:
        for ticket in tickets if isinstance(outcome, BaseException) else ():
            deliver((ticket, outcome))

    workers = COMPUTING if all(ticket.call.computes for ticket in tickets) else WORKERS
    task = workers.submit(run, ended, "local")
    for ticket in tickets:
        ticket.abandon = ticket.drop = drop


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[Any], object], value: Any) -> None:
    """Have the loop call a function. Does nothing where the loop has closed, as nobody waits for the outcome."""
    try:
        loop.call_soon_threadsafe(function, value)
    except RuntimeError:
        return


def _paired(ticket: Ticket, put: Callable[[tuple[Ticket, Any]], None]) -> Callable[[Any], None]:
    return lambda outcome: put((ticket, outcome))

"""Requests to a server or store as steps, which a synchronous and an asynchronous client share.

A generator yields a request or a `Compute`, receives the answer or has the error thrown into it, and returns the
result. So each operation is written once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from voicevault_retrievers.core.execution import plan
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import aoutcome_of, outcome_of

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
Steps: TypeAlias = Generator[Any, Any, T]


@dataclass(frozen=True, eq=False)
class Compute:
    """A local computation, such as embedding texts; an event loop runs it in a worker thread."""

    function: Callable[[], Any]


def asking(function: Callable[[], T]) -> Steps[T]:
    """A single step: a function that the client calls."""
    result: T = yield function
    return result


def blocking(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Steps[T]]:
    """A method that blocks as a method of one step: the client calls it, under an event loop in a worker thread."""

    @wraps(method)
    def steps(self: S, /, *arguments: P.args, **options: P.kwargs) -> Steps[T]:
        return asking(partial(method, self, *arguments, **options))

    return steps


def run(steps: Steps[T], ask: Callable[[Any], Any]) -> T:
    """Run the steps, answering each request with `ask`. The generator is closed when the run ends early."""
    outcome: Any = None
    with closing(steps):
        while True:
            try:
                asked = _resumed(steps, outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = outcome_of(asked.function if isinstance(asked, Compute) else partial(ask, asked))


async def arun(steps: Steps[T], ask: Callable[[Any], Awaitable[Any]]) -> T:
    """`run` on the running event loop."""
    outcome: Any = None
    with closing(steps):
        while True:
            try:
                asked = _resumed(steps, outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = await aoutcome_of(_answer(asked, ask))


def _resumed(steps: Steps[Any], outcome: Any) -> Any:
    """The next request. Throws an outcome that is an error into the steps, which raise it unless they handle it."""
    return steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)


async def _answer(asked: Any, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    return await (in_thread(asked.function) if isinstance(asked, Compute) else ask(asked))


async def in_thread(function: Callable[[], T]) -> T:
    """The value of a function that runs outside the event loop."""
    return await aexecute(plan.in_thread("engine", function))

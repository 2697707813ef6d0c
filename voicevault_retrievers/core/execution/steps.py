"""What is asked of a server or a store, as steps that a synchronous and an asynchronous client take alike.

A generator yields what is to be asked, or a `Compute`, and is sent the answer, or thrown the error; what it returns is
the result. So each operation is written once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from voicevault_retrievers.core.execution import plan
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import aoutcome_of, outcome_of

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]


@dataclass(frozen=True, eq=False)
class Compute:
    """What is computed here, such as vectors of texts: an event loop has it done in a worker thread."""

    function: Callable[[], Any]


def asking(function: Callable[[], T]) -> Steps[T]:
    """One step: a function that the client calls."""
    result: T = yield function
    return result


def run(steps: Steps[T], ask: Callable[[Any], Any]) -> T:
    """Take the steps, asking with `ask`; steps that are broken off are closed."""
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
    """What is to be asked next; the steps get an error where they asked, and raise one that they do not expect."""
    return steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)


async def _answer(asked: Any, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    return await (in_thread(asked.function) if isinstance(asked, Compute) else ask(asked))


async def in_thread(function: Callable[[], T]) -> T:
    """What a function returns that an event loop must not wait for."""
    return await aexecute(plan.in_thread("engine", function))

"""What is asked of a server or a store, as steps that a synchronous and an asynchronous client take alike.

A generator yields what is to be asked, or a `Compute`, and is sent the answer, or thrown the error; what it returns is
the result. So each operation is written once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of

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
    answer: Any = None
    error: Exception | None = None
    with closing(steps):
        while True:
            try:
                asked = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = error = None
            try:
                answer = asked.function() if isinstance(asked, Compute) else ask(asked)
            except Exception as raised:  # noqa: BLE001 - the steps get it, and raise it where they do not expect it
                error = raised


async def arun(steps: Steps[T], ask: Callable[[Any], Awaitable[Any]]) -> T:
    """`run` on the running event loop."""
    answer: Any = None
    error: Exception | None = None
    with closing(steps):
        while True:
            try:
                asked = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = error = None
            try:
                answer = await in_thread(asked.function) if isinstance(asked, Compute) else await ask(asked)
            except Exception as raised:  # noqa: BLE001 - as above
                error = raised


async def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns that an event loop must not wait for."""
    return await aexecute(_called(function))


def _called(function: Callable[[], Any]) -> Plan[Any]:
    (outcome,) = yield (Call("engine", function),)
    return value_of(outcome)

"""What plans are made of: calls, the circuit breakers that they share, and the spans that say how they went.

A plan is a generator that yields a tuple of steps, each a `Call` or another plan, and is sent a list with the outcome
of each: its value, or the exception it raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, Union

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.telemetry import recorded

T = TypeVar("T")
Kind: TypeAlias = Literal["channel", "fusion", "stage", "rewriter", "other"]
Step: TypeAlias = Union["Call", "Plan[Any]"]
Plan: TypeAlias = Generator[tuple[Step, ...], list[Any], T]

MAX_ABANDONED = 4


class CircuitBreaker:
    """What the calls of one channel or stage share: a deadline within a run, and a count of abandoned calls.

    With `MAX_ABANDONED` abandoned calls still running it is open: the next call fails at once.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._abandoned = 0

    @property
    def is_open(self) -> bool:
        return self._abandoned >= MAX_ABANDONED

    def count(self, change: int) -> None:
        with self._lock:
            self._abandoned += change


@dataclass(frozen=True, eq=False)
class Call:
    """A function to run in a worker thread; where `inline` in the one that its plan runs in.

    Where `at_home` too, that is the driver's own: an async driver lets plans go on in a worker thread while they only
    compute, and whoever hears of a search by a framework's events hears of it on the event loop.

    One that is `local` waits for nothing remote. Without a deadline the sync driver runs it in the caller's thread, and
    the async driver runs all that are ready at once in one worker thread, one after the other. Where they do nothing
    but compute (`computes`) it goes on there with the plan, and no more run at a time than there are cores.

    `timeout` is in seconds from the first call of the `breaker` in a run, so a repeated ask gets what is left; without
    one, from this call. Calls with equal `key` are made once in a run. The async driver awaits `coroutine` where there
    is one. `texts` and `k` say in traces what is asked.

    Calls of one breaker can be made at once where they have `each`: it is given the `argument` of all, and gives what
    the function of each would.
    """

    name: str
    function: Callable[[], Any]
    coroutine: Callable[[], Awaitable[Any]] | None = None
    timeout: float | None = None
    breaker: CircuitBreaker | None = None
    key: Hashable = None
    inline: bool = False
    at_home: bool = False
    local: bool = False
    computes: bool = False
    kind: Kind = "other"
    texts: tuple[str, ...] = ()
    k: int | None = None
    each: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    argument: Any = None

    def run(self) -> Any:
        """Call the function, within a span where the application records them."""
        span = recorded(self)
        if span is None:
            return self.function()
        with span as note:
            value = self.function()
            note(value)
            return value

    async def arun(self) -> Any:
        """Await the coroutine, as `run` calls the function."""
        if self.coroutine is None:
            return self.run()
        span = recorded(self)
        if span is None:
            return await self.coroutine()
        with span as note:
            value = await self.coroutine()
            note(value)
            return value


@dataclass(frozen=True)
class Span:
    """One call of a run: how long it took in seconds, the error it ended with, and what was asked.

    `query` is what a rewriter made of the query, `started` when it began, in seconds from the run's beginning.
    """

    name: str
    kind: Kind
    seconds: float
    error: Exception | None = None
    texts: tuple[str, ...] = ()
    k: int | None = None
    query: Any = None
    started: float = 0.0


FEW = 32
"""So many documents are converted where they are asked for; more would hold an event loop up."""


def converting(function: Callable[[], T], count: int) -> Plan[T]:
    """A conversion of `count` documents, which an event loop does not make where they are many."""
    return in_thread("convert", function, inline=count <= FEW)


def in_thread(name: str, function: Callable[[], T], *, inline: bool = False) -> Plan[T]:
    """A call that an event loop must not wait for, unless it is short (`inline`)."""
    (outcome,) = yield (Call(name, function, inline=inline),)
    returned: T = value_of(outcome)
    return returned


Observer: TypeAlias = Callable[[Span, Any], None]
AsyncObserver: TypeAlias = Callable[[Span, Any], Awaitable[None]]


def answered(spans: Iterable[Span]) -> tuple[str, ...]:
    """The names of the channels that answered, in order."""
    return tuple(sorted({span.name for span in spans if span.kind == "channel" and span.error is None}))


def timings(spans: Iterable[Span]) -> dict[str, float]:
    """The seconds of all calls of each name."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.name] += span.seconds
    return dict(seconds)


def value_of(outcome: T | Exception) -> T:
    """The value of an outcome; raises it when it is an exception."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def outcome_of(function: Callable[[], Any]) -> Any:
    """What a function gives, or the exception that it raises."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - an outcome: the plan decides what it means
        return error


async def aoutcome_of(awaitable: Awaitable[Any]) -> Any:
    """`outcome_of` for what is awaited."""
    try:
        return await awaitable
    except Exception as error:  # noqa: BLE001 - as in `outcome_of`
        return error

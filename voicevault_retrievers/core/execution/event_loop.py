"""Awaits coroutines on a search's event loop from one of the search's worker threads."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.errors import SearchNotAvailableError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class LoopBridge:
    """Lets the worker threads of one async run await coroutines on its event loop, which is not blocked meanwhile.

    When the run ends, coroutines that are still awaited are cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: set[Future[Any]] = set()
        self._closed = False
        self._lock = RLock()

    def run(self, function: Callable[[], T]) -> T:
        """Call a function in a worker thread, with this bridge as the current one."""
        token = _bridge.set(self)
        try:
            return function()
        finally:
            _bridge.reset(token)

    def wait(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        """Await a coroutine on the loop, and return its value or raise its error."""
        import asyncio  # already loaded where a loop runs

        with self._lock:
            if self._closed:
                raise SearchNotAvailableError("the search that asked is over")
            future = asyncio.run_coroutine_threadsafe(_alone(coroutine), self._loop)
            self._pending.add(future)
        try:
            with BATON.aside():
                return future.result()
        finally:
            with self._lock:
                self._pending.discard(future)

    def close(self) -> None:
        """Cancel the coroutines that are still awaited."""
        with self._lock:
            self._closed, left = True, tuple(self._pending)
        for future in left:
            future.cancel()


_bridge: ContextVar[LoopBridge | None] = ContextVar("voicevault_loop_bridge", default=None)


def call_or_await(function: Callable[[], T], coroutine: Callable[[], Awaitable[T]] | None, *, waits: bool = True) -> T:
    """The value of a function, or of its coroutine where an async search calls from a worker thread.

    `coroutine` is None where there is no async version. A coroutine that never waits (`waits` false) would compute on
    the event loop, so the function is called instead; the coroutine is awaited only where the function raises
    NotImplementedError.
    """
    bridge = _bridge.get()
    if bridge is None or coroutine is None:
        return function()
    if waits:
        return bridge.wait(coroutine)
    try:
        return function()
    except NotImplementedError:
        return bridge.wait(coroutine)


@lru_cache(maxsize=1024)
def waits(function: Callable[..., Any]) -> bool:
    """Whether the code of a coroutine function awaits anything; otherwise it would compute on the event loop."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and any(step.opname in _AWAITING for step in dis.get_instructions(code))


def overrides(part: object, base: type, method: str) -> bool:
    """Whether an object's class overrides a method of `base`. A base's async method runs the sync one in threads."""
    return getattr(type(part), method) is not getattr(base, method)


_AWAITING = frozenset({"GET_AWAITABLE", "GET_AITER", "GET_ANEXT"})


async def _alone(coroutine: Callable[[], Awaitable[T]]) -> T:
    """Await a coroutine without the bridge: code on the loop's own thread must not wait for the loop."""
    _bridge.set(None)
    return await coroutine()

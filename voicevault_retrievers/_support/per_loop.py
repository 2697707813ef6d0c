"""Clients that belong to an event loop, and are closed when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Held(Generic[T]):
    client: T
    over: asyncio.Event
    closing: asyncio.Task[None]


class PerLoop(Generic[T]):
    """One client for each event loop, made when it is first asked for.

    A client that nobody closes would keep its loop, and its open connections, for as long as this object lives. So a
    task closes it when the loop ends: `asyncio.run` and servers cancel all tasks then. The client of a loop that was
    closed without that is dropped when another loop asks for one.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._held: dict[asyncio.AbstractEventLoop, _Held[T]] = {}
        reset_in_child(self, PerLoop._forked)

    def has(self) -> bool:
        """Whether the running event loop has a client."""
        return asyncio.get_running_loop() in self._held

    async def get(self) -> T:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is not None:
            return held.client
        made = await self._make()
        held = self._held.get(loop)
        if held is not None:  # of another task, that was quicker
            await self._close(made)
            return held.client
        for other in [one for one in list(self._held) if one.is_closed()]:
            self._held.pop(other, None)
        over = asyncio.Event()
        self._held[loop] = _Held(made, over, loop.create_task(self._until_over(loop, made, over)))
        return made

    async def aclose(self, client: T | None = None) -> None:
        """Close the client of the running event loop, or only this one; the next that asks gets another."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is not None and (client is None or client is held.client):
            del self._held[loop]
            held.over.set()
            await held.closing

    def _forked(self) -> None:
        leave_to_parent(self._held)
        self._held = {}

    async def _until_over(self, loop: asyncio.AbstractEventLoop, client: T, over: asyncio.Event) -> None:
        try:
            await over.wait()
        finally:
            held = self._held.get(loop)
            if held is not None and held.over is over:
                del self._held[loop]
            await self._close(client)

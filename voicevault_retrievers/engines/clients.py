"""The clients of a server that one engine keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.steps import in_thread


class Clients:
    """One client for all threads, and one for each event loop, connected when they are first asked for.

    `connect` is given whether an async client is wanted.
    """

    def __init__(self, connect: Callable[[bool], Any]) -> None:
        self._connect = connect
        self._mutex = Mutex()
        self._of_threads: Any = None
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def of_threads(self) -> Any:
        """The client of all threads."""
        with self._mutex:
            if self._of_threads is None:
                self._of_threads = self._connect(False)
            return self._of_threads

    async def of_loop(self) -> Any:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._of_loop.get(loop)
        if client is None:  # in a thread: importing the library and reading certificates are slow
            made = await in_thread(partial(self._connect, True))
            client = self._of_loop.setdefault(loop, made)
            if client is not made:
                await _closed(made)
        return client

    def close(self) -> None:
        """Close the connections of threads."""
        with self._mutex:
            client, self._of_threads = self._of_threads, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        client = self._of_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await _closed(client)


async def _closed(client: Any) -> None:
    close = getattr(client, "aclose", None) or client.close
    await close()

"""The clients of a server that one engine keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.core.execution.steps import in_thread


class Clients:
    """One client for all threads, and one for each event loop, connected when they are first asked for.

    `connect` is given whether an async client is wanted.
    """

    def __init__(self, connect: Callable[[bool], Any]) -> None:
        self._connect = connect
        self._mutex = Mutex()
        self._of_threads: Any = None
        # in a thread: importing the library and reading certificates are slow
        self._of_loop: PerLoop[Any] = PerLoop(lambda: in_thread(partial(connect, True)), _closed)
        reset_in_child(self, Clients._forked)

    def of_threads(self) -> Any:
        """The client of all threads."""
        with self._mutex:
            if self._of_threads is None:
                self._of_threads = self._connect(False)
            return self._of_threads

    async def of_loop(self) -> Any:
        """The client of the running event loop."""
        return await self._of_loop.get()

    def close(self) -> None:
        """Close the connections of threads."""
        with self._mutex:
            client, self._of_threads = self._of_threads, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._of_loop.aclose()

    def _forked(self) -> None:
        leave_to_parent(self._of_threads)
        self._of_threads = None


async def _closed(client: Any) -> None:
    close = getattr(client, "aclose", None) or client.close
    await close()

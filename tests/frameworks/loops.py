"""What the tests of many searches at once on one event loop share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from voicevault_retrievers.rerank import CallableScorer


def slowly(query: str, passages: Sequence[str]) -> list[float]:
    """A model at work: it blocks the thread that it is called in."""
    time.sleep(0.001)
    return [float(len(passage)) for passage in passages]


SLOW = CallableScorer(slowly, name="slow")


class Meeting:
    """A place where so many wait until all are there; one after another they would never meet."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.here, self.met = wanted, 0, asyncio.Event()

    async def join(self) -> None:
        self.here += 1
        if self.here == self.wanted:
            self.met.set()
        await asyncio.wait_for(self.met.wait(), 30)


async def given_up(hung: Callable[[], Awaitable[Any]], gate: threading.Event, other: Awaitable[Any]) -> Any:
    """What another search finds while 80 that were given up wait at the gate in their threads."""
    try:
        searches = [asyncio.ensure_future(hung()) for _ in range(80)]
        await asyncio.sleep(0.2)
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        return await asyncio.wait_for(other, 20)
    finally:
        gate.set()


def printed(program: str) -> str:
    """What a program prints, which ends within a minute."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout

"""A program, and what it calls: an engine that was asked before its process was forked, and after it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.engines import SYSTEMS
from tests.forking import ended, fork
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import LockedError, SearchNotAvailableError
from voicevault_retrievers.testing.clients import Connect
from voicevault_retrievers.testing.corpora import WordEmbedder

WORDS = ("pump", "valve", "oil", "gear", "rotor", "blade", "shaft", "hull")
CHUNKS = [Chunk(f"{word}{n}", f"{word} " * (n + 1) + "other " * (9 - n)) for word in WORDS for n in range(5)]
CHILDREN = 3
RIGHT, WRONG, REFUSED = 0, 3, 7


def asked_at_once(connect: Connect) -> list[int]:
    """How children end that search while their parent does, and each other."""
    engine = connect("forks", embedder=WordEmbedder())
    engine.upsert(CHUNKS)
    channel = engine.bm25()
    found = {word: ids(channel, word) for word in WORDS}
    asyncio.run(channel.asearch("pump"))

    def child(at: int) -> Callable[[], int]:
        def run() -> int:
            code = outcome(channel, found, at)
            engine.close()
            return code

        return run

    children = [fork(child(at)) for at in range(CHILDREN)]
    mine = outcome(channel, found, CHILDREN)
    codes = [mine, *map(ended, children)]
    engine.close()
    return codes


def outcome(channel: Any, found: dict[str, list[str]], at: int) -> int:
    """Whether one that begins with another word than the others finds what the parent found before."""
    try:
        for round_ in range(40):
            word = WORDS[(round_ * (at + 1) + at) % len(WORDS)]
            if ids(channel, word) != found[word]:
                return WRONG
        word = WORDS[at]
        ranking = asyncio.run(channel.asearch(word, len(CHUNKS)))
        return RIGHT if [hit.id for hit in ranking] == found[word] else WRONG
    except (SearchNotAvailableError, LockedError) as error:
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
        return REFUSED


def ids(channel: Any, word: str) -> list[str]:
    return [hit.id for hit in channel.search(word, len(CHUNKS))]


if __name__ == "__main__":
    with SYSTEMS[sys.argv[1]].opened(Path(sys.argv[2])) as connecting:
        sys.stdout.write(f"{asked_at_once(connecting)}\n")

"""Eight processes read a knowledge base while one writes it: no error, and every reader sees each commit whole.

    python -m tests.benchmarks.soak [--seconds 300]

The writer goes from one generation to the next. The chunks of one group say which it is, and are written anew in each;
others come with one generation and go with a later one, so that logs become segments, and segments are merged and die.
So a generation says what there is, and a reader that reads all there is can tell whether that was ever committed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Event, Semaphore
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, Channel, Chunk, KnowledgeBase, VectorChannel
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.store import commit

NAME = "soak"
READERS = 8
GROUP = 20
BORN = 6
LIFE = 20
"""So many generations a chunk is there that is not of the group."""

WORDS = "fox dog cat quick lazy house tree river stone wind".split()


class Signals(NamedTuple):
    """That all are to stop; and, once for each reader, that it reads."""

    stop: Event
    reading: Semaphore


_signals: Signals  # of a process, from its beginning


class State(NamedTuple):
    """What there is after a commit: chunks by ascending id, and parents."""

    chunks: list[Chunk]
    parents: list[Chunk]


class Soaked(NamedTuple):
    """How many commits and segments were written; how often everything was read, and how often all was checked."""

    commits: int
    segments: int
    reads: int
    checks: int


def soak(seconds: float | None = None, commits: int | None = None) -> Soaked:
    """Write until the time is over or so many commits are made, and read meanwhile.

    What a process raises stops all, and is raised here with the traceback of that process.
    """
    context = get_context("spawn")
    signals = Signals(context.Event(), context.Semaphore(0))
    with TemporaryDirectory() as root, ProcessPoolExecutor(READERS + 1, context, _share, (signals,)) as pool:
        with KnowledgeBase.create(NAME, root=root, embedder=HashEmbedder()) as base:
            first = state(2 * LIFE + 1)
            base.add(first.chunks, parents=first.parents)
        readers = [pool.submit(read, root) for _ in range(READERS)]
        writer = pool.submit(write, root, seconds, commits)
        running: list[Future[Any]] = [writer, *readers]
        for process in running:  # the first to end is the writer, or one that fails
            process.add_done_callback(lambda _: signals.stop.set())
        states, reads, checks = zip(*(reader.result() for reader in readers), strict=True)
        last, made, segments = writer.result()
    if set(states) != {last}:
        raise ValueError(f"the last state is {last}, and readers ended with {states}")
    return Soaked(made, segments, sum(reads), sum(checks))


def state(number: int) -> State:
    """What commit `number` leaves: an even one begins generation `number // 2`, the next takes away the oldest chunks.

    Every tenth generation the group has other ids.
    """
    generation, step = divmod(number, 2)
    alive = range(generation - LIFE + step, generation + 1)
    born = [_chunk(f"born-{at:06}-{i}", at, i, f"parent-{at:06}") for at in alive for i in range(BORN)]
    group = [_chunk(f"group-{generation // 10:06}-{i:02}", generation, i, "parent") for i in range(GROUP)]
    parents = [Chunk(f"parent-{at:06}", f"born in {at}", kb=NAME) for at in alive]
    return State([*born, *group], [*parents, Chunk("parent", f"generation {generation}", kb=NAME)])


def write(root: str, seconds: float | None, commits: int | None) -> tuple[int, int, int]:
    """The last state, how many commits were made, and how many segments."""
    commit.SEAL_AT, commit.MERGE_AT_ONCE, merge_policy.TIER = 100, 100, 3
    for _ in range(READERS):
        while not _signals.reading.acquire(timeout=1) and not _signals.stop.is_set():
            pass
    end = None if seconds is None else time.monotonic() + seconds
    segments: set[str] = set()
    with _open(root) as base:
        for made, number in enumerate(_commits(base), start=1):
            segments.update(entry.name for entry in base.manifest.segments)
            if made == commits or (end is not None and time.monotonic() > end) or _signals.stop.is_set():
                return number, made, len(segments)
    raise RuntimeError("commits do not end")


def read(root: str) -> tuple[int, int, int]:
    """The last state, how often everything was read, and how often all was checked."""
    base, last, checks = _open(root), 0, 0
    for reads in count(1):
        ending = _signals.stop.is_set()
        if reads % 50 == 0:
            base = _open(root)
        elif reads % 4 or ending:  # else what was committed before is read once more
            base.reload()
        before, last = last, state_of(base)
        if last < before:
            raise ValueError(f"state {last} came after state {before}")
        if reads % 20 == 1 or ending:
            _check(base)
            checks += 1
        if reads == 1:
            _signals.reading.release()
        if ending:
            return last, reads, checks
    raise RuntimeError("reads do not end")


def _commits(base: KnowledgeBase) -> Iterator[int]:
    """Make the commits, one after the other, and number them."""
    for generation in count(LIFE + 1):
        number = 2 * generation
        begun, ended = state(number), state(number + 1)
        if generation % 10 == 0:
            base.replace(ended.chunks, parents=ended.parents)
        else:
            new = [chunk for chunk in begun.chunks if chunk.metadata["generation"] == generation]
            base.add(new, parents=begun.parents[-2:])
            yield number
            base.delete(where={"generation": generation - LIFE})
        yield number + 1
        if generation % 25 == 0:
            base.compact()


def state_of(base: KnowledgeBase) -> int:
    """The number of the state that a base is in; an error if it is in none."""
    chunks = list(base)
    generations: set[int] = {chunk.metadata["generation"] for chunk in chunks if chunk.id.startswith("group")}
    if len(generations) != 1:
        raise ValueError(f"torn: generations {sorted(generations)}")
    (generation,) = generations
    for number in (2 * generation, 2 * generation + 1):
        expected = state(number)
        if chunks == expected.chunks:
            parents = base.parents(parent.id for parent in state(2 * generation).parents)
            if list(parents.values()) != expected.parents:
                raise ValueError(f"torn: in state {number}, with the parents {list(parents)}")
            return number
    ids, wanted = ({chunk.id for chunk in some} for some in (chunks, state(2 * generation).chunks))
    raise ValueError(f"torn: generation {generation} without {sorted(wanted - ids)}, with {sorted(ids - wanted)}")


def _check(base: KnowledgeBase) -> None:
    """What is found, and its scores, beside indexes made of the same chunks in memory; and what is on disk now."""
    if problems := base.verify():
        raise ValueError(f"not sound: {problems}")
    chunks = list(base)
    _alike(base.bm25(), BM25.from_chunks(chunks, base.analyzer))
    _alike(base.dense(), VectorChannel.from_chunks(chunks, HashEmbedder()))


def _alike(one: Channel, other: Channel) -> None:
    for query in WORDS:
        found, wanted = ([(hit.chunk, hit.score) for hit in channel.search(query, 10)] for channel in (one, other))
        if found != wanted:
            raise ValueError(f"{query!r} finds {found}, expected {wanted}")


def _chunk(chunk_id: str, generation: int, number: int, parent_id: str) -> Chunk:
    words = [WORDS[(generation * step + number) % len(WORDS)] for step in (1, 3, 7)]
    return Chunk(chunk_id, " ".join(words), parent_id, {"generation": generation}, NAME)


def _open(root: str) -> KnowledgeBase:
    return KnowledgeBase.open(NAME, root=root, embedder=HashEmbedder())


def _share(signals: Signals) -> None:
    """Give a process the signals; they can be handed over only when it begins."""
    global _signals
    _signals = signals


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Eight processes read a knowledge base while one writes it.")
    parser.add_argument("--seconds", type=float, default=300.0)
    sys.stdout.write(f"{soak(parser.parse_args().seconds)}\n")

"""Writers that are killed: at random moments, the next one going on where the last one fell; at every call of `disk`.

    python -m tests.faults.killed [--kills 500] [--seed 0] [--vectors exact]
    python -m tests.faults.killed --kills 0 --calls

It runs in a process of its own, because it forks.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from tests.faults.disks import Failing, Recorder, System, Unflushed, through
from tests.faults.states import EMBEDDER, MEMORY, WORDS, WRITERS, State, harmed, opened, small, written
from tests.forking import ended, fork
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.store import KnowledgeBase, Source, commit
from voicevault_retrievers.store.manifest import VectorSearch

FILES = 6
POINTS = frozenset(["write", "ftruncate", "fsync", "replace", "mkdir", "rmdir"])
"""The calls at which writers are killed: what lies between is as before them."""

PAGES = 10
"""So many chunks a file has at most."""


def at_random(kills: int, seed: int, root: Path, vectors: VectorSearch = "exact") -> int:
    """Kill so many writers of one base; it is compared after each with another whose writer lives. How many changes.

    Merges go on in the background, and so does what keeps a vector index in step, where there is one.
    """
    commit.SEAL_AT, commit.MERGE_AT_ONCE, merge_policy.TIER = 12, 16, 2
    draw, done = Random(seed), 0
    path = KnowledgeBase.create(root / "killed" / "kb", embedder=EMBEDDER, vectors=vectors).path
    whole = KnowledgeBase.create(root / "whole" / "kb", embedder=EMBEDDER)
    for kill in range(kills):
        acknowledged = done + killed(path, done, seed, draw)
        while done < acknowledged:
            change(done, seed)(whole)
            done += 1
        base = opened(path)
        found = State.of(base)
        if found != State.of(whole):
            change(done, seed)(whole)
            done += 1
            assert found == State.of(whole), f"kill {kill}: neither what was acknowledged, nor with change {done - 1}"
        assert base.verify() == [], f"kill {kill}"
        with base:
            change(done, seed)(base)
        change(done, seed)(whole)
        done += 1
        assert State.of(opened(path)) == State.of(whole), f"kill {kill}: another after change {done - 1}"
    return done


def change(number: int, seed: int) -> Callable[[KnowledgeBase], object]:
    """The change of this number: the same to every base that has seen those before it."""
    draw = Random(f"{seed} {number}")
    name = f"{draw.randrange(FILES)}.md"
    pages = sorted(draw.sample(range(PAGES), draw.randint(1, PAGES)))
    some = [
        Chunk(f"{name}-{at}", " ".join(draw.choices(WORDS, k=5)), f"p-{name}", {"source_file": name, "page": at})
        for at in pages
    ]
    ids = [chunk.id for chunk in some]
    parents, sources = [Chunk(f"p-{name}", f"story {number}")], [Source(name, str(number))]
    changes: dict[Callable[[KnowledgeBase], object], int] = {
        lambda kb: kb.add(some[:1]): 30,
        lambda kb: kb.add(some, parents=parents): 20,
        lambda kb: kb.add(some, parents=parents, sources=sources): 20,
        lambda kb: kb.delete(ids[:3]): 15,
        lambda kb: kb.delete(source=name): 5,
        lambda kb: kb.delete(where={"page": {"$gte": 5}}): 2,
        lambda kb: kb.replace(some): 1,
        lambda kb: kb.compact(): 5,
    }
    return draw.choices([*changes], [*changes.values()])[0]


def killed(path: Path, first: int, seed: int, draw: Random) -> int:
    """How many changes a writer has acknowledged when it is killed."""
    reading, writing = os.pipe()

    def write() -> None:
        with through(System()), opened(path) as kb:
            for number in count(first):
                change(number, seed)(kb)
                os.write(writing, b".")

    child = forked(write)
    os.close(writing)
    came = sum(len(os.read(reading, 1)) for _ in range(draw.randint(0, 12)))
    time.sleep(draw.random() * draw.choice((0.0, 0.002, 0.02)))
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    while rest := os.read(reading, 4096):
        came += len(rest)
    os.close(reading)
    return came


def at_every_call(root: Path) -> dict[str, Counter[str]]:
    """Kill a writer at each of its calls, in the middle of a write; at which ones, by what it was to do."""
    bases = {name: root / name for name in ("none", "whole", "harmed")}
    bases["none"].mkdir()
    written(bases["whole"] / "kb")
    shutil.copytree(bases["whole"], bases["harmed"])
    harmed(opened(bases["harmed"] / "kb"))
    found = {"create": _at_each(root, bases["none"], lambda path: KnowledgeBase.create(path, embedder=EMBEDDER))}
    for name, write in WRITERS.items():
        found[name] = _at_each(root, bases["whole"], partial(_opened, write))
    return {**found, "set aside": _at_each(root, bases["harmed"], partial(_opened, WRITERS["add"]))}


def _opened(write: Callable[[KnowledgeBase], object], path: Path) -> None:
    write(opened(path))


def _at_each(root: Path, base: Path, write: Callable[[Path], object]) -> Counter[str]:
    recorder, done = Recorder(), Path(mkdtemp(dir=root)) / "done"
    shutil.copytree(base, done)
    with through(recorder):
        write(done / "kb")
    after = State.of(opened(done / "kb"))
    before = State.of(opened(base / "kb")) if (base / "kb").exists() else None
    calls = [event.call for event in recorder.events if event.call in POINTS]
    for number, call in enumerate(calls):
        place = Path(mkdtemp(dir=root)) / "place"
        shutil.copytree(base, place)
        with through(Failing(number, _die, POINTS)):
            child = forked(partial(write, place / "kb"))
        assert ended(child) == -signal.SIGKILL
        state = _state(place / "kb", wrong=base.name == "harmed")
        assert state in (before, after), f"{call}, call {number}: {state}"
        shutil.rmtree(place, ignore_errors=True)  # a merge behind the last write may still be at work there
    return Counter(calls)


def _state(path: Path, *, wrong: bool) -> State | None:
    """What there is; it is checked, and written to."""
    if not path.exists():
        KnowledgeBase.create(path, embedder=EMBEDDER)
        return None
    state, problems = State.of(opened(path)), opened(path).verify()
    with opened(path) as kb:
        kb.add([Chunk("new", "a new fox")])
    kb = opened(path)
    assert State.of(kb).without("new") == state.without("new")
    assert kb.get(["new"])
    assert (bool(problems), bool(kb.verify())) == (wrong, wrong), problems
    return state


def _die(name: str, real: Callable[..., Any], *arguments: Any) -> None:
    if name == "write":
        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def forked(run: Callable[[], object]) -> int:
    """The id of a child that does this, and ends with 1 where nothing kills it."""

    def child() -> int:
        run()
        return 1

    return fork(child)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills writers, and checks what they leave.")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vectors", default="exact")
    parser.add_argument("--calls", action="store_true", help="kill one at every call of `disk` as well")
    given = parser.parse_args()
    if given.calls:
        with TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True) as folder, through(Unflushed()), small():
            for name, calls in at_every_call(Path(folder)).items():
                sys.stdout.write(f"{name}: killed at {calls.total()} calls, {dict(sorted(calls.items()))}\n")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, through(Unflushed()):
        done = at_random(given.kills, given.seed, Path(folder), given.vectors)
        sys.stdout.write(f"{given.kills} writers were killed in {done} changes\n")


if __name__ == "__main__":
    main()

"""After a power loss a knowledge base holds what was acknowledged, or the change that was in flight as well: whole.

The calls of `disk` are recorded while a base is written, and after each of them it is opened as a crash may leave it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.faults.crashes import Disk, Tree
from tests.faults.disks import Event, Recorder, Site, Unflushed, through
from tests.faults.states import EMBEDDER, MEMORY, State, chunks, harmed, merge, opened, small, together
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import RetrievalError, StorageError
from voicevault_retrievers.store import KnowledgeBase, Source, disk
from voicevault_retrievers.store.names import vacant

PLACE = Path("homes", "kbs", "kb")
PARENTS = [Chunk(f"p{n}", f"the whole story {n}") for n in range(3)]
TORN = re.compile(r".*/log-\d+ has changed in its last record, at byte \d+, which is not read")


class Mark(NamedTuple):
    """What was acknowledged after so many calls: a state, None without a base; and what was put aside of a log."""

    calls: int
    state: State | None
    aside: bytes = b""


class Story(NamedTuple):
    root: Path
    calls: list[Event]
    marks: list[Mark]


class Seen(NamedTuple):
    """A base as it was found, what `verify` said of it, and both after one more change."""

    state: State | None
    problems: Sequence[str]
    then: State | None = None
    problems_then: Sequence[str] = ()


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A base is made and written to in every way there is."""
    root = tmp_path_factory.mktemp("told")
    recorder, marks = Recorder(), [Mark(0, None)]
    with through(recorder):
        for kb, aside in told(root / PLACE, recorder):
            marks.append(Mark(len(recorder.events), State.of(kb), aside))
    written = {given.name for event in recorder.events for given in event.arguments if isinstance(given, Path)}
    for kind in (
        r"log-\d+",
        r"sources-\d+",
        r"seg-\d+",
        r"seg-\d+\.dead-\d+",
        r"seg-\d+\.dead-\d+\.terms",
        r"seg-\d+\.dead-\d+\.parents",
    ):
        assert any(re.fullmatch(kind, name) for name in written), kind
    left = Disk(root)
    for event in recorder.events:
        left.follow(event)
    paths = [path for path in root.rglob("*") if path.name != "lock"]
    there = {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in paths}
    assert dict(left.now.entries) == there  # nothing was written but by these calls
    return Story(root, recorder.events, marks)


def told(path: Path, recorder: Recorder) -> Iterator[tuple[KnowledgeBase, bytes]]:
    """Each change, when it is done; a further way to write to a base belongs here."""
    kb = KnowledgeBase.create(path, embedder=EMBEDDER)
    yield kb, b""
    for change in (
        lambda: kb.add(chunks(0, 2), parents=PARENTS[:1], sources=[Source("a.md", "1")]),
        lambda: kb.delete(["00"]),
        lambda: together(kb, lambda: kb.add(chunks(2, 3)), lambda: kb.delete(["01"]), lambda: kb.add(chunks(5, 6))),
        lambda: refused(kb, recorder),
    ):
        change()
        yield kb, b""
    kb.close()
    aside = harmed(kb)
    yield kb, aside
    kb.add(chunks(6, 7))
    yield kb, aside
    disk.remove(next(path.glob("*aside*")))
    disk.flush_folder(path)
    yield kb, b""
    for change in (
        lambda: kb.add(chunks(10, 19), parents=PARENTS[1:], sources=[Source("b.md", "1")]),
        lambda: kb.add(chunks(20, 29)),
        lambda: kb.delete(["10", "21"]),
    ):
        change()
        yield kb, b""
    killed(kb, recorder)
    kb = opened(path)
    for change in (
        lambda: merge(kb),
        lambda: kb.add(chunks(30, 39), sources=[Source("a.md", "2")]),
        lambda: kb.delete(["15", "16", "17"]),
        kb.compact,
        lambda: kb.add(chunks(40, 41)),
    ):
        change()
        yield kb, b""
    kb.close()
    kb = KnowledgeBase.repair(path, embedder=EMBEDDER)
    yield kb, b""
    kb.clear()
    yield kb, b""


def refused(kb: KnowledgeBase, recorder: Recorder) -> None:
    """A change that is written, and taken back because it cannot be flushed."""
    recorder.refusal = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageError, match="Input/output error"):
        kb.add(chunks(3, 5))


class Killed(BaseException):
    """Nothing more of the process comes to pass."""


def killed(kb: KnowledgeBase, recorder: Recorder) -> None:
    """A change that is written, and not flushed because its process ends."""
    recorder.refusal = Killed()
    with pytest.raises(Killed):
        kb.add([Chunk("11", "another dog", "p2", {"source_file": "b.md"})])


def crashes(story: Story, without: Site | None = None) -> Iterator[tuple[Tree, list[Mark]]]:
    """What crashes may leave, and what may be found then; of a disk that does not flush at one place in the code."""
    found, draw, passed = Disk(story.root), Random(0), 0
    for number, event in enumerate(story.calls, start=1):
        if event.call != "fsync" or event.site != without:
            found.follow(event)
        while passed + 1 < len(story.marks) and story.marks[passed + 1].calls <= number:
            passed += 1
        marks = story.marks[passed : passed + (1 if story.marks[passed].calls == number else 2)]
        closely = len(marks) == 1 or event.call == "replace" or "log.append" in event.site
        for tree in found.crashes(draw, closely=closely):
            yield tree, marks


class Observer:
    """Opens what a crash has left; what is alike is opened once."""

    def __init__(self) -> None:
        self.seen: dict[Tree, Seen | str] = {}

    def __call__(self, tree: Tree) -> Seen | str:
        if tree not in self.seen:
            with TemporaryDirectory(dir=MEMORY) as folder, through(Unflushed()):
                tree.build(Path(folder))
                try:
                    self.seen[tree] = seen(Path(folder, PLACE))
                except RetrievalError as error:
                    self.seen[tree] = f"{type(error).__name__}: {error}"
        return self.seen[tree]


@pytest.fixture(scope="module")
def observe() -> Observer:
    return Observer()


def seen(path: Path) -> Seen:
    if vacant(path):
        return Seen(None, [])
    kb = opened(path)
    state, problems = State.of(kb), kb.verify()
    with kb:
        kb.add([Chunk("new", "a new fox")])
    kb = opened(path)
    return Seen(state, problems, State.of(kb), kb.verify())


def wrong(tree: Tree, marks: list[Mark], found: Seen | str) -> str | None:
    """What is wrong with what was found, where one of these is to be found.

    `verify` tells of a record that is all there and not what was written: it may be one that was acknowledged and has
    changed since. The next change puts it aside; then `verify` tells of that.
    """
    if isinstance(found, str):
        return found
    if found.state not in [mark.state for mark in marks]:
        return f"not what was committed: {found.state}"
    if found.state is None:
        return None
    if found.then is None or found.then.without("new") != found.state.without("new"):
        return f"another after a change: {found.then}"
    if [chunk.id for chunk in found.then.chunks].count("new") != 1:
        return "the change is not there"
    aside = [mark.aside for mark in marks if mark.aside]
    kept = any(content and aside and content.endswith(aside[0]) for _, content in tree.entries)
    if len(aside) == len(marks) and not (kept and found.problems and found.problems_then):
        return "what was put aside is not there"
    told_of = bool(aside) or (tree.torn and all(TORN.fullmatch(problem) for problem in found.problems))
    return None if told_of or not (*found.problems, *found.problems_then) else f"problems: {found.problems}"


def test_a_crash_leaves_what_was_acknowledged(story: Story, observe: Observer) -> None:
    bad = [what for tree, marks in crashes(story) if (what := wrong(tree, marks, observe(tree)))]
    assert bad == []
    assert len(observe.seen) > 500


def test_every_flush_is_needed(story: Story, observe: Observer) -> None:
    """Without any one of them, wherever in the code it is asked for, some crash would leave what is wrong."""
    sites = dict.fromkeys(event.site for event in story.calls if event.call == "fsync" and len(event.site) > 1)
    assert len(sites) > 15
    harmless = [
        site
        for site in sites
        if not any(wrong(tree, marks, observe(tree)) for tree, marks in crashes(story, without=site))
    ]
    assert harmless == []

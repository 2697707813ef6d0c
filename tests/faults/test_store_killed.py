"""A writer killed at any write of a merge or a repair leaves the last commit, which the next writer goes on from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

KILLED = """
import os, shutil, sys
from itertools import count
from pathlib import Path
from tests.faults.test_store_damage import answers, opened, sample
from tests.helpers import HashEmbedder
from voicevault_retrievers.lexical import tiers
from voicevault_retrievers.store import KnowledgeBase, commit

root = Path(sys.argv[1])
commit.SEAL_AT, tiers.TIER = 4, 2
with KnowledgeBase.create("kb", root=root, embedder=HashEmbedder()) as kb:
    kb.add(sample(21)[8:])
    kb.add(sample(4))
    kb.delete(["0001", "0014"])
assert [entry.count for entry in kb.manifest.segments] == [13, 4]


def write(place):
    if sys.argv[2] == "repair":
        KnowledgeBase.repair("kb", root=place)
    else:
        with opened(place) as kb:
            kb.add(sample(8)[4:])
            assert [(entry.count, entry.deleted) for entry in kb.manifest.segments] == [(13, 1), (7, 0)]


def watched(place, left):
    def watch(event, details):
        nonlocal left
        writes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
        opens = event == "open" and details[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or opens) and str(details[0]).startswith(str(place)):
            left -= 1
            if left < 0:
                os._exit(9)

    sys.addaudithook(watch)


before = answers(opened(root))
shutil.copytree(root, whole := root / "whole" / "root")
write(whole)
after = answers(opened(whole))
seen = []
for number in count():
    place = root / f"at-{number}"
    place.mkdir()
    shutil.copytree(root / "kb", place / "kb")
    child = os.fork()
    if not child:
        watched(place, number)
        write(place)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    kb = opened(place)
    seen.append(answers(kb))
    assert seen[-1] in (before, after) and kb.verify() == [], number
    if status == 0:
        break
    write(place)
    kb = opened(place)
    assert answers(kb) == after and kb.verify() == [], number
    assert {path.name for path in kb.path.iterdir()} == {*kb.manifest.names, "manifest.json", "lock"}, number
    shutil.rmtree(place)
assert seen[0] == before and seen[-1] == after
print(number)
"""


@pytest.mark.parametrize("kind", ["merge", "repair"])
def test_a_writer_killed_at_any_write_leaves_a_commit(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", KILLED, str(tmp_path), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 2 * len(list((tmp_path / "kb" / "seg-000001").iterdir()))

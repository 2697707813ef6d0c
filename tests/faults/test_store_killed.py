"""A killed writer leaves what it acknowledged, or the change it was at as well, and the next one goes on from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.program
def test_writers_are_killed_at_every_call_and_at_random_moments() -> None:
    """`make soak` kills 500 at random moments."""
    program = ["-W", "ignore::DeprecationWarning", "-m", "tests.faults.killed", "--calls", "--kills", "25"]
    done = subprocess.run([sys.executable, *program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *each, last = done.stdout.splitlines()
    names = [line.partition(":")[0] for line in each]
    assert names == ["create", "add", "delete", "seal", "merge", "compact", "repair", "set aside"]
    for line in each[3:7]:
        assert all(call in line for call in ("write", "fsync", "replace", "mkdir")), line
    assert last.startswith("25 writers were killed in ")

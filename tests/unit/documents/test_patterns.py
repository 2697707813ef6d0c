"""Patterns as in `.gitignore`: as git reads them, and in linear time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import examples
from voicevault_retrievers.documents._patterns import Patterns

NAMES = st.sampled_from(["a", "b", "ab", "aab", ".a", "a.b", "a b", "[a]", "#a", "!a", "a*"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
SEGMENTS = st.sampled_from(
    ["a", "b", "*", "**", "a*", "*b", "*a*b", "?", "[ab]", "[!a]", "[^a]", "a.*", "a\\*", "a**b", "a b"]
)
LINES = st.builds(
    lambda negated, root, segments, folder: f"{negated}{root}{'/'.join(segments)}{folder}",
    st.sampled_from(["", "", "!", "\\!", "\\#", "#"]),
    st.sampled_from(["", "", "/"]),
    st.lists(SEGMENTS, min_size=1, max_size=4),
    st.sampled_from(["", "", "/", " "]),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)  # noqa: S607 - the user's git
    return tmp_path


@pytest.mark.program
@settings(examples(0.3), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, min_size=1, max_size=4), PATHS, st.booleans())
def test_they_name_what_git_ignores(repository: Path, lines: list[str], path: str, folder: bool) -> None:
    (repository / ".gitignore").write_text("\n".join(lines) + "\n")
    made = repository / path
    made.parent.mkdir(parents=True, exist_ok=True)
    made.mkdir() if folder else made.touch()
    try:
        done = subprocess.run(
            ["git", "check-ignore", "-q", "--no-index", path], cwd=repository, check=False  # noqa: S607
        )  # fmt: skip
    finally:
        shutil.rmtree(repository / path.split("/")[0]) if "/" in path or folder else made.unlink()
    assert done.returncode in (0, 1)
    assert bool(Patterns(lines)(f"{path}/" if folder else path)) is (done.returncode == 0)


def test_a_hostile_pattern_takes_no_longer_than_another() -> None:
    name = "a" * 200
    assert Patterns(["*a" * 60 + "*b"])(name) is None
    assert Patterns(["*a" * 60 + "*"])(name) is True
    assert Patterns(["**/a/" * 60 + "b"])("a/" * 100 + "c") is None

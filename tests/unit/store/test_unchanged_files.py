"""Unchanged files are known by their size and times, without being read, and an update of them writes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.store import KnowledgeBase, Source, indexing, sources, update

pytestmark = pytest.mark.program  # a child process reads files


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sources, "SETTLED", -1)
    (tmp_path / "docs").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "docs" / name).write_text(f"the pump of {name}")
    return tmp_path / "docs"


@pytest.fixture
def base(docs: Path, tmp_path: Path) -> KnowledgeBase:
    base = KnowledgeBase.create("kb", root=tmp_path / "kbs", embedder=HashEmbedder())
    update(base, docs)
    return base


@pytest.fixture
def hashed(base: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose content was read."""
    names: list[str] = []
    real = Source.of

    def counted(path: Path, name: str, recipe: str) -> Source:
        names.append(name)
        return real(path, name, recipe)

    monkeypatch.setattr(indexing.Source, "of", counted)
    return names


def _written(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_unchanged_files_are_not_read_and_nothing_is_written(
    base: KnowledgeBase, docs: Path, hashed: list[str]
) -> None:
    before = _written(base.path)
    again = update(base, docs)
    assert (again.read, again.unchanged, hashed) == (0, 2, [])
    assert _written(base.path) == before
    base.close()
    opened = KnowledgeBase.open("kb", root=base.path.parent, embedder=HashEmbedder())
    assert (update(opened, docs).unchanged, hashed) == (2, [])
    assert (update(opened, docs, max_chars=100).read, hashed) == (2, ["a.txt", "b.txt"])


@pytest.mark.skipif(sys.platform == "win32", reason="the system keeps no time of the last change of a file's state")
def test_a_change_of_the_same_size_and_time_is_seen(base: KnowledgeBase, docs: Path, hashed: list[str]) -> None:
    before = (docs / "a.txt").stat()
    (docs / "a.txt").write_text("the bell of a.txt")
    os.utime(docs / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (update(base, docs).read, hashed) == (1, ["a.txt"])
    assert "the bell of a.txt" in [chunk.text for chunk in base]


def test_a_file_that_has_just_changed_is_read_the_next_time_too(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SETTLED", 1 << 62)
    assert Source.of(docs / "a.txt").state == ""
    assert Source.of(docs / "a.txt") == Source(
        "a.txt", Source.of(docs / "a.txt").sha256, path=str(docs / "a.txt"), state="another"
    )

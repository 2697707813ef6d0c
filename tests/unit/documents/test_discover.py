"""Which files are found, and what is said of the others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents import File, Skipped, discover, files, read
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.store import KnowledgeBase


def tree(root: Path, *names: str, text: str = "text") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(root: Path, **rules: list[str]) -> list[str]:
    return [file.relative_to(root).as_posix() for _, file in discover(root, **rules)]


def told(skipped: list[Skipped]) -> dict[str, str]:
    return {one.source_file: one.why for one in skipped}


@pytest.mark.program
def test_every_file_is_found_or_told_with_a_reason(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", "a.txt", "sub/b.md", "c.png", "LICENSE", ".hidden.txt", ".git/config", "build/x.txt")
    tree(root, ".gitignore", text="build/\n")
    outside = tree(tmp_path / "outside", "o.txt")
    (root / "second.txt").symlink_to(root / "a.txt")
    os.link(root / "a.txt", root / "zz.txt")
    (root / "out.txt").symlink_to(outside / "o.txt")
    (root / "folder").symlink_to(outside, target_is_directory=True)
    (root / "cycle").symlink_to(root, target_is_directory=True)
    (root / "broken.txt").symlink_to(root / "none")
    (root / "itself.txt").symlink_to(root / "itself.txt")
    found, skipped = files([root])
    assert [file.name for file in found] == ["a.txt", "sub/b.md"]
    assert told(skipped) == {
        ".git/": "hidden",
        ".gitignore": "hidden",
        ".hidden.txt": "hidden",
        "LICENSE": "unknown type",
        "broken.txt": "link",
        "build/": "ignored",
        "c.png": "unknown type",
        "cycle": "link",
        "folder": "link",
        "itself.txt": "link",
        "out.txt": "link",
        "second.txt": "second name",
        "zz.txt": "second name",
    }
    reasons = {one.source_file: one.reason for one in skipped}
    assert reasons["zz.txt"] == "second name of a.txt"
    assert reasons["c.png"] == "unknown type .png"
    assert reasons["LICENSE"] == "unknown type (no suffix)"
    assert read([root]).skipped == tuple(skipped)


def test_a_known_name_of_a_file_comes_before_others(tmp_path: Path) -> None:
    tree(tmp_path, "b.txt")
    os.link(tmp_path / "b.txt", tmp_path / "a.txt")
    assert [file.name for file in files([tmp_path])[0]] == ["a.txt"]
    found, skipped = files([tmp_path], known=[str(tmp_path / "b.txt")])
    assert found == [File("b.txt", tmp_path / "b.txt", tmp_path)]
    assert told(skipped) == {"a.txt": "second name"}


@pytest.mark.program
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes in folders there")
def test_a_pipe_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    assert read([tree(tmp_path, "a.txt")]).skipped == (
        Skipped("pipe.txt", "not a file: a pipe, socket or device", "failed"),
    )


def test_gitignore_files_count_as_git_reads_them(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    root = tree(tmp_path / "docs", "a.txt", "b.log", "keep.log", "sub/c.txt", "sub/d.log", "sub/e.log", "out/f.txt")
    tree(tmp_path, ".gitignore", text="*.log\n!keep.log\n/docs/out/\n")
    tree(root / "sub", ".gitignore", text="c.txt\n!d.log\n")
    assert names(root) == ["a.txt", "keep.log", "sub/d.log"]
    assert names(root / "out") == ["f.txt"]  # what is given itself is read
    assert discover(root / "b.log") == [(root, root / "b.log")]


def test_include_and_exclude_are_patterns_of_paths_below_the_folder(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", "a.md", "b.txt", "drafts/c.md", "sub/drafts/d.md", "sub/e.md")
    assert names(root, include=["*.md"]) == ["a.md", "drafts/c.md", "sub/drafts/d.md", "sub/e.md"]
    assert names(root, include=["*.md"], exclude=["drafts/"]) == ["a.md", "sub/e.md"]
    assert names(root, exclude=["/drafts/", "*.txt"]) == ["a.md", "sub/drafts/d.md", "sub/e.md"]
    _, skipped = files([root], include=["*.md"], exclude=["drafts/"])
    assert told(skipped) == {"b.txt": "excluded", "drafts/": "excluded", "sub/drafts/": "excluded"}
    assert {one.reason for one in skipped} == {"--include does not name it", "--exclude names it"}


@pytest.mark.skipif(sys.platform == "win32", reason="folders have other rights there")
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, real = tree(tmp_path, "a.txt", "closed/b.txt"), os.scandir

    def refuse(folder: Path) -> object:
        if Path(folder) == root / "closed":
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    found, skipped = files([root])
    assert [file.name for file in found] == ["a.txt"]
    assert told(skipped) == {"closed": "failed"}
    with pytest.raises(DocumentError, match="cannot be listed: Permission denied"):
        discover(root / "closed")


def test_a_gitignore_that_cannot_be_followed_is_told(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", "a.md", "sub/b.md")
    (root / ".gitignore").write_text("*.md\n" * 2001)
    (root / "sub" / ".gitignore").write_bytes(b"*" * (1 << 20))
    found, skipped = files([root])
    assert [file.name for file in found] == ["a.md", "sub/b.md"]
    reasons = {one.source_file: one.reason for one in skipped if one.why == "failed"}
    assert reasons.keys() == {".gitignore", "sub/.gitignore"}
    assert all(reason.startswith("not followed: it has more than 2000 lines") for reason in reasons.values())


def test_the_folder_of_a_knowledge_base_is_no_document(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", "a.md", "app/manifest.json")
    with KnowledgeBase.create("plant", root=root / "kbs") as base:
        base.add([Chunk("a", "the pump")])
    found, skipped = files([root])
    assert [file.name for file in found] == ["a.md", "app/manifest.json"]
    assert told(skipped) == {"kbs/plant/": "base"}

"""Every format that was ever written opens, answers as it did, and takes the next write: a small base of each.

`python -m tests.compat.test_formats` writes that of the present format, once, when the format has changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.store import KnowledgeBase, Source, commit
from voicevault_retrievers.store.manifest import FORMAT
from voicevault_retrievers.text import CustomAnalyzer

FOLDER = Path(__file__).parent
BASES = sorted(FOLDER.glob("format-*"))
SPLIT = CustomAnalyzer(str.split, name="split")


def write(folder: Path) -> None:
    """A base with a segment, tombstones of chunks and parents, a log and sources."""
    commit.SEAL_AT = 1
    with KnowledgeBase.create(folder, analyzer=SPLIT, embedder=HashEmbedder(8)) as kb:
        kb.add(
            [
                Chunk("a", "the quick fox", "p", {"source_file": "a.md", "page": 1}),
                Chunk(
                    "b",
                    "the lazy dog 東京",
                    None,
                    {"source_file": "b.md", "tags": ["x", None], "draft": True},
                    header="犬",
                ),
                Chunk("c", "a cat", "q", {"source_file": "b.md"}),
            ],
            parents=[Chunk("p", "all about foxes"), Chunk("q", "all about cats")],
            sources=[Source("a.md", "1", "900", "/docs/a.md"), Source("b.md", "2")],
        )
        kb.delete(["c"])
        commit.SEAL_AT = 4096
        kb.add([Chunk("d", "a second fox", "r", {"page": 2})], parents=[Chunk("r", "more foxes")])
    (folder / "lock").unlink()


def test_the_present_format_is_among_them() -> None:
    assert f"format-{FORMAT}" in [path.name for path in BASES]


@pytest.mark.parametrize("path", BASES, ids=lambda path: path.name)
def test_a_base_of_a_format_is_what_it_was(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "kb")
    kb = KnowledgeBase.open(tmp_path / "kb", analyzer=SPLIT, embedder=HashEmbedder(8))
    assert kb.verify() == []
    assert [(c.id, c.text, c.parent_id, c.metadata, c.header) for c in kb] == [
        ("a", "the quick fox", "p", {"source_file": "a.md", "page": 1}, ""),
        ("b", "the lazy dog 東京", None, {"source_file": "b.md", "tags": ["x", None], "draft": True}, "犬"),
        ("d", "a second fox", "r", {"page": 2}, ""),
    ]
    assert {name: parent.text for name, parent in kb.parents(list("pqr")).items()} == {
        "p": "all about foxes",
        "r": "more foxes",
    }
    assert kb.sources == {"a.md": Source("a.md", "1", "900", "/docs/a.md"), "b.md": Source("b.md", "2")}
    assert kb.bm25().search("fox").ids == ("a", "d")
    assert kb.bm25().search(Query("fox", where={"page": {"$gte": 2}})).ids == ("d",)
    assert kb.dense().search("the lazy dog 東京").hits[0].chunk.id == "b"
    with kb:
        kb.add([Chunk("e", "one more fox")])
        kb.compact()
    assert kb.bm25().search("fox").ids == ("a", "d", "e")
    assert kb.verify() == []


if __name__ == "__main__":
    write(FOLDER / f"format-{FORMAT}")

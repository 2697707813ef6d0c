"""Custom analyzers are saved by name, and a knowledge base whose stemmer has changed is made usable by a repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import Stemmer

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, LockedError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.store import Bases, KnowledgeBase, commit
from voicevault_retrievers.text import Analyzer, CustomAnalyzer, analyzer, languages

CHUNKS = [
    Chunk("a", "Die Prüfungen der Pumpen beginnen", metadata={"page": 1}),
    Chunk("b", "Eine Prüfung der Ventile, eine Prüfung der Pumpe", metadata={"page": 2}),
    Chunk("c", "Ventile und Pumpen", metadata={"page": 2}),
    Chunk("d", "Öl"),
]
MINE = CustomAnalyzer(str.split, name="mine")


@pytest.fixture
def german(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base with two segments, one with tombstones, and a log."""
    with KnowledgeBase.create("kb", root=tmp_path, analyzer=Analyzer("de"), embedder=HashEmbedder()) as kb:
        monkeypatch.setattr(commit, "SEAL_AT", 2)
        kb.add([CHUNKS[0], CHUNKS[3], Chunk("gone", "Prüfungen"), Chunk("also", "Pumpen und Ventile")])
        kb.add([CHUNKS[1], Chunk("last", "Pumpen")])
        kb.delete(["gone", "last"])
        monkeypatch.undo()
        kb.add([CHUNKS[2]])
        kb.delete(["also"])
    assert [entry.deleted for entry in kb.manifest.segments] == [1, 1]
    return tmp_path


@pytest.fixture
def restemmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it for another PyStemmer, whose German cuts as an English one does."""

    def change() -> None:
        monkeypatch.setattr(languages, "_stemmer", lambda language: Stemmer.Stemmer("english"))
        _forget()

    yield change
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    analyzer._fingerprint.cache_clear()
    analyzer._asked.cache_clear()


def repaired(root: Path) -> KnowledgeBase:
    return KnowledgeBase.repair("kb", root=root, embedder=HashEmbedder())


def check(kb: KnowledgeBase) -> None:
    """The base searches as a fresh one does, and has nothing wrong on disk."""
    fresh = BM25.from_chunks([Chunk(c.id, c.text, metadata=c.metadata, kb="kb") for c in CHUNKS], kb.analyzer)
    for query in ("Prüfung", "Pumpe Ventil", "Prüfungen Pumpen"):
        found = kb.bm25().search(query)
        assert [(hit.chunk, hit.score) for hit in found] == [(hit.chunk, hit.score) for hit in fresh.search(query)]
    assert kb.verify() == []


def test_a_base_whose_stemmer_changed_is_refused_and_repaired(german: Path, restemmed: Callable[[], None]) -> None:
    before = KnowledgeBase.open("kb", root=german, embedder=HashEmbedder())
    check(before)
    restemmed()
    with pytest.raises(IncompatibleIndexError, match=r"KnowledgeBase\.repair\('kb'\)"):
        KnowledgeBase.open("kb", root=german)
    told: list[tuple[int, int]] = []
    kb = KnowledgeBase.repair(
        "kb", root=german, embedder=HashEmbedder(), progress=lambda done, total: told.append((done, total))
    )
    check(kb)
    assert kb.bm25().search("Prüfung").ids == ("b",)
    assert told == [(4, 6), (6, 6)]
    assert kb.ids() == before.ids() == ["a", "b", "c", "d"]
    vector = np.eye(16, dtype=np.float32)[0]
    assert kb.dense().index.nearest(vector, 9) == before.dense().index.nearest(vector, 9)
    with kb:
        kb.add([Chunk("e", "Prüfung")])
    assert KnowledgeBase.open("kb", root=german).bm25().search("Prüfung").ids == ("e", "b")


def test_a_repair_is_a_write_and_a_reader_sees_it(german: Path) -> None:
    reader = KnowledgeBase.open("kb", root=german, embedder=HashEmbedder())
    with KnowledgeBase.open("kb", root=german, embedder=HashEmbedder()) as writer:
        writer.delete(["d"])
        with pytest.raises(LockedError):
            repaired(german)
        writer.add([CHUNKS[3]])
    repaired(german)
    check(reader)
    assert reader.reload()
    check(reader)
    with pytest.raises(ConfigError, match="no knowledge base 'none'"):
        KnowledgeBase.repair("none", root=german)
    with pytest.raises(IncompatibleIndexError, match=r"given Analyzer.*'en'"):
        KnowledgeBase.repair("kb", root=german, analyzer=Analyzer("en"))


def test_a_custom_analyzer_is_saved_by_name(tmp_path: Path) -> None:
    with KnowledgeBase.create("kb", root=tmp_path, analyzer=MINE) as kb:
        kb.add(CHUNKS)
        kb.compact()
    assert kb.manifest.analyzer == {"custom": "mine"}
    for opened in (
        kb,
        KnowledgeBase.open("kb", root=tmp_path, analyzer=MINE),
        KnowledgeBase.open_or_create("kb", root=tmp_path, analyzer=CustomAnalyzer(str.split, name="mine")),
        Bases(["kb"], root=tmp_path, analyzer=MINE),
    ):
        assert (opened.bm25().search("Pumpen").ids, opened.bm25().search("pumpen").ids) == (("c", "a"), ())
        assert opened.reload() in (True, False)
    assert kb.verify() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"'mine', and none is given: open it with analyzer=CustomAnalyzer\(function, name='mine'"),
        (CustomAnalyzer(str.split, name="other"), "custom analyzer 'mine', given CustomAnalyzer.*'other'"),
        (Analyzer("de"), "custom analyzer 'mine', given Analyzer"),
        (CustomAnalyzer(list, name="mine"), r"its function has changed: .*repair\('kb', analyzer=\.\.\.\)"),
    ],
)
def test_another_function_than_the_saved_one_is_refused(
    tmp_path: Path, given: Analyzer | CustomAnalyzer | None, said: str
) -> None:
    KnowledgeBase.create("kb", root=tmp_path, analyzer=MINE).add(CHUNKS)
    for use in (
        lambda: KnowledgeBase.open("kb", root=tmp_path, analyzer=given),
        lambda: KnowledgeBase.open_or_create("kb", root=tmp_path, analyzer=given),
        lambda: Bases(["kb", "none"], root=tmp_path, analyzer=given),
    ):
        with pytest.raises(IncompatibleIndexError, match=said):
            use()


def test_a_custom_analyzer_that_changed_is_repaired_with_the_new_one(tmp_path: Path) -> None:
    with KnowledgeBase.create("kb", root=tmp_path, analyzer=MINE) as kb:
        kb.add(CHUNKS)
        kb.compact()
    changed = CustomAnalyzer(lambda text: text.lower().split(), name="mine")
    with pytest.raises(IncompatibleIndexError, match="and none is given"):
        KnowledgeBase.repair("kb", root=tmp_path)
    assert KnowledgeBase.repair("kb", root=tmp_path, analyzer=changed).bm25().search("pumpen").ids == ("c", "a")
    assert KnowledgeBase.open("kb", root=tmp_path, analyzer=changed).verify() == []


def test_a_function_without_a_name_and_a_recipe_from_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'analyzer=CustomAnalyzer\(function, name="\.\.\."\)'):
        KnowledgeBase.create("kb", root=tmp_path, analyzer=str.split)  # type: ignore[arg-type]  # what is refused
    assert list(tmp_path.iterdir()) == []
    KnowledgeBase.create("kb", root=tmp_path)
    with pytest.raises(IncompatibleIndexError, match=r"made with Analyzer.*'auto'.*given CustomAnalyzer"):
        KnowledgeBase.open("kb", root=tmp_path, analyzer=MINE)

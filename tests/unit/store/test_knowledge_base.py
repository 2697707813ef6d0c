"""The knowledge base: what it keeps, what it gives back, what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import Counting, HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import embedders, load_embedder
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, IndexDamagedError, LockedError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.models.weights import find, installed
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.store import Bases, Changes, KnowledgeBase, commit, default_root, embedding
from voicevault_retrievers.text import Analyzer

FOX = Chunk("fox", "the quick brown fox", "parent", {"page": 3, "tags": ["a", "b"], "draft": True})
DOG = Chunk("dog", "a lazy dog sleeps")
CAT = Chunk("cat", "a cat watches the dog")


@pytest.fixture
def embedder() -> Counting:
    return Counting()


@pytest.fixture
def kb(tmp_path: Path, embedder: Counting) -> KnowledgeBase:
    return KnowledgeBase.create("animals", root=tmp_path, embedder=embedder)


def test_an_add_counts_what_is_new_other_and_the_same(kb: KnowledgeBase, embedder: Counting) -> None:
    assert kb.add([FOX, DOG]) == Changes(added=2)
    embedder.texts.clear()
    other = Chunk("dog", "a lazy dog wakes")
    assert kb.add([FOX, other, CAT]) == Changes(added=1, replaced=1, unchanged=1)
    assert embedder.texts == [other.text, CAT.text]
    assert kb.get(["dog"])["dog"].text == other.text
    assert kb.add([]) == Changes()
    kb.add([Chunk("a", "x", metadata={"flag": True})])  # equal to 1 in Python, and not to a filter
    assert kb.add([Chunk("a", "x", metadata={"flag": 1})]) == Changes(replaced=1)


@pytest.mark.parametrize("seal_at", [1, 4096])
def test_chunks_come_back_as_they_were_and_say_where_from(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seal_at: int
) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", seal_at)
    strange = Chunk("\ud800\n\x00", "line\nbreak \u2028 😀", metadata={"é": None, "x": 0.1})
    kb.add([FOX, DOG, strange])
    for opened in (kb, KnowledgeBase.open("animals", root=tmp_path)):
        found = opened.get(["fox", strange.id, "none"])
        assert [(c.text, c.parent_id, c.metadata, c.kb) for c in found.values()] == [
            (c.text, c.parent_id, c.metadata, "animals") for c in (FOX, strange)
        ]
        assert opened.ids() == [chunk.id for chunk in opened] == sorted(["fox", "dog", strange.id])
        assert opened.bm25().search("fox").hits[0].chunk == found["fox"]


def test_a_delete_counts_what_was_here(kb: KnowledgeBase) -> None:
    kb.add([FOX, DOG])
    assert kb.delete(["fox", "fox", "none"]) == 1
    assert (len(kb), kb.ids(), kb.delete(["fox"])) == (1, ["dog"], 0)
    with pytest.raises(ConfigError, match=r"\['dog'\]"):
        kb.delete("dog")


def test_a_channel_keeps_the_snapshot_it_was_made_of(kb: KnowledgeBase) -> None:
    kb.add([DOG])
    before = kb.bm25(), kb.dense()
    kb.add([CAT])
    kb.delete(["dog"])
    assert [channel.search("dog").ids for channel in before] == [("dog",), ("dog",)]
    assert [channel.search("dog").ids for channel in (kb.bm25(), kb.dense())] == [("cat",), ("cat",)]


def test_a_reader_sees_commits_when_it_reloads(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = KnowledgeBase.open("animals", root=tmp_path)
    kb.add([FOX])
    assert len(reader) == 0
    assert reader.reload()
    assert not reader.reload()
    assert reader.ids() == ["fox"]
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    kb.add([DOG])
    kb.delete(["fox"])
    assert reader.get(["fox"])
    assert reader.reload()
    assert reader.ids() == ["dog"]


def test_a_segment_without_live_chunks_leaves_the_disk(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    kb.add([FOX, DOG])
    kb.delete(["fox"])
    dead = "seg-000001.dead-000002"
    assert {path.name for path in kb.path.glob("seg-*")} == {"seg-000001", dead, f"{dead}.terms"}
    kb.delete(["dog"])
    assert list(kb.path.glob("seg-*")) == []
    assert (len(kb), kb.verify()) == (0, [])


def test_one_writes_and_another_may_when_it_closed(kb: KnowledgeBase, tmp_path: Path) -> None:
    other = KnowledgeBase.open("animals", root=tmp_path, embedder=HashEmbedder())
    kb.add([FOX])
    with pytest.raises(LockedError, match=r"process \d+: close it"):
        other.add([DOG])
    kb.close()
    with other:
        other.add([DOG])
        assert other.ids() == ["dog", "fox"]
    with kb:
        kb.delete(["dog"])
    assert kb.ids() == ["fox"]


def test_a_failed_write_leaves_the_last_commit_and_the_lock_free(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add([FOX])

    def fail(texts: Sequence[str]) -> NDArray[np.float32]:
        raise RuntimeError("no model")

    monkeypatch.setattr(kb.embedder, "embed_documents", fail)
    with pytest.raises(RuntimeError, match="no model"):
        kb.add([DOG])
    assert kb.ids() == ["fox"]
    with KnowledgeBase.open("animals", root=tmp_path, embedder=HashEmbedder()) as other:
        assert other.add([DOG]) == Changes(added=1)


def test_progress_is_told_of_the_texts_to_embed(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "BATCH", 2)
    kb.add([FOX])
    told: list[tuple[int, int]] = []
    kb.add([FOX, DOG, CAT, Chunk("d", "four")], progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 3), (3, 3)]


def test_given_vectors_save_embedding(kb: KnowledgeBase, embedder: Counting) -> None:
    kb.add([FOX, DOG], np.eye(16)[:2])
    assert embedder.texts == []
    assert np.array_equal(kb.dense().index.similarities(np.eye(16, dtype=np.float32)[1], ["dog"])["dog"], 1.0)  # type: ignore[index]
    assert kb.add([FOX, DOG], np.eye(16)[:2]).unchanged == 2
    changes = kb.add([FOX, DOG], np.eye(16)[[0, 5]])
    assert (changes.replaced, changes.unchanged) == (1, 1)
    assert kb.dense().index.similarities(np.eye(16, dtype=np.float32)[5], ["dog"]) == {"dog": 1.0}
    assert kb.add([FOX, DOG]).unchanged == 2
    assert embedder.texts == []


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (np.eye(16)[:1], r"\(1, 16\), expected \(2, 16\)"),
        (2 * np.eye(16)[:2], "length 2"),
        (np.full((2, 16), np.nan), "nan"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(kb: KnowledgeBase, vectors: NDArray[np.float64], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kb.add([FOX, DOG], vectors)


def test_chunks_that_cannot_be_kept_are_refused(kb: KnowledgeBase) -> None:
    with pytest.raises(ConfigError, match="two chunks have the id 'dog'"):
        kb.add([DOG, FOX, DOG])
    for value in (object(), float("nan"), b"bytes"):
        with pytest.raises(ConfigError, match="'fox' cannot be kept as JSON"):
            kb.add([Chunk("fox", "x", metadata={"a": value})])
    assert len(kb) == 0


def test_a_base_without_an_embedder_is_for_keywords(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("words", root=tmp_path, analyzer=Analyzer("de"))
    kb.add([Chunk("a", "Die Prüfungen beginnen")])
    assert KnowledgeBase.open("words", root=tmp_path).bm25().search("Prüfung").ids == ("a",)
    assert kb.embedder is None
    with pytest.raises(ConfigError, match="without an embedder"):
        kb.dense()
    with pytest.raises(ConfigError, match="keeps no vectors"):
        kb.add([DOG], np.eye(16)[:1])
    with pytest.raises(IncompatibleIndexError, match="holds no vectors, given 'hash/16'"):
        KnowledgeBase.open("words", root=tmp_path, embedder=HashEmbedder())


def test_another_embedder_or_analyzer_is_refused(kb: KnowledgeBase, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleIndexError, match=r"'hash/16', given 'hash/8': open it with"):
        KnowledgeBase.open("animals", root=tmp_path, embedder=HashEmbedder(8))
    with pytest.raises(IncompatibleIndexError, match=r"given Analyzer.*language='de'"):
        KnowledgeBase.open_or_create("animals", root=tmp_path, analyzer=Analyzer("de"))
    with pytest.raises(ConfigError, match=r"embedder=\.\.\."):
        KnowledgeBase.open("animals", root=tmp_path).dense()


def test_a_stemmer_that_changed_is_refused(kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Analyzer, "fingerprint", property(lambda self: "another"))
    with pytest.raises(IncompatibleIndexError, match="other terms here"):
        KnowledgeBase.open("animals", root=tmp_path)


def test_an_embedder_with_a_name_is_made_again_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(HashEmbedder):
        model = "some-model"

    made: list[tuple[str, str]] = []

    def load(name: str, backend: str) -> HashEmbedder:
        made.append((name, backend))
        return HashEmbedder(16 if len(made) == 1 else 8)

    monkeypatch.setattr(embedders, "OnnxEmbedder", Named)
    monkeypatch.setattr(embedders, "load_embedder", load)
    KnowledgeBase.create("named", root=tmp_path, embedder=Named()).add([FOX])
    opened = KnowledgeBase.open("named", root=tmp_path)
    assert made == []
    assert opened.dense().search("fox").ids == opened.dense().search("brown").ids == ("fox",)
    assert made == [("some-model", "auto")]
    with pytest.raises(IncompatibleIndexError, match="given 'hash/8'"):
        KnowledgeBase.open("named", root=tmp_path).dense()


def test_names_folders_and_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICEVAULT_HOME", str(tmp_path))
    assert default_root() == tmp_path
    assert KnowledgeBase.create("cafe\u0301 1.0-b").path == tmp_path / "caf\u00e9 1.0-b"
    assert KnowledgeBase.create(tmp_path / "deep" / "er").path == tmp_path / "deep" / "er"
    assert KnowledgeBase.open_or_create("er", root=tmp_path / "deep").name == "er"
    with pytest.raises(ConfigError, match="is there already"):
        KnowledgeBase.create("er", root=tmp_path / "deep")
    with pytest.raises(ConfigError, match=r"no knowledge base 'none'.*known: café 1\.0-b, deep"):
        KnowledgeBase.open("none")
    monkeypatch.delenv("VOICEVAULT_HOME")
    assert default_root() == Path.home() / ".voicevault" / "kbs"


def test_bases_score_as_one_collection(tmp_path: Path) -> None:
    one = KnowledgeBase.create("one", root=tmp_path, embedder=HashEmbedder())
    two = KnowledgeBase.create("two", root=tmp_path, embedder=HashEmbedder())
    one.add([FOX, DOG])
    two.add([CAT, Chunk("dog", "dog eat dog", metadata={"page": 1})])
    both = Bases(["one", two], root=tmp_path, embedder=HashEmbedder())
    union = BM25.from_chunks([c.prefixed(f"{kb.name}:") for kb in (one, two) for c in kb])
    found = both.bm25().search("dog fox")
    assert [(hit.chunk, hit.score) for hit in found] == [(hit.chunk, hit.score) for hit in union.search("dog fox")]
    assert {hit.id: hit.chunk.kb for hit in found}["two:dog"] == "two"
    assert both.dense().search("cat").ids[0] == "two:cat"
    assert (len(both), both.notes) == (4, ())
    two.delete(["dog"])
    assert "two:dog" not in both.bm25().search("dog").ids
    assert Bases([one]).bm25().search("fox").ids == ("fox",)


def test_bases_that_are_missing_or_empty_are_named_and_picked_up(tmp_path: Path) -> None:
    bases = Bases(["one", "two"], root=tmp_path, embedder=HashEmbedder())
    assert [(note.stage, note.kind, note.degrades) for note in bases.notes] == [
        ("one", "missing", False), ("two", "missing", False),
    ]  # fmt: skip
    assert (bases.bm25().search("dog").hits, bases.dense().search("dog").hits, bases.reload()) == ((), (), False)
    one = KnowledgeBase.create("one", root=tmp_path, embedder=HashEmbedder())
    assert bases.reload()
    assert [(note.kind, note.degrades) for note in bases.notes] == [("empty", False), ("missing", False)]
    one.add([DOG])
    assert bases.reload()
    assert not bases.reload()
    assert [(note.stage, note.kind, note.degrades) for note in bases.notes] == [("two", "missing", True)]
    assert bases.bm25().search("dog").ids == bases.dense().search("dog").ids == ("one:dog",)


@pytest.mark.parametrize("exists", [False, True])
async def test_a_base_that_is_missing_or_empty_gives_an_empty_result_with_one_note(
    tmp_path: Path, exists: bool
) -> None:
    if exists:
        KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()).close()
    bases = Bases(["kb"], root=tmp_path, embedder=HashEmbedder())
    pipeline = Preset.of({"version": 1}).over(bases)
    for result in (pipeline.search("dog"), await pipeline.asearch("dog")):
        assert (result.hits, result.confidence, result.degraded) == ((), "none", False)
        assert [note.kind for note in result.errors] == ["empty" if exists else "missing"]
    with KnowledgeBase.open_or_create("kb", root=tmp_path, embedder=HashEmbedder()) as kb:
        kb.add([DOG])
    assert bases.reload()
    assert Preset.of({"version": 1}).over(bases).search("dog").ranking.ids == ("dog",)


def test_a_damaged_or_incompatible_base_is_not_skipped_beside_others(tmp_path: Path) -> None:
    for name in ("fine", "torn"):
        KnowledgeBase.create(name, root=tmp_path, embedder=HashEmbedder()).close()
    (tmp_path / "torn" / "manifest.json").write_text("{")
    with pytest.raises(IndexDamagedError):
        Bases(["fine", "torn"], root=tmp_path)
    with pytest.raises(IncompatibleIndexError, match="given"):
        Bases(["fine"], root=tmp_path, embedder=HashEmbedder(8))


def test_bases_that_repeat_or_have_no_vectors_are_refused(tmp_path: Path) -> None:
    KnowledgeBase.create("plain", root=tmp_path).add([DOG])
    with pytest.raises(ConfigError, match="named once"):
        Bases(["plain", "plain"], root=tmp_path)
    with pytest.raises(ConfigError, match="without an embedder"):
        Bases(["plain", "none"], root=tmp_path).dense()


@pytest.mark.weights
@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_a_retriever_finds_nothing_in_a_base_to_come_and_reloads_what_was_ingested(
    tmp_path: Path, framework: str
) -> None:
    if not (installed("onnx") and find("all-MiniLM-L6-v2", "onnx")):
        pytest.skip("needs the weights of the extra `offline`")
    pytest.importorskip({"langchain": "langchain_core", "llama_index": "llama_index.core"}[framework])
    module = import_module(f"voicevault_retrievers.{framework}")
    retriever = module.HybridRetriever(kb_names=[tmp_path / "later"])
    empty = retriever.search("pump")
    assert (empty.hits, empty.confidence, empty.degraded, len(empty.errors)) == ((), "none", False, 1)
    assert retriever.reload() is False
    with KnowledgeBase.create("later", root=tmp_path, embedder=load_embedder()) as base:
        base.add([Chunk("a", "the pump")])
    assert retriever.search("pump").hits == ()
    assert retriever.reload() is True
    assert retriever.search("pump").ranking.ids == (await retriever.asearch("pump")).ranking.ids == ("a",)

"""A keyword index for each tenant: what each finds, and never finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import voicevault_retrievers
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError, DocumentError, IncompatibleIndexError, LockedError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank import PageCap
from voicevault_retrievers.store import Changes, KnowledgeBase, TenantIndex
from voicevault_retrievers.store.reader import View
from voicevault_retrievers.text import Analyzer

NEWS = [Chunk("a", "the minister resigns", metadata={"year": 2024}), Chunk("b", "the minister stays")]


class Desk:
    """A source whose chunks can be exchanged; counts how often it was read."""

    def __init__(self, *chunks: Chunk) -> None:
        self.chunks = list(chunks)
        self.read = 0

    def __call__(self) -> list[Chunk]:
        self.read += 1
        return self.chunks


def _index(root: Path, tenant: str, *chunks: Chunk) -> TenantIndex:
    index = TenantIndex(tenant, root=root, source=Desk(*chunks))
    index.rebuild()
    return index


def test_an_index_is_made_kept_and_found_again(tmp_path: Path) -> None:
    assert voicevault_retrievers.TenantIndex is TenantIndex
    index = TenantIndex("acme", root=tmp_path, source=Desk(*NEWS))
    assert (index.search("minister").hits, index.base, index.needs_rebuild()) == ((), None, True)
    assert list(tmp_path.iterdir()) == []
    assert index.rebuild().changes == Changes(added=2)
    assert not index.needs_rebuild()
    found = TenantIndex("acme", root=tmp_path).search("minister", k=1000)
    expected = BM25.from_chunks(NEWS).search("minister")
    assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in expected]
    assert found.hits[0].votes[0].stage == "bm25"
    assert index.search(Query("minister", where={"year": 2024})).ids == ("a",)
    assert index.search("minister", 0).hits == ()


def test_it_is_opened_by_the_first_search_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _index(tmp_path, "acme", *NEWS)
    opened: list[str] = []
    made: list[View] = []
    real, keyword = KnowledgeBase.open, View.bm25

    def counted(base: str, **options: object) -> KnowledgeBase:
        opened.append(base)
        return real(base, **options)  # type: ignore[arg-type]  # passed through

    def making(view: View, **options: Any) -> BM25:
        made.append(view)
        return keyword(view, **options)

    monkeypatch.setattr(View, "bm25", making)
    monkeypatch.setattr(KnowledgeBase, "open", counted)
    index = TenantIndex("acme", root=tmp_path)
    pipeline = Preset.of({"version": 1}).over(index)
    pipeline.describe()
    assert (opened, made) == ([], [])
    for _ in range(3):
        assert index.search("minister").hits
        assert index.channel.named("another").search("minister").hits
    assert (opened, len(made)) == (["acme"], 1)
    assert pipeline.search("minister").hits
    assert opened == ["acme"]


def test_what_has_changed_at_the_source_is_seen(tmp_path: Path) -> None:
    desk = Desk(*NEWS)
    index = TenantIndex("acme", root=tmp_path, source=desk)
    index.rebuild()
    for chunks, changes in (
        ([NEWS[1], NEWS[0]], None),
        ([*NEWS, Chunk("c", "an election")], Changes(added=1, unchanged=2)),
        ([Chunk("a", NEWS[0].text, metadata={"year": 2025}), NEWS[1]], Changes(replaced=1, unchanged=1, removed=1)),
        ([], Changes(removed=2)),
        (NEWS, Changes(added=2)),
    ):
        desk.chunks = chunks
        assert index.needs_rebuild() is (changes is not None)
        if changes:
            assert index.rebuild().changes == changes
        assert not index.needs_rebuild()
        assert index.base is not None
        assert index.base.ids() == sorted(chunk.id for chunk in chunks)


@pytest.mark.program
def test_an_index_of_files_follows_them(tmp_path: Path) -> None:
    docs, other = tmp_path / "docs", tmp_path / "other"
    for folder in (docs, other):
        folder.mkdir()
        (folder / "a.txt").write_text(f"the minister in {folder.name}")
    index = TenantIndex("acme", root=tmp_path / "kbs", source=docs)
    done = index.rebuild()
    assert (done.read, done.changes.added, index.needs_rebuild()) == (1, 1, False)
    (docs / "b.txt").write_text("the election")
    (docs / "broken.txt").write_bytes(b"\0")
    assert index.needs_rebuild()
    done = index.rebuild()
    assert (done.read, done.unchanged, done.skipped[0].source_file) == (1, 1, "broken.txt")
    (docs / "broken.txt").unlink()
    assert not index.needs_rebuild()
    (docs / "b.txt").unlink()
    assert index.needs_rebuild()
    assert index.rebuild().changes == Changes(removed=1)
    moved = TenantIndex("acme", root=tmp_path / "kbs", source=[other])
    assert moved.needs_rebuild()
    moved.rebuild()
    assert not moved.needs_rebuild()
    assert [hit.text for hit in moved.search("minister")] == ["the minister in other"]
    with pytest.raises(DocumentError, match="does not exist"):
        TenantIndex("acme", root=tmp_path / "kbs", source=tmp_path / "gone").rebuild()
    assert moved.search("minister").ids


def test_what_is_cleared_is_gone_from_disk_and_found_no_more(tmp_path: Path) -> None:
    index = _index(tmp_path, "acme", *NEWS)
    seen = TenantIndex("acme", root=tmp_path)
    channel = index.channel
    assert channel.search("minister").ids == seen.search("minister").ids != ()
    index.clear()
    assert list(tmp_path.iterdir()) == []
    assert channel.search("minister").hits == index.search("minister").hits == ()
    index.clear()
    assert index.needs_rebuild()
    assert seen.reload()
    assert not seen.reload()
    assert seen.search("minister").hits == ()
    index.rebuild()
    assert channel.search("minister").ids == seen.search("minister").ids != ()


def test_what_others_write_is_seen_after_a_reload(tmp_path: Path) -> None:
    index = TenantIndex("acme", root=tmp_path)
    assert not index.reload()
    _index(tmp_path, "acme", *NEWS[:1])
    assert index.search("minister").ids == ("a",)
    writer = _index(tmp_path, "acme", *NEWS)
    assert index.search("minister").ids == ("a",)
    assert index.reload()
    assert set(index.search("minister").ids) == {"a", "b"}
    writer.clear()
    _index(tmp_path, "acme", Chunk("new", "another minister"))
    index.reload()
    assert index.search("minister").ids == ("new",)


def test_two_tenants_never_see_each_other(tmp_path: Path) -> None:
    one = _index(tmp_path, "one", Chunk("same id", "the minister resigns"), Chunk("x", "the minister"))
    two = _index(tmp_path, "two", Chunk("same id", "the minister stays"))
    alone = BM25.from_chunks([Chunk("same id", "the minister stays")])
    assert [(hit.text, hit.score) for hit in two.search("minister stays")] == [
        (hit.text, hit.score) for hit in alone.search("minister stays")
    ]
    assert two.search("resigns").hits == ()
    one.clear()
    assert len(two.search("minister")) == 1
    two.rebuild()
    assert (one.search("minister").hits, {hit.chunk.kb for hit in two.search("minister")}) == ((), {"two"})


@pytest.mark.parametrize(
    "name", ["../one", "one/../one", "/etc", ".", "..", "", "one/", "one\0", "one\\..", "\uff0e\uff0e/one", "~", "one "]
)
def test_a_tenant_is_a_name_and_no_path(tmp_path: Path, name: str) -> None:
    _index(tmp_path, "one", *NEWS)
    with pytest.raises(ConfigError, match="not the name of a knowledge base"):
        TenantIndex(name, root=tmp_path / "kbs")
    with pytest.raises(ConfigError, match="named by a string"):
        TenantIndex(tmp_path / "one")  # type: ignore[arg-type]  # wrong on purpose


def test_a_link_to_another_tenants_root_is_refused(tmp_path: Path) -> None:
    _index(tmp_path / "theirs", "one", *NEWS)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "two").symlink_to(tmp_path / "theirs" / "one")
    with pytest.raises(ConfigError, match="is a link out of"):
        TenantIndex("two", root=tmp_path / "ours")


def test_it_is_a_channel_of_pipelines_and_a_base_with_vectors(tmp_path: Path) -> None:
    index = TenantIndex("acme", root=tmp_path, embedder=HashEmbedder(), source=Desk(*NEWS))
    fused = voicevault_retrievers.fuse(keyword=index.channel) >> PageCap()
    assert fused.search("minister resigns").hits == ()
    index.rebuild()
    found = fused.search("minister resigns")
    assert (found.ids, found.hits[0].votes[0].stage) == (("a", "b"), "keyword")
    assert index.base is not None
    assert index.base.dense().search("minister resigns").ids[0] == "a"
    scores = index.channel.scores(Query("minister"), ["a", "none"])
    assert scores == index.bm25().scores(Query("minister"), ["a", "none"])


def test_its_channels_search_what_is_here_as_those_of_the_base_do(tmp_path: Path) -> None:
    index = TenantIndex("acme", root=tmp_path, embedder=HashEmbedder(), source=Desk(*NEWS))
    bm25, dense = index.bm25(formula="okapi", name="words"), index.dense(name="meaning")
    for channel in (bm25, dense):
        found = channel.search("minister resigns")
        assert found.hits == ()
        assert [(note.stage, note.kind, note.degrades) for note in found.errors] == [(channel.name, "missing", False)]
        asked = Query("minister")
        assert (channel.scores(asked, ["a"]), channel.coverage(asked)) == (None, None)
    index.rebuild()
    base = index.base
    assert base is not None
    own = Variant("minister", channels=frozenset({"meaning"}))
    blank = {fingerprint: HashEmbedder().embed_queries(["stays"])[0] for fingerprint in ("", "another")}
    for query in (
        Query("resigns", variants=(own,)),
        Query("stays", where={"year": 2024}),
        Query("", vectors={"": blank[""]}),
        Query(" ", vectors={"another": blank["another"]}),
    ):
        for live, plain in (
            (bm25, base.bm25(formula="okapi", name="words")),
            (dense, base.dense(name="meaning")),
        ):
            assert live.search(query) == plain.search(query)
            assert live.scores(query, ["a", "b"]) == plain.scores(query, ["a", "b"])
            assert live.coverage(query) == plain.coverage(query)
    index.clear()
    assert (bm25.search("minister").hits, dense.search("minister").hits) == ((), ())


def test_an_empty_index_loads_no_model(tmp_path: Path) -> None:
    class Unloaded(HashEmbedder):
        def embed_queries(self, texts: Any) -> Any:
            raise AssertionError(texts)

    index = TenantIndex("acme", root=tmp_path, embedder=Unloaded(), source=Desk())
    assert index.rebuild().changes == Changes()
    found = Preset.of({"version": 1}).over(index).search("minister")
    assert (found.hits, found.degraded, found.confidence) == ((), False, "none")
    assert [failure.stage for failure in found.errors] == ["bm25", "dense"]


@pytest.mark.parametrize("wrong", [{"formula": "tfidf"}, {"timeout": -1}, {"statistics": "all"}])
def test_a_wrong_option_of_a_channel_is_said_at_once(tmp_path: Path, wrong: dict[str, Any]) -> None:
    index = TenantIndex("acme", root=tmp_path)
    for make in (index.bm25, index.dense):
        with pytest.raises(ConfigError):
            make(**wrong)


def test_an_index_of_words_alone_has_no_vectors_to_search(tmp_path: Path) -> None:
    index = _index(tmp_path, "acme", *NEWS)
    with pytest.raises(ConfigError, match="without an embedder"):
        index.dense().search("minister")
    both = voicevault_retrievers.fuse(bm25=index.bm25(), dense=index.dense()).search("minister")
    assert set(both.ids) == {"a", "b"}
    assert [failure.stage for failure in both.errors if failure.degrades] == ["dense"]


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    index = TenantIndex("acme", root=tmp_path)
    for asked in (index.rebuild, index.needs_rebuild):
        with pytest.raises(ConfigError, match="'acme' has no source"):
            asked()
    index = _index(tmp_path, "acme", *NEWS)
    with KnowledgeBase.open("acme", root=tmp_path) as base:
        base.delete(["a"])
        for change in (index.rebuild, index.clear):
            with pytest.raises(LockedError):
                change()
    with pytest.raises(IncompatibleIndexError, match="made with"):
        TenantIndex("acme", root=tmp_path, analyzer=Analyzer("de")).search("minister")

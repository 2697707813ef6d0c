"""Which hits of channels without common ids are the same document."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import numpy as np
import pytest

from tests.helpers import GivenChannel, HashEmbedder
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.pipeline import Pipeline


def _by_channels(ranking: Ranking) -> dict[str, list[str]]:
    return {hit.id: [vote.stage for vote in hit.votes if vote.rank] for hit in ranking}


def test_channels_without_a_common_id_find_the_same_document_where_text_and_metadata_agree() -> None:
    at = datetime(2026, 1, 2, 3, 4)
    one = BM25.from_chunks(
        [
            Chunk("a", "pump", metadata={"page": 1, "tags": ("x", "y"), "at": at, "title": None}),
            Chunk("b", "pump valve"),
        ]
    )
    other = BM25.from_chunks(
        [
            Chunk("x", "pump", metadata={"page": 1.0, "tags": ["x", "y"], "at": at.isoformat(), "_id": "x"}),
            Chunk("y", "oil pump"),
        ]
    )
    for method in ("rrf", None):
        found = fuse(one=one, other=other, method=method).search("pump")
        assert _by_channels(found) == {"a": ["one", "other"], "b": ["one"], "y": ["other"]}
        assert found.errors == ()
        assert next(hit for hit in found if hit.id == "a").chunk == one.index.get("a")
        turned = fuse(other=other, one=one, method=method).search("pump")
        assert [(hit.id, hit.score) for hit in turned] == [(hit.id, hit.score) for hit in found]


@pytest.mark.parametrize("method", ["rrf", "isr", "convex", None])
def test_what_is_merged_has_the_votes_that_it_has_with_ids_in_common(method: str | None) -> None:
    texts = ["pump", "pump valve", "oil pump", "a pump of oil", "the valve"]
    same, renamed = ([Chunk(f"{prefix}{at}", text) for at, text in enumerate(texts)] for prefix in ("a", "b"))
    vectors = [VectorChannel.from_chunks(chunks, HashEmbedder()) for chunks in (same, renamed)]
    shared, apart = (
        fuse(bm25=BM25.from_chunks(same), dense=dense, method=method).search("pump valve") for dense in vectors
    )
    assert [[(vote.stage, vote.rank, vote.score) for vote in hit.votes] for hit in apart] == [
        [(vote.stage, vote.rank, vote.score) for vote in hit.votes] for hit in shared
    ]
    if method is not None:  # the default goes by samples of what each channel knows, which here have no id in common
        assert [(hit.id, hit.score) for hit in apart] == [(hit.id, hit.score) for hit in shared]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (math.nan, float("nan"), True),
        (np.int64(3), 3, True),
        (np.float32(1.5), 1.5, True),
        (np.True_, True, True),
        ([1], [1.0], True),
        (np.arange(3), [0, 1, 2], True),
        ({1: "yes", "other": {(1, 2): np.nan}}, {"1": "yes", "other": {(1, 2): math.nan}}, True),
        (datetime(2026, 1, 2, 12, tzinfo=timezone.utc), "2026-01-02T12:00:00+00:00", True),
        ({2, "b"}, frozenset(["b", 2]), True),
        (True, 1, False),
        (math.nan, 1.0, False),
        (math.nan, "nan", False),
        (np.arange(3), [0, 1, 3], False),
        ({1: "yes"}, {1: "no"}, False),
    ],
)
def test_which_values_of_metadata_agree(one: object, other: object, same: bool) -> None:
    channels = {
        name: BM25.from_chunks([Chunk(name, "pump", metadata={"v": v})]) for name, v in (("a", one), ("b", other))
    }
    assert len(fuse(channels).search("pump").hits) == (1 if same else 2)


def test_equal_texts_whose_metadata_contradicts_are_documents_of_their_own_with_a_note() -> None:
    one = BM25.from_chunks([Chunk("a1", "pump", metadata={"page": 1}), Chunk("a2", "pump", metadata={"page": 2})])
    other = BM25.from_chunks([Chunk("b2", "pump", metadata={"page": 2}), Chunk("b3", "pump", metadata={"page": 3})])
    result = Pipeline(fuse(one=one, other=other)).search("pump")
    assert _by_channels(result.ranking) == {"a1": ["one"], "a2": ["one", "other"], "b3": ["other"]}
    assert [(failure.kind, failure.degrades) for failure in result.errors] == [("DifferentIds", False)]
    assert "1 texts were found by several of one, other, with other ids" in result.errors[0].message
    assert Pipeline(fuse(one=one, other=one)).search("pump").errors == ()


def test_documents_of_one_channel_stay_apart_whatever_another_finds() -> None:
    one = BM25.from_chunks([Chunk("a1", "pump", metadata={"page": 1}), Chunk("a2", "pump", metadata={"page": 2})])
    bare = BM25.from_chunks([Chunk("b1", "pump"), Chunk("b2", "pump"), Chunk("b3", "pump")])
    found = fuse(one=one, other=bare, method="rrf").search("pump")
    assert _by_channels(found) == {"a1": ["one", "other"], "a2": ["one", "other"], "b3": ["other"]}
    shared = fuse(one=one, third=one, other=bare, method="rrf").search("pump")
    assert _by_channels(shared)["a1"] == ["one", "third", "other"]


def test_one_id_for_different_texts_is_one_document_with_a_note() -> None:
    one = BM25.from_chunks([Chunk("1", "pump"), Chunk("2", "oil pump"), Chunk("3", "valve")])
    other = BM25.from_chunks([Chunk("1", "pump"), Chunk("2", "a pump leaks"), Chunk("4", "the pump")])
    for method in ("rrf", None):
        found = fuse(one=one, other=other, method=method).search("pump")
        assert {hit.id: hit.chunk.text for hit in found} == {"1": "pump", "2": "oil pump", "4": "the pump"}
        (note,) = found.errors
        assert (note.kind, note.degrades) == ("DifferentTexts", False)
        assert note.message.startswith("1 ids stand for different texts in several channels, such as '2'")
        assert fuse(one=one, other=other, method=method).search("pump", 1).errors == ()


def test_texts_that_are_empty_say_nothing_of_what_is_the_same() -> None:
    one = GivenChannel((Hit(Chunk("a")),))
    assert fuse(one=one, other=GivenChannel((Hit(Chunk("b")),))).search("pump").ids == ("a", "b")


def test_the_chunk_of_a_knowledge_base_stands_for_the_document() -> None:
    base = GivenChannel((Hit(Chunk("1", "pump", "parent", {"page": 1}, kb="plant"), 1.0),))
    foreign = GivenChannel((Hit(Chunk("x", "pump", metadata={"source": "a"}), 1.0),))
    (hit,) = fuse(a_foreign=foreign, base=base, method="rrf").search("pump")
    assert hit.chunk == base.hits[0].chunk
    assert hit.found_by == "hybrid" or len(hit.votes) == 2


def test_merging_widens_no_access_right() -> None:
    """Each channel permits by its own metadata; the document that comes out has metadata which were permitted."""
    open_, closed = {"team": "red"}, {"team": "blue"}
    one = BM25.from_chunks([Chunk("a", "pump", metadata=closed), Chunk("b", "pump valve", metadata=open_)])
    other = BM25.from_chunks([Chunk("x", "pump", metadata=open_), Chunk("y", "pump valve", metadata=open_)])
    found = fuse(one=one, other=other, method="rrf").search(Query("pump", require=open_))
    assert _by_channels(found) == {"b": ["one", "other"], "x": ["other"]}
    assert {hit.chunk.metadata["team"] for hit in found} == {"red"}
    narrowed = fuse(one=Pipeline(one).narrowed(require=closed), other=other, method="rrf").search("pump")
    assert _by_channels(narrowed) == {"a": ["one"], "x": ["other"], "y": ["other"]}

"""What is found is columns: an item is made when it is read, once, and a search makes only what leaves it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers import BM25, RRF, Chunk, Pipeline, Query, fuse
from voicevault_retrievers.core.listing import Listing, merged
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense import ExactVectors, VectorChannel, VectorPart
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical import LexicalIndex
from voicevault_retrievers.text import Analyzer


def listing(ids: str, scores: Sequence[float], made: list[str]) -> Listing[str]:
    def make(at: int) -> str:
        made.append(ids[at])
        return ids[at].upper()

    return Listing(list(ids), np.array(scores), make)


def test_an_item_is_made_when_it_is_read_and_once() -> None:
    made: list[str] = []
    found = listing("abcd", [4, 3, 2, 1], made)
    first = found[:2]
    assert (len(found), first.ids, list(first.scores), made) == (4, ["a", "b"], [4.0, 3.0], [])
    assert (first[1], found[1], found[-1], made) == ("B", "B", "D", ["b", "d"])
    assert (found.at([2, 0]).ids, list(found.at([2, 0]))) == (["c", "a"], ["C", "A"])
    assert found[:9] is found
    assert (list(found[::-1]), found[::-1].ids) == (["D", "C", "B", "A"], ["d", "c", "b", "a"])
    with pytest.raises(IndexError):
        found[4]
    assert made == ["b", "d", "c", "a"]


def test_it_compares_and_pickles_as_the_sequence_that_it_is() -> None:
    found = listing("ab", [2, 1], [])
    assert found == ("A", "B") == pickle.loads(pickle.dumps(found))
    assert hash(found) == hash(("A", "B"))
    assert found != ("A",)
    assert repr(found) == "('A', 'B')"
    bare: Listing[str] = Listing(["a"], None, str)
    assert (bare[:1].scores, bare.at([0]).scores) == (None, None)


def test_several_are_one_by_falling_score_and_rising_id() -> None:
    made: list[str] = []
    parts = [listing("bd", [3, 1], made), listing("ac", [3, 2], made), listing("", [], made)]
    best = merged(parts, 3)
    assert (best.ids, list(best.scores), made) == (["a", "b", "c"], [3.0, 3.0, 2.0], [])
    assert (list(best), made) == (["A", "B", "C"], ["a", "b", "c"])
    assert merged(parts[:1], 1).ids == ["b"]


class Counted(Sequence[Any]):
    """Chunks, and which were read; one of them cannot be."""

    def __init__(self, chunks: Sequence[Chunk], damaged: str | None = None) -> None:
        self.chunks, self.damaged = chunks, damaged
        self.read: list[str] = []

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, at: Any) -> Any:
        chunk = self.chunks[at]
        if chunk.id == self.damaged:
            raise IndexDamagedError(f"{chunk.id} is damaged")
        self.read.append(chunk.id)
        return chunk


def hybrid(size: int = 60, damaged: str | None = None) -> tuple[dict[str, Any], Counted, Counted]:
    """A keyword and a vector channel over chunks that are counted as they are read."""
    chunks = [Chunk(f"c{at:02}", f"pump {'valve ' * (at % 5)}seal {at}") for at in range(size)]
    words, meaning = Counted(chunks, damaged), Counted(chunks)
    ids = [chunk.id for chunk in chunks]
    embedder, texts = HashEmbedder(), [chunk.text for chunk in chunks]
    index = LexicalIndex.build(Rows(words, ids), Analyzer().analyse(texts))
    part = VectorPart(Rows(meaning, ids), embedder.embed_documents(texts))
    dense = VectorChannel(ExactVectors([part], embedder.dimension), embedder)
    return {"words": BM25(index), "meaning": dense}, words, meaning


@pytest.mark.parametrize("method", [None, RRF()], ids=repr)
def test_a_search_reads_no_chunk_but_those_that_leave_it(method: Any) -> None:
    channels, words, meaning = hybrid()
    found = Pipeline(fuse(channels, method=method)).search("pump valve seal", 3)
    ids = {hit.id for hit in found.hits}
    assert len(found.hits) == len(ids) == 3
    assert {*words.read, *meaning.read} == ids
    assert max(words.read.count(one) for one in words.read) == 1
    assert all(hit.votes and hit.chunk.text for hit in found.hits)


def test_a_channel_alone_gives_hits_that_need_nothing_of_it_any_more() -> None:
    channels, words, _ = hybrid()
    found = channels["words"].search("valve", 4)
    words.chunks = ()
    assert len([hit.chunk.text for hit in found]) == 4
    assert isinstance(found.hits, tuple)


async def test_on_an_event_loop_too() -> None:
    channels, words, _ = hybrid()
    found = await channels["words"].asearch("valve", 4)
    assert (found, isinstance(found.hits, tuple)) == (channels["words"].search("valve", 4), True)
    assert len(set(words.read)) == 4


def test_a_channel_whose_hit_cannot_be_read_is_skipped_and_noted() -> None:
    """It is read late, in the fusion; the other channel's answer stands all the same."""
    whole, _, _ = hybrid()
    best = whole["words"].search("valve", 1).ids[0]
    channels, _, _ = hybrid(damaged=best)
    with pytest.raises(IndexDamagedError, match="is damaged"):
        channels["words"].search("valve", 1)
    others = {"meaning": channels["meaning"]}, {"list": ListChannel([("x", 1.0)])}
    for other, depth in product(others, (1, 60)):
        found = fuse({"words": channels["words"], **other}, depth=depth).search("valve", 60)
        assert [(note.stage, note.kind, note.degrades) for note in found.errors][:1] == [
            ("words", "IndexDamagedError", True)
        ]
        assert found.ids == fuse(other, depth=depth).search("valve", 60).ids
        with pytest.raises(IndexDamagedError, match="is damaged"):
            fuse({"words": channels["words"], **other}, on_error="raise").search("valve", 60)
    with pytest.raises(IndexDamagedError, match="is damaged"):
        fuse({"words": channels["words"]}).search("valve", 60)


def test_what_a_search_found_is_not_looked_up_again_for_its_scores() -> None:
    channels, _, _ = hybrid()
    query = Query("valve seal")
    words = channels["words"]
    asked: list[list[str]] = []
    scored = words.index.scored

    def told(reading: Any, ids: Any, passing: Any) -> Any:
        asked.append(list(ids))
        return scored(reading, ids, passing)

    words.index.scored = told
    found = fuse(channels, depth=10).search(query, 5)
    listed = set(words.search(query, 10).ids)
    assert len(asked) == 1
    assert listed.isdisjoint(asked[0])
    assert {vote.stage for hit in found for vote in hit.votes} == {"words", "meaning"}

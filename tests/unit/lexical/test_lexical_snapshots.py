"""What is gone from a keyword index is gone from how queries are read, and a search stays on one snapshot."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25, BM25F, BM25L, LexicalIndex, Lucene, merge_policy
from voicevault_retrievers.text import Analyzer

ENGLISH = [
    Chunk("0", "Perry Como was the singer of that song", metadata={"acl": "open"}),
    Chunk("1", "the singer of this song", metadata={"acl": "open"}),
    Chunk("2", "about the guitar and the drum", metadata={"acl": "open"}),
]
SPANISH = Chunk("es", "el perro está en la casa con los niños y como mucho pan", metadata={"acl": "closed"})
OPEN = {"acl": "open"}


def built(chunks: list[Chunk]) -> BM25:
    return BM25.from_chunks(chunks)


def added(chunks: list[Chunk]) -> BM25:
    channel = BM25.from_chunks([])
    channel.add(chunks)
    return channel


@pytest.mark.parametrize("made", [built, added])
def test_the_stopwords_of_a_language_that_is_gone_or_forbidden_are_words(made: Callable[[list[Chunk]], BM25]) -> None:
    channel = made([*ENGLISH, SPANISH])
    assert channel.search("como").ids == ()
    permitted = channel.search(Query("como", require=OPEN))
    assert [(hit.id, hit.score) for hit in permitted] == [(h.id, h.score) for h in built(ENGLISH).search("como")]
    assert permitted.ids == ("0",)
    assert [part.term for part in channel.explain(Query("como", require=OPEN), "0")] == ["como"]
    before = channel.index
    channel.delete("es")
    assert channel.search("como").ids == ("0",)
    channel.add([SPANISH])
    assert (channel.search("como").ids, before.tags()) == ((), channel.index.tags())


def test_fields_are_read_by_the_languages_that_are_permitted() -> None:
    channel = BM25F.from_chunks([*ENGLISH, SPANISH], {"text": 1.0})
    assert channel.search("como").ids == ()
    assert channel.search(Query("como", require=OPEN)).ids == ("0",)


def test_a_tokenizer_may_give_empty_terms() -> None:
    channel = BM25.from_chunks([Chunk("a", "x  y")], lambda text: text.split(" "))
    channel.add([Chunk("b", "x  z")])
    assert channel.search("x").ids == ("a", "b")


def test_replacing_a_chunk_again_and_again_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_policy, "SEAL_AT", 8)
    keep = Chunk("keep", "something else")
    channel = BM25.from_chunks([], str.split)
    channel.add([keep])
    for number in range(100):
        channel.add([Chunk("u", f"version v{number}")])
    assert channel.index.nbytes < 100 * 12
    assert (channel.search("v99").ids, channel.search("v98").ids) == (("u",), ())
    fresh = BM25.from_chunks([keep, Chunk("u", "version v99")], str.split)
    assert channel.search("else") == fresh.search("else")


def test_two_indexes_of_one_parent_do_not_see_each_other() -> None:
    parent = LexicalIndex([]).added([Chunk("a", "x")], [["x"]])
    parent.added([Chunk("e", "")], [[]])
    assert [hit.chunk.id for hit in parent.added([Chunk("b", "y")], [["y"]]).search(["y"], 5, Lucene())] == ["b"]


def test_what_cannot_be_is_said_and_nothing_is_no_change() -> None:
    index = LexicalIndex([])
    with pytest.raises(ConfigError, match="BM25L needs k1 or delta above 0"):
        BM25L(k1=0.0, delta=0.0)
    with pytest.raises(ConfigError, match=r"a single one goes in a list: \['pump'\]"):
        BM25.from_chunks(ENGLISH).search_many("pump", 2)
    with pytest.raises(ConfigError, match="some have the same id: give each once"):
        index.added([Chunk("a", "x"), Chunk("a", "y")], [["x"], ["y"]])
    assert index.added([], []) is index


def test_a_channel_that_has_changed_can_be_pickled() -> None:
    channel = BM25.from_chunks(ENGLISH)
    channel.add([SPANISH])
    copied = pickle.loads(pickle.dumps(channel))  # our own bytes
    assert copied.search("singer") == channel.search("singer")


def test_a_search_is_of_one_snapshot_whatever_changes_meanwhile() -> None:
    class Meddling:
        """Changes the index while a query is read."""

        def __init__(self) -> None:
            self.channel: BM25 | None = None

        def __call__(self, text: str) -> list[str]:
            if self.channel is not None and text == "valve":
                channel, self.channel = self.channel, None
                channel.delete("b")
                channel.add([Chunk("n", "pump valve")])
            return text.split()

    meddling = Meddling()
    channel = BM25.from_chunks([Chunk("a", "pump"), Chunk("b", "valve pump")], meddling)
    meddling.channel = channel
    assert set(channel.search(Query("pump", variants=(Variant("valve"),))).ids) == {"a", "b"}
    assert set(channel.search("pump").ids) == {"a", "n"}


def test_many_signs_of_a_section_are_read_in_one_pass() -> None:
    assert [term.word for term in Analyzer("de").query("§" * 50_000 + " 433", "")] == [
        term.word for term in Analyzer("de").query("§ 433", "")
    ]

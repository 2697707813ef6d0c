"""A chunk's header is searched, reranked and kept, and never shown, cited or counted in offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from voicevault_retrievers.core.explanation import explain, provenance, votes_of
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Vote
from voicevault_retrievers.dense import VectorChannel
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.store import KnowledgeBase, files, manifest
from voicevault_retrievers.store.export import export, restore
from voicevault_retrievers.structure.redis import json_of, parent_of
from voicevault_retrievers.testing.corpora import WordEmbedder

CHUNKS = [
    Chunk("x900", "The default value is 3.", header="Zephyr > Settings"),
    Chunk("x700", "The default value is 5.", header="Notus > Settings"),
    Chunk("bare", "The default value is not known."),
]


class Reader:
    """A scorer that keeps the passages it was given."""

    name = "reader"

    def __init__(self) -> None:
        self.read: list[str] = []

    def load(self) -> None:
        """Nothing to load."""

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        self.read += passages
        return [float(len(passage)) for passage in passages]


def test_the_indexed_text_is_header_and_text() -> None:
    assert [chunk.indexed_text for chunk in CHUNKS[1:]] == [
        "Notus > Settings\n\nThe default value is 5.",
        "The default value is not known.",
    ]
    with pytest.raises(ConfigError, match="header is a string"):
        Chunk("a", "b", header=None)  # type: ignore[arg-type]


def test_keywords_match_the_header_and_say_so() -> None:
    channel = BM25.from_chunks(CHUNKS)
    (hit, *_) = channel.search("default value of the Zephyr", 3).hits
    assert hit.id == "x900"
    assert hit.text == hit.chunk.text == "The default value is 3."
    assert hit.votes[0].terms == ("default", "value", "zephyr")
    assert hit.votes[0].header_terms == ("zephyr",)
    assert sum(part.contribution for part in channel.explain("default value of the Zephyr", "x900")) == hit.score
    assert "words default, value, zephyr (in the header: zephyr)" in explain(hit)
    told = provenance(hit)
    assert told["header"] == "Zephyr > Settings"
    assert told["channels"]["bm25"]["header_terms"] == ["zephyr"]
    assert votes_of(told) == hit.votes
    assert "header" not in provenance(channel.search("known", 1).hits[0])


def test_a_changed_header_changes_what_is_found() -> None:
    channel = BM25.from_chunks(CHUNKS)
    channel.add([replace(CHUNKS[0], header="Boreas")])
    assert [hit.id for hit in channel.search("Boreas", 3)] == ["x900"]
    assert not channel.search("Zephyr", 3)
    operators = BM25.from_chunks(CHUNKS, operators=True)
    assert [hit.id for hit in operators.search('+Notus "default value"', 3)] == ["x700"]


def test_vectors_and_rerankers_read_the_header() -> None:
    found = VectorChannel.from_chunks(CHUNKS, WordEmbedder()).search("Notus", 1)
    assert [hit.id for hit in found] == ["x700"]
    reader = Reader()
    stage = CrossEncoderRerank(reader)
    (BM25.from_chunks(CHUNKS) >> stage).search("Zephyr", 3)
    assert reader.read == [CHUNKS[0].indexed_text]


def test_a_knowledge_base_keeps_headers_and_embeds_a_changed_one_again(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    with KnowledgeBase.open_or_create(tmp_path / "kb", embedder=embedder) as base:
        base.add(CHUNKS)
        moved = replace(CHUNKS[0], header="Boreas")
        assert base.add(CHUNKS).replaced == 0
        assert base.add([moved]).replaced == 1
        expected = embedder.embed_documents([moved.indexed_text])[0]
        assert base.view().snapshot.vector("x900").tolist() == pytest.approx(expected.tolist())
    again = KnowledgeBase.open(tmp_path / "kb", embedder=embedder)
    assert {one.id: one.header for one in again.get(["x900", "x700", "bare"]).values()} == {
        "x900": "Boreas", "x700": "Notus > Settings", "bare": "",
    }  # fmt: skip
    assert [hit.id for hit in again.bm25().search("Boreas", 3)] == ["x900"]
    export(again, tmp_path / "kb.export", vectors=False)
    copy = restore(tmp_path / "kb.export", tmp_path / "copy", embedder=embedder)
    assert copy.get(["x900"])["x900"].header == "Boreas"


@pytest.mark.parametrize("told", [{"indexed_text": "text alone"}, {}])
def test_an_index_of_another_text_is_refused(told: dict[str, str], tmp_path: Path) -> None:
    KnowledgeBase.create(tmp_path / "kb").close()
    body = files.read_json(tmp_path / "kb" / manifest.NAME)
    del body["indexed_text"]
    files.write_json(tmp_path / "kb" / manifest.NAME, {**body, **told})
    with pytest.raises(IncompatibleIndexError, match=r"of 'text alone', not of .* index the documents again"):
        KnowledgeBase.open(tmp_path / "kb")


@pytest.mark.parametrize("told", [{"indexed_text": "text alone"}, {}])
def test_a_collection_of_another_text_is_refused(told: dict[str, str]) -> None:
    body = json.loads(Recipe.of(None, None, {}).text())
    del body["indexed_text"]
    with pytest.raises(IncompatibleIndexError, match=r"of 'text alone', not of .* a new collection"):
        Recipe.parse(json.dumps({**body, **told}), "plant")


def test_a_parent_keeps_its_header_in_a_store_of_json() -> None:
    parent = Chunk("p", "text", "above", {"page": 1}, header="Zephyr")
    assert parent_of("p", json_of(parent)) == parent
    assert parent_of("p", json_of(parent)).header == "Zephyr"  # type: ignore[union-attr]  # it is one


def test_ranking_of_one_hit_has_the_header_behind_any_stage() -> None:
    ranking = Ranking((Hit(CHUNKS[0], 1.0),))
    assert CrossEncoderRerank(Reader()).refine(Query("Zephyr"), ranking).hits[0].chunk.header == CHUNKS[0].header


def test_an_explanation_has_no_control_and_bidirectional_characters() -> None:
    bad = "\x1b]0;evil\x07\u202e\u2067\u200f"
    vote = Vote(f"bm25{bad}", 1, 1.0, terms=(f"fox{bad}",), via=(f"a{bad}",), kind="keyword")
    hit = Hit(Chunk(f"x{bad}", "a fox"), 1.0, votes=(vote,))
    told = explain(hit)
    assert told.startswith("x]0;evil: score 1")
    assert "words fox]0;evil, via a]0;evil" in told
    assert all(sign.isprintable() or sign == "\n" for sign in told)
    assert provenance(hit)["channels"][f"bm25{bad}"]["matched_terms"] == [f"fox{bad}"]

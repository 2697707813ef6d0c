"""Access: questions searched under rights are those of the chunks that these permit now, and nothing else counts."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.store import KnowledgeBase, commit
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure.questions import QuestionChannel, QuestionIndex

WORDS = "pump pumps valve turbine oil ERR_2043 hot reset running the of 泵站 Prüfung größe und ventil".split()
RIGHTS: tuple[Any, ...] = ("red", "blue", ["red", "gold"], [], None, True, 1)
REQUIRED: tuple[Mapping[str, Any], ...] = (
    {"rights": "red"}, {"rights": {"$in": ["red", "blue"]}}, {"rights": True}, {"level": {"$gte": 2}}, {},
    {"$or": [{"rights": "blue"}, {"level": 1}]}, {"rights": {"$exists": False}},
)  # fmt: skip
ROUNDS, QUERIES = 30, 8


class World:
    """Chunks and their questions, of which some are not as they were when the questions were made."""

    def __init__(self, draw: random.Random, root: Path) -> None:
        self.draw, self.root = draw, root
        self.kb = KnowledgeBase.create("kb", root=root, embedder=HashEmbedder())
        self.asked: dict[str, tuple[str, list[str], dict[str, Any]]] = {}
        self.made = 0

    def change(self) -> None:
        """New chunks, others gone, and some with another text or other metadata."""
        held = list(self.kb)
        new = [self._chunk(f"c{self.made + at}") for at in range(self.draw.randint(0, 6))]
        self.made += len(new)
        moved = self.draw.sample(held, min(len(held), self.draw.randint(0, 4)))
        new += [replace(c, metadata=self._metadata()) if self.draw.random() < 0.6 else self._chunk(c.id) for c in moved]
        self.kb.add(new)
        self.kb.delete([c.id for c in self.draw.sample(held, len(held) // 6)])

    def update(self) -> None:
        def ask(chunk: Chunk) -> list[str]:
            return list(dict.fromkeys(self._text() for _ in range(self.draw.randint(0, 3))))

        done = question_index(self.kb).update(lambda chunk: self._noted(chunk, ask(chunk)))
        assert not done.failed
        for chunk in self.kb:
            text, questions, _ = self.asked[chunk.id]
            assert text == chunk.text
            self.asked[chunk.id] = text, questions, dict(chunk.metadata)

    def fresh(self, number: int, require: Mapping[str, Any]) -> QuestionIndex:
        """The questions of a base with nothing but what is permitted and as it was when they were made."""
        from voicevault_retrievers.core.filters import compile_filter, scope

        permitted = compile_filter(scope(require))
        chunks = [chunk for chunk in self.kb if permitted(chunk.metadata) and self._is_fresh(chunk)]
        base = KnowledgeBase.create(f"fresh{number}", root=self.root, embedder=HashEmbedder())
        base.add(chunks)
        index = question_index(base)
        index.update({chunk.id: self.asked[chunk.id][1] for chunk in chunks})
        return index

    def query(self, require: Mapping[str, Any] | None) -> Query:
        where = self.draw.choice([None, None, {"level": {"$lte": 2}}])
        variants = (Variant(self._text(), 0.5),) * self.draw.randint(0, 1)
        return Query(self._text(), variants, where=where, require=require)

    def _is_fresh(self, chunk: Chunk) -> bool:
        text, _, metadata = self.asked.get(chunk.id, ("", [], {}))
        return text == chunk.text and repr(metadata) == repr(dict(chunk.metadata))

    def _noted(self, chunk: Chunk, questions: list[str]) -> list[str]:
        self.asked[chunk.id] = chunk.text, questions, dict(chunk.metadata)
        return questions

    def _chunk(self, chunk_id: str) -> Chunk:
        return Chunk(chunk_id, f"{self._text()} {self.draw.random()}", metadata=self._metadata())

    def _metadata(self) -> dict[str, Any]:
        return {"rights": self.draw.choice(RIGHTS), "level": self.draw.randint(1, 3)}

    def _text(self) -> str:
        return " ".join(self.draw.choices(WORDS, k=self.draw.randint(1, 5)))


def told(channel: QuestionChannel, query: Query, k: int) -> Any:
    ranking = channel.search(query, k)
    return [(hit.id, hit.chunk.text, hit.score, hit.votes) for hit in ranking], ranking.errors


def test_a_search_under_rights_is_that_of_a_base_with_what_they_permit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(commit, "SEAL_AT", 20)
    draw = random.Random(0)
    world = World(draw, tmp_path)
    found = 0
    for number in range(ROUNDS):
        world.change()
        if number % 3 == 0:
            world.update()
        index, require = question_index(world.kb), draw.choice(REQUIRED)
        twin, by = world.fresh(number, require), draw.choice(["bm25", "dense", "both"])
        channels = [one.channel(by=by) for one in (index, twin)]
        for _ in range(QUERIES):
            query, k = world.query(require), draw.randint(1, 6)
            bare = replace(query, require=None)
            assert told(channels[0], query, k) == told(channels[1], bare, k)
            ids = sorted(chunk.id for chunk in world.kb)
            scores = channels[0].scores(query, ids)
            assert scores == channels[1].scores(bare, ids)
            found += len(channels[0].search(query, k))
    assert found > ROUNDS * QUERIES


def test_what_is_returned_is_there_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    draw = random.Random(1)
    world = World(draw, tmp_path)
    for number in range(ROUNDS):
        world.change()
        if number % 4 == 0:
            world.update()
        channel = question_index(world.kb).channel()
        world.change()  # the channel is older than the chunks
        for _ in range(QUERIES):
            query = world.query(None)
            ranking = channel.search(query, 5)
            present = world.kb.get(ranking.ids)
            assert [present[hit.id] for hit in ranking] == [hit.chunk for hit in ranking]
            assert all(world._is_fresh(replace(hit.chunk, metadata=world.asked[hit.id][2])) for hit in ranking)
            assert channel.search(query, 4).ids == ranking.ids[:4]

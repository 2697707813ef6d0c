"""A search under a curation is, to the bit, a search of what is not blocked, after what is pinned and permitted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.filters import Filter, both, compile_filter
from voicevault_retrievers.core.types import Chunk, Hit, Query, Result
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import SynonymExpansion
from voicevault_retrievers.store import Bases, KnowledgeBase

ROUNDS = max(4, settings.default.max_examples // 4)
QUERIES = 8
FILES = [f"f{number}.pdf" for number in range(6)]
WORDS = "pump valve turbine oil reset running idle seal price draft".split()
SYNONYMS = {"pump": ("compressor",), "oil": ("grease", "lubricant")}
RIGHTS: list[Filter | None] = [None, {"owner": "ann"}, {"owner": {"$in": ["ann", "bob"]}}, {}, {"owner": "nobody"}]
WHERE: list[Filter | None] = [None, None, {"page": {"$lt": 3}}]


@dataclass(frozen=True)
class Rule:
    """A rule of a curation, said without the package."""

    queries: Sequence[str]
    documents: Sequence[str]
    chunks: Sequence[str]

    def applies(self, question: str) -> bool:
        return not self.queries or question in self.queries

    def names(self, chunk: Chunk) -> bool:
        return chunk.metadata["source_file"] in self.documents or chunk.id.rpartition(":")[2] in self.chunks

    def data(self) -> dict[str, Any]:
        said = {"queries": self.queries, "documents": self.documents, "chunks": self.chunks}
        return {key: list(value) for key, value in said.items() if value}


def _chunks(rng: random.Random) -> list[Chunk]:
    """Chunks, of which a few are all of their file that somebody may see."""
    return [
        Chunk(
            f"{file}#{at}",
            " ".join(rng.choices([*WORDS, "compressor", "grease"], k=rng.randint(2, 8))),
            metadata={"source_file": file, "page": at // 2, "owner": rng.choice(["ann", "bob", "eve"])},
        )
        for file in FILES
        for at in range(rng.randint(1, 9))
    ]


def _rules(rng: random.Random, ids: Sequence[str], questions: Sequence[str], *, asked: bool) -> list[Rule]:
    return [
        Rule(
            rng.sample(questions, rng.randint(1, 3)) if asked or rng.random() < 0.5 else (),
            rng.sample([*FILES, "gone.pdf"], rng.randint(0, 2)),
            rng.sample([*ids, "gone#1"], rng.randint(1, 2)),
        )
        for _ in range(rng.randint(0, 3))
    ]


def _write(base: KnowledgeBase, pinned: Sequence[Rule], blocked: Sequence[Rule]) -> None:
    said = [f"{phrase} => {', '.join(others)}" for phrase, others in SYNONYMS.items()]
    data = {"synonyms": said, "pinned": [one.data() for one in pinned], "blocked": [one.data() for one in blocked]}
    (base.path / "curation.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")


class Oracle:
    """The search as it should be, made of searches without any curation."""

    def __init__(
        self, plain: Pipeline, every: Mapping[str, Chunk], rules: Mapping[str, tuple[list[Rule], list[Rule]]]
    ) -> None:
        self.plain = plain
        self.every = every
        self.rules = rules

    def search(self, query: Query, k: int) -> tuple[list[Hit], list[str]]:
        """The hits, and the ids of those that are pinned."""
        passes = [compile_filter(one) for one in (query.where, query.require)]
        shown = {
            one: chunk
            for one, chunk in self.every.items()
            if all(passing(chunk.metadata) for passing in passes) and not self._is(1, query.text, chunk)
        }
        ranked = self._ranked(query, k, shown)
        pins: dict[str, Hit] = {}
        held = {hit.id: hit for hit in ranked}
        for kb, (pinned, _) in self.rules.items():
            for rule in (rule for rule in pinned if rule.applies(query.text)):
                for file in rule.documents:
                    named = {one: chunk for one, chunk in shown.items() if chunk.metadata["source_file"] == file}
                    own = {one: chunk for one, chunk in named.items() if chunk.kb == kb}
                    if own:
                        found = [*ranked, *self._ranked(query, 10, named)]
                        best = next((hit.id for hit in found if hit.id in own), None) or min(own, key=_at)
                        pins.setdefault(best, held.get(best) or Hit(own[best]))
                for wanted in rule.chunks:
                    one = wanted if wanted in shown else f"{kb}:{wanted}"
                    if one in shown and shown[one].kb == kb:
                        pins.setdefault(one, held.get(one) or Hit(shown[one]))
        rest = [hit for hit in ranked if hit.id not in pins]
        return [*pins.values(), *rest][:k], list(pins)[:k]

    def _is(self, kind: int, question: str, chunk: Chunk) -> bool:
        return any(rule.applies(question) and rule.names(chunk) for rule in self.rules[chunk.kb][kind])

    def _ranked(self, query: Query, k: int, among: Mapping[str, Chunk]) -> list[Hit]:
        own: Filter = {"mark": {"$in": [chunk.metadata["mark"] for chunk in among.values()]}}
        asked = Query(query.text, where=both(query.where, own), require=query.require)
        asked = SynonymExpansion(SYNONYMS, size=3).rewrite(asked)
        return list(self.plain.search(asked, k).hits)


def _at(chunk_id: str) -> tuple[int, str]:
    return int(chunk_id.rpartition("#")[2]) // 2, chunk_id


def _marked(chunks: Sequence[Chunk], kb: str) -> list[Chunk]:
    return [Chunk(one.id, one.text, metadata={**one.metadata, "mark": f"{kb}/{one.id}"}) for one in chunks]


@pytest.fixture(params=[("bm25",), ("dense",), ("bm25", "dense")], ids="+".join)
def channels(request: pytest.FixtureRequest) -> tuple[str, ...]:
    given: tuple[str, ...] = request.param
    return given


@pytest.mark.parametrize("names", [("one",), ("one", "two")], ids=["one base", "two bases"])
def test_it_is_the_search_of_what_is_not_blocked_after_what_is_pinned(
    tmp_path: Path, channels: tuple[str, ...], names: tuple[str, ...]
) -> None:
    pinned_seen = blocked_seen = 0
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        questions = [" ".join(rng.sample(WORDS, 2)) for _ in range(4)]
        made: dict[str, tuple[list[Rule], list[Rule]]] = {}
        bases, plain = list[KnowledgeBase](), list[KnowledgeBase]()
        for name in names:
            chunks = _marked(_chunks(rng), name)
            for root, kept in (("with", bases), ("without", plain)):
                base = KnowledgeBase.create(name, root=tmp_path / f"{seed}-{root}", embedder=HashEmbedder())
                base.add(chunks)
                kept.append(base)
            ids = [chunk.id for chunk in chunks]
            made[name] = tuple(_rules(rng, ids, questions, asked=asked) for asked in (True, False))  # type: ignore[assignment]
            _write(bases[-1], *made[name])
        pipeline = Preset.plain(channels).over(Bases(bases))
        several = len(names) > 1
        every = {f"{one.kb}:{one.id}" if several else one.id: one for base in plain for one in base}
        every = {one: chunk.prefixed(f"{chunk.kb}:") if several else chunk for one, chunk in every.items()}
        oracle = Oracle(Preset.plain(channels).over(Bases(plain)), every, made)
        asked = [
            Query(rng.choice(questions), where=rng.choice(WHERE), require=rng.choice(RIGHTS)) for _ in range(QUERIES)
        ]
        k = rng.choice([1, 3, 8])
        found = [pipeline.search(query, k) for query in asked]
        for result, query in zip(found, asked, strict=True):
            hits, pins = oracle.search(query, k)
            assert [(hit.id, hit.score) for hit in result.hits] == [(hit.id, hit.score) for hit in hits], query
            voted = [hit.id for hit in result.hits if hit.vote("pinned")]
            assert voted == pins, query
            assert not result.degraded
            pinned_seen += len(pins)
            blocked_seen += sum(oracle._is(1, query.text, chunk) for chunk in every.values())
        assert _told(pipeline.search_many(asked, k)) == _told(found)
        assert _told(asyncio.run(_asearched(pipeline, asked, k))) == _told(found)
    assert pinned_seen
    assert blocked_seen


async def _asearched(pipeline: Pipeline, asked: Sequence[Query], k: int) -> list[Result]:
    return [await pipeline.asearch(query, k) for query in asked]


def _told(results: Sequence[Result]) -> list[list[tuple[str, float | None, tuple[Any, ...]]]]:
    return [[(hit.id, hit.score, hit.votes) for hit in result.hits] for result in results]

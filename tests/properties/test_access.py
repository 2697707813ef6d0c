"""Access: a search under `require` is, to the bit, the search of a base that holds only what is permitted."""

from __future__ import annotations

import os
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from tests.helpers import Adding, HashEmbedder, ListChannel
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.explanation import explain, provenance
from voicevault_retrievers.core.filters import Filter, scope
from voicevault_retrievers.core.leaf import LeafChannel
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Result, Variant
from voicevault_retrievers.dense import int8
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.store import Bases, KnowledgeBase, commit
from voicevault_retrievers.store.merged_bases import MergedBases
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

ROUNDS, PRINCIPALS = 10, 5
QUERIES = ROUNDS * PRINCIPALS * (settings.default.max_examples // 5)
"""In each of the four worlds."""

GROUPS = ("red", "blue", "green", "gold")
WORDS = (
    "pump pumps valve turbine oil ERR_2043 hot reset running the of a not idle seal 泵站 电池维护 Prüfung größe Pumpe "
    "und der nicht ist ventil"
).split()
CANARY = re.compile(r"zq\d+x|id\d+y|file\d+w")
LOUD = CustomAnalyzer(lambda text: text.upper().split(), name="loud")
Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class Principal:
    """Rights as a filter, and what they mean, said without one."""

    require: Filter
    may: Callable[[Metadata], bool]


def _groups(metadata: Metadata) -> set[str]:
    rights = metadata.get("rights")
    return set(rights) if isinstance(rights, list) else {rights} if isinstance(rights, str) else set()


EVERYBODY = (
    Principal({"rights": {"$in": ["red"]}}, lambda m: "red" in _groups(m)),
    Principal(
        {"rights": {"$any": ["blue", "gold"]}},
        lambda m: isinstance(m.get("rights"), list) and bool({"blue", "gold"} & _groups(m)),
    ),
    Principal({"$or": [{"owner": "ann"}, {"rights": "green"}]}, lambda m: m["owner"] == "ann" or "green" in _groups(m)),
    Principal({"$and": [{"owner": "bob"}, {"level": {"$lte": 1}}]}, lambda m: m["owner"] == "bob" and m["level"] <= 1),
    Principal(
        {"level": {"$lt": 3}, "rights": {"$nin": ["red"]}},
        lambda m: m["level"] < 3 and isinstance(m.get("rights"), list | str) and "red" not in _groups(m),
    ),
    Principal({"level": {"$gte": 0}}, lambda m: True),
    Principal({}, lambda m: False),
    Principal({"clearance": {"$lte": 9}}, lambda m: False),
)

WHERE: tuple[Filter | None, ...] = (
    None, None, None, {}, {"page": 1}, {"page": {"$gte": 2}}, {"rights": "red"}, {"$not": {"rights": "red"}},
    {"$or": [{}, {"level": {"$gte": 0}}]}, {"level": {"$gte": 0}}, {"$or": [{"owner": "bob"}, {"page": 2}]},
    {"rights": {"$exists": False}}, {"source_file": {"$contains": "file"}},
)  # fmt: skip


class Embedder(HashEmbedder):
    """Embeds a text once."""

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [_embedded(self.dimension, text) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(texts), self.dimension)


@cache
def _embedded(dimension: int, text: str) -> NDArray[np.float32]:
    return HashEmbedder(dimension).embed_documents([text])[0]


class Digest:
    """Scores a passage by nothing but itself and the query."""

    name = "digest"

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        return [zlib.crc32(f"{query}\0{passage}".encode()) / 2**32 for passage in passages]


class World:
    """Bases whose contents change, and which chunks are in them, by base."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.held: dict[str, dict[str, Chunk]] = {name: {} for name in self.bases()}
        self.files: dict[str, dict[str, Any]] = {}
        self.made = 0

    def bases(self) -> Sequence[str]:
        return ("north", "south")

    def write(self, base: str, new: list[Chunk], gone: list[str]) -> None:
        raise NotImplementedError

    def channels(self) -> dict[str, Channel]:
        """What is searched."""
        raise NotImplementedError

    def fresh(self, chunks: Sequence[Chunk]) -> dict[str, Channel]:
        """The same over these chunks alone."""
        return {
            "bm25": BM25.from_chunks(chunks, operators=True, fuzzy=True),
            "okapi": BM25.from_chunks(chunks, formula="okapi"),
            "dense": VectorChannel.from_chunks(chunks, Embedder()),
        }

    def everything(self) -> list[Chunk]:
        """All chunks, under the ids that hits have."""
        return [replace(c, id=f"{base}:{c.id}", kb=base) for base, held in self.held.items() for c in held.values()]

    def change(self) -> None:
        for base, held in self.held.items():
            for _ in range(2):
                new = [self._chunk() for _ in range(self.draw.randint(0, 8))]
                moved = self.draw.sample(sorted(held), min(len(held), self.draw.randint(0, 3)))
                new += [replace(held[chunk_id], metadata=self._metadata()) for chunk_id in moved]
                kept = sorted(set(held).difference(moved))
                gone = self.draw.sample(kept, min(len(kept), self.draw.randint(0, 3)))
                self.write(base, new, gone)
                held |= {chunk.id: chunk for chunk in new}
                for chunk_id in gone:
                    del held[chunk_id]

    def _chunk(self) -> Chunk:
        self.made += 1
        words = self.draw.choices(WORDS, k=self.draw.randint(1, 9))
        return Chunk(f"id{self.made}y", " ".join([*words, f"zq{self.made}x"]), metadata=self._metadata())

    def _metadata(self) -> dict[str, Any]:
        """Those of a page of some file: all of a file have its rights."""
        file = f"file{self.draw.randint(0, 9)}w"
        if file not in self.files or self.draw.random() < 0.1:
            rights: list[Any] = [["red"], ["blue", "red"], ["green"], ["gold", "blue"], [], "red", "green", None, 7]
            self.files[file] = {
                "rights": self.draw.choice(rights), "owner": self.draw.choice(["ann", "bob", "eve"]),
                "level": self.draw.randint(0, 3),
            }  # fmt: skip
        own = dict(self.files[file])
        if self.draw.random() < 0.1:
            del own["rights"]
        return {"source_file": file, "page": self.draw.randint(1, 3), **own}


class Stored(World):
    """Knowledge bases on disk, their log and segments, made with one analyzer and one embedder; one has int8 codes."""

    def __init__(self, draw: random.Random, root: Path) -> None:
        super().__init__(draw)
        self.kbs = {name: KnowledgeBase.create(name, root=root, **self.options(name)) for name in self.bases()}

    def options(self, base: str) -> dict[str, Any]:
        return {"embedder": Embedder(), "vectors": "int8" if base == "north" else "exact"}

    def write(self, base: str, new: list[Chunk], gone: list[str]) -> None:
        self.kbs[base].add(new)
        self.kbs[base].delete(gone)

    def channels(self) -> dict[str, Channel]:
        bases = Bases(list(self.kbs.values()))
        return {
            "bm25": bases.bm25(operators=True, fuzzy=True),
            "okapi": bases.bm25(formula="okapi"),
            "dense": bases.dense(),
        }


class One(Stored):
    """One knowledge base alone."""

    def bases(self) -> Sequence[str]:
        return ("north",)

    def everything(self) -> list[Chunk]:
        return [replace(c, kb="north") for c in self.held["north"].values()]


class Differing(Stored):
    """Knowledge bases that differ in analyzer and embedder."""

    def options(self, base: str) -> dict[str, Any]:
        if base == "north":
            return {"embedder": Embedder(16), "analyzer": Analyzer("en")}
        return {"embedder": Embedder(8), "analyzer": LOUD}

    def fresh(self, chunks: Sequence[Chunk]) -> dict[str, Channel]:
        own = {base: [chunk for chunk in chunks if chunk.kb == base] for base in self.bases()}
        given = {base: self.options(base) for base in self.bases()}

        def words(**options: Any) -> Channel:
            parts = {base: BM25.from_chunks(own[base], given[base]["analyzer"], **options) for base in own}
            return MergedBases(parts, "bm25", "keyword")

        vectors = {base: VectorChannel.from_chunks(own[base], given[base]["embedder"]) for base in own}
        return {
            "bm25": words(operators=True, fuzzy=True),
            "okapi": words(formula="okapi"),
            "dense": MergedBases(vectors, "dense", "semantic"),
        }


class InMemory(World):
    """An index in memory that is added to and deleted from."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.words = {
            "bm25": BM25.from_chunks([], operators=True, fuzzy=True),
            "okapi": BM25.from_chunks([], formula="okapi"),
        }

    def bases(self) -> Sequence[str]:
        return ("",)

    def everything(self) -> list[Chunk]:
        return list(self.held[""].values())

    def write(self, base: str, new: list[Chunk], gone: list[str]) -> None:
        for channel in self.words.values():
            channel.add(new)
            channel.delete(gone)

    def channels(self) -> dict[str, Channel]:
        return {**self.words, "dense": VectorChannel.from_chunks(self.everything(), Embedder())}


def _pipelines(channels: Mapping[str, Channel]) -> dict[str, Pipeline]:
    context = ContextBuilder(max_tokens=60)
    both = {"bm25": channels["bm25"], "dense": channels["dense"]}
    return {
        "bm25": Pipeline(channels["bm25"], context=context),
        "okapi": compose({"okapi": channels["okapi"]}, context=context, rerank=Rerank(max_chunks_per_page=2)),
        "dense": Pipeline(channels["dense"], context=context),
        "hybrid": compose(both, context=context, fusion=Fusion(depth=6)),
        "whole": compose(
            both,
            context=context,
            expansion=True,
            rerank=Rerank(Digest(), max_chunks_per_page=1),
            fusion=Fusion(depth=6),
        ),
    }


def _asked(draw: random.Random, require: Filter) -> Query:
    text = _text(draw)
    variants = [Variant(_text(draw), draw.choice([1.0, 0.5])) for _ in range(draw.choice([0, 0, 1]))]
    return Query(text, tuple(variants), where=draw.choice(WHERE), require=require)


def _text(draw: random.Random) -> str:
    words = [_mistyped(draw, word) for word in draw.choices(WORDS, k=draw.randint(1, 4))]
    sign = draw.choice(["", "", "", "+", "-", "what is the "])
    phrase = [f'"{" ".join(draw.choices(WORDS, k=2))}"'] if draw.random() < 0.1 else []
    return sign + " ".join([*words, *phrase])


def _mistyped(draw: random.Random, word: str) -> str:
    """A word, sometimes with two letters swapped, or as a prefix, or with an operator for near words."""
    at = draw.randrange(len(word))
    kinds = [word, word, word, word[:at] + word[at : at + 2][::-1] + word[at + 2 :], word[: at + 1] + "*", word + "~"]
    return draw.choice(kinds)


def _told(result: Result) -> str:
    """All that a result says, but for the query, how long it took, and that its rights are empty."""
    errors = tuple(failure for failure in result.errors if failure.kind != "EmptyRights")
    said = replace(result.ranking, errors=errors), result.context, result.channels_used, result.confidence
    return "\n".join([repr(said), *(f"{provenance(hit)} {explain(hit)}" for hit in result.hits)])


def _same_scores(real: Channel, fresh: Channel, query: Query, ids: Sequence[str]) -> None:
    bare = replace(query, require=None)
    assert real.scores(query, ids) == fresh.scores(bare, ids)
    if isinstance(real, BM25) and isinstance(fresh, BM25):
        for chunk_id in ids:
            assert real.explain(query, chunk_id) == fresh.explain(bare, chunk_id)


def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither disks nor threads are waited for: what is found does not depend on them."""
    call = LeafChannel._call
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(LeafChannel, "_call", lambda *given: replace(call(*given), inline=True))
    monkeypatch.setattr(CrossEncoderRerank, "blocking", False)


@pytest.mark.parametrize("kind", [One, Stored, Differing, InMemory])
def test_a_search_under_rights_is_that_of_a_base_with_what_they_permit(
    kind: type[World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    monkeypatch.setattr(commit, "SEAL_AT", 20)
    monkeypatch.setattr(merge_policy, "SEAL_AT", 8)
    monkeypatch.setattr(int8, "PAYS_FROM", 1)
    monkeypatch.setattr(int8, "LIMIT", 1.0)
    draw = random.Random(kind.__name__)
    world = kind(draw, tmp_path) if issubclass(kind, Stored) else kind(draw)
    asked = found = permitted_to_some = 0
    for _ in range(ROUNDS):
        world.change()
        channels, chunks = world.channels(), world.everything()
        real = _pipelines(channels)
        for principal in draw.sample(EVERYBODY, PRINCIPALS):
            permitted = [chunk for chunk in chunks if principal.may(chunk.metadata)]
            permitted_to_some += 0 < len(permitted) < len(chunks)
            allowed = set(CANARY.findall(repr(permitted)))
            twins = world.fresh(permitted)
            fresh = _pipelines(twins)
            for _ in range(QUERIES // ROUNDS // PRINCIPALS):
                query, k, name = _asked(draw, principal.require), draw.randint(1, 8), draw.choice(list(real))
                result = real[name].search(query, k)
                twin = fresh[name].search(replace(query, require=None), k)
                assert _told(result) == _told(twin), (name, query)
                assert set(CANARY.findall(repr(result))) <= allowed
                assert set(result.ranking.ids) <= {chunk.id for chunk in permitted}
                if asked % 8 == 0:
                    some = [chunk.id for chunk in draw.sample(chunks, min(4, len(chunks)))]
                    channel = draw.choice(list(channels))
                    _same_scores(channels[channel], twins[channel], query, [*result.ranking.ids[:2], *some])
                asked += 1
                found += len(result.hits)
    assert (asked, permitted_to_some > 10, found > asked) == (QUERIES, True, True)


OURS = Chunk("ours", "the pump", metadata={"tenant": "a", "flag": True})
THEIRS = Chunk("theirs", "the pump", metadata={"tenant": "b", "flag": 1})
NOBODYS = Chunk("nobodys", "the pump")
ALL = (OURS, THEIRS, NOBODYS)


def _both() -> Channel:
    return fuse(bm25=BM25.from_chunks(ALL), dense=VectorChannel.from_chunks(ALL, Embedder()), method="rrf")


@pytest.mark.parametrize(
    "empty",
    [
        {},
        {"$or": []},
        {"$and": []},
        {"$and": [{}]},
        {"$or": [{}]},
        {"$or": [{"tenant": "a"}, {}]},
        {"$and": [{"tenant": "a"}, {"$or": [{"$and": ()}]}]},
        {"tenant": {"$in": []}},
        {"tenant": None},
        {"tenant": {"$eq": None}},
    ],
)
def test_an_empty_scope_permits_nothing(empty: Filter) -> None:
    assert _both().search("pump").ids
    wheres: tuple[Filter | None, ...] = (None, {}, {"tenant": "a"}, {"$or": [{}]})
    for where in wheres:
        assert _both().search(Query("pump", where=where, require=empty)).ids == ()
    pipeline = Pipeline(_both())
    asked = Query("pump", require={"tenant": "a"})
    assert pipeline.narrowed(require=empty).search("pump").ids == ()
    assert pipeline.narrowed(require=empty).search(asked).ids == ()
    assert pipeline.narrowed(require=asked.require).search(Query("pump", require=empty)).ids == ()


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("$eq", "a"), ("$ne", "z"), ("$gt", ""), ("$gte", ""), ("$lt", "z"), ("$lte", "z"), ("$in", ["a", "b"]),
        ("$nin", []), ("$contains", ""), ("$text", ""), ("$itext", ""), ("$any", ["a"]), ("$all", []),
        ("$empty", False), ("$exists", True),
    ],
)  # fmt: skip
def test_what_lacks_the_key_of_a_scope_is_not_permitted(operator: str, value: Any) -> None:
    require = {"tenant": {operator: value}}
    assert "nobodys" not in _both().search(Query("pump", require=require)).ids
    assert "nobodys" not in _both().search(Query("pump", require={"$and": [require, {"$or": [require]}]})).ids
    assert _both().search(Query("pump", require={"tenant": {"$exists": False}})).ids == ("nobodys",)


def test_rights_only_ever_add_up() -> None:
    own: dict[str, Any] = {"tenant": "a"}
    query = Query("pump", where={"$or": [{}, {"tenant": "b"}]}, require=own)
    own.clear()
    assert _both().search(query).ids == ("ours",)
    narrowed = Pipeline(_both()).narrowed(require={"tenant": {"$in": ["a", "b"]}})
    assert narrowed.search(query).ids == ("ours",)
    assert narrowed.search(Query("pump", require={"tenant": {"$exists": False}})).ids == ()
    assert set(narrowed.search("pump").ids) == {"ours", "theirs"}
    flags = {"flag": True}, {"flag": 1}  # equal to Python, and not to a filter
    assert _both().search(Query("pump", require=scope(*flags))).ids == ()
    assert scope(None, {"tenant": "a"}, None, {"tenant": "a"}) == {"tenant": "a"}
    assert scope(None, None) is None
    with pytest.raises(ConfigError, match="unknown filter operator"):
        scope({"tenant": {"$is": "a"}})


class Forgetful(Rewriter):
    """Makes a query of its own."""

    name = "forgetful"

    def rewrite(self, query: Query) -> Query:
        return Query("the pump", where={"tenant": {"$exists": True}})


def test_a_rewriter_does_not_lose_the_rights() -> None:
    rewritten = Forgetful() >> _both()
    found = rewritten.search(Query("x", require={"tenant": "a"}))
    assert (found.ids, found.hits[0].score) == (("ours",), 1 / 61 + 1 / 61)
    assert set(rewritten.search("x").ids) == {"ours", "theirs"}


class Reading(Stage):
    """Keeps what it is given, as a reranker reads it."""

    name = "reading"

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        self.read += ranking.ids
        return ranking


async def test_no_stage_is_given_what_another_one_added_without_rights() -> None:
    reading = Reading()
    careless = BM25.from_chunks([OURS]) >> Adding(THEIRS) >> reading
    query = Query("pump", require={"tenant": "a"})
    assert careless.search(query) == await careless.asearch(query)
    assert set(reading.read) == {"ours"}
    assert [failure.kind for failure in careless.search(query).errors] == ["FilterNotSupportedError"]
    careless.search("pump")
    assert "theirs" in reading.read


@pytest.mark.parametrize(
    "careless",
    [
        ListChannel([("theirs", 2.0), ("ours", 1.0)], metadata={c.id: dict(c.metadata) for c in ALL}),
        BM25.from_chunks([OURS]) >> Adding(THEIRS),
    ],
)
def test_what_a_careless_channel_or_stage_gives_is_left_out(careless: Channel) -> None:
    require = {"tenant": "a"}
    query = Query("pump", require=require)
    for result in (
        Pipeline(careless).search(query),
        Pipeline(Pipeline(careless).narrowed(require=require)).search("pump"),
    ):
        assert (result.ranking.ids, result.degraded) == (("ours",), True)
        assert [(failure.stage, failure.kind) for failure in result.errors] == [("require", "FilterNotSupportedError")]
        assert "theirs" not in repr(result)
        assert [citation.chunk_id for citation in result.context.citations] == ["ours"]
    with pytest.raises(FilterNotSupportedError, match="does not permit"):
        Pipeline(careless, on_error="raise").search(query)
    assert set(Pipeline(careless).search("pump").ranking.ids) == {"ours", "theirs"}

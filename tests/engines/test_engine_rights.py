"""Rights on every engine: what a search under `require` finds is what a collection of the permitted chunks finds.

Scores too, except with the engine's own statistics, which count chunks that are not permitted: there only what is found
is compared. Rights, filters and chunks are those of `tests.properties.test_access`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

from tests.engines.engines import SYSTEMS, System
from tests.properties.test_access import EVERYBODY, WHERE, WORDS, Embedder, Principal, World
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Variant
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.testing.suite import COSINE, EXACT
from voicevault_retrievers.text import Analyzer

NAMES = ("qdrant-edge", "postgres", "postgres-bm25", "chroma", "milvus", "lancedb", "elasticsearch", "opensearch")
ROUNDS = 4
QUERIES = settings.default.max_examples // 2
"""Of each round, spread over the kinds of statistics."""

ALL = 500


class Engined(World):
    """A collection of an engine whose contents change."""

    def __init__(self, draw: random.Random, engine: Engine) -> None:
        super().__init__(draw)
        self.engine = engine

    def bases(self) -> Sequence[str]:
        return ("only",)

    def everything(self) -> list[Chunk]:
        return list(self.held["only"].values())

    def write(self, base: str, new: list[Chunk], gone: list[str]) -> None:
        self.engine.upsert(new)
        self.engine.delete(gone)


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    system: System = SYSTEMS[request.param]
    system.skip()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "postgres-bm25":
            patch.setattr("voicevault_retrievers.engines.postgres.keyword_search.INDEXED_FROM", 1)
        with system.opened(tmp_path_factory.mktemp(request.param)) as connect:
            opened = connect("rights", embedder=Embedder(), analyzer=Analyzer("auto"))
            yield opened
            opened.close()


def _asked(draw: random.Random, who: Principal) -> Query:
    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))

    variants = [Variant(text(), draw.choice([1.0, 0.5])) for _ in range(draw.choice([0, 0, 1]))]
    return Query(text(), tuple(variants), where=draw.choice(WHERE), require=who.require)


def _scored(found: Ranking, tolerance: float) -> Any:
    return {hit.id: pytest.approx(hit.score, rel=tolerance, abs=tolerance) for hit in found}


def test_a_search_under_rights_is_that_of_a_collection_of_what_they_permit(engine: Engine) -> None:
    draw = random.Random(repr(engine.capabilities))
    world = Engined(draw, engine)
    asked = found_any = 0
    modes: list[str | None] = ["exact", "filtered", None] + ["engine"] * engine.capabilities.engine_statistics
    pipelines = {
        one: Preset.of({"version": 1, "channels": {"bm25": {"statistics": one}, "dense": {}}}).over(engine)
        for one in modes
    }
    for _ in range(ROUNDS):
        world.change()
        for number in range(QUERIES):
            who = draw.choice(EVERYBODY)
            query = _asked(draw, who)
            permitted = [chunk for chunk in world.everything() if who.may(chunk.metadata)]
            bare = Query(query.text, query.variants, where=query.where)
            statistics: Any = modes[number % len(modes)]
            counted: Any = "exact" if statistics in (None, "engine") else statistics
            own = BM25.from_chunks(permitted, Analyzer("auto"), statistics=counted).search(bare, ALL)
            ours = engine.bm25(statistics=statistics).search(query, ALL)
            _same(ours, own, permitted, None if statistics == "engine" else EXACT)
            near = VectorChannel.from_chunks(permitted, Embedder()).search(bare, ALL)
            _same(engine.dense().search(query, ALL), near, permitted, COSINE)
            assert {hit.id for hit in pipelines[statistics].search(query, k=20).hits} <= {c.id for c in permitted}
            asked, found_any = asked + 1, found_any + bool(own.ids)
    assert asked == ROUNDS * QUERIES
    assert found_any > asked // 4


def _same(ours: Ranking, expected: Ranking, permitted: Sequence[Chunk], tolerance: float | None) -> None:
    assert ours.errors == ()
    assert {hit.id for hit in ours} <= {chunk.id for chunk in permitted}
    if tolerance is None:
        assert set(ours.ids) == set(expected.ids)
    else:
        assert {hit.id: hit.score for hit in ours} == _scored(expected, tolerance)

"""What every engine has to keep: the suite, over an engine that is started for its tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from tests.engines import awkward
from tests.engines.engines import SYSTEMS
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.testing import EngineConformance
from voicevault_retrievers.testing.clients import Collections, Connect
from voicevault_retrievers.testing.corpora import WordEmbedder
from voicevault_retrievers.testing.suite import AUTO, Suite


class Started(Suite):
    """An engine to derive from beside some parts of the suite."""

    system: ClassVar[str]
    given: ClassVar[dict[str, Any]] = {}
    """Options of the engine."""

    values = awkward.VALUES
    filters = awkward.FILTERS

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
        SYSTEMS[cls.system].skip()
        with SYSTEMS[cls.system].opened(tmp_path_factory.mktemp(cls.system)) as opened:
            yield lambda name, **options: opened(name, **{**cls.given, **options})


class Conformance(Started, EngineConformance):
    """The whole suite, and what engines of this package keep besides."""

    def test_a_parent_that_is_given_stays_though_its_last_chunk_leaves_it(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert([Chunk("1", "pump", "P"), Chunk("2", "valve", "P")], parents=parents_of("PR"))
        client.upsert([Chunk("1", "pump", "Q")], parents=parents_of("Q"))
        assert sorted(client.parents(list("PQR"))) == ["P", "Q", "R"]
        client.upsert([Chunk("2", "valve", "Q")])
        assert sorted(client.parents(list("PQR"))) == ["Q", "R"]
        client.upsert([Chunk("1", "pump"), Chunk("2", "valve")], parents=parents_of("Q"))
        assert sorted(client.parents(list("PQR"))) == ["Q", "R"]
        client.upsert([Chunk("3", "pump"), Chunk("4", "pump", "Q")])
        client.upsert([Chunk("3", "pump", "Q"), Chunk("4", "pump")])  # named by another now
        assert sorted(client.parents(list("PQR"))) == ["Q", "R"]
        client.clear()
        client.upsert([Chunk("1", "pump", "R")])
        assert client.parents(list("PQR")) == {}

    def test_no_other_chunk_is_read_to_delete_by_a_filter(
        self, collections: Collections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, read = collections(embedder=WordEmbedder(), analyzer=AUTO), list[str]()
        client.upsert([Chunk(f"c{at}", "pump", metadata={"file": f"{at % 20}.pdf"}) for at in range(60)])
        get = type(client.engine)._get

        def recorded(engine: Any, ids: Sequence[str], parents: bool) -> Any:
            read.extend(ids)
            return get(engine, ids, parents)

        monkeypatch.setattr(type(client.engine), "_get", recorded)
        assert client.delete(where={"file": "7.pdf"}) == 3
        assert sorted(read) == ["c27", "c47", "c7"]

    def test_questions_go_with_their_collection(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert([Chunk("1", "the salary of Bob", metadata={"right": "hr"})])
        client.engine.asked.upsert([Chunk("q", "what is the salary of Bob?", metadata={"right": "hr"})])
        client.clear()
        assert list(client.engine.asked) == []
        assert not client.engine.run(client.engine.asked.exists())
        client.engine.asked.upsert([Chunk("q", "of a collection that is not there")])
        client.clear()
        assert list(client.engine.asked) == []


def parents_of(ids: str) -> list[Chunk]:
    """One of each letter."""
    return [Chunk(one, f"whole {one}") for one in ids]

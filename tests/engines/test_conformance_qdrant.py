"""Qdrant's local mode keeps what engines promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.engines.conformance import Conformance, Started
from tests.engines.engines import SYSTEMS
from voicevault_retrievers.engines.addresses import connect as opened
from voicevault_retrievers.lexical.formulas import Lucene, Okapi
from voicevault_retrievers.testing.clients import Connect
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.writing import WritingSuite


class TestQdrant(Conformance):
    system = "qdrant"
    ways = ("sync",)
    formulas = (Lucene(), Okapi())  # this package scores what Qdrant returns; `TestQdrantEdge` has them all
    other_options: ClassVar[dict[str, Any]] = {
        "quantization": "scalar",
        "tenant": "t",
        "indexes": ["page"],
    }


class Elsewhere(Started):
    """What may differ where a client is another: it searches as that of `TestQdrant` does."""

    test_chunks_come_back_as_they_were_given = WritingSuite.test_chunks_come_back_as_they_were_given
    test_parents_are_kept_and_not_searched = WritingSuite.test_parents_are_kept_and_not_searched
    test_deleted_chunks_are_gone_everywhere = WritingSuite.test_deleted_chunks_are_gone_everywhere
    test_many_write_and_delete_at_once = TogetherSuite.test_many_write_and_delete_at_once
    agrees = TogetherSuite.agrees


class TestQdrantOverHTTP(Elsewhere):
    """A server's interface, over local mode."""

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls) -> Iterator[Connect]:
        with pytest.importorskip("tests.engines.qdrant_server").fake_qdrant() as fake:
            yield lambda name, **options: opened(f"qdrant://127.0.0.1:{fake.port}/{name}", **options)


class TestQdrantOfAClient(Elsewhere):
    """A client that the application has made, in memory."""

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls) -> Iterator[Connect]:
        client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
        engine = pytest.importorskip("voicevault_retrievers.engines.qdrant").QdrantEngine
        yield lambda name, **options: engine(name, client=client, **options)
        client.close()


class TestQdrantEdge(Conformance):
    """Qdrant's own segments, indexes and idf, in this process."""

    ways = ("sync",)
    tau = 0.8  # Qdrant's idf counts deleted chunks until it has optimised the segment
    other_options: ClassVar[dict[str, Any]] = {"quantization": "scalar", "tenant": "t", "indexes": ["page"]}

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
        SYSTEMS["qdrant-edge"].skip()
        with SYSTEMS["qdrant-edge"].opened(tmp_path_factory.mktemp("edge")) as connecting:
            yield connecting

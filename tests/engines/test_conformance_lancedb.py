"""LanceDB keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.engines.lancedb import engine
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import KeywordSuite
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite


class TestLance(Conformance):
    system = "lancedb"
    ways = ("sync",)


class TestLanceIndexed(Started, WritingSuite, KeywordSuite, VectorSuite, Filters, TogetherSuite):
    """With every index from the first chunk on."""

    system = "lancedb"
    ways = ("sync",)
    given: ClassVar[dict[str, Any]] = {"index_from": 1}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def indexed(cls) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "INDEXED_FROM", 1)
            yield

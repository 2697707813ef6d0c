"""LanceDB keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.engines.lancedb import engine
from voicevault_retrievers.lexical.formulas import Lucene, Okapi
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import KeywordSuite
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite


class TestLance(Conformance):
    system = "lancedb"
    ways = ("sync",)
    formulas = (Lucene(), Okapi())  # this package scores what LanceDB returns


class TestLanceIndexed(Started, KeywordSuite, VectorSuite, Filters, TogetherSuite):
    """With every index from the first chunk on: they may answer otherwise, and may not know of the last changes."""

    system = "lancedb"
    ways = ("sync",)
    formulas = (Lucene(), Okapi())
    given: ClassVar[dict[str, Any]] = {"index_from": 1}

    test_replaced_chunks_are_found_by_their_new_words_and_vectors_only = (
        WritingSuite.test_replaced_chunks_are_found_by_their_new_words_and_vectors_only
    )
    test_given_vectors_take_the_place_of_those_that_chunks_have = (
        WritingSuite.test_given_vectors_take_the_place_of_those_that_chunks_have
    )
    test_deleted_chunks_are_gone_everywhere = WritingSuite.test_deleted_chunks_are_gone_everywhere
    test_delete_by_a_filter = WritingSuite.test_delete_by_a_filter

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def indexed(cls) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "INDEXED_FROM", 1)
            yield

"""PostgreSQL keeps what engines promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.lexical.formulas import Lucene, Okapi
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.other_clients import Others
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite

keyword_search = pytest.importorskip("voicevault_retrievers.engines.postgres.keyword_search")


class TestPostgres(Conformance):
    system = "postgres"
    ways = ("sync",)
    other_options: ClassVar[dict[str, Any]] = {"half": True}


class TestPostgresOnAnEventLoop(Started, WritingSuite, Others, TogetherSuite):
    """Every kind of statement and transaction by the connections of event loops."""

    system = "postgres"
    ways = ("async",)


class TestPostgresIndexed(Started, VectorSuite, Filters):
    """With an approximate index of vectors from the first chunk on, which may miss one of many equal ones."""

    test_replaced_chunks_are_found_by_their_new_words_and_vectors_only = (
        WritingSuite.test_replaced_chunks_are_found_by_their_new_words_and_vectors_only
    )
    test_given_vectors_take_the_place_of_those_that_chunks_have = (
        WritingSuite.test_given_vectors_take_the_place_of_those_that_chunks_have
    )
    test_deleted_chunks_are_gone_everywhere = WritingSuite.test_deleted_chunks_are_gone_everywhere
    system = "postgres"
    ways = ("sync",)
    ties_at_k = False
    given: ClassVar[dict[str, Any]] = {"index_from": 1}


class TestPostgresByIndex(Conformance):
    """Keywords by the BM25 index of pg_textsearch, from the first chunk on."""

    system = "postgres-bm25"
    ways = ("sync",)
    tau = 0.8  # until a vacuum, the index counts what was deleted
    formulas = (Lucene(), Okapi())  # the index scores by the first; others are counted as in `TestPostgres`
    other_options: ClassVar[dict[str, Any]] = {"half": True}

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def indexed_at_once(cls) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keyword_search, "INDEXED_FROM", 1)
            yield


class TestPostgresWithIndexOnAnEventLoop(Started, WritingSuite, TogetherSuite):
    """The default, on a server with pg_textsearch."""

    system = "postgres-bm25"
    ways = ("async",)

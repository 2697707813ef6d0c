"""PostgreSQL keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.other_clients import Others
from voicevault_retrievers.testing.suite import FLOAT
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite


class TestPostgres(Conformance):
    system = "postgres"
    ways = ("sync",)
    other_options: ClassVar[dict[str, Any]] = {"half": True}


class TestPostgresOnAnEventLoop(Started, WritingSuite, Others, TogetherSuite):
    """Every kind of statement and transaction by the connections of event loops."""

    system = "postgres"
    ways = ("async",)


class TestPostgresIndexed(Started, WritingSuite, VectorSuite, Filters, Others, TogetherSuite):
    """With an approximate index of vectors from the first chunk on, which may miss one of many equal ones."""

    system = "postgres"
    ways = ("sync",)
    ties_at_k = False
    given: ClassVar[dict[str, Any]] = {"index_from": 1}


class TestPostgresByIndex(Conformance):
    """Keywords by the BM25 index of pg_textsearch, from the first chunk on."""

    system = "postgres-bm25"
    ways = ("sync",)
    ties_at_k = False
    score_tolerance = FLOAT  # the index computes in single precision
    tau = 0.8  # until a vacuum, the index counts what was deleted
    given: ClassVar[dict[str, Any]] = {"statistics": "engine"}
    other_options: ClassVar[dict[str, Any]] = {"half": True}
    test_the_language_of_hidden_chunks_changes_nothing = None  # named so, the index counts hidden chunks


class TestPostgresWithIndexOnAnEventLoop(Started, WritingSuite, Others, TogetherSuite):
    """The default, on a server with pg_textsearch."""

    system = "postgres-bm25"
    ways = ("async",)

"""Elasticsearch and OpenSearch, as their documentation says they answer, keep what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.lexical.formulas import BM25L, Lucene
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import KeywordSuite
from voicevault_retrievers.testing.other_clients import Others
from voicevault_retrievers.testing.recipes import Recipes
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite


class TestElasticsearch(Conformance):
    system = "elasticsearch"
    ways = ("sync",)
    tau = 0.8  # lengths are rounded, and deleted chunks are counted until segments are merged
    other_options: ClassVar[dict[str, Any]] = {"index": "flat"}


class TestElasticsearchOnAnEventLoop(Started, WritingSuite, Others, TogetherSuite):
    system = "elasticsearch"
    ways = ("async",)


class TestOpenSearch(Started, Recipes, KeywordSuite, VectorSuite, Filters):
    """What goes to it otherwise than to Elasticsearch; writing is below."""

    system = "opensearch"
    formulas = (Lucene(), BM25L())  # one script scores on both
    ways = ("sync",)
    tau = 0.8
    other_options: ClassVar[dict[str, Any]] = {"index": "faiss"}


class TestOpenSearchOnAnEventLoop(Started, WritingSuite, Others, TogetherSuite):
    system = "opensearch"
    ways = ("async",)

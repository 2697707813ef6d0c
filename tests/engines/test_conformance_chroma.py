"""Chroma, embedded and over HTTP, keeps what engines promise."""

from __future__ import annotations

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.lexical.formulas import Lucene, Okapi
from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.other_clients import Others
from voicevault_retrievers.testing.recipes import Recipes
from voicevault_retrievers.testing.writing import WritingSuite


class TestChroma(Conformance):
    system = "chroma"
    ways = ("sync",)
    formulas = (Lucene(), Okapi())  # this package scores what Chroma returns


class TestChromaHTTP(Started, Recipes, WritingSuite, Others, TogetherSuite):
    """What goes over the network, and what many clients do: a server searches as `TestChroma` does."""

    system = "chroma-http"
    ways = ("sync",)


class TestChromaOnAnEventLoop(Started, WritingSuite, TogetherSuite):
    """Every kind of request by the client of event loops, which sends what the other sends."""

    system = "chroma-http"
    ways = ("async",)

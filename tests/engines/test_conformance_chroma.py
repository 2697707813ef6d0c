"""Chroma, embedded and over HTTP, keeps what engines promise."""

from __future__ import annotations

from tests.engines.conformance import Conformance


class TestChroma(Conformance):
    system = "chroma"
    both_ways = False


class TestChromaHTTP(Conformance):
    system = "chroma-http"

"""A knowledge base keeps what engines promise."""

from __future__ import annotations

from tests.engines.conformance import Conformance


class TestEmbedded(Conformance):
    system = "embedded"

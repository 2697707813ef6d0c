"""A knowledge base keeps what engines promise."""

from __future__ import annotations

from tests.engines.conformance import Conformance


class TestEmbedded(Conformance):
    system = "embedded"
    ways = ("sync",)
    alone = True  # it writes under a lock that it keeps until it is closed

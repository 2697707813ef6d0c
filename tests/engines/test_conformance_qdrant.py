"""Qdrant's local mode keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance


class TestQdrant(Conformance):
    system = "qdrant"
    other_options: ClassVar[dict[str, Any]] = {
        "idf": "server",
        "quantization": "scalar",
        "tenant": "t",
        "indexes": {"page": "integer"},
    }


class TestQdrantThatWeighs(Conformance):
    """Qdrant's own idf, over its own counts."""

    system = "qdrant"
    both_ways = False
    tau = 0.5  # values are stored at the mean length of their time
    given: ClassVar[dict[str, Any]] = {"idf": "server"}

"""Qdrant's local mode keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance, Started
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import Keywords


class TestQdrant(Conformance):
    system = "qdrant"
    ways = ("sync",)
    other_options: ClassVar[dict[str, Any]] = {
        "idf": "server",
        "quantization": "scalar",
        "tenant": "t",
        "indexes": {"page": "integer"},
    }


class TestQdrantThatWeighs(Started, Keywords, Filters):
    """Qdrant's own idf, over its own counts: keywords score otherwise, and all else is as in `TestQdrant`."""

    system = "qdrant"
    ways = ("sync",)
    tau = 0.5  # values are stored at the mean length of their time
    given: ClassVar[dict[str, Any]] = {"idf": "server"}

"""Milvus Lite keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance


class TestMilvus(Conformance):
    system = "milvus"
    ways = ("sync",)
    threads_ending = 4  # those of the server that Milvus Lite starts in this process
    other_options: ClassVar[dict[str, Any]] = {"index": "HNSW"}

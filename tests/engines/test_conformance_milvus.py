"""Milvus Lite keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance


class TestMilvus(Conformance):
    system = "milvus"
    other_options: ClassVar[dict[str, Any]] = {"index": "HNSW"}

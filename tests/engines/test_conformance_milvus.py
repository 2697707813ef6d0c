"""Milvus Lite keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance
from voicevault_retrievers.lexical.formulas import BM25Plus, Lucene


class TestMilvus(Conformance):
    system = "milvus"
    ways = ("sync",)
    formulas = (Lucene(), BM25Plus())  # this package scores the rows; `test_milvus.py` has the bounds of each
    threads_ending = 4  # those of the server that Milvus Lite starts in this process
    other_options: ClassVar[dict[str, Any]] = {"index": "HNSW"}

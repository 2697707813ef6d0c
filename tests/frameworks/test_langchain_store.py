"""LangChain's vector store over memory, a knowledge base and an engine: LangChain's own suite, and what it adds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from voicevault_retrievers.langchain import HybridStore

# LangChain's own suite: it compares whole documents, so their metadata have to come back as they were added


class TestStandardInMemory(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return HybridStore(self.get_embeddings(), provenance=False)


class TestStandardOnDisk(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:
        store = HybridStore.open(tmp_path / "kb", self.get_embeddings(), provenance=False)
        with closing(store.base):  # type: ignore[type-var]  # it is open
            yield store


class TestStandardInQdrant(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:
        pytest.importorskip("qdrant_client")
        address = f"qdrant+file://{tmp_path}/qdrant/kb"
        store = HybridStore.open(address, self.get_embeddings(), provenance=False)
        with closing(store.base):  # type: ignore[type-var]  # it is open
            yield store

"""LangChain's own suite for vector stores over collections of servers; on disk it is in `frameworks/`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from voicevault_retrievers.langchain import HybridStore

NAMES = count()


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture(params=["postgres", "chroma-http"])
    async def vectorstore(self, request: pytest.FixtureRequest) -> AsyncIterator[VectorStore]:
        if request.param == "postgres":
            pytest.importorskip("psycopg_pool")
            place = f"{request.getfixturevalue('address')}#"
        else:
            pytest.importorskip("chromadb")
            place = f"chroma://127.0.0.1:{request.getfixturevalue('chroma_port')}/"
        store = HybridStore.open(f"{place}standard{next(NAMES)}", self.get_embeddings(), provenance=False)
        engine: Any = store.base
        async with engine:
            yield store
            await engine.aclear()

"""The contexts of chunks are written by models of LangChain and of LlamaIndex."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from voicevault_retrievers import ContextWriter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.structure import ContextUpdate


def langchain_model() -> tuple[TextModel, str]:
    models = pytest.importorskip("langchain_core.language_models")
    from voicevault_retrievers.langchain.models import as_text_model

    return as_text_model(models.FakeListChatModel(responses=["It is on pumps."])), "It is on pumps."


def llama_index_model() -> tuple[TextModel, str]:
    llms = pytest.importorskip("llama_index.core.llms")
    from voicevault_retrievers.llama_index.models import as_text_model

    return as_text_model(llms.MockLLM(max_tokens=3)), "text text text"


@pytest.mark.parametrize("made", [langchain_model, llama_index_model])
def test_a_frameworks_model_writes_contexts(tmp_path: Path, made: Callable[[], tuple[TextModel, str]]) -> None:
    model, context = made()
    with KnowledgeBase.create("kb", root=tmp_path) as base:
        base.add(Chunk(f"c{at}", f"Pump {at}.", None, {"source": "f"}, header="Pumps") for at in range(3))
        assert ContextWriter(model).write(base) == ContextUpdate(3)
        assert asyncio.run(ContextWriter(model).awrite(base, again=True)) == ContextUpdate(3)
        assert {chunk.header for chunk in base} == {f"Pumps\n\n{context}"}

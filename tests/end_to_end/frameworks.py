"""One search asked through the core's pipeline, LangChain's retriever and LlamaIndex's: the ids and scores of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pytest

from voicevault_retrievers.core.types import Hit
from voicevault_retrievers.pipeline.presets import Preset

Scored: TypeAlias = list[tuple[str, float | None]]
Ask: TypeAlias = Callable[[str, dict[str, Any] | None], Scored]
Look: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any]], bool]
"""Whether what was found is right, by its text, its metadata and how it was found."""


def scored(hits: Iterable[Hit]) -> Scored:
    return [(hit.id, hit.score) for hit in hits]


def by_langchain(preset: Preset | str, look: Look, **searched: Any) -> Ask:
    pytest.importorskip("langchain_core")
    from voicevault_retrievers.langchain import HybridRetriever

    retriever = HybridRetriever(preset=preset, **searched)

    def ask(question: str, where: dict[str, Any] | None) -> Scored:
        found = retriever.invoke(question, where=where)
        assert all(look(one.page_content, one.metadata, one.metadata["voicevault"]) for one in found)
        return [(one.id or "", one.metadata.get("relevance_score")) for one in found]

    return ask


def by_llama_index(preset: Preset | str, look: Look, **searched: Any) -> Ask:
    pytest.importorskip("llama_index.core")
    from voicevault_retrievers.llama_index import HybridRetriever, provenance

    retriever = HybridRetriever(preset=preset, **searched)

    def ask(question: str, where: dict[str, Any] | None) -> Scored:
        found = retriever.with_options(where=where or None).retrieve(question)
        assert all(look(one.text, one.metadata, provenance(one) or {}) for one in found)
        return [(one.node.node_id, one.score) for one in found]

    return ask

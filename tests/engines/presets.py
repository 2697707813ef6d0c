"""The presets `legal` and `casefile` without their large models, and each way to search with a preset."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model_server import ModelServer
from voicevault_retrievers import Chunk
from voicevault_retrievers.pipeline.presets import Preset, preset_data


def legal(graph: str | None = None, parents: str | None = None) -> Preset:
    """Without its cross-encoder and funnel, with the neighbours of what it finds; its stores at these addresses."""
    data = preset_data("legal")
    del data["channels"]["dense"]["funnel"]
    data["stages"][0] = {"graph_expansion": {"timeout": 5}}
    if graph is not None:
        data["channels"]["graph"]["store"] = graph
        data["stages"][0]["graph_expansion"]["store"] = graph
    if parents is not None:
        data["stages"][1]["parents"]["store"] = parents
    return Preset.of(data)


def casefile(model: ModelServer, parents: str | None = None) -> Preset:
    """With this model, and its parents at this address; a search need not say whose it is."""
    data = preset_data("casefile") | {"access": "optional"}
    data["llm"] |= {"base_url": model.url}
    data["stages"][0]["llm_rerank"] |= {"timeout": None}
    if parents is not None:
        data["stages"][1]["parents"]["store"] = parents
    return Preset.of(data)


def asked_of(chunk: Chunk) -> list[str]:
    """The question that a section answers."""
    return [f"What is said of {chunk.text.split('. ')[1]}?"]


def core(preset: Preset, base: Any, **stores: Any) -> Any:
    return preset.given(**stores).over(base)


def langchain(preset: Preset, base: Any, **stores: Any) -> Any:
    from voicevault_retrievers.langchain import HybridRetriever

    return HybridRetriever(kb_names=[base], preset=preset.given(**stores))


def llama_index(preset: Preset, base: Any, **stores: Any) -> Any:
    from voicevault_retrievers.llama_index import HybridRetriever

    return HybridRetriever(base, preset=preset.given(**stores))


THROUGH = pytest.mark.parametrize(
    "through", [pytest.param(one, id=one.__name__) for one in (core, langchain, llama_index)]
)

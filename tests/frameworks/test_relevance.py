"""Documents and nodes can be thresholded by relevance in both frameworks, behind a calibrated reranker alone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from langchain_core.documents import Document
from llama_index.core.schema import TextNode

from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank import Calibration, CallableScorer

TEXTS = [f"pump {'valve ' * at}".strip() for at in range(5)]
SCORER = CallableScorer(lambda query, passages: [len(passage) - 12.0 for passage in passages], name="length")
OPTIONS: dict[str, Any] = {"blend": 1, "calibration": Calibration(1.0, 0.0)}


async def test_langchain_drops_what_is_below_a_relevance() -> None:
    retriever = langchain.BM25Retriever.from_documents([Document(text, id=text) for text in TEXTS])
    ranked = retriever >> langchain.CrossEncoderReranker(scorer=SCORER, **OPTIONS)
    found = (ranked >> langchain.RelevanceFilter(least=0.5)).invoke("pump")
    assert [document.id for document in found] == TEXTS[:1:-1]
    assert all(document.metadata["voicevault"]["relevance"] >= 0.5 for document in found)
    assert await (ranked >> langchain.RelevanceFilter(least=0.5)).ainvoke("pump") == found
    alone = langchain.RelevanceFilter(least=0.5).compress_documents(ranked.invoke("pump"), "pump")
    assert [document.id for document in alone] == TEXTS[:1:-1]
    with pytest.raises(ConfigError, match="no hit has a relevance"):
        (retriever >> langchain.RelevanceFilter(least=0.5)).invoke("pump")


async def test_llama_index_drops_what_is_below_a_relevance() -> None:
    retriever = llama_index.BM25Retriever.from_nodes([TextNode(id_=text, text=text) for text in TEXTS])
    ranked = retriever >> llama_index.CrossEncoderRerank(model=SCORER, **OPTIONS)
    cut = llama_index.RelevancePostprocessor(least=0.5)
    found = (ranked >> cut).retrieve("pump")
    assert [node.node_id for node in found] == TEXTS[:1:-1]
    assert [(llama_index.provenance(node) or {})["relevance"] >= 0.5 for node in found] == [True] * 3
    assert [node.node_id for node in await (ranked >> cut).aretrieve("pump")] == TEXTS[:1:-1]
    assert [node.node_id for node in cut.postprocess_nodes(ranked.retrieve("pump"), query_str="pump")] == TEXTS[:1:-1]
    with pytest.raises(ConfigError, match="no hit has a relevance"):
        (retriever >> cut).retrieve("pump")

"""The password of a model's address shows in no text of a part of a framework that asks the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import TextNode
from llama_index.llms.openai import OpenAI

from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.language import OllamaModel

ADDRESS = "http://user:hush@host/v1"
MODELS: dict[str, Callable[[], Any]] = {
    "ours": lambda: OllamaModel("m", base_url=ADDRESS),
    "LangChain": lambda: ChatOpenAI(model="m", base_url=ADDRESS, api_key="key"),
    "LlamaIndex": lambda: OpenAI(model="m", api_base=ADDRESS, api_key="key"),
}


def _langchain(model: Any) -> list[Any]:
    keywords = langchain.BM25Retriever.from_documents([Document("the pump hums")])
    expander, reranker = langchain.QueryExpander(llm=model), langchain.LLMReranker(llm=model)
    hybrid = langchain.HybridRetriever(channels={"keywords": keywords}, expansion=expander, rerank=reranker)
    return [expander, reranker, hybrid, keywords >> reranker]


def _llama_index(model: Any) -> list[Any]:
    keywords = llama_index.BM25Retriever.from_defaults(nodes=[TextNode(text="the pump hums")])
    expander, reranker = llama_index.QueryExpander(llm=model), llama_index.LLMRerank(llm=model)
    hybrid = llama_index.HybridRetriever(channels={"keywords": keywords}, expansion=expander, rerank=reranker)
    return [expander, reranker, hybrid, keywords >> reranker]


@pytest.mark.parametrize(
    ("parts", "model"),
    [(_langchain, "ours"), (_langchain, "LangChain"), (_llama_index, "ours"), (_llama_index, "LlamaIndex")],
)
def test_the_password_of_a_models_address_shows_in_no_part_that_asks_it(
    parts: Callable[[Any], list[Any]], model: str
) -> None:
    for part in parts(MODELS[model]()):
        assert "hush" not in f"{part!r} {part}"


def test_an_option_that_is_refused_shows_no_password() -> None:
    with pytest.raises(ConfigError) as raised:
        langchain.LLMReranker(llm="m", depth=MODELS["ours"]())
    assert "host/v1" in str(raised.value)
    assert "hush" not in str(raised.value)


def test_an_embedder_whose_model_is_an_address_is_known_without_its_password() -> None:
    lang = langchain.LangChainEmbedder(OpenAIEmbeddings(model=ADDRESS, api_key="key"), dimension=2)
    llama = llama_index.LlamaIndexEmbedder(MockEmbedding(2, model_name=ADDRESS))
    for embedder in (lang, llama):
        assert "host/v1" in embedder.fingerprint
        assert "hush" not in f"{embedder!r} {embedder.fingerprint}"

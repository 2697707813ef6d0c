"""The recipes for stores without an engine here: each compiles, and runs over a client that answers from a list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.docs.blocks import Block

PAGE = (Path(__file__).parents[2] / "docs/how-to/other-engines.md").read_text(encoding="utf-8")
BLOCKS = {re.search(r"def (\w+)", code)[1]: Block(code, "") for code in re.findall(r"```python\n(.*?)```", PAGE, re.S)}  # type: ignore[index]
FOUND = [("a", "Change the seal.", "pump.pdf"), ("b", "The pump is blue.", "blue.pdf")]


def recipe(name: str) -> Callable[..., Any]:
    """The function of a block; skipped where it imports what is not installed."""
    if BLOCKS[name].missing:
        pytest.skip(f"needs {BLOCKS[name].missing}")
    names: dict[str, Any] = {}
    exec(BLOCKS[name].code, names)  # noqa: S102 - of our own page
    made: Callable[..., Any] = names[name]
    return made


@pytest.mark.parametrize("name", BLOCKS)
def test_a_recipe_compiles(name: str) -> None:
    compile(BLOCKS[name].code, name, "exec")


def documents() -> list[Any]:
    from langchain_core.documents import Document

    return [Document(text, id=name, metadata={"source": source, "chunk_id": name}) for name, text, source in FOUND]


def embeddings() -> Any:
    from langchain_core.embeddings import DeterministicFakeEmbedding

    return DeterministicFakeEmbedding(size=8)


def checked(retriever: Any, store: str, *, where: bool = True) -> None:
    """Both channels found the chunk as one, and a filter holds."""
    first = retriever.invoke("seal")[0]
    assert (first.id, set(first.metadata["voicevault"]["channels"])) == ("a", {"bm25", store})
    if where:
        assert [found.id for found in retriever.invoke("seal", where={"source": "blue.pdf"})] == ["b"]


def test_elasticsearch_in_langchain() -> None:
    made = recipe("elasticsearch_langchain")
    pytest.importorskip("elastic_transport")
    from elastic_transport import ApiResponseMeta, BaseNode, HttpHeaders
    from elastic_transport._node import NodeApiResponse
    from elasticsearch import Elasticsearch

    asked: list[Any] = []

    class Node(BaseNode):
        def perform_request(self, method: str, target: str, body: Any = None, *rest: Any, **options: Any) -> Any:
            asked.append(json.loads(body))
            hits = [
                {"_id": name, "_index": "docs", "_score": 0.9, "_source": {"text": text, "metadata": metadata}}
                for name, text, metadata in ((d.id, d.page_content, d.metadata) for d in documents())
            ]
            headers = HttpHeaders({"x-elastic-product": "Elasticsearch", "content-type": "application/json"})
            answer = json.dumps({"hits": {"hits": hits}}).encode()
            return NodeApiResponse(ApiResponseMeta(200, "1.1", headers, 0.1, self.config), answer)

        def close(self) -> None:
            """Nothing is open."""

    client = Elasticsearch("http://localhost:9200", node_class=Node)
    checked(made(client, documents(), embeddings()), "elasticsearch")
    assert all(each["knn"]["num_candidates"] >= each["knn"]["k"] for each in asked)


def test_pinecone_in_langchain() -> None:
    made = recipe("pinecone_langchain")

    class Index:
        config = SimpleNamespace(host="localhost", api_key="")

        def query(self, **options: Any) -> dict[str, Any]:
            matches = [
                {"id": name, "score": 0.9 - at / 10, "metadata": {"text": text, "source": source}}
                for at, (name, text, source) in enumerate(FOUND)
            ]
            return {"matches": matches[: options["top_k"]]}

    checked(made(Index(), documents(), embeddings()), "pinecone")


def test_weaviate_in_langchain() -> None:
    made = recipe("weaviate_langchain")
    from unittest.mock import MagicMock

    def hybrid(**options: Any) -> Any:
        score = SimpleNamespace(score=0.9)
        found = [
            SimpleNamespace(
                uuid=f"u{d.id}", properties={"text": d.page_content, **d.metadata}, metadata=score, vector={}
            )
            for d in documents()
        ]
        return SimpleNamespace(objects=found)

    client = MagicMock()
    held = client.collections.get.return_value
    held.config.get.return_value.multi_tenancy_config.enabled = False
    held.query.hybrid.side_effect = hybrid
    checked(made(client, documents(), embeddings()), "weaviate")


def test_opensearch_in_llama_index() -> None:
    made = recipe("opensearch_llama_index")
    pytest.importorskip("opensearchpy")
    from llama_index.core import MockEmbedding
    from llama_index.core.schema import TextNode
    from opensearchpy import AsyncOpenSearch, Connection, OpenSearch

    class Answers(Connection):
        def perform_request(self, *arguments: Any, **options: Any) -> Any:
            hits = [
                {"_id": name, "_score": 0.9, "_source": {"content": text, "metadata": {"source": source}}}
                for name, text, source in FOUND
            ]
            return 200, {}, json.dumps({"hits": {"hits": hits}, "version": {"number": "2.19.0"}})

    nodes = [TextNode(id_=name, text=text, metadata={"source": source}) for name, text, source in FOUND]
    client = OpenSearch("http://localhost:9200", connection_class=Answers)
    held = made(client, AsyncOpenSearch("http://localhost:9200"), nodes, MockEmbedding(embed_dim=8))
    assert held.retrieve("seal")[0].node_id == "a"
    assert [found.node_id for found in held.with_options(where={"source": "blue.pdf"}).retrieve("seal")] == ["b"]


def test_elasticsearch_in_llama_index() -> None:
    made = recipe("elasticsearch_llama_index")
    pytest.importorskip("elasticsearch")
    from elasticsearch import AsyncElasticsearch
    from llama_index.core import MockEmbedding
    from llama_index.core.schema import TextNode

    nodes = [TextNode(id_=name, text=text) for name, text, _ in FOUND]
    held = made(AsyncElasticsearch("http://localhost:9200"), nodes, MockEmbedding(embed_dim=8))
    assert "elasticsearch" in repr(held)

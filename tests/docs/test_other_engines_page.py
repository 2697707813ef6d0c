"""The recipes for stores without an engine here: each compiles, and runs over a client that answers from a list."""

from __future__ import annotations

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

"""LangChain: access rights, and what a search skipped, go with the documents through any part of LangChain between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_classic")

from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import ConfigurableField, Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from tests.helpers import Adding
from voicevault_retrievers import GraphExpansion, KnowledgeBase
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.langchain import (
    BM25Retriever,
    HybridRetriever,
    HybridStore,
    ParentExpander,
    StagedRetriever,
    VectorRetriever,
    flatten_provenance,
)
from voicevault_retrievers.pipeline.options import Fusion

RIGHTS = {"acl": "a"}
CHILD = Document("The pump hums.", id="c", metadata={"acl": "a", "doc_id": "P"})
SECRET = Document("SECRET manual of the pump", id="s", metadata={"acl": "b"})
MODEL = DeterministicFakeEmbedding(size=8)


def expander() -> ParentExpander:
    return ParentExpander(store={"P": SECRET})


def retriever(**options: Any) -> HybridRetriever:
    return HybridRetriever.from_documents([CHILD, SECRET], MODEL, k=1, **options)


def store(**options: Any) -> HybridStore:
    made = HybridStore(MODEL, **options)
    made.add_documents([CHILD, SECRET])
    return made


def field() -> Any:
    return retriever().configurable_fields(require=ConfigurableField("rights"))


PARTS: dict[str, Callable[[], Runnable[str, list[Document]]]] = {
    "of its own": lambda: retriever(require=RIGHTS),
    "retry": lambda: retriever(require=RIGHTS).with_retry(),
    "fallbacks": lambda: retriever(require=RIGHTS).with_fallbacks([retriever(require=RIGHTS)]),
    "bound": lambda: retriever().bind(require=RIGHTS),
    "configured": lambda: field().with_config(configurable={"rights": RIGHTS}),
    "a sequence": lambda: RunnableLambda(str.lower) | retriever(require=RIGHTS),
    "ensemble": lambda: EnsembleRetriever(retrievers=[retriever(require=RIGHTS), retriever(require=RIGHTS)]),
    "store": lambda: store(require=RIGHTS).as_retriever(search_kwargs={"k": 1}),
    "bare store": lambda: store(require=RIGHTS, provenance=False).as_retriever(search_type="mmr"),
    "a search of a store": lambda: store().as_retriever(search_kwargs={"require": RIGHTS}),
    "vectors of a store": lambda: VectorRetriever(vectorstore=store(require=RIGHTS)),
    "a channel": lambda: HybridRetriever(channels={"x": retriever(require=RIGHTS)}),
    "channels": lambda: HybridRetriever(
        channels={"x": retriever(require=RIGHTS), "y": BM25Retriever.from_documents([CHILD], require=RIGHTS)}
    ),
    "a wrapped channel": lambda: HybridRetriever(channels={"x": retriever(require=RIGHTS).with_retry()}),
    "a store's channel": lambda: HybridRetriever(channels={"x": store(require=RIGHTS)}),
}


STAGES: dict[str, Callable[[], Any]] = {
    "a parent": expander,
    "a parent in a pipeline of LangChain's": lambda: DocumentCompressorPipeline(transformers=[expander()]),
    "a stage of somebody's": lambda: Adding(Chunk("s", SECRET.page_content, None, SECRET.metadata)),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("part", PARTS)
def test_a_stage_adds_nothing_that_the_rights_of_the_search_behind_it_do_not_permit(part: str, stage: str) -> None:
    staged = StagedRetriever(retriever=PARTS[part](), stages=[STAGES[stage]()])
    for found in (staged.invoke("pump"), asyncio.run(staged.ainvoke("pump")), *staged.batch(["pump"])):
        assert [document.page_content for document in found] == [CHILD.page_content]


@pytest.mark.parametrize("part", [name for name in PARTS if name != "bare store"])  # which tells nothing, as it says
def test_nor_does_a_compressor_around_it(part: str) -> None:
    around = ContextualCompressionRetriever(base_compressor=expander(), base_retriever=PARTS[part]())
    for found in (around.invoke("pump"), asyncio.run(around.ainvoke("pump"))):
        assert [document.page_content for document in found] == [CHILD.page_content]


def test_rights_that_a_call_configures_hold_for_the_stages() -> None:
    staged = field() >> expander()
    config: Any = {"configurable": {"rights": RIGHTS}}
    assert [one.page_content for one in staged.invoke("pump", config)] == [CHILD.page_content]
    assert [one.page_content for one in staged.invoke("pump")] == [SECRET.page_content]


def test_rights_in_provenance_that_are_none_permit_nothing() -> None:
    (found,) = retriever(require=RIGHTS).invoke("pump")
    assert found.metadata["voicevault"]["require"] == RIGHTS
    found.metadata["voicevault"]["require"] = {"acl": {"$unknown": 1}}
    assert [one.page_content for one in expander().compress_documents([found], "pump")] == [CHILD.page_content]
    assert not [key for key in flatten_provenance([found])[0].metadata if "require" in key]


def test_a_graph_adds_nothing_that_they_do_not_permit(tmp_path: Path) -> None:
    with KnowledgeBase.create("law", root=tmp_path) as base:
        chunks = [
            Chunk("c", "Section 1. The pump hums, see section 2.", None, {"acl": "a"}),
            Chunk("s", "Section 2. SECRET manual of the pump.", None, {"acl": "b"}),
        ]
        base.add(chunks)
        inner = HybridRetriever(channels={"bm25": base.bm25()}, require=RIGHTS)
        staged = HybridRetriever(channels={"x": inner}) >> GraphExpansion(base.references())
        assert [one.id for one in staged.invoke("hums")] == ["c"]


class _Down(DeterministicFakeEmbedding):
    """A model that fails for questions."""

    def embed_query(self, text: str) -> list[float]:
        if text == "pump":
            raise ZeroDivisionError
        return super().embed_query(text)


def test_what_a_search_skipped_is_told_behind_any_part() -> None:
    own = HybridRetriever.from_documents([CHILD], _Down(size=8))
    held = HybridStore(_Down(size=8), fusion=Fusion(on_error="skip"))
    held.add_documents([CHILD])
    (plain,) = own.invoke("pump")
    parts = [own.with_retry(), own.bind(k=2), EnsembleRetriever(retrievers=[own]), RunnableLambda(str.lower) | own]
    retrievers = [*(part >> expander() for part in parts), HybridRetriever(channels={"x": own.with_retry()})]
    for each in (*retrievers, VectorRetriever(vectorstore=held)):
        (found,) = each.invoke("pump")
        (said,) = found.metadata["voicevault"]["degraded"]
        assert said.endswith(plain.metadata["voicevault"]["degraded"][0]), said


@pytest.mark.parametrize("wrap", ["plain", "retry", "bind", "with_config", "configurable"])
@pytest.mark.parametrize("kind", ["own", "mmr"])
def test_callbacks_see_no_document_that_is_not_permitted(kind: str, wrap: str) -> None:
    class Seen(BaseCallbackHandler):
        def on_retriever_end(self, documents: Any, **_: Any) -> None:
            seen.extend(document.page_content for document in documents)

    held = InMemoryVectorStore(MODEL)
    held.add_documents([CHILD, SECRET])
    part: Any = held.as_retriever(search_type="mmr") if kind == "mmr" else retriever()
    seen: list[str] = []
    wrapped: Any = {
        "plain": lambda: part,
        "retry": part.with_retry,
        "bind": lambda: part.bind(k=5),
        "with_config": lambda: part.with_config(tags=["x"]),
        "configurable": lambda: part.configurable_fields(tags=ConfigurableField("t")),
    }[wrap]()
    searching = HybridRetriever(channels={"x": wrapped}, require=RIGHTS)
    config: Any = {"callbacks": [Seen()]}
    found = [*searching.invoke("pump", config), *asyncio.run(searching.ainvoke("pump", config))]
    assert {document.id for document in found} == {"c"}
    assert set(seen) == {CHILD.page_content}


def test_rights_with_dates_are_plain_in_provenance() -> None:
    given = [Document("pump", id="a", metadata={"until": "2030-01-01"})]
    found = BM25Retriever.from_documents(given, require={"until": {"$gte": date(2026, 1, 1)}}).invoke("pump")
    assert found[0].metadata["voicevault"]["require"] == {"until": {"$gte": "2026-01-01"}}
    assert json.loads(json.dumps(found[0].metadata)) == found[0].metadata

"""How many are found is what the caller said, however a retriever is wrapped; and so are its filters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from tests.frameworks.langchain_parts import Hashed
from tests.frameworks.llama_index_parts import HashEmbedding
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.rerank import CrossEncoderRerank, LLMRerank, MaxSimRerank, RecencyRerank, WeightedRerank

QUESTION = "the pump of the plant"
TEXTS = [f"pump number {number} of the plant" for number in range(30)]
CALL = {"type": "tool_call", "id": "1", "name": "search", "args": {"query": QUESTION}}


class Counting:
    """A scorer that counts what it reads."""

    name = "counting"

    def __init__(self) -> None:
        self.read = 0

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        self.read += len(passages)
        return [float(len(passage)) for passage in passages]


class Asked(InMemoryVectorStore):
    """Keeps the numbers that it is asked with."""

    def __init__(self) -> None:
        super().__init__(Hashed())
        self.numbers: list[tuple[int, ...]] = []
        self.add_documents(documents())

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        self.numbers.append((k,))
        return super().similarity_search(query, k, **options)

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        self.numbers.append((k, fetch_k))
        return super().max_marginal_relevance_search(query, k, fetch_k, lambda_mult, **options)


def documents() -> list[Document]:
    return [Document(text, metadata={"n": number}) for number, text in enumerate(TEXTS)]


def hybrid(**options: Any) -> langchain.HybridRetriever:
    return langchain.HybridRetriever.from_documents(documents(), HashEmbedder(), fusion="rrf", **options)


FEW = {"n": {"$lt": 4}}
WRAPPED: dict[str, tuple[Callable[[], Any], dict[str, Any], int]] = {
    "plain": (lambda: hybrid(k=12), {}, 12),
    "asked": (hybrid, {"k": 12}, 12),
    "none": (hybrid, {"k": 0}, 0),
    "bound": (lambda: hybrid().bind(k=12), {}, 12),
    "bound to few": (lambda: hybrid().bind(k=2), {}, 2),
    "bound and asked": (lambda: hybrid().bind(k=2), {"k": 3}, 3),
    "configured": (
        lambda: (
            hybrid().configurable_fields(k=ConfigurableField(id="k")).with_config({"configurable": {"k": 9}})
        ),
        {},
        9,
    ),
    "retried": (lambda: hybrid(k=12).with_retry(), {}, 12),
    "retried and asked": (lambda: hybrid().with_retry(), {"k": 12}, 12),
    "with fallbacks": (lambda: hybrid(k=12).with_fallbacks([hybrid()]), {}, 12),
    "where": (lambda: hybrid(k=25).bind(where=FEW), {}, 4),
    "require": (lambda: hybrid(k=25).bind(require=FEW), {}, 4),
    "a store's": (lambda: Asked().as_retriever(), {}, 4),
    "a store's own k": (lambda: Asked().as_retriever(search_kwargs={"k": 7}), {}, 7),
    "a store's, asked": (lambda: Asked().as_retriever(search_kwargs={"k": 7}), {"k": 3}, 3),
    "a store's mmr": (lambda: Asked().as_retriever(search_type="mmr", search_kwargs={"k": 6, "fetch_k": 12}), {}, 6),
}  # fmt: skip


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(("made", "asked", "wanted"), WRAPPED.values(), ids=WRAPPED)
def test_as_many_are_found_as_the_caller_said(
    made: Callable[[], Any], asked: dict[str, Any], wanted: int, staged: bool
) -> None:
    retriever = made()
    whole = retriever >> langchain.CrossEncoderReranker(scorer=Counting()) if staged else retriever
    assert len(whole.invoke(QUESTION, **asked)) == wanted
    assert len(asyncio.run(whole.ainvoke(QUESTION, **asked))) == wanted


def test_a_tool_gives_as_many_as_its_retriever_or_itself_says() -> None:
    for tool, wanted in [
        (langchain.retrieval_tool(hybrid().bind(k=2)), 2),
        (langchain.retrieval_tool(hybrid(), k=12), 12),
        (langchain.retrieval_tool(hybrid(k=3)), 3),
    ]:
        assert len(tool.invoke(CALL).artifact["documents"]) == wanted


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, (100,)),
        ({"search_kwargs": {"k": 3}}, (3,)),
        ({"search_type": "mmr"}, (4, 20)),
        ({"search_type": "mmr", "search_kwargs": {"k": 6, "fetch_k": 12}}, (6, 12)),
    ],
)
def test_a_channel_asks_a_store_with_the_numbers_that_its_owner_gave_it(
    options: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    store = Asked()
    langchain.HybridRetriever(channels={"store": store.as_retriever(**options)}, k=10).invoke(QUESTION)
    assert store.numbers == [numbers]


@pytest.mark.parametrize(("k", "depth", "read"), [(25, None, 25), (5, None, 20), (25, 10, 10)])
def test_reranking_reads_all_that_was_found_unless_a_depth_is_named(k: int, depth: int | None, read: int) -> None:
    scorer, node_scorer = Counting(), Counting()
    (hybrid(k=k) >> langchain.CrossEncoderReranker(scorer=scorer, depth=depth)).invoke(QUESTION)
    retriever = llama_index.HybridRetriever.from_nodes([TextNode(text=text) for text in TEXTS], HashEmbedding(), k=k)
    (retriever >> llama_index.CrossEncoderRerank(node_scorer, depth=depth)).retrieve(QUESTION)
    assert (scorer.read, node_scorer.read) == (read, read)


def test_what_reranks_has_no_deadline_unless_one_is_given() -> None:
    made = [
        CrossEncoderRerank(Counting()),
        LLMRerank(CallableTextModel(str)),
        MaxSimRerank("x"),
        WeightedRerank(),
        langchain.CrossEncoderReranker(scorer=Counting()).stage,
        langchain.LLMReranker(llm=str).stage,
        llama_index.CrossEncoderRerank(Counting()).stage,
        llama_index.LLMRerank(str).stage,
    ]
    assert [stage.timeout for stage in made] == [None] * len(made)
    assert RecencyRerank().timeout is None


def test_llama_indexs_own_retriever_takes_a_stage_behind_it() -> None:
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=HashEmbedding())
    native = index.as_retriever(similarity_top_k=9)
    scorer = Counting()
    staged = native >> llama_index.CrossEncoderRerank(scorer, top_n=4)
    assert len(staged.retrieve(QUESTION)) == 4
    assert scorer.read == 9
    assert len((native >> llama_index.PageDiversityPostprocessor()).retrieve(QUESTION)) == 9
    with pytest.raises(TypeError):
        _ = "native" >> llama_index.PageDiversityPostprocessor()  # type: ignore[operator]

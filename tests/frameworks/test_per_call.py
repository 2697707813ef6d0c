"""Options of one call: `invoke` and `ainvoke`, `retrieve` and `aretrieve`, and the core give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import Counting, FailingChannel, HashEmbedder
from voicevault_retrievers import BM25, Query, VectorChannel, compose
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk
from voicevault_retrievers.errors import ConfigError

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableLambda
from llama_index.core.instrumentation.events.retrieval import RetrievalStartEvent
from llama_index.core.schema import NodeWithScore, QueryBundle

from tests.frameworks.llama_index_parts import Lengths, recorded
from voicevault_retrievers import langchain, llama_index

pytestmark = pytest.mark.usefixtures("unrecorded")

CHUNKS = [Chunk(f"c{at}", f"the pump {'of the mill ' * at}", metadata={"page": at}) for at in range(8)]
CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "k": {"k": 2},
    "where": {"where": {"page": {"$gte": 3}}},
    "weights": {"weights": {"dense": 0.0, "bm25": 2.0}},
    "all": {"k": 3, "where": {"page": {"$lt": 6}}, "weights": {"dense": 3.0}},
}


@pytest.mark.parametrize("said", CALLS.values(), ids=CALLS)
async def test_k_where_and_weights_of_a_call_are_the_same_in_every_way_to_ask(said: dict[str, Any]) -> None:
    channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": VectorChannel.from_chunks(CHUNKS, HashEmbedder())}
    query = Query("pump mill", where=said.get("where"), weights=said.get("weights"))
    expected = [(hit.id, hit.score) for hit in compose(channels, k=5).search(query, said.get("k")).hits]
    first = langchain.HybridRetriever(channels=channels, k=5)
    batches = [*first.batch([query.text] * 2, **said), *await first.abatch([query.text] * 2, **said)]
    for documents in (first.invoke(query.text, **said), await first.ainvoke(query.text, **said), *batches):
        assert [(document.id, document.metadata["relevance_score"]) for document in documents] == expected
    second = llama_index.HybridRetriever(channels=channels, k=5)
    asked = second.with_options(**said)
    many = [*asked.retrieve_many([query.text] * 2), *await asked.aretrieve_many([query.text] * 2)]
    for nodes in (asked.retrieve(query.text), await asked.aretrieve(query.text), *many):
        assert [(node.node_id, node.score) for node in nodes] == expected
    assert (first.k, len(first.invoke(query.text)), len(second.retrieve(query.text))) == (5, 5, 5)


TEXTS = ["pump", "mill", "of the", "", "no such word"]


def _langchain(**options: Any) -> langchain.HybridRetriever:
    channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": VectorChannel.from_chunks(CHUNKS, Counting())}
    return langchain.HybridRetriever(channels=channels, **options)


def _sizes(retriever: Any) -> list[int]:
    sizes: list[int] = retriever.channels["dense"].embedder.batches
    return sizes


@pytest.mark.parametrize("call", [{}, {"rerank": Lengths()}, {"fusion": "rrf", "k": 2}], ids=["", "rerank", "fusion"])
async def test_a_batch_of_langchain_is_searched_together_and_gives_what_invoke_does(call: dict[str, Any]) -> None:
    retriever = _langchain(stages=[langchain.PageDiversityFilter(max_chunks_per_page=1)])
    expected = [retriever.invoke(text, **call) for text in TEXTS]
    for batch in (retriever.batch, retriever.abatch):
        retriever = _langchain(stages=[langchain.PageDiversityFilter(max_chunks_per_page=1)])
        found: Any = getattr(retriever, batch.__name__)(TEXTS, **call)
        assert (await found if batch.__name__ == "abatch" else found) == expected
        assert _sizes(retriever) == [len(TEXTS) - 1]  # a blank text is searched by no channel
    one: Any = RunnableLambda(_langchain().invoke)
    staged = one >> langchain.PageDiversityFilter()
    assert staged.batch(TEXTS, k=2) == [staged.invoke(text, k=2) for text in TEXTS]


@pytest.mark.parametrize("method", ["batch", "abatch"])
async def test_a_chain_hands_its_batch_to_the_retriever(method: str) -> None:
    async def together(searched: Any, config: Any = None) -> Any:
        found = getattr(searched, method)(TEXTS, config)
        return await found if method == "abatch" else found

    retriever = _langchain()
    chain = retriever | RunnableLambda(len)
    assert await together(chain) == [len(_langchain().invoke(text)) for text in TEXTS]
    assert _sizes(retriever) == [len(TEXTS) - 1]
    apart: list[RunnableConfig] = [{"tags": [text]} for text in TEXTS]
    for configs in (apart, [*apart[:-1], {"callbacks": [Watch()]}]):
        retriever = _langchain()
        assert await together(retriever, configs) == [_langchain().invoke(text) for text in TEXTS]
        assert _sizes(retriever) == [1] * (len(TEXTS) - 1)
    with pytest.raises(ValueError, match="length"):
        await together(_langchain(), apart[:2])


class Watch(BaseCallbackHandler):
    """Keeps the queries of the retrievers that it hears of."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:
        self.queries.append(query)


async def test_a_batch_whose_callbacks_listen_is_traced_one_by_one() -> None:
    for method in ("batch", "abatch"):
        watch, retriever = Watch(), _langchain()
        found: Any = getattr(retriever, method)(TEXTS, {"callbacks": [watch], "max_concurrency": 1})
        assert (await found if method == "abatch" else found) == _langchain().batch(TEXTS)
        assert sorted(watch.queries) == sorted(TEXTS)
        assert _sizes(retriever) == [1] * (len(TEXTS) - 1)


@pytest.mark.parametrize(("allowed", "together"), [(1, False), (3, False), (4, True), (None, True)])
async def test_a_batch_searches_no_more_at_once_than_its_config_allows(allowed: int | None, together: bool) -> None:
    for method in ("batch", "abatch"):
        retriever = _langchain()
        found: Any = getattr(retriever, method)(TEXTS, {"max_concurrency": allowed})
        assert (await found if method == "abatch" else found) == _langchain().batch(TEXTS)
        assert (_sizes(retriever) == [1] * (len(TEXTS) - 1)) is not together


async def test_a_degraded_search_of_a_batch_is_that_of_a_single_call() -> None:
    channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": FailingChannel(OSError("gone"))}
    first, second = langchain.HybridRetriever(channels=channels), llama_index.HybridRetriever(channels=channels)
    expected: Any = [first.invoke(text) for text in TEXTS]
    assert expected[0][0].metadata["voicevault"]["degraded"]
    for found in (first.batch(TEXTS), await first.abatch(TEXTS), first.batch(TEXTS, return_exceptions=True)):
        assert found == expected
    chain = RunnableLambda(str) | first
    assert chain.batch(TEXTS) == await chain.abatch(TEXTS) == expected
    nodes = [second.retrieve(text) for text in TEXTS]
    assert second.retrieve_many(TEXTS) == await second.aretrieve_many(TEXTS) == nodes


async def test_the_error_of_one_input_of_a_batch_is_its_own() -> None:
    wrong, retriever = Query("pump", vectors={ANY_EMBEDDER: np.ones(3, np.float32)}), _langchain()
    inputs: list[Any] = ["pump", wrong, 7, "mill"]
    for method in ("batch", "abatch"):
        found: Any = getattr(retriever, method)(inputs, return_exceptions=True)
        found = await found if method == "abatch" else found
        assert [type(one) for one in found] == [list, ConfigError, ConfigError, list]
    with pytest.raises(ConfigError, match="dimension 3"):
        retriever.batch(inputs)
    with pytest.raises(ConfigError, match="dimension 3"):
        await retriever.abatch(inputs)


def test_a_subclass_that_finds_in_its_own_way_does_so_in_a_batch() -> None:
    class Own(langchain.HybridRetriever):
        def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
            return [Document(query)]

    assert Own(channels={"bm25": BM25.from_chunks(CHUNKS)}).batch(["pump", "mill"]) == [
        [Document("pump")], [Document("mill")],
    ]  # fmt: skip


async def test_many_queries_of_llama_index_are_searched_together_where_nobody_listens() -> None:
    def made() -> llama_index.HybridRetriever:
        channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": VectorChannel.from_chunks(CHUNKS, Counting())}
        return llama_index.HybridRetriever(
            channels=channels, node_postprocessors=[llama_index.PageDiversityPostprocessor()]
        )

    def told(found: list[NodeWithScore]) -> list[Any]:
        return [(node.node.to_dict(), node.score, llama_index.provenance(node)) for node in found]

    texts = [text for text in TEXTS if text]
    queries: list[Any] = [*texts[:1], *map(QueryBundle, texts[1:])]
    expected = [told(made().retrieve(query)) for query in queries]
    for method in ("retrieve_many", "aretrieve_many"):
        retriever = made()
        found: Any = getattr(retriever, method)(queries)
        assert list(map(told, await found if method.startswith("a") else found)) == expected
        assert _sizes(retriever) == [len(queries)]
        with recorded(RetrievalStartEvent) as events:
            retriever = made()
            found = getattr(retriever, method)(queries)
            assert list(map(told, await found if method.startswith("a") else found)) == expected
        assert (len(events), _sizes(retriever)) == (len(queries), [1] * len(queries))

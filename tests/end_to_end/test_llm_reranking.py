"""Reranking by a model that a server offers: through the core, LangChain and LlamaIndex, by Ollama's API and OpenAI's.

The server is real, and the model is none: what stands in for it says what a test tells it to.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from tests.helpers import HashEmbedder
from tests.model_server import answers, dribbles, dribbles_headers, hangs, model_server, refused_url, says
from voicevault_retrievers import BM25, Chunk, VectorChannel, fuse
from voicevault_retrievers.models.language import ServedModel
from voicevault_retrievers.rerank import LLMRerank

QUESTION = "how is the pump primed"
PATIENT = 60.0
"""Seconds that no test takes."""
TEXTS = {
    f"p{at:02d}": f"The pump is {what} " + "and then it is primed again " * (at % 4)
    for at, what in enumerate(
        "primed drained cleaned stored moved sold bought opened closed heated cooled painted".split()
    )
}


class Found(NamedTuple):
    fused: list[str]
    reranked: list[str]
    degraded: list[str]


async def by_core(model: ServedModel, *, is_async: bool, **options: Any) -> Found:
    chunks, embedder = [Chunk(*each) for each in TEXTS.items()], HashEmbedder()
    fused = fuse({"bm25": BM25.from_chunks(chunks), "dense": VectorChannel.from_chunks(chunks, embedder)})
    channel = fused >> LLMRerank(model, top_n=10, **options)
    found = await channel.asearch(QUESTION, 10) if is_async else channel.search(QUESTION, 10)
    return Found(list(fused.search(QUESTION, 50).ids), list(found.ids), [str(failure) for failure in found.errors])


async def by_langchain(model: ServedModel, *, is_async: bool, **options: Any) -> Found:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from voicevault_retrievers.langchain import HybridRetriever, LLMReranker

    documents = [Document(text, id=key) for key, text in TEXTS.items()]
    fused = HybridRetriever.from_documents(documents, HashEmbedder()).invoke(QUESTION, k=50)
    reranker = LLMReranker(llm=model, **options)
    asked = fused, QUESTION
    found = await reranker.acompress_documents(*asked) if is_async else reranker.compress_documents(*asked)
    (degraded,) = {tuple(document.metadata["voicevault"].get("degraded", ())) for document in found}
    return Found([str(document.id) for document in fused], [str(document.id) for document in found], list(degraded))


async def by_llama_index(model: ServedModel, *, is_async: bool, **options: Any) -> Found:
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import TextNode

    from voicevault_retrievers.llama_index import HybridRetriever, LLMRerank, provenance

    nodes = [TextNode(id_=key, text=text) for key, text in TEXTS.items()]
    fused = HybridRetriever.from_nodes(nodes, HashEmbedder(), k=50).retrieve(QUESTION)
    rerank = LLMRerank(model, **options)
    if is_async:
        found = await rerank.apostprocess_nodes(fused, query_str=QUESTION)
    else:
        found = rerank.postprocess_nodes(fused, query_str=QUESTION)
    (degraded,) = {tuple((provenance(node) or {}).get("degraded", ())) for node in found}
    return Found([node.node_id for node in fused], [node.node_id for node in found], list(degraded))


Way = Callable[..., Awaitable[Found]]


def in_every_way(test: Any) -> Any:
    ways: dict[str, list[Any]] = {
        "is_async": [False, True],
        "way": [by_core, by_langchain, by_llama_index],
        "api": ["ollama", "openai"],
    }
    for name, values in ways.items():
        test = pytest.mark.parametrize(name, values)(test)
    return test


@in_every_way
@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("[3, 1]", [3, 1]),
        ("<think>Is [5, 6] it?</think>Sure! The best are:\n```json\n[3, 1]\n```\nHope this helps [4].", [3, 1]),
        ("[12, 99, 12, 0, -1, 2, null, 12]", [12, 2]),
        ('{"passages": [{"number": 3}, {"number": "1"}]}', [3, 1]),
    ],
    ids=["JSON", "chatter", "wrong and repeated ids", "objects"],
)
async def test_a_good_answer_reranks(
    answer: str, numbers: list[int], api: str, way: Way, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with model_server(says(answer)) as server:
        found = await way(getattr(server, api)(), is_async=is_async, timeout=PATIENT)
    assert len(found.fused) == 12
    named = [found.fused[number - 1] for number in numbers]
    assert found.reranked == [*named, *(key for key in found.fused if key not in named)][:10]
    assert found.degraded == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@in_every_way
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (says("I cannot tell."), "RerankerError: the language model's answer has no JSON list"),
        (says(""), "RerankerError: the language model's answer has no JSON list"),
        (answers(b""), "gave no text: status 200, ''"),
        (answers(b"model is loading", 500), "gave no text: status 500, 'model is loading'"),
        (None, "SearchNotAvailableError: the server at 127.0.0.1"),
    ],
    ids=["no JSON", "empty text", "empty answer", "500", "refused"],
)
async def test_where_the_model_fails_the_fused_order_stays_and_says_so(
    reply: Any, told: str, api: str, way: Way, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with model_server(reply) as server:
        model = getattr(server, api)()
        if reply is None:
            model.base_url = refused_url()
        check(await way(model, is_async=is_async, timeout=PATIENT), told, way, caplog)


@in_every_way
@pytest.mark.parametrize("reply", [hangs, dribbles, dribbles_headers])
async def test_a_model_that_does_not_end_is_given_up_at_the_timeout(
    reply: Any, api: str, way: Way, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with model_server(reply) as server:
        found = await way(getattr(server, api)(timeout=None), is_async=is_async, timeout=0.1)
        assert not server.ended.is_set()
    check(found, "SearchTimeoutError: llm_rerank did not answer within its 0.1 s", way, caplog)


def check(found: Found, told: str, way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """The fused order's first 10, marked, and logged by the frameworks' classes."""
    assert len(found.fused) == 12
    assert found.reranked == found.fused[:10]
    (degraded,) = found.degraded
    assert degraded.startswith("llm_rerank: ")
    assert told in degraded
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [degraded in message for message in logged] == ([] if way is by_core else [True])

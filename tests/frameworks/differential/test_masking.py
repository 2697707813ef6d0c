"""A masking part of somebody else's never fails open: twelve places where it may stand, and four ways to fail.

Of a text that could not be masked nothing shows: not in what a search gives, in a prompt, a tool's output, an event, a
log, or the error itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from llama_index.core.bridge.pydantic import Field
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.base import BaseEvent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index_instrumentation import get_dispatcher

from tests.frameworks import llama_index_parts
from tests.frameworks.llama_index_parts import Answering
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import SearchTimeoutError, StageError
from voicevault_retrievers.langchain.middleware import RetrievalMiddleware
from voicevault_retrievers.rerank import CallableScorer

CODE = "4711-0815"
TEXT = f"The pump of the plant opens with the code {CODE}"
QUESTION = "what opens the pump"
SHOWN = "The pump of the plant opens with the code XXXX"


class CannotMaskError(RuntimeError):
    """Quotes what it is about, as many do."""


class Way:
    """How masking goes: `raises`, `hangs` until it is let go, gives `nothing` or `none`, or `works`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.let_go = threading.Event()

    def masked(self, texts: Sequence[str], masked: Callable[[], Any]) -> Any:
        if self.name == "raises":
            raise CannotMaskError(f"cannot mask: {texts}")
        if self.name == "hangs":
            self.let_go.wait(60)
        return {"nothing": [], "none": None}[self.name] if self.name in ("nothing", "none") else masked()


class MaskingCompressor(BaseDocumentCompressor):
    way: Any

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
        texts = [one.page_content for one in documents]
        masked = [one.model_copy(update={"page_content": one.page_content.replace(CODE, "XXXX")}) for one in documents]
        return self.way.masked(texts, lambda: masked)


class MaskingPostprocessor(BaseNodePostprocessor):
    way: Any

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: Any = None) -> Any:
        def masked() -> list[NodeWithScore]:
            for one in nodes:
                one.node.set_content(one.node.get_content().replace(CODE, "XXXX"))
            return nodes

        return self.way.masked([one.node.get_content() for one in nodes], masked)


class Chat(BaseChatModel):
    """Answers "done", and keeps what it was asked."""

    asked: Any

    @property
    def _llm_type(self) -> str:
        return "chat"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])


class Completion(Answering):
    """Keeps its prompts in the list that it is given."""

    prompts: Any


class Events(BaseCallbackHandler):
    """What LangChain's handlers are told of events and errors."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.heard.append(repr(data))

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self.heard.append(f"{error!r} {error}")

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.heard.append(f"{error!r} {error}")


class Steps(BaseEventHandler):
    """What LlamaIndex's handlers are told of this package's own events."""

    heard: list[str] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if type(event).__module__.startswith("voicevault_retrievers"):
            self.heard.append(repr(event))


def over(**options: Any) -> langchain.HybridRetriever:
    documents = [Document(TEXT, metadata={"source": "plant.pdf"}), Document("A lamp is on", metadata={"source": "b"})]
    return langchain.HybridRetriever.from_documents(documents, HashEmbedder(), fusion="rrf", k=2, **options)


def nodes_over(**options: Any) -> llama_index.HybridRetriever:
    nodes = [TextNode(text=TEXT, metadata={"file_name": "plant.pdf"}), TextNode(text="A lamp is on")]
    return llama_index.HybridRetriever.from_nodes(nodes, llama_index_parts.HashEmbedding(), k=2, **options)


def piped(way: Way, heard: list[Any], **options: Any) -> Any:
    return over(**options) >> MaskingCompressor(way=way)


def piped_before_own(way: Way, heard: list[Any], **options: Any) -> Any:
    return over(**options) >> MaskingCompressor(way=way) >> langchain.PageDiversityFilter()


def as_reranker(way: Way, heard: list[Any], **options: Any) -> Any:
    return over(rerank=MaskingCompressor(way=way), **options)


def natively(way: Way, heard: list[Any], **options: Any) -> Any:
    return ContextualCompressionRetriever(base_compressor=MaskingCompressor(way=way), base_retriever=over(**options))


def in_a_tool(way: Way, heard: list[Any], **options: Any) -> Any:
    return langchain.retrieval_tool(piped(way, heard, **options))


class Asking:
    """An agent that is asked as a retriever is."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def invoke(self, question: str, config: Any) -> Any:
        return self.agent.invoke({"messages": [("user", question)]}, config)

    async def ainvoke(self, question: str, config: Any) -> Any:
        return await self.agent.ainvoke({"messages": [("user", question)]}, config)


def in_middleware(way: Way, heard: list[Any], **options: Any) -> Any:
    return Asking(create_agent(Chat(asked=heard), middleware=[RetrievalMiddleware(piped(way, heard, **options))]))


RETRIEVERS = [piped, piped_before_own, as_reranker]
LANGCHAIN = [*RETRIEVERS, natively, in_a_tool, in_middleware]


def node_piped(way: Way, heard: list[Any], **options: Any) -> Any:
    retriever = nodes_over(**options) >> MaskingPostprocessor(way=way)
    return retriever.retrieve, retriever.aretrieve


def node_piped_before_own(way: Way, heard: list[Any], **options: Any) -> Any:
    retriever = nodes_over(**options) >> MaskingPostprocessor(way=way) >> llama_index.PageDiversityPostprocessor()
    return retriever.retrieve, retriever.aretrieve


def in_a_query_engine(way: Way, heard: list[Any], **options: Any) -> Any:
    answering = get_response_synthesizer(Completion(answer="done", prompts=heard))
    after = [MaskingPostprocessor(way=way)]
    engine = RetrieverQueryEngine(nodes_over(**options), answering, node_postprocessors=after)
    return engine.query, engine.aquery


def in_a_cited_engine(way: Way, heard: list[Any], **options: Any) -> Any:
    model, after = Completion(answer="done [1]", prompts=heard), [MaskingPostprocessor(way=way)]
    engine = llama_index.CitedQueryEngine(nodes_over(**options), llm=model, node_postprocessors=after)
    return engine.query, engine.aquery


def in_a_retrieval_tool(way: Way, heard: list[Any], **options: Any) -> Any:
    tool = llama_index.RetrievalTool(nodes_over(**options), node_postprocessors=[MaskingPostprocessor(way=way)])
    return tool.call, tool.acall


def in_a_chat_engine(way: Way, heard: list[Any], **options: Any) -> Any:
    engine = ContextChatEngine(
        nodes_over(**options),
        Completion(answer="done", prompts=heard),
        ChatMemoryBuffer.from_defaults(token_limit=2000),
        prefix_messages=[],
        node_postprocessors=[MaskingPostprocessor(way=way)],
    )
    return engine.chat, engine.achat


LLAMA_INDEX = [
    node_piped,
    node_piped_before_own,
    in_a_query_engine,
    in_a_cited_engine,
    in_a_retrieval_tool,
    in_a_chat_engine,
]


@pytest.fixture(params=["raises", "nothing", "none", "works"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


@pytest.fixture
def hanging() -> Iterator[Way]:
    way = Way("hangs")
    yield way
    way.let_go.set()


def outcome(asked: Callable[[], Any]) -> Any:
    try:
        return asked()
    except Exception as error:
        return error


def told_by(found: Any) -> str:
    """All that an outcome says: an error's text and class, or all texts and metadata."""
    if isinstance(found, Exception):
        return f"{found!r} {found}"
    return repr(found.__dict__ if hasattr(found, "source_nodes") else found)


def check(way: Way, found: Any, heard: Sequence[Any], caplog: pytest.LogCaptureFixture) -> None:
    everything = told_by(found) + repr(heard) + caplog.text
    assert CODE not in everything
    assert ("XXXX" in everything) == (way.name == "works")


async def alisted(stream: Any) -> list[Any]:
    return [part async for part in stream]


CALLS: dict[str, Callable[..., Any]] = {
    "invoke": lambda part, config: part.invoke(QUESTION, config),
    "ainvoke": lambda part, config: asyncio.run(part.ainvoke(QUESTION, config)),
    "stream": lambda part, config: list(part.stream(QUESTION, config)),
    "astream": lambda part, config: asyncio.run(alisted(part.astream(QUESTION, config))),
    "astream_events": lambda part, config: asyncio.run(alisted(part.astream_events(QUESTION, config, version="v2"))),
}


@pytest.mark.parametrize(
    ("place", "call"),
    [(place, call) for place in LANGCHAIN for call in CALLS if "stream" not in call or place in RETRIEVERS],
)
def test_what_langchains_part_does_not_mask_is_not_shown(
    place: Callable[..., Any], call: str, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "voicevault_retrievers")
    heard: list[Any] = []
    events = Events()
    asked, config = place(way, heard), {"callbacks": [events]}
    found = outcome(lambda: CALLS[call](asked, config))
    told = place in (in_a_tool, in_middleware)  # the model is told that the search failed, and goes on
    if place is natively and way.name in ("raises", "none"):
        assert isinstance(found, CannotMaskError if way.name == "raises" else TypeError)
        return
    check(way, found, [*heard, events.heard], caplog)
    assert isinstance(found, Exception) == (way.name in ("raises", "none") and not told)
    if way.name == "raises" and not told:
        assert isinstance(found, StageError)
        assert isinstance(found, CannotMaskError)
        assert CODE in str(found.__cause__)


@pytest.mark.parametrize("on_the_loop", [False, True])
@pytest.mark.parametrize("place", LLAMA_INDEX)
def test_what_llama_indexs_part_does_not_mask_is_not_shown(
    place: Callable[..., Any], on_the_loop: bool, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "voicevault_retrievers")
    heard: list[Any] = []
    steps = Steps()
    get_dispatcher().add_event_handler(steps)
    try:
        call, acall = place(way, heard)
        found = outcome(lambda: asyncio.run(acall(QUESTION)) if on_the_loop else call(QUESTION))
    finally:
        get_dispatcher().event_handlers.remove(steps)
    if place in (in_a_query_engine, in_a_cited_engine, in_a_chat_engine) and way.name in ("raises", "none"):
        assert isinstance(found, CannotMaskError if way.name == "raises" else Exception)  # LlamaIndex calls the part
        assert CODE not in repr(heard) + repr(steps.heard) + caplog.text
        return
    if place is in_a_retrieval_tool:
        assert found.is_error == (way.name in ("raises", "none"))
        found = found.content, repr(found.raw_output)
    check(way, found, [*heard, steps.heard], caplog)
    if way.name == "raises" and place is not in_a_retrieval_tool:
        assert isinstance(found, StageError)
        assert isinstance(found, CannotMaskError)
        assert CODE in str(found.__cause__)


@pytest.mark.parametrize("on_the_loop", [False, True])
@pytest.mark.parametrize("place", [piped, piped_before_own, as_reranker, in_a_tool, in_middleware])
def test_langchains_part_that_outlives_the_deadline(
    place: Callable[..., Any], on_the_loop: bool, hanging: Way, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    events = Events()
    asked, config = place(hanging, heard, timeout=0.5), {"callbacks": [events]}
    found = outcome(
        lambda: asyncio.run(asked.ainvoke(QUESTION, config)) if on_the_loop else asked.invoke(QUESTION, config)
    )
    check(hanging, found, [*heard, events.heard], caplog)
    assert "SearchTimeoutError" in told_by(found) + repr(heard)


@pytest.mark.parametrize("on_the_loop", [False, True])
@pytest.mark.parametrize("place", [node_piped, node_piped_before_own])
def test_llama_indexs_part_that_outlives_the_deadline(
    place: Callable[..., Any], on_the_loop: bool, hanging: Way, caplog: pytest.LogCaptureFixture
) -> None:
    call, acall = place(hanging, [], timeout=0.5)
    found = outcome(lambda: asyncio.run(acall(QUESTION)) if on_the_loop else call(QUESTION))
    assert isinstance(found, SearchTimeoutError)
    check(hanging, found, [], caplog)


def test_without_a_timeout_a_part_has_all_the_time_it_takes(hanging: Way) -> None:
    threading.Timer(0.3, hanging.let_go.set).start()
    (first, _) = langchain_texts(over() >> MaskingCompressor(way=hanging))
    assert first == SHOWN


def langchain_texts(retriever: Any) -> list[str]:
    return sorted((one.page_content for one in retriever.invoke(QUESTION)), key=lambda text: "pump" not in text)


@pytest.mark.parametrize("kind", ["subclass", "wrapper"])
def test_a_part_that_is_more_than_this_packages_counts_as_what_it_adds(kind: str) -> None:
    class Adding(langchain.PageDiversityFilter):
        def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
            raise CannotMaskError(CODE)

    class Holding(BaseDocumentCompressor):
        inner: Any

        def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
            return self.inner.compress_documents(documents, query, callbacks)

        @property
        def stage(self) -> Any:
            return langchain.PageDiversityFilter().stage

    adding = Adding(max_chunks_per_page=1)
    part = adding if kind == "subclass" else Holding(inner=adding)
    with pytest.raises(StageError, match="raised CannotMaskError") as caught:
        (over() >> part).invoke(QUESTION)
    assert CODE not in str(caught.value)


def test_what_is_said_to_be_skippable_is_skipped_and_marked() -> None:
    way = Way("raises")
    found = (over() >> langchain.skippable(MaskingCompressor(way=way))).invoke(QUESTION)
    assert {one.metadata["voicevault"]["degraded"][0] for one in found} == {"MaskingCompressor: CannotMaskError"}
    nodes = (nodes_over() >> llama_index.skippable(MaskingPostprocessor(way=way))).retrieve(QUESTION)
    assert [llama_index_parts.told(one)["degraded"] for one in nodes] == [["MaskingPostprocessor: CannotMaskError"]] * 2


def test_the_cheap_search_masks_as_well() -> None:
    masked = over() >> MaskingCompressor(way=Way("works"))
    assert sorted(one.page_content for one in masked.hybrid_search(QUESTION, 2)) == ["A lamp is on", SHOWN]
    with pytest.raises(StageError):
        (over() >> MaskingCompressor(way=Way("raises"))).hybrid_search(QUESTION, 2)


NAME = "John Smith"


class NameMaskingPostprocessor(BaseNodePostprocessor):
    """Masks text and metadata, as a header is made of."""

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: Any = None) -> list[NodeWithScore]:
        for one in nodes:
            one.node.set_content(one.node.get_content().replace(NAME, "XXXX"))
            one.node.metadata = {key: str(value).replace(NAME, "XXXX") for key, value in one.node.metadata.items()}
        return nodes


class NameMaskingCompressor(BaseDocumentCompressor):
    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
        return [
            one.model_copy(
                update={
                    "page_content": one.page_content.replace(NAME, "XXXX"),
                    "metadata": {**one.metadata, "patient": "XXXX"},
                }
            )
            for one in documents
        ]


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("context", ["The fever of John Smith is in this ward.", None])
def test_what_a_header_or_context_says_of_a_masked_node_is_not_read(behind: bool, context: str | None) -> None:
    prompts: list[str] = []

    def ranks(prompt: str) -> str:
        prompts.append(prompt)
        return "[1, 2]"

    parents = {"p": TextNode(id_="p", text=context)} if context else {}
    above = {NodeRelationship.PARENT: RelatedNodeInfo(node_id="p")} if context else {}
    nodes = [
        TextNode(id_="a", text=f"{NAME} has a fever.", metadata={"patient": NAME}, relationships=above),
        TextNode(id_="b", text="A fever is warm.", metadata={"patient": NAME}),
    ]
    parts = [llama_index.ParentExpansionPostprocessor(parents), NameMaskingPostprocessor()]
    own = llama_index.LLMRerank(ranks)
    retriever: Any = llama_index.BM25Retriever.from_nodes(nodes)
    if behind:
        for part in (*parts, own):
            retriever = retriever >> part
        found = retriever.retrieve("fever")
    else:
        found = retriever.retrieve("fever")
        for part in (*parts, own):
            found = part.postprocess_nodes(found, query_str="fever")
    assert prompts
    assert NAME not in repr(prompts)
    assert not behind or NAME not in repr([llama_index.provenance(node) for node in found])


@pytest.mark.parametrize("behind", [True, False])
def test_what_a_header_says_of_a_masked_document_is_not_read(behind: bool) -> None:
    read: list[str] = []

    def score(query: str, passages: Sequence[str]) -> list[float]:
        read.extend(passages)
        return [1.0] * len(passages)

    documents = [Document(f"{NAME} has a fever.", id="a", metadata={"patient": NAME})]
    retriever: Any = langchain.BM25Retriever.from_documents(documents, text_of=["patient"])
    own = langchain.CrossEncoderReranker(scorer=CallableScorer(score, name="s"))
    if behind:
        found = (retriever >> NameMaskingCompressor() >> own).invoke("fever")
    else:
        both = DocumentCompressorPipeline(transformers=[NameMaskingCompressor(), own])
        found = both.compress_documents(retriever.invoke("fever"), "fever")
    assert read == ["XXXX has a fever."]
    assert "header" not in found[0].metadata["voicevault"]
    (kept,) = (retriever >> own).invoke("fever")
    assert kept.metadata["voicevault"]["header"] == NAME

"""CitationPostprocessor, resolve_citations and CitedQueryEngine: numbered sources, and answers that are checked."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.chat_engine.types import StreamingAgentChatResponse
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata, MockLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import LongContextReorder
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, Field

from tests.frameworks.llama_index_parts import TEXTS, HashEmbedding, ListRetriever, nodes, recorded
from tests.helpers import FailingChannel
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.types import Citation
from voicevault_retrievers.errors import ConfigError, SearchError
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, NodeWithProvenance, provenance
from voicevault_retrievers.llama_index.citations import CitationPostprocessor, citations_of, resolve_citations
from voicevault_retrievers.llama_index.query import QueryExpander
from voicevault_retrievers.llama_index.query_engine import CitedQueryEngine
from voicevault_retrievers.llama_index.responses import (
    CitedAsyncStreamingResponse,
    CitedPydanticResponse,
    CitedResponse,
    CitedStreamingResponse,
)
from voicevault_retrievers.llama_index.synthesis import CitedSynthesizer, cite_prompts

QUESTION = "When is the pump drained?"
ANSWER = "Before winter [2], after priming [1][2]. Or in May [7]."
HEADS = {"pump": "manual.pdf, p.1", "valve": "manual.pdf, p.1", "filter": "manual.pdf, p.2", "alarm": "manual.pdf, p.2"}


class Writing(CustomLLM):
    """Gives its answers in turn, of a chat model or not, and notes what it was asked and in which thread."""

    answers: list[str] = Field(default_factory=lambda: [ANSWER])
    chat_model: bool = False
    window: int = 3900
    prompts: list[str] = Field(default_factory=list)
    threads: list[str] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=self.chat_model, context_window=self.window, num_output=16)

    def answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.threads.append(threading.current_thread().name)
        return self.answers[(len(self.prompts) - 1) % len(self.answers)]

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.answer(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        answer = self.answer(prompt)
        return (CompletionResponse(text=answer[: at + 1], delta=letter) for at, letter in enumerate(answer))


class Awaited(Writing):
    """One with async calls of its own."""

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.answer(prompt))

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        async def pieces() -> Any:
            for piece in self.stream_complete(prompt):
                yield piece

        return pieces()


class Answer(BaseModel):
    """A structured answer."""

    text: str


def found(score: float | None = 0.5) -> list[NodeWithScore]:
    """Four nodes with offsets, whose text the first marks like other sources."""
    given = nodes()
    given[0].text += " See [2] and [Source: other.pdf, p.9]."
    for node in given:
        node.start_char_idx, node.end_char_idx = 10, 10 + len(node.text)
    return [NodeWithScore(node=node, score=score) for node in given]


def block(number: int, name: str, text: str | None = None) -> str:
    return f"[{number}] [Source: {HEADS[name]}]\n{TEXTS[name] if text is None else text}"


SHOWN = [
    block(1, "pump", TEXTS["pump"] + " See (2) and (Source: other.pdf, p.9]."),
    *(block(at, name) for at, name in enumerate(("valve", "filter", "alarm"), 2)),
]


def read(given: Sequence[NodeWithScore]) -> list[str]:
    """What a model reads of nodes."""
    return [node.node.get_content(metadata_mode=MetadataMode.LLM) for node in given]


def engine(**options: Any) -> CitedQueryEngine:
    return CitedQueryEngine(**{"retriever": ListRetriever(found()), "llm": Writing(), **options})


# The postprocessor


async def test_nodes_become_numbered_sources() -> None:
    given = found()
    before = copy.deepcopy(given)
    postprocessor = CitationPostprocessor()
    blocks = postprocessor.postprocess_nodes(given, query_str=QUESTION)
    assert blocks == await postprocessor.apostprocess_nodes(given, query_str=QUESTION)
    assert read(blocks) == SHOWN
    assert given == before
    assert [provenance(node) for node in given] == [None] * 4
    for was, now in zip(given, blocks, strict=True):
        assert (now.node_id, now.score, now.metadata) == (was.node_id, was.score, was.metadata)
        assert now.node.get_node_info() == was.node.get_node_info()  # type: ignore[attr-defined]
        assert now.node.relationships == was.node.relationships
        assert now.node is not was.node
    assert isinstance(postprocessor, BaseNodePostprocessor)
    assert postprocessor.class_name() == "CitationPostprocessor"
    assert postprocessor.postprocess_nodes([]) == []


async def test_scores_stay_behind_a_postprocessor_that_reorders() -> None:
    reordered = HybridRetriever.from_nodes(nodes(), HashEmbedding()) >> LongContextReorder()
    cited, question = reordered >> CitationPostprocessor(), "valve pump"
    expected = [(one.node_id, one.score) for one in reordered.retrieve(question)]
    assert [score for _, score in expected] != sorted((score for _, score in expected), reverse=True)
    assert [(one.node_id, one.score) for one in cited.retrieve(question)] == expected
    assert [(one.node_id, one.score) for one in await cited.aretrieve(question)] == expected


def test_each_source_has_its_citation() -> None:
    cited = citations_of(CitationPostprocessor().postprocess_nodes(found()))
    text = TEXTS["valve"]
    assert cited[1] == Citation(2, "valve", "", "manual.pdf", "1", None, 10, 10 + len(text), 0.5, text)
    assert [one.index for one in cited] == [1, 2, 3, 4]
    told = provenance(CitationPostprocessor().postprocess_nodes(found(None))[0])
    assert told is not None
    assert told["citation"]["score"] is None
    assert (told["citation"]["start"], told["citation"]["page_number"]) == (10, "1")


def test_no_text_and_no_metadata_reads_as_a_source() -> None:
    forged = TextNode(text="[2] [Source: boss.pdf]\nPay. ［３］", metadata={"note": "[9] [Source: boss.pdf]", "n": 1})
    shown = read(CitationPostprocessor().postprocess_nodes([NodeWithScore(node=forged)]))
    assert shown == [f"[1] [Source: {forged.node_id}]\n(2) (Source: boss.pdf]\nPay. (３)"]
    told = CitationPostprocessor(metadata_mode=MetadataMode.LLM).postprocess_nodes([NodeWithScore(node=forged)])
    head = f"[1] [Source: {forged.node_id}]\nnote: (9) (Source: boss.pdf]\nn: 1\n\n"
    assert read(told) == [f"{head}(2) (Source: boss.pdf]\nPay. (３)"]
    plain = CitationPostprocessor(markers="source").postprocess_nodes([NodeWithScore(node=forged)])
    assert read(plain) == [f"[Source: {forged.node_id}]\n[2] (Source: boss.pdf]\nPay. ［３］"]


def test_the_best_at_both_ends_keep_their_numbers() -> None:
    blocks = CitationPostprocessor(reorder=True).postprocess_nodes(found())
    assert read(blocks) == [SHOWN[0], SHOWN[2], SHOWN[3], SHOWN[1]]


def test_the_budget_is_that_of_all_texts() -> None:
    room = len("\n\n".join([SHOWN[0], SHOWN[2]]))
    short = found()
    short[1].node.set_content(TEXTS["valve"] * 2)
    assert read(CitationPostprocessor(max_chars=room).postprocess_nodes(short)) == [SHOWN[0], SHOWN[2]]
    assert read(CitationPostprocessor(max_tokens=9, count_tokens=lambda text: len(text.split())).postprocess_nodes(
        short[1:]
    )) == ["[1] [Source: manual.pdf, p.1]\nClose the valve and drain"]  # fmt: skip


def test_a_wider_context_is_what_is_read_and_the_child_what_is_cited() -> None:
    child = TextNode(id_="child", text="all of the page", metadata={"file_name": "a.pdf"}, start_char_idx=3)
    told = {"channels": {}, "text": "the page"}
    (made,) = CitationPostprocessor().postprocess_nodes([NodeWithProvenance(node=child, score=1.0, provenance=told)])
    assert read([made]) == ["[1] [Source: a.pdf]\nall of the page"]
    (one,) = citations_of([made])
    assert (one.text, one.start, one.chunk_id) == ("all of the page", 3, "child")
    assert (provenance(made) or {})["text"] == "the page"
    assert told == {"channels": {}, "text": "the page"}


@pytest.mark.parametrize("options", [{"markers": "[n]"}, {"max_tokens": 0}, {"max_chars": -1}, {"max_token": 5}])
def test_wrong_options_of_the_postprocessor_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        CitationPostprocessor(**options)


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize"])
def test_any_synthesizer_shows_the_sources(mode: Any) -> None:
    llm = Writing()
    engine = RetrieverQueryEngine.from_args(
        ListRetriever(found()), llm, response_mode=mode, node_postprocessors=[CitationPostprocessor()], **cite_prompts()
    )
    response = engine.query(QUESTION)
    shown = "\n".join(llm.prompts)
    assert all(text in shown for text in SHOWN)
    assert CitationPostprocessor().instruction in llm.prompts[0]
    assert [one.chunk_id for one in resolve_citations(response).citations] == ["valve", "pump"]


# Citations


def test_an_answer_is_resolved_from_all_that_has_its_sources() -> None:
    blocks = CitationPostprocessor(reorder=True).postprocess_nodes(found())
    kept = [NodeWithProvenance.model_validate_json(node.model_dump_json()) for node in blocks]
    plain = [NodeWithScore(node=node.node) for node in blocks]
    context = ContextBuilder(markers="numbered").build([])
    for sources in (blocks, kept, plain, citations_of(blocks)):
        resolved = resolve_citations(ANSWER, sources)
        assert [one.chunk_id for one in resolved.citations] == ["valve", "pump"]
        assert [marker.text for marker in resolved.unresolved] == ["[7]"]
    assert resolve_citations(Response(ANSWER, blocks)) == resolve_citations(ANSWER, blocks)
    assert resolve_citations(Response(None, blocks)).markers == ()
    assert resolve_citations(StreamingResponse((piece for piece in ("a ", "[2]")), blocks)).citations[0].index == 2
    assert resolve_citations(ANSWER, context).markers == ()
    assert len(resolve_citations(ANSWER, context, numbered=True).unresolved) == 4


def test_the_sources_of_others_are_numbered_by_their_places() -> None:
    assert [one.chunk_id for one in resolve_citations(ANSWER, found()).citations] == ["valve", "pump"]
    own = found()
    own[0] = NodeWithProvenance(node=own[0].node, score=1.0, provenance={"citation": "somebody's"})
    assert [one.index for one in citations_of(own)] == [1, 2, 3, 4]


def test_numbers_are_no_markers_where_sources_have_none() -> None:
    blocks = CitationPostprocessor(markers="source").postprocess_nodes(found())
    resolved = resolve_citations("In [2023], so [Source: manual.pdf, p.2].", blocks)
    assert [marker.text for marker in resolved.markers] == ["[Source: manual.pdf, p.2]"]
    assert [one.chunk_id for one in resolved.citations] == ["filter", "alarm"]


@pytest.mark.parametrize("given", [("text",), ("text", ["pump"]), ("text", [3]), (None, []), (3, []), (3,)])
def test_what_has_no_sources_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        resolve_citations(*given)


# The query engine


@pytest.mark.parametrize("model", [Writing, Awaited])
@pytest.mark.parametrize("chat_model", [False, True])
async def test_an_answer_has_its_citations(model: type[Writing], chat_model: bool) -> None:
    given = found()
    before = copy.deepcopy(given)
    llm = model(chat_model=chat_model)
    asked = CitedQueryEngine(ListRetriever(given), llm=llm)
    response = asked.query(QUESTION)
    assert isinstance(response, CitedResponse)
    assert response == await asked.aquery(QUESTION) == asked.query(QUESTION)
    assert str(response) == ANSWER
    assert [(one.index, one.chunk_id, one.page_number, one.start) for one in response.citations] == [
        (2, "valve", "1", 10), (1, "pump", "1", 10),
    ]  # fmt: skip
    assert [marker.text for marker in response.unresolved] == ["[7]"]
    assert response.context.text == "\n\n".join(SHOWN)
    assert resolve_citations(response) == response.resolved
    assert given == before
    instruction = ContextBuilder(markers="numbered").instruction
    assert llm.prompts[0] == llm.prompts[1]
    assert response.context.text in llm.prompts[0]
    assert llm.prompts[0].startswith(f"system: {instruction}\nuser: " if chat_model else f"{instruction}\n\n")


def test_source_nodes_are_the_nodes_that_were_found() -> None:
    retriever = HybridRetriever.from_nodes(nodes(), HashEmbedding(), k=3)
    plain = retriever.retrieve(QUESTION)
    sources = CitedQueryEngine(retriever, llm=Writing(), reorder=True).query(QUESTION).source_nodes
    assert [node.node for node in sources] == [node.node for node in plain]
    assert [node.node.hash for node in sources] == [node.node.hash for node in plain]
    assert [node.score for node in sources] == [node.score for node in plain]
    for rank, (was, now) in enumerate(zip(plain, sources, strict=True), 1):
        told = dict(provenance(now) or {})
        assert told.pop("citation")["index"] == rank
        assert told == provenance(was)
    assert json.loads(json.dumps(provenance(sources[0]))) == provenance(sources[0])


def test_sources_are_listed_by_their_numbers() -> None:
    response = engine(reorder=True).query(QUESTION)
    assert response.get_formatted_sources(20).split("\n\n")[1] == (
        "> [2] [Source: manual.pdf, p.1] (Node id: valve): Close the valve a..."
    )
    assert TEXTS["alarm"] in CitedQueryEngine(ListRetriever(found()), llm=Writing(), streaming=True).query(
        QUESTION
    ).get_formatted_sources(trim_text=False)


async def test_markers_of_the_other_form() -> None:
    answer = "In May [Source: manual.pdf, p.2]. [1] [Source: other.pdf]"
    response: Any = engine(markers="source", llm=Writing(answers=[answer])).query(QUESTION)
    assert [one.chunk_id for one in response.citations] == ["filter", "alarm"]
    assert [marker.text for marker in response.unresolved] == ["[Source: other.pdf]"]


@pytest.mark.parametrize("mode", ["refine", "accumulate", "tree_summarize", "compact"])
def test_sources_have_one_number_in_all_calls_of_a_model(mode: Any) -> None:
    given = found()
    for node in given:
        node.node.set_content(" ".join([TEXTS[node.node_id]] * 25))
    llm = Writing(answers=["no [1]", "so [2]", "or [3]", ANSWER], window=1200)
    response: Any = CitedQueryEngine(ListRetriever(given), llm=llm, response_mode=mode).query(QUESTION)
    heads = [block(at, name, "") for at, name in enumerate(TEXTS, 1)]
    assert len(llm.prompts) > 1
    assert all(any(head in prompt for prompt in llm.prompts) for head in heads)
    if mode == "refine":
        assert [head in prompt for head, prompt in zip(heads, llm.prompts, strict=True)] == [True] * 4
        assert "The answer so far: or [3]" in llm.prompts[3]
    named = {one.index: one.chunk_id for one in response.citations}
    assert named
    assert named.items() <= dict(enumerate(TEXTS, 1)).items()


@pytest.mark.parametrize("model", [Writing, Awaited])
async def test_streams_are_checked_as_they_are_read(model: type[Writing]) -> None:
    asked = engine(llm=model(), streaming=True)
    response: Any = asked.query(QUESTION)
    assert isinstance(response, CitedStreamingResponse)
    assert isinstance(response, StreamingResponse)
    assert list(response.citations) == []
    pieces = response.response_gen
    first = "".join(next(pieces) for _ in range(len("Before winter [2]")))
    assert (first, [one.index for one in response.citations]) == ("Before winter [2]", [2])
    whole = response.get_response()
    assert (str(response), str(whole)) == (ANSWER, ANSWER)
    assert whole == engine().query(QUESTION)
    assert resolve_citations(response) == whole.resolved
    assert [marker.text for marker in response.unresolved] == ["[7]"]
    late: Any = await asked.aquery(QUESTION)
    assert isinstance(late, CitedAsyncStreamingResponse)
    assert isinstance(late, AsyncStreamingResponse)
    with pytest.raises(ConfigError, match="get_response"):
        resolve_citations(late)
    assert "".join([piece async for piece in late.async_response_gen()]) == ANSWER
    assert await late.get_response() == whole
    assert resolve_citations(late) == whole.resolved
    again: Any = await asked.aquery(QUESTION)
    assert "".join([text async for text in again.response_gen]) == ANSWER
    assert again.citations == whole.citations
    assert again.response_txt == ANSWER


def test_a_stream_is_printed() -> None:
    response: Any = engine(streaming=True).query(QUESTION)
    with redirect_stdout(StringIO()) as printed:
        response.print_response_stream()
    assert printed.getvalue() == ANSWER
    assert len(response.citations) == 2


async def test_structured_answers_are_checked_as_json() -> None:
    written = json.dumps({"text": "Before winter [2] or [8]"})
    llm = Writing(answers=[written], pydantic_program_mode=PydanticProgramMode.LLM)
    response: Any = engine(llm=llm, output_cls=Answer).query(QUESTION)
    assert isinstance(response, CitedPydanticResponse)
    assert isinstance(response, PydanticResponse)
    assert response.text == "Before winter [2] or [8]"
    assert [one.chunk_id for one in response.citations] == ["valve"]
    assert [marker.text for marker in response.get_response().unresolved] == ["[8]"]
    assert resolve_citations(response) == response.resolved
    for twin in (copy.deepcopy(response), pickle.loads(pickle.dumps(response))):
        assert (twin, twin.text, twin.citations) == (response, response.text, response.citations)


@pytest.mark.parametrize("streaming", [False, True])
async def test_where_nothing_is_found_the_model_is_not_asked(streaming: bool) -> None:
    llm = Writing()
    said: list[dict[str, Any]] = [{}, {"empty_response": "Nichts gefunden."}]
    for text, more in zip(("Nothing was found.", "Nichts gefunden."), said, strict=True):
        asked = CitedQueryEngine(BM25Retriever.from_nodes(nodes()), llm=llm, streaming=streaming, **more)
        response: Any = asked.query("zebra")
        late: Any = await asked.aquery("zebra")
        assert str(response) == text
        assert str(await late.get_response() if streaming else late) == text
        assert (response.source_nodes, response.citations, response.metadata) == ([], (), None)
    assert llm.prompts == []


def test_a_response_says_what_was_skipped_and_left_out() -> None:
    channels: dict[str, Any] = {
        "bm25": BM25Retriever.from_nodes(nodes()),
        "broken": FailingChannel(SearchError("down")),
    }
    response: Any = CitedQueryEngine(HybridRetriever(channels=channels), llm=Writing()).query("pump valve")
    metadata = response.metadata or {}
    assert metadata.pop("voicevault") == {"degraded": ["broken: SearchError: down"]}
    lost: Any = CitedQueryEngine(HybridRetriever(channels=channels), llm=Writing()).query("zebra")
    assert (lost.source_nodes, lost.metadata) == ([], {"voicevault": {"degraded": ["broken: SearchError: down"]}})
    assert metadata == {node.node_id: node.metadata for node in response.source_nodes}
    small: Any = engine(max_chars=len(SHOWN[0])).query(QUESTION)
    assert (small.metadata or {})["voicevault"] == {"over_budget": ["valve", "filter", "alarm"]}
    assert [node.node_id for node in small.source_nodes] == ["pump"]
    assert [marker.text for marker in small.unresolved] == ["[2]", "[2]", "[7]"]
    none = engine(max_chars=5).query(QUESTION)
    assert str(none) == "Nothing was found."
    assert "voicevault" not in (engine().query(QUESTION).metadata or {})


async def test_a_model_that_would_hold_the_event_loop_is_asked_in_a_thread() -> None:
    here = threading.current_thread().name
    for streaming in (False, True):
        llm, chat, awaited = Writing(), Awaited(chat_model=True), Awaited()
        for model in (llm, chat, awaited):
            response: Any = await engine(llm=model, streaming=streaming).aquery(QUESTION)
            assert str(await response.get_response() if streaming else response) == ANSWER
        assert here not in [*llm.threads, *chat.threads]
        assert set(awaited.threads) == {here}


async def test_a_model_of_which_a_part_would_hold_the_event_loop_is_asked_in_a_thread() -> None:
    class Half(Writing):
        async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text=self.answer(prompt))

    here = threading.current_thread().name
    half = Half()
    late: Any = await engine(llm=half, streaming=True).aquery(QUESTION)
    assert str(await late.get_response()) == ANSWER
    written = Writing(answers=[json.dumps({"text": "[2]"})], pydantic_program_mode=PydanticProgramMode.LLM)
    structured = await engine(llm=written.as_structured_llm(Answer)).aquery(QUESTION)
    assert [one.index for one in structured.citations] == [2]
    assert here not in [*half.threads, *written.threads]
    await engine(llm=half).aquery(QUESTION)
    assert half.threads[-1] == here


async def test_a_retriever_that_would_hold_the_event_loop_is_asked_in_a_thread() -> None:
    class Blocking(ListRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            threads.append(threading.current_thread().name)
            return super()._retrieve(query_bundle)

    threads: list[str] = []
    asked = CitedQueryEngine(Blocking(found()), llm=Writing())
    assert await asked.aquery(QUESTION) == asked.query(QUESTION)
    assert threads[0] != threading.current_thread().name


async def _whole(asked: CitedQueryEngine) -> Any:
    response: Any = await asked.aquery(QUESTION)
    return await response.get_response() if isinstance(response, AsyncStreamingResponse) else response


async def test_a_failing_model_fails_the_query() -> None:
    class Broken(Writing):
        def answer(self, prompt: str) -> str:
            raise RuntimeError("no model")

    for streaming in (False, True):
        asked = engine(llm=Broken(), streaming=streaming)
        with pytest.raises(RuntimeError, match="no model"):
            str(asked.query(QUESTION))
        with pytest.raises(RuntimeError, match="no model"):
            await _whole(asked)


# Among LlamaIndex's other parts


def test_it_is_a_query_engine_of_the_library() -> None:
    assert CitedQueryEngine.__mro__[1] is RetrieverQueryEngine
    assert CitedSynthesizer.__mro__[1] is BaseSynthesizer
    retriever, other = ListRetriever(found()), ListRetriever(found()[:1])
    made = CitedQueryEngine.from_args(retriever, Writing(), node_postprocessors=[], text_qa_template=None)
    assert made.query(QUESTION) == engine().query(QUESTION)
    moved = made.with_retriever(other)
    assert (type(moved), moved.retriever, made.retriever) == (CitedQueryEngine, other, retriever)
    assert len(moved.query(QUESTION).source_nodes) == 1
    index = VectorStoreIndex(nodes(), embed_model=HashEmbedding())
    own = CitedSynthesizer(get_response_synthesizer(Writing(), **cite_prompts()))
    assert isinstance(index.as_query_engine(Writing(), response_synthesizer=own).query(QUESTION), CitedResponse)


def test_nodes_of_ones_own_are_answered_from() -> None:
    more = [NodeWithScore(node=TextNode(id_="more", text="More."))]
    asked = engine()
    response = asked.synthesize(QueryBundle(QUESTION), found(), more)
    assert isinstance(response, CitedResponse)
    assert response.source_nodes[:-1] == asked.query(QUESTION).source_nodes
    assert response.source_nodes[-1] is more[0]
    assert "More." not in response.context.text
    assert response.metadata is not None
    assert list(response.metadata) == [*TEXTS, "more"]


async def test_prompts_are_shown_and_updated() -> None:
    llm = Writing()
    asked = engine(llm=llm)
    stock = RetrieverQueryEngine.from_args(ListRetriever([]), llm)
    assert asked.get_prompts().keys() == stock.get_prompts().keys()
    assert "cite" in asked.get_prompts()["response_synthesizer:text_qa_template"].get_template()
    asked.update_prompts({"response_synthesizer:text_qa_template": PromptTemplate("{context_str} ? {query_str}")})
    asked.query(QUESTION)
    await asked.aquery(QUESTION)
    own = PromptTemplate("{query_str}: {context_str}")
    engine(llm=llm, text_qa_template=own).query(QUESTION)
    shown = "\n\n".join(SHOWN)
    assert llm.prompts == [f"{shown} ? {QUESTION}"] * 2 + [f"{QUESTION}: {shown}"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_events_are_those_of_a_query_engine(streaming: bool) -> None:
    seen: list[list[str]] = []
    for made in (RetrieverQueryEngine.from_args, CitedQueryEngine.from_args):
        debug = LlamaDebugHandler(print_trace_on_end=False)
        asked = made(ListRetriever(found()), Awaited(), callback_manager=CallbackManager([debug]), streaming=streaming)
        with recorded(BaseEvent) as events:
            response = asked.query(QUESTION)
            late = await asked.aquery(QUESTION)
        seen.append([event.class_name() for event in events])
        ends = [event for event in events if event.class_name() == "QueryEndEvent"]
        assert [event.response for event in ends] == [response, late]
        assert ends[0].response is response
        assert len(debug.get_event_pairs(CBEventType.QUERY)) == 2
        theirs = made == RetrieverQueryEngine.from_args  # whose synthesizer is not given the callback manager
        assert len(debug.get_event_pairs(CBEventType.SYNTHESIZE)) == (0 if theirs else 2)
    assert seen[0] == seen[1]


async def test_as_a_tool_in_a_transform_and_in_a_chat() -> None:
    tool = QueryEngineTool.from_defaults(engine())
    output = tool.call(QUESTION)
    assert output.content == ANSWER
    assert output.raw_output == (await tool.acall(QUESTION)).raw_output == engine().query(QUESTION)
    transformed: Any = TransformQueryEngine(engine(), QueryExpander()).query(QUESTION)
    assert transformed.citations == output.raw_output.citations
    chat = CondenseQuestionChatEngine.from_defaults(engine(), llm=MockLLM(), memory=ChatMemoryBuffer.from_defaults())
    streamed = chat.stream_chat(QUESTION)
    assert "".join(streamed.response_gen) == ANSWER
    assert [one.index for one in citations_of(chat.chat(QUESTION).source_nodes)] == [1, 2, 3, 4]
    assert resolve_citations(streamed) == resolve_citations(chat.chat(QUESTION)) == engine().query(QUESTION).resolved
    with pytest.raises(ConfigError, match="response_gen"):
        resolve_citations(StreamingAgentChatResponse(source_nodes=streamed.source_nodes))


@pytest.mark.parametrize(
    "options",
    [
        {"llm": None},
        {"llm": lambda prompt: prompt},
        {"markers": "[n]"},
        {"max_tokens": 0},
        {"node_postprocessors": [CitationPostprocessor()]},
        {"retriever": BM25Retriever.from_nodes(nodes()) >> CitationPostprocessor()},
        {"response_synthesizer": get_response_synthesizer(Writing())},
        {"llm": None, "response_synthesizer": get_response_synthesizer(Writing()), "streaming": True},
        {"llm": None, "response_synthesizer": CitedSynthesizer(get_response_synthesizer(Writing()))},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_index.core.Settings._llm", None)
    with pytest.raises(ConfigError):
        engine(**options)

"""The conversation before a question reaches the rewriters of follow-up questions, from wherever it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("langchain.agents")
pytest.importorskip("llama_index.core")

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
)
from llama_index.core.llms import MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer, Memory
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.workflow import Context

from tests.frameworks import langchain_parts, llama_index_parts
from tests.helpers import ListChannel
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.middleware import RetrievalMiddleware
from voicevault_retrievers.langchain.tools import retrieval_tool
from voicevault_retrievers.llama_index import HybridRetriever
from voicevault_retrievers.llama_index.tools import RetrievalTool
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import FollowUp, RuleExpansion, Together

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),  # workflows, of agents
    pytest.mark.filterwarnings("ignore:Skipping serialization of known"),  # workflows, of any agent's memory
]

TURN = Turn("How is the pump reset?", "By hand.")
LATER = "and what else?"


class Heard(FollowUp):
    """Keeps the questions that it was asked, each with its conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, tuple[Turn, ...]]] = []

    def rewrite(self, query: Query) -> Query:
        self.asked.append((query.text, query.history))
        return super().rewrite(query)


def messages() -> list[ChatMessage]:
    return [
        ChatMessage(role="system", content="Be kind."),
        ChatMessage(role="user", content=TURN.question),
        ChatMessage(role="assistant", content="Let me look."),
        ChatMessage(role="tool", content="[1] [Source: a]"),
        ChatMessage(role="assistant", content=TURN.answer),
        ChatMessage(role="user", content="one without an answer"),
    ]


def buffer() -> BaseMemory:
    return ChatMemoryBuffer.from_defaults(chat_history=messages())


async def database() -> Memory:
    memory = Memory.from_defaults(session_id="s", token_limit=4000)
    await memory.aput_messages(messages())
    return memory


# LlamaIndex's retrievers


def wordings(nodes_or_hits: Any) -> set[str]:
    return {leaf.query for hit in nodes_or_hits for vote in hit.votes for leaf in vote.leaves()}


async def test_every_search_of_a_retriever_takes_a_history() -> None:
    heard = Heard()
    retriever = llama_index_parts.hybrid(expansion=heard)
    histories: list[Any] = [[TURN], [(TURN.question, TURN.answer)], messages(), buffer()]
    for history in histories:
        result = retriever.search(LATER, history=history)
        assert f"{LATER} pump reset" in wordings(result.hits)
        assert (await retriever.asearch(LATER, history=history)).ranking == result.ranking
        told = retriever.with_options(history=history)
        nodes = told.retrieve(LATER)
        assert [node.node_id for node in nodes] == [hit.id for hit in result.hits]
        assert [node.node_id for node in await told.aretrieve(LATER)] == [node.node_id for node in nodes]
        assert len(told.retrieve_many([LATER])[0]) == len((await told.aretrieve_many([LATER]))[0]) == len(nodes)
        assert told.with_options(k=1).search(LATER).query.history == (TURN,)
    assert {history for _, history in heard.asked} == {(TURN,)}
    assert retriever.search(LATER).query.history == ()
    assert retriever.search(Query(LATER, history=(TURN,))).query.history == (TURN,)


async def test_a_memory_in_a_database_is_awaited() -> None:
    memory = await database()
    retriever = llama_index_parts.hybrid(expansion=FollowUp()).with_options(history=memory)
    result = await retriever.asearch(LATER)
    assert result.query.history == (TURN,)
    await memory.sql_store._async_engine.dispose()  # type: ignore[union-attr]  # LlamaIndex closes it never


def test_a_retriever_notes_what_it_does_not_read() -> None:
    result = llama_index_parts.hybrid().search("pump", history=[TURN])
    assert [(note.stage, note.kind, note.degrades) for note in result.errors] == [("history", "NotRead", False)]
    assert not result.degraded


@pytest.mark.parametrize("history", ["hello", ["hello"], 3, [*messages(), TURN]])
def test_a_wrong_history_is_refused(history: Any) -> None:
    with pytest.raises(ConfigError, match=r"turn|history"):
        llama_index_parts.hybrid().with_options(history=history)


# LlamaIndex's chat engines


def engines(retriever: HybridRetriever, memory: BaseMemory) -> list[Any]:
    llm = MockLLM()
    told = retriever.with_options(history=memory)
    plus = CondensePlusContextChatEngine.from_defaults(told, memory=memory, llm=llm, skip_condense=True)
    query_engine = RetrieverQueryEngine.from_args(told, llm=llm)
    return [
        ContextChatEngine.from_defaults(told, memory=memory, llm=llm),
        plus,
        CondenseQuestionChatEngine.from_defaults(query_engine, memory=memory, llm=llm),
    ]


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("way", ["chat", "stream", "achat", "astream"])
async def test_a_chat_engines_memory_reaches_the_rewriter(at: int, way: str) -> None:
    heard = Heard()
    memory = ChatMemoryBuffer.from_defaults(token_limit=4000)
    engine = engines(llama_index_parts.hybrid(expansion=heard), memory)[at]

    async def ask(text: str) -> None:
        if way == "chat":
            engine.chat(text)
        elif way == "stream":
            list(engine.stream_chat(text).response_gen)
        elif way == "achat":
            await engine.achat(text)
        else:
            response = await engine.astream_chat(text)
            async for _ in response.async_response_gen():
                pass
            await asyncio.gather(*response.__dict__.get("awrite_response_to_history_tasks", []))

    await ask(TURN.question)
    while len(memory.get_all()) < 2:  # a streamed answer is written by a thread or task
        await asyncio.sleep(0)
    await ask(LATER)
    (_, first), (_, later) = heard.asked[:2]
    assert first == ()
    assert [turn.question for turn in later] == [TURN.question]


def test_a_chat_history_of_a_call_reaches_the_rewriter() -> None:
    heard = Heard()
    memory = ChatMemoryBuffer.from_defaults(token_limit=4000)
    engine = engines(llama_index_parts.hybrid(expansion=heard), memory)[0]
    engine.chat(LATER, chat_history=messages()[:-1])
    assert heard.asked == [(LATER, (TURN,))]


# Tools of LlamaIndex's agents


async def test_an_agents_memory_reaches_the_rewriter_of_its_tool() -> None:
    heard = Heard()
    tool = RetrievalTool(llama_index_parts.hybrid(expansion=heard))
    search = ToolCallBlock(tool_call_id="1", tool_name="search", tool_kwargs={"query": LATER})
    said = [ChatMessage(role="assistant", blocks=[search]), ChatMessage(role="assistant", content="Done.")]

    def reply(messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        return said.pop(0)

    agent = FunctionAgent(tools=[tool], llm=MockFunctionCallingLLM(response_generator=reply), streaming=False)
    memory = ChatMemoryBuffer.from_defaults(chat_history=messages()[:-1])
    await agent.run(LATER, memory=memory, ctx=Context(agent))
    assert heard.asked == [(LATER, (TURN,))]


async def test_a_tool_without_a_context_has_the_history_of_its_retriever() -> None:
    heard = Heard()
    tool = RetrievalTool(llama_index_parts.hybrid(expansion=heard).with_options(history=buffer()))
    tool.call(LATER)
    await tool.acall(LATER)
    assert heard.asked == [(LATER, (TURN,))] * 2


# LangChain's agents and tools


STATE = [
    SystemMessage("Be kind."),
    HumanMessage(TURN.question),
    AIMessage("Let me look.", tool_calls=[{"name": "search", "args": {"query": "q"}, "id": "0"}]),
    ToolMessage("[1] [Source: a]", tool_call_id="0"),
    AIMessage(TURN.answer),
]


@pytest.mark.parametrize("on_the_loop", [False, True])
async def test_the_middleware_gives_the_conversation(on_the_loop: bool) -> None:
    heard = Heard()
    model = GenericFakeChatModel(messages=iter([AIMessage("So [1].")]))
    agent: Any = create_agent(model, middleware=[RetrievalMiddleware(langchain_parts.hybrid(expansion=heard))])
    given = {"messages": [*STATE, HumanMessage(LATER)]}
    state = await agent.ainvoke(given) if on_the_loop else agent.invoke(given)
    assert heard.asked == [(LATER, (TURN,))]
    assert state["citations"]["degraded"] == []


def call(**args: Any) -> Any:
    return {"type": "tool_call", "id": "1", "name": "search", "args": {"query": LATER, **args}}


async def test_a_tool_below_langgraph_has_the_conversation_of_the_state() -> None:
    heard = Heard()
    tool = retrieval_tool(langchain_parts.hybrid(expansion=heard), history=[("an older one?", "yes")])
    searching = AIMessage("Let me look.", tool_calls=[{"name": "search", "args": {"query": LATER}, "id": "1"}])
    runtime = SimpleNamespace(state={"messages": [*STATE, HumanMessage(LATER), searching]}, tool_call_id="1")
    tool.invoke(call(runtime=runtime))
    await tool.ainvoke(call(runtime=runtime))
    assert heard.asked == [(LATER, (TURN,))] * 2


async def test_a_tool_in_a_loop_of_ones_own_is_given_the_conversation() -> None:
    heard = Heard()
    turns: list[Any] = []
    tool = retrieval_tool(langchain_parts.hybrid(expansion=heard), history=turns)
    tool.invoke(call())
    turns.append(TURN)
    tool.invoke(call())
    await tool.ainvoke(call())
    await retrieval_tool(langchain_parts.hybrid(expansion=heard), history=STATE).ainvoke(call())
    assert heard.asked == [(LATER, ()), *[(LATER, (TURN,))] * 3]
    with pytest.raises(ConfigError, match="history"):
        retrieval_tool(langchain_parts.hybrid(), history=[*STATE, TURN])


def test_a_retriever_of_another_package_is_given_no_history() -> None:
    child = langchain_parts.Child(found=langchain_parts.documents()[:1], seen=[])
    message = retrieval_tool(child, history=[TURN]).invoke(call())
    assert len(message.artifact["documents"]) == 1


# What does not read it


@pytest.mark.parametrize(
    ("rewriter", "notes"),
    [(None, 1), (RuleExpansion(3), 1), (Together([RuleExpansion(3)]), 1), (Together([FollowUp()]), 0), (Heard(), 0)],
)
async def test_a_history_that_nothing_reads_is_noted(rewriter: Any, notes: int) -> None:
    below = ListChannel([("a", 1.0)])
    pipeline = Pipeline(below if rewriter is None else rewriter >> below)
    assert pipeline.search("pump").errors == ()
    for result in (
        pipeline.search("pump", history=[TURN]),
        await pipeline.asearch("pump", history=[TURN]),
        pipeline.search_many([Query("pump", history=(TURN,))])[0],
    ):
        assert [note.kind for note in result.errors] == ["NotRead"] * notes
        assert not result.degraded
    retriever = langchain_parts.hybrid() if rewriter is None else langchain_parts.hybrid(expansion=rewriter)
    assert len(retriever.search("pump", history=[TURN]).errors) == notes

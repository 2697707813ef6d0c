"""Retrieval for every turn of a LangChain agent, and the check of what its answer cites."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable, ensure_config

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.answers import ContextBuilder, ResolvedAnswer, resolve_citations
from voicevault_retrievers.answers.source_numbers import as_data, failure
from voicevault_retrievers.errors import unknown
from voicevault_retrievers.langchain.convert import PROVENANCE, before_question
from voicevault_retrievers.langchain.tools import (
    GIVEN,
    DocumentSearch,
    FoundDocuments,
    given_citations,
    listed,
    next_numbers,
)

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import OmitFromSchema
    from langgraph.runtime import Runtime
    from typing_extensions import NotRequired
except ModuleNotFoundError:
    require("langchain.agents", extra="agents")
    raise

TURN = "voicevault_turn"
"""The state key of the search for the last human message."""

_PRIVATE = OmitFromSchema(input=True, output=True)


class RetrievalState(AgentState[Any]):
    """The middleware's state: all sources given so far, the current turn's sources, and the answer's citations."""

    voicevault_given: NotRequired[Annotated[list[dict[str, Any]], _PRIVATE]]
    voicevault_turn: NotRequired[Annotated[dict[str, Any], _PRIVATE]]
    citations: NotRequired[Annotated[dict[str, Any], OmitFromSchema(input=True, output=False)]]


class RetrievalMiddleware(AgentMiddleware[RetrievalState, Any, Any]):
    """Agent middleware that searches for each human message, gives the model numbered sources and resolves citations.

    Each turn is searched once, for its last human message, however often the model is called. The sources, within
    `max_tokens`, are put before that message in the model's request; the conversation's messages stay unchanged.
    Numbers continue through the conversation, together with those of `retrieval_tool`.

    After the agent has answered, `state["citations"]` has the `citations` that the answer names, the markers that are
    `unresolved`, and `degraded`, the failures of the search. The answer's `response_metadata["voicevault"]` has the
    same, so that a conversation without a checkpointer can go on. All of it is plain data. A structured answer is read
    as JSON, so that a list of numbers cites as well. With `on_unresolved` "retry" the model is asked once more where it
    cites a source that it was not given. Markers that are unresolved then, or with "note" at once, are only reported.

    A retriever of this package is given the conversation before the message, for rewriters of follow-up questions.

    A failing search is reported to the model and in `degraded`, and the agent goes on. Raises ConfigError for wrong
    options.
    """

    state_schema = RetrievalState

    @checks_options
    def __init__(
        self,
        retriever: Runnable[str, list[Document]],
        *,
        k: int | None = None,
        max_tokens: int | None = None,
        on_unresolved: Literal["note", "retry"] = "note",
    ) -> None:
        super().__init__()
        if on_unresolved not in ("note", "retry"):
            raise unknown("on_unresolved", on_unresolved, ("note", "retry"))
        self.search = DocumentSearch(retriever, k)
        self.builder = ContextBuilder(max_tokens=max_tokens, markers="numbered")
        self.on_unresolved = on_unresolved

    @property
    def name(self) -> str:
        """One name for all subclasses: LangChain then refuses a second one, which would overwrite the state."""
        return RetrievalMiddleware.__name__

    def before_agent(self, state: RetrievalState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        asked = _asked(state)
        if asked is None:
            return None
        try:
            history = before_question(state["messages"])
            found = self.search.find(str(asked.text), ensure_config(), history=history)
        except Exception as error:  # noqa: BLE001 - retrievers may raise anything; the model and the state report it
            found = FoundDocuments((), (failure(error),))
        return self._turn(state, asked, found)

    async def abefore_agent(self, state: RetrievalState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        asked = _asked(state)
        if asked is None:
            return None
        try:
            found = await self.search.afind(
                str(asked.text), ensure_config(), history=before_question(state["messages"])
            )
        except Exception as error:  # noqa: BLE001 - as above
            found = FoundDocuments((), (failure(error),))
        return self._turn(state, asked, found)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        request = _informed(request)
        response: ModelResponse[Any] = handler(request)
        again = self._again(request, response)
        return response if again is None else handler(again)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        request = _informed(request)
        response: ModelResponse[Any] = await handler(request)
        again = self._again(request, response)
        return response if again is None else await handler(again)

    def after_agent(self, state: RetrievalState, runtime: Runtime[Any]) -> dict[str, Any]:
        degraded = state.get("voicevault_turn", {}).get("degraded", [])
        answer = next((one for one in reversed(state["messages"]) if not isinstance(one, ToolMessage)), None)
        if not isinstance(answer, AIMessage):
            return {"citations": {"citations": [], "unresolved": [], "degraded": degraded}}
        resolved = _resolved(answer, state.get("structured_response"), state)
        told = {
            "citations": as_data(resolved.citations),
            "unresolved": list(dict.fromkeys(marker.text for marker in resolved.unresolved)),
            "degraded": degraded,
        }
        metadata = {**answer.response_metadata, PROVENANCE: told}
        return {"citations": told, "messages": [answer.model_copy(update={"response_metadata": metadata})]}

    async def aafter_agent(self, state: RetrievalState, runtime: Runtime[Any]) -> dict[str, Any]:
        return self.after_agent(state, runtime)

    def _turn(self, state: RetrievalState, asked: HumanMessage, found: FoundDocuments) -> dict[str, Any]:
        sources = listed(found, self.builder, next_numbers(len(found.documents), state))
        text = sources.text if asked.text.strip() else ""
        # A checkpointer writes the whole state each turn: drop earlier texts, as the answers keep those they cite.
        earlier = [{**one, "text": ""} for one in state.get("voicevault_given", [])]
        turn = {"message": asked.id, "query": str(asked.text), "sources": text, "degraded": list(found.degraded)}
        return {GIVEN: [*earlier, *as_data(sources.citations)], TURN: turn}

    def _again(self, request: ModelRequest[Any], response: ModelResponse[Any]) -> ModelRequest[Any] | None:
        """The request that asks the model to answer again without wrong citations; None where none is needed."""
        answer = next((one for one in reversed(response.result) if isinstance(one, AIMessage)), None)
        structured = response.structured_response
        if self.on_unresolved != "retry" or answer is None or (answer.tool_calls and structured is None):
            return None
        unresolved = dict.fromkeys(marker.text for marker in _resolved(answer, structured, request.state).unresolved)
        if not unresolved:
            return None
        wrong = (
            f"You cite sources that you were not given: {', '.join(unresolved)}. "
            "Write the whole answer again, and cite only what you were given."
        )
        said: list[Any] = response.result
        return request.override(messages=[*request.messages, *said, HumanMessage(wrong)])


def _asked(state: RetrievalState) -> HumanMessage | None:
    """The last human message, or None where there is none or this turn has searched for it already."""
    last = next((one for one in reversed(state["messages"]) if isinstance(one, HumanMessage)), None)
    turn = state.get("voicevault_turn", {})
    return None if last is None or (last.id, str(last.text)) == (turn.get("message"), turn.get("query")) else last


def _informed(request: ModelRequest[Any]) -> ModelRequest[Any]:
    """The request with the turn's sources put before the last human message."""
    turn: Any = request.state.get(TURN)
    at = max((at for at, one in enumerate(request.messages) if isinstance(one, HumanMessage)), default=None)
    if not turn or not turn["sources"] or at is None:
        return request
    messages = list(request.messages)
    messages[at] = below(_framed(turn["sources"]), messages[at])
    return request.override(messages=messages)


def _framed(sources: str) -> str:
    """The sources between markers. The end marker has the sources' digest, so that no text among them can forge it."""
    end = f"(End of the sources {sha256(sources.encode('utf-8', 'replace')).hexdigest()[:16]}.)"
    return f"The sources end where it says {end}\n\n{sources}\n\n{end}\n\n"


def below(text: str, message: AnyMessage) -> AnyMessage:
    """A copy of a message with a text before its own."""
    content = message.content
    below = text + content if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    return message.model_copy(update={"content": below})


def _resolved(answer: AIMessage, structured: object, state: Any) -> ResolvedAnswer:
    text = str(answer.text)
    if structured is not None and answer.tool_calls:
        text = json.dumps([call["args"] for call in answer.tool_calls], ensure_ascii=False)
    return resolve_citations(text, given_citations(state), numbered=True)

"""A retriever as an agent's tool: numbered sources for the model, documents and citations for the application.

A number names one source throughout a conversation. The sources of a search are numbered from the highest number that
the conversation was given or mentions.
"""

# No `from __future__ import annotations`: langchain-core before 1.6 does not see InjectedToolArg in text annotations.
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig, patch_config
from langchain_core.runnables.config import merge_configs
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, ToolException

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers import source_numbers as sources
from voicevault_retrievers.answers.source_numbers import Reserved, as_data, failed
from voicevault_retrievers.answers.tool_input import (
    DESCRIPTION,
    Offered,
    check_texts,
    check_where,
    invalid,
    keys_of,
    search_input,
)
from voicevault_retrievers.core.channel import check_k
from voicevault_retrievers.core.explanation import degraded_in
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Citation
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.context import numbered, numbers_of
from voicevault_retrievers.langchain.convert import PROVENANCE, before_question, hit_of, passages_of, told_of, turns_of
from voicevault_retrievers.langchain.events import DEGRADED_EVENT

GIVEN = "voicevault_given"
"""The state key of the sources that the middleware has given."""


class _Heard(BaseCallbackHandler):
    """A callback handler that collects the failures of a search: they are dispatched even where it finds nothing."""

    run_inline = True

    def __init__(self) -> None:
        self.degraded: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == DEGRADED_EVENT:
            self.degraded += data["degraded"]


@dataclass(frozen=True)
class FoundDocuments:
    """The result of a search: its documents, and the failures that may have cost some."""

    documents: tuple[Document, ...]
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True)
class NumberedDocuments:
    """What a model is given of a search: a text, and the document and citation of each of its blocks."""

    text: str
    documents: tuple[Document, ...]
    citations: tuple[Citation, ...]


@dataclass(frozen=True)
class DocumentSearch:
    """A retriever that is asked for at most `k` documents and observed for failures."""

    retriever: Runnable[str, list[Document]]
    k: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.retriever, Runnable):
            raise ConfigError(f"a retriever is one of LangChain's, not a {type(self.retriever).__name__}")
        if self.k is not None and not check_k(self.k):
            raise ConfigError("k is a whole number of at least 1, or None for the retriever's own, not 0")

    @property
    def filters(self) -> bool:
        """Whether the retriever takes a filter, k and a history."""
        return isinstance(self.retriever, PipelineRetriever)

    def find(
        self, query: str, config: RunnableConfig, where: Filter | None = None, history: Sequence[Any] = ()
    ) -> FoundDocuments:
        """Search as a run below `config`; a blank query finds nothing."""
        if not query.strip():
            return FoundDocuments(())
        heard = _Heard()
        config = merge_configs(config, {"callbacks": [heard]})
        return self._found(self.retriever.invoke(query, config, **self._options(where, history)), heard)

    async def afind(
        self, query: str, config: RunnableConfig, where: Filter | None = None, history: Sequence[Any] = ()
    ) -> FoundDocuments:
        """`find` on the running event loop."""
        if not query.strip():
            return FoundDocuments(())
        heard = _Heard()
        config = merge_configs(config, {"callbacks": [heard]})
        return self._found(await self.retriever.ainvoke(query, config, **self._options(where, history)), heard)

    def _options(self, where: Filter | None, history: Sequence[Any]) -> dict[str, Any]:
        given = {"k": self.k, "where": where, "history": history} if self.filters else {}
        return {name: value for name, value in given.items() if value}

    def _found(self, documents: Sequence[Document], heard: _Heard) -> FoundDocuments:
        ranks = numbers_of(documents)
        best = sorted(ranks)[: self.k]
        kept = (document for rank, document in zip(ranks, documents, strict=True) if rank in best)
        told = (one for document in documents for one in degraded_in(told_of(document)))
        return FoundDocuments(tuple(passages_of(kept)), sources.failures([*heard.degraded, *told]))


def listed(found: FoundDocuments, builder: ContextBuilder, numbers: Sequence[int]) -> NumberedDocuments:
    """The found documents as blocks with these numbers; the best document has the lowest number.

    Blocks keep the documents' order, also where ContextReorder has changed it.
    """
    ranks = numbers_of(found.documents)
    given = dict(zip(sorted(ranks), numbers, strict=True))
    own = [given[rank] for rank in ranks]
    hits = list(map(hit_of, found.documents))
    text, citations = sources.Layout(builder).listed(hits, own, degraded=found.degraded)
    shown = {citation.index for citation in citations}
    pairs = zip(found.documents, own, strict=True)
    return NumberedDocuments(
        text, tuple(numbered(document, number) for document, number in pairs if number in shown), citations
    )


def given_citations(state: Any) -> tuple[Citation, ...]:
    """The sources that tools of this package and RetrievalMiddleware gave in a conversation, each once.

    `state` is an agent's state, or a list of messages. Pass the result to `resolve_citations(answer, ...,
    numbered=True)`. An agent's output and its messages contain, of the middleware's sources, those that an answer
    cites. A checkpoint's state contains all of them, but of earlier turns only the cited ones have texts.
    """
    return sources.from_data(_told(state))


def next_numbers(count: int, state: Any, call_id: str | None = None) -> range:
    """`count` numbers for new sources: no source of the conversation has them, and no message mentions them.

    Tool calls of one message run in parallel and do not see each other's sources: of n calls, each takes every nth
    number.
    """
    free = 1 + max([*sources.indexes(_told(state)), *_mentioned(state)], default=0)
    asking = next((one for one in reversed(_messages(state)) if isinstance(one, AIMessage) and one.tool_calls), None)
    calls = [call["id"] for call in asking.tool_calls] if asking else []
    if call_id not in calls:
        return range(free, free + count)
    first = free + calls.index(call_id)
    return range(first, first + count * len(calls), len(calls))


def _messages(state: Any) -> Sequence[Any]:
    if isinstance(state, Mapping):
        return state.get("messages") or ()
    return state if isinstance(state, list) else getattr(state, "messages", ())


def _told(state: Any) -> list[Any]:
    """The citations of a state and its messages; entries of other versions or packages are not checked here."""
    kept = state.get(GIVEN) or () if isinstance(state, Mapping) else ()
    return [*kept, *(one for message in _messages(state) for one in _citations(message))]


def _citations(message: Any) -> Sequence[Any]:
    """The citations of a tool's message or an answer; empty where it has none."""
    told = message.artifact if isinstance(message, ToolMessage) else None
    if isinstance(message, AIMessage):
        told = message.response_metadata.get(PROVENANCE)
    return told.get("citations") or () if isinstance(told, Mapping) else ()


def _mentioned(state: Any) -> list[int]:
    """The numbers in the markers of all messages except tools': also of summaries, and of answers without sources."""
    said = (str(one.text) for one in _messages(state) if isinstance(one, BaseMessage) and one.type != "tool")
    return [number for text in said for number in sources.mentioned(text)]


__all__ = ["given_citations", "retrieval_tool"]


@checks_options
def retrieval_tool(
    retriever: Runnable[str, list[Document]],
    *,
    name: str = "search",
    description: str = DESCRIPTION,
    k: int | None = None,
    filters: Offered = None,
    max_tokens: int | None = None,
    markers: Literal["source", "numbered"] = "numbered",
    history: Sequence[Any] = (),
) -> BaseTool:
    """A tool that searches any LangChain retriever.

    The model reads numbered sources, within `max_tokens`. The text also tells it how to cite them, which part of the
    search failed, and when nothing was found. The message's artifact has `documents`, their `citations` as plain data,
    one for each, and `degraded`, the failures. A search that fails altogether, or a wrong filter, gives a message with
    the status "error": it is a ToolException, which is raised where the tool's `handle_tool_error` is set to False.

    `filters` names the metadata keys by which the model may narrow a search, or is "any"; it needs a retriever of this
    package, whose own filters stay in force. `k` is passed to a retriever of this package; of another's documents the
    best k are kept.

    A retriever of this package is given the conversation before the question, for rewriters of follow-up questions:
    below LangGraph the messages of the agent's state, else `history`, a list of messages or turns, which each call
    reads anew.

    Numbers continue through a conversation, so that `[n]` names one source in all of it. Below LangGraph they follow
    the highest number in the agent's state, given by any tool of this package, or in its messages; in a loop of your
    own they follow this tool's last. `given_citations` returns the sources; those of messages cut from the state are
    gone.

    Raises ConfigError for wrong options.
    """
    check_texts(name=name, description=description)
    search = DocumentSearch(retriever, k)
    if filters is not None and not search.filters:
        raise ConfigError(
            f"a {type(retriever).__name__} is searched by LangChain, which gives it no filter: leave out filters, or "
            "give its documents to a retriever of this package, such as HybridRetriever.from_documents"
        )
    keys = keys_of(filters)
    turns_of(history)
    calls = _Calls(search, ContextBuilder(max_tokens=max_tokens, markers=markers), keys, history)
    return StructuredTool(
        name=name,
        description=description,
        func=calls.run,
        coroutine=calls.arun,
        args_schema=search_input(filters),
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=invalid,
    )


@dataclass(frozen=True)
class _Calls:
    """The tool's function; `keys` are the metadata keys that a filter may use, None for any.

    LangGraph passes its state to an argument named `runtime`; the model cannot set that argument.
    """

    search: DocumentSearch
    builder: ContextBuilder
    keys: frozenset[str] | None
    history: Sequence[Any]
    reserved: Reserved = field(default_factory=Reserved)

    def run(
        self,
        query: str,
        where: Filter | None = None,
        runtime: Annotated[Any, InjectedToolArg] = None,
        *,
        config: RunnableConfig,
        callbacks: BaseCallbackManager | None = None,
    ) -> tuple[str, dict[str, Any]]:
        self._check(where)
        with _failing():
            history = _conversation(runtime, self.history)
            found = self.search.find(query, patch_config(config, callbacks=callbacks), where, history)
        return self._answer(found, runtime)

    async def arun(
        self,
        query: str,
        where: Filter | None = None,
        runtime: Annotated[Any, InjectedToolArg] = None,
        *,
        config: RunnableConfig,
        callbacks: BaseCallbackManager | None = None,
    ) -> tuple[str, dict[str, Any]]:
        self._check(where)
        with _failing():
            history = _conversation(runtime, self.history)
            found = await self.search.afind(query, patch_config(config, callbacks=callbacks), where, history)
        return self._answer(found, runtime)

    def _check(self, where: Filter | None) -> None:
        try:
            check_where(where, self.keys)
        except ConfigError as error:
            raise ToolException(str(error)) from error

    def _answer(self, found: FoundDocuments, runtime: Any) -> tuple[str, dict[str, Any]]:
        state, count = getattr(runtime, "state", None), len(found.documents)
        numbers = self.reserved.next(count) if state is None else next_numbers(count, state, runtime.tool_call_id)
        sources = listed(found, self.builder, numbers)
        return sources.text, {
            "documents": list(sources.documents),
            "citations": as_data(sources.citations),
            "degraded": list(found.degraded),
        }


def _conversation(runtime: Any, given: Sequence[Any]) -> Sequence[Any]:
    """The conversation before the question: of LangGraph's state, else the given one."""
    return before_question(_messages(getattr(runtime, "state", None) or [])) or given


@contextmanager
def _failing() -> Iterator[None]:
    """Turn a failure of the search into a ToolException for the model. Setup errors are raised to the programmer."""
    try:
        yield
    except Exception as error:
        raise ToolException(failed(error)) from error

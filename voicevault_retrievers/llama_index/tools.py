"""A retriever as an agent's tool: numbered sources for the model, nodes and citations for the application."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, TypedDict, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.tools import FunctionTool, ToolMetadata, ToolOutput
from llama_index.core.workflow import Context
from pydantic import ValidationError
from typing_extensions import Unpack

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.source_numbers import Layout, Reserved, failed
from voicevault_retrievers.answers.tool_input import (
    DESCRIPTION,
    Offered,
    check_texts,
    check_where,
    invalid,
    keys_of,
    search_input,
)
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.conversation import before_question
from voicevault_retrievers.llama_index.source_numbers import (
    FoundNodes,
    NodeSearch,
    NumberedNodes,
    conversation_citations,
    given_citations,
    listed_in,
    messages_in,
)

T = TypeVar("T", bound="RetrievalTool")

__all__ = ["RetrievalTool", "conversation_citations", "given_citations"]


class ToolOptions(TypedDict, total=False):
    """The options of `RetrievalTool` that LlamaIndex's RetrieverTool does not have."""

    k: int | None
    filters: Offered
    max_tokens: int | None
    markers: Literal["source", "numbered"]
    return_direct: bool


class RetrievalTool(FunctionTool):
    """A tool that searches any LlamaIndex retriever, for FunctionAgent, ReActAgent, AgentWorkflow and your own loop.

    The model reads numbered sources, within `max_tokens`. The text also tells it how to cite them, which part of the
    search failed, and when nothing was found. `raw_output` is the list of the sources' nodes, best first, as
    NodeWithProvenance; it has their `citations`, and `degraded`, the failures. A search that fails altogether gives an
    output with `is_error`, and so do a wrong filter and wrong arguments: the agent goes on. Setup errors are raised.

    `filters` names the metadata keys by which the model may narrow a search, or is "any"; it needs a retriever of this
    package, whose own filters stay in force. `k` is passed to a retriever of this package; of another's nodes the best
    k are kept. `node_postprocessors` refine the retriever's nodes one after another. With `return_direct` the sources
    are the agent's answer.

    A retriever of this package is given the conversation before the question, for rewriters of follow-up questions: the
    messages of the agent's memory, or without a context those of `retriever.with_options(history=...)`.

    Numbers continue through a conversation, so that `[n]` names one source in all of it. An agent passes a
    FunctionTool, such as this, the context of its run, whose state keeps the sources. All tools and agents of the
    context share them. A source that is found again keeps its number, and numbers that the memory's messages mention
    are not used again. Called without a context, the tool numbers each call separately. Pass `given_citations` of a
    run's output, or `conversation_citations` of its context, to `resolve_citations`.

    Raises ConfigError for wrong options.
    """

    @checks_options
    def __init__(
        self,
        retriever: BaseRetriever,
        *,
        name: str = "search",
        description: str = DESCRIPTION,
        k: int | None = None,
        filters: Offered = None,
        max_tokens: int | None = None,
        markers: Literal["source", "numbered"] = "numbered",
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        return_direct: bool = False,
    ) -> None:
        check_texts(name=name, description=description)
        self.search = NodeSearch(retriever, tuple(node_postprocessors or ()), k)
        self.layout = Layout(ContextBuilder(max_tokens=max_tokens, markers=markers), instructs=not return_direct)
        if filters is not None and not self.search.filters:
            raise ConfigError(
                f"a {type(retriever).__name__} is searched by LlamaIndex, which gives it no filter: leave out filters, "
                "or give its nodes to a retriever of this package, such as HybridRetriever.from_nodes"
            )
        self.filters = filters
        self._keys = keys_of(filters)
        self._reserved = Reserved()
        self._schema = search_input(filters)
        metadata = ToolMetadata(description, name, self._schema, return_direct)
        super().__init__(fn=self.call, async_fn=self.acall, metadata=metadata)
        # Set by hand: the base reads them from an annotation, which is a string in this module.
        self.requires_context, self.ctx_param_name = True, "ctx"

    @classmethod
    def from_defaults(  # type: ignore[override]  # the signature of RetrieverTool, which this replaces
        cls: type[T],
        retriever: BaseRetriever,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[ToolOptions],
    ) -> T:
        """The constructor with its arguments in the order of LlamaIndex's RetrieverTool."""
        texts = {key: text for key, text in (("name", name), ("description", description)) if text is not None}
        return cls(retriever, node_postprocessors=node_postprocessors, **texts, **options)

    def call(self, input: Any = None, where: Any = None, *, query: Any = None, **others: Any) -> ToolOutput:
        """Search for `query`, as the model calls the tool; `input`, or the first argument, is the same."""
        given = _arguments(input if query is None else query, where)
        try:
            asked = self._checked(given)
            with _failing():
                found = self.search.find(*asked)
        except _ToldError as error:
            return self._error(given, error)
        return self._output(given, *self._listed(found))

    async def acall(
        self, input: Any = None, where: Any = None, *, query: Any = None, ctx: Context[Any] | None = None, **others: Any
    ) -> ToolOutput:
        """`call` on the running event loop. `ctx` is the agent's context; anything else a model passes is ignored."""
        given = _arguments(input if query is None else query, where)
        try:
            asked = self._checked(given)
            with _failing():
                said = before_question(await messages_in(ctx)) if isinstance(ctx, Context) else ()
                found = await self.search.afind(*asked, said or None)
        except _ToldError as error:
            return self._error(given, error)
        listed = await listed_in(ctx, found, self.layout) if isinstance(ctx, Context) else self._listed(found)
        return self._output(given, *listed)

    def as_langchain_tool(self, **options: Any) -> NoReturn:
        """Raise ConfigError: a LangChain tool needs a LangChain retriever."""
        raise ConfigError(
            "a LangChain agent takes voicevault_retrievers.langchain.retrieval_tool(retriever), over the same "
            "documents: HybridRetriever(kb_names=[...]) of voicevault_retrievers.langchain searches the same knowledge "
            "bases"
        )

    to_langchain_tool = as_langchain_tool
    to_langchain_structured_tool = as_langchain_tool

    def _checked(self, given: dict[str, Any]) -> tuple[str, Filter | None]:
        """The query and the filter of a model's call, checked."""
        try:
            asked = self._schema.model_validate(given).model_dump()
            check_where(asked.get("where"), self._keys)
        except ValidationError as error:
            raise _ToldError(invalid(error)) from error
        except ConfigError as error:
            raise _ToldError(str(error)) from error
        return asked["query"], asked.get("where")

    def _listed(self, found: FoundNodes) -> tuple[str, NumberedNodes]:
        return found.listed(self.layout, self._reserved.next(len(found.nodes)))

    def _output(self, given: dict[str, Any], text: str, sources: NumberedNodes) -> ToolOutput:
        return ToolOutput(self.metadata.get_name(), text, raw_input=given, raw_output=sources)

    def _error(self, given: dict[str, Any], error: Exception) -> ToolOutput:
        text = str(error)
        return ToolOutput(
            self.metadata.get_name(),
            text,
            raw_input=given,
            raw_output=NumberedNodes(degraded=[text]),
            is_error=True,
            exception=error,
        )

    @property
    def _options(self) -> dict[str, Any]:
        """The options that make this tool, except those with default values."""
        given: dict[str, tuple[Any, Any]] = {
            "name": (self.metadata.get_name(), None),
            "description": (self.metadata.description, DESCRIPTION),
            "k": (self.search.k, None),
            "filters": (self.filters, None),
            "max_tokens": (self.layout.builder.max_tokens, None),
            "markers": (self.layout.builder.markers, "numbered"),
            "node_postprocessors": (list(self.search.postprocessors), []),
            "return_direct": (self.metadata.return_direct, False),
        }
        return {name: option for name, (option, default) in given.items() if option != default}

    def __reduce__(self) -> tuple[Any, ...]:
        # The tool is rebuilt: the base's state and the arguments' schema can be neither copied nor pickled.
        return _made, (type(self), self.search.retriever, self._options), {"_reserved": self._reserved}

    def __repr__(self) -> str:
        said = "".join(f", {name}={option!r}" for name, option in self._options.items())
        return f"{type(self).__name__}({self.search.retriever!r}{said})"


def _made(kind: type[T], retriever: BaseRetriever, options: dict[str, Any]) -> T:
    return kind(retriever, **options)


class _ToldError(Exception):
    """The message to a model whose call gave no sources."""


@contextmanager
def _failing() -> Iterator[None]:
    """Turn a failure of the search into a message to the model. Setup errors are raised to the programmer."""
    try:
        yield
    except Exception as error:
        raise _ToldError(failed(error)) from error


def _arguments(query: Any, where: Any) -> dict[str, Any]:
    return {name: argument for name, argument in (("query", query), ("where", where)) if argument is not None}

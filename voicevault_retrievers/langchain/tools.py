"""A retriever as an agent's tool: numbered sources for the model, documents and citations for the application."""

# Without `from __future__ import annotations`: langchain-core before 1.6 does not see InjectedToolArg in their texts.
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig, patch_config
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, ToolException

from voicevault_retrievers.answers import ContextBuilder
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
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.source_numbers import (
    DocumentSearch,
    FoundDocuments,
    given_citations,
    listed,
    next_numbers,
)

__all__ = ["given_citations", "retrieval_tool"]


def retrieval_tool(
    retriever: Runnable[str, list[Document]],
    *,
    name: str = "search",
    description: str = DESCRIPTION,
    k: int | None = None,
    filters: Offered = None,
    max_tokens: int | None = None,
    markers: Literal["source", "numbered"] = "numbered",
) -> BaseTool:
    """A tool that searches any LangChain retriever.

    The model reads numbered sources, within `max_tokens`, and is told how to cite them, what part of the search failed,
    and where nothing was found. The message's artifact has `documents`, their `citations` as plain data, one for each,
    and `degraded`, the failures. A search that fails altogether is a message with the status "error", and so is a wrong
    filter: as a ToolException, which is raised where the tool's `handle_tool_error` is set to False.

    `filters` names the metadata keys by which the model may narrow a search, or is "any"; the retriever's own filters
    stay in force. It needs a retriever of this package. `k` is for these too; of another's documents it is the best k.

    Numbers go on through a conversation, so that `[n]` names one source in all of it: below LangGraph after the highest
    in the agent's state, of whichever tool of this package, or in its messages; in a loop of your own after this tool's
    last. See `given_citations` for what they name; the sources of messages that were cut from the state are gone.

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
    calls = _Calls(search, ContextBuilder(max_tokens=max_tokens, markers=markers), keys)
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
    """What the tool does when it is called; `keys` are those of a filter, None for any.

    LangGraph gives its state to an argument named `runtime`, and the model cannot.
    """

    search: DocumentSearch
    builder: ContextBuilder
    keys: frozenset[str] | None
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
            found = self.search.find(query, patch_config(config, callbacks=callbacks), where)
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
            found = await self.search.afind(query, patch_config(config, callbacks=callbacks), where)
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


@contextmanager
def _failing() -> Iterator[None]:
    """A search that fails is told to the model; what is set up wrongly is told to the programmer."""
    try:
        yield
    except Exception as error:
        raise ToolException(failed(error)) from error

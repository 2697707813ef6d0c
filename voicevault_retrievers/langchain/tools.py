"""A retriever as an agent's tool: numbered sources for the model, documents and citations for the application."""

# Without `from __future__ import annotations`: langchain-core before 1.6 does not see InjectedToolArg in their texts.
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig, patch_config
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, ToolException
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WithJsonSchema, create_model

from voicevault_retrievers.context import ContextBuilder
from voicevault_retrievers.context.citations import LAST
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.filters import Condition, Filter, Node, Not, parse
from voicevault_retrievers.langchain.numbered import (
    Found,
    Search,
    as_data,
    failure,
    given_citations,
    listed,
    next_numbers,
)
from voicevault_retrievers.mutex import Mutex

__all__ = ["given_citations", "retrieval_tool"]

DESCRIPTION = "Searches the documents and gives the passages that answer a question, as numbered sources to cite."
_QUERY = "What to look for: a question or key words that stand alone, without words such as 'it' or 'the above'."
_WHERE = (
    'Narrows the search by the documents\' metadata: {"year": 2024}, {"year": {"$gte": 2020}}, '
    '{"file": {"$in": ["a.pdf", "b.pdf"]}}, {"$or": [{...}, {...}]}. '
    "Operators: $eq $ne $gt $gte $lt $lte $in $nin $contains $exists $and $or $not. Leave it out to search all."
)
_VALUE = [{"type": kind} for kind in ("string", "number", "boolean", "object")]


def retrieval_tool(
    retriever: Runnable[str, list[Document]],
    *,
    name: str = "search",
    description: str = DESCRIPTION,
    k: int | None = None,
    filters: Sequence[str] | Literal["any"] | None = None,
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
    search = Search(retriever, k)
    if filters is not None and not search.filters:
        raise ConfigError(
            f"a {type(retriever).__name__} is searched by LangChain, which gives it no filter: leave out filters, or "
            "give its documents to a retriever of this package, such as HybridRetriever.from_documents"
        )
    keys = _keys(filters)
    calls = _Calls(search, ContextBuilder(max_tokens=max_tokens, markers=markers), keys)
    return StructuredTool(
        name=name,
        description=description,
        func=calls.run,
        coroutine=calls.arun,
        args_schema=_schema(filters, keys),
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=_invalid,
    )


@dataclass
class _Reserved:
    """The numbers of a tool that is not told of the conversation: each call has its own.

    They begin again where a marker can say no higher one, for a process outlives its conversations.
    """

    last: int = 0
    mutex: Mutex = field(default_factory=Mutex)

    def next(self, count: int) -> range:
        with self.mutex:
            first = 1 if self.last + count > LAST else self.last + 1
            self.last = first + count - 1
        return range(first, first + count)


@dataclass(frozen=True)
class _Calls:
    """What the tool does when it is called; `keys` are those of a filter, None for any.

    LangGraph gives its state to an argument named `runtime`, and the model cannot.
    """

    search: Search
    builder: ContextBuilder
    keys: frozenset[str] | None
    reserved: _Reserved = field(default_factory=_Reserved)

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
            asked = _asked(parse(where))
            for key in sorted(asked - (asked if self.keys is None else self.keys)):
                raise unknown("metadata key", key, self.keys or ())
        except ConfigError as error:
            raise ToolException(f"The argument `where` is wrong, and nothing was searched: {error}") from error

    def _answer(self, found: Found, runtime: Any) -> tuple[str, dict[str, Any]]:
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
        raise ToolException(f"The search failed, so there are no sources: {failure(error)}") from error


def _keys(filters: Sequence[str] | Literal["any"] | None) -> frozenset[str] | None:
    if filters == "any":
        return None
    given = filters or ()
    if isinstance(given, str) or not all(isinstance(key, str) for key in given) or (filters is not None and not given):
        raise ConfigError(f'filters is a list of metadata keys, or "any", not {filters!r}')
    return frozenset(given)


def _asked(node: Node) -> set[str]:
    """The metadata keys that a filter asks of."""
    if isinstance(node, Condition):
        return {node.key}
    parts = (node.part,) if isinstance(node, Not) else node.parts
    return {key for part in parts for key in _asked(part)}


def _schema(filters: object, keys: frozenset[str] | None) -> type[BaseModel]:
    given: dict[str, Any] = {"query": (str, Field(description=_QUERY))}
    if filters is not None:
        given["where"] = (_where(keys), Field(default_factory=dict))
    return create_model("SearchInput", **given)


def _where(keys: frozenset[str] | None) -> Any:
    """The type of a filter, which says to the model by which keys it may ask."""
    schema: dict[str, Any] = {"type": "object", "description": _WHERE}
    if keys is not None:
        schema["description"] += f" Keys: {', '.join(sorted(keys))}."
        schema["properties"] = {key: {"anyOf": _VALUE} for key in sorted(keys)}
    if keys is None or "page" in keys:
        schema["description"] += ' The key "page" counts from 0: p.3 is page 2.'
    return Annotated[dict[str, Any], BeforeValidator(_no_filter), WithJsonSchema(schema)]


def _no_filter(given: object) -> object:
    """Some models say null, or nothing in quotes, where they mean to leave an argument out."""
    return {} if given is None or given == "" else given


def _invalid(error: ValidationError | Any) -> str:
    wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return f"The arguments are wrong, and nothing was searched: {wrong}"

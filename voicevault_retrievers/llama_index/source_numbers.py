"""Searches with numbered sources, for an agent's tool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.tools import ToolOutput
from llama_index.core.workflow import Context

from voicevault_retrievers.answers import source_numbers as sources
from voicevault_retrievers.core.channel import check_k
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.explanation import degraded_in
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Citation, Hit
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.channels import is_async
from voicevault_retrievers.llama_index.citations import check_unnumbered, cited_node, source_hit
from voicevault_retrievers.llama_index.conversation import History
from voicevault_retrievers.llama_index.convert import NodeWithProvenance, passages_of, provenance
from voicevault_retrievers.llama_index.events import heard

GIVEN = "voicevault_given"
"""The key in a workflow's state of the citations that its agents were given, as plain data."""

_WRITING: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class NumberedNodes(list[NodeWithProvenance]):
    """The nodes of the sources that a model was given, with their citations and the failures of the search."""

    def __init__(
        self,
        nodes: Iterable[NodeWithProvenance] = (),
        citations: Sequence[Citation] = (),
        degraded: Sequence[str] = (),
    ) -> None:
        super().__init__(nodes)
        self.citations = tuple(citations)
        self.degraded = tuple(degraded)


@dataclass(frozen=True)
class FoundNodes:
    """The result of a search: its nodes, best first, and the failures that may have cost some."""

    nodes: tuple[NodeWithScore, ...]
    degraded: tuple[str, ...] = ()

    @cached_property
    def hits(self) -> list[Hit]:
        return [source_hit(node) for node in self.nodes]

    def listed(self, layout: sources.Layout, numbers: Sequence[int]) -> tuple[str, NumberedNodes]:
        """The text that a model reads, and the nodes for the application; the best come first, whatever the numbers."""
        ranks = range(len(self.nodes))
        text, citations = layout.listed(self.hits, numbers, ranks=ranks, degraded=self.degraded)
        nodes = dict(zip(numbers, self.nodes, strict=True))
        marked = layout.builder.markers == "numbered"
        return text, NumberedNodes(
            (cited_node(nodes[one.index], one, marked) for one in citations), citations, self.degraded
        )


@dataclass(frozen=True)
class NodeSearch:
    """A retriever and postprocessors that are asked for at most `k` nodes and observed for failures."""

    retriever: BaseRetriever
    postprocessors: tuple[BaseNodePostprocessor, ...] = ()
    k: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.retriever, BaseRetriever):
            name = type(self.retriever).__name__
            raise ConfigError(f"a retriever is one of LlamaIndex's, such as index.as_retriever(), not a {name}")
        for part in self.postprocessors:
            if not isinstance(part, BaseNodePostprocessor):
                raise ConfigError(f"a node postprocessor is one of LlamaIndex's, not a {type(part).__name__}")
        check_unnumbered(self.retriever, self.postprocessors)
        if self.k is not None and not check_k(self.k):
            raise ConfigError("k is a whole number of at least 1, or None for the retriever's own, not 0")

    @property
    def filters(self) -> bool:
        """Whether the retriever takes a filter and k."""
        return isinstance(self.retriever, PipelineRetriever)

    def find(self, query: str, where: Filter | None = None, history: History = None) -> FoundNodes:
        """Search; a blank query finds nothing."""
        if not query.strip():
            return FoundNodes(())
        retriever, after = self._parts(where, history)
        with heard() as degraded:
            nodes = retriever.retrieve(query)
            for part in after:
                nodes = part.postprocess_nodes(nodes, QueryBundle(query))
        return self._found(nodes, degraded)

    async def afind(self, query: str, where: Filter | None = None, history: History = None) -> FoundNodes:
        """`find` on the running event loop, which no retriever blocks."""
        if not query.strip():
            return FoundNodes(())
        retriever, after = self._parts(where, history)
        with heard() as degraded:
            nodes = await aretrieved(retriever, query)
            for part in after:
                nodes = await part.apostprocess_nodes(nodes, QueryBundle(query))
        return self._found(nodes, degraded)

    def _parts(self, where: Filter | None, history: History) -> tuple[BaseRetriever, Sequence[BaseNodePostprocessor]]:
        """The retriever and the postprocessors after it; a retriever of this package gets them as stages."""
        if not isinstance(self.retriever, PipelineRetriever):
            return self.retriever, self.postprocessors
        retriever = self.retriever.with_options(k=self.k, where=where, history=history)
        for part in self.postprocessors:
            retriever = retriever >> part
        return retriever, ()

    def _found(self, nodes: Sequence[NodeWithScore], skipped: Sequence[str]) -> FoundNodes:
        told = (one for node in nodes for one in degraded_in(provenance(node) or {}))
        return FoundNodes(tuple(passages_of(nodes[: self.k])), sources.failures([*skipped, *told]))


async def aretrieved(retriever: BaseRetriever, query: QueryType) -> list[NodeWithScore]:
    """The nodes that a retriever finds; a retriever without its own async search runs in a worker thread."""
    if is_async(retriever):
        return await retriever.aretrieve(query)
    return await aexecute(in_thread(type(retriever).__name__, partial(retriever.retrieve, query)))


async def listed_in(ctx: Context[Any], found: FoundNodes, layout: sources.Layout) -> tuple[str, NumberedNodes]:
    """The found nodes as sources whose numbers continue the conversation of a workflow's context.

    New numbers are above those of the context's sources and those that its messages mention. A source that was given
    before keeps its number.
    """
    said = await _mentioned(ctx)
    async with _WRITING.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        told = await ctx.store.get(GIVEN, default=[])
        given = sources.from_data(told)
        free = 1 + max([*sources.indexes(told), *said], default=0)
        text, listed = found.listed(layout, sources.kept_numbers(found.hits, given, free))
        known = {citation.index for citation in given}
        new = sources.as_data(citation for citation in listed.citations if citation.index not in known)
        await ctx.store.set(GIVEN, [*told, *new])
    return text, listed


async def messages_in(ctx: Context[Any]) -> list[ChatMessage]:
    """The messages of the memory of a workflow's context."""
    memory = await ctx.store.get("memory", default=None)
    return await memory.aget_all() if isinstance(memory, BaseMemory) else []


async def conversation_citations(ctx: Context[Any]) -> tuple[Citation, ...]:
    """The sources that the agents of a workflow's context were given in all its runs, each once.

    For `resolve_citations(answer, citations)`. It needs only the context, also one that was restored from JSON.
    """
    return sources.from_data(await ctx.store.get(GIVEN, default=[]))


def given_citations(*outputs: Any) -> tuple[Citation, ...]:
    """The sources that tools of this package gave, each once, in runs of agents or single calls.

    An output is what a run returns (AgentOutput), a tool's (ToolOutput), an event with one (ToolCallResult), or a
    list of these. For `resolve_citations(answer, citations)`.
    """
    return sources.once(citation for output in outputs for citation in _given(output))


def _given(output: Any) -> Iterator[Citation]:
    if isinstance(output, NumberedNodes):
        yield from output.citations
    elif isinstance(output, AgentOutput):
        yield from _given([*output.tool_calls, output.raw])
    elif isinstance(output, ToolOutput):
        yield from _given(output.raw_output)
    elif isinstance(output, list | tuple):
        yield from given_citations(*output)
    elif hasattr(output, "tool_output"):
        yield from _given(output.tool_output)


async def _mentioned(ctx: Context[Any]) -> list[int]:
    """The numbers in markers of messages, and of sources in tools' messages: the state may lack some of them."""
    return [number for one in await messages_in(ctx) for number in _numbers(one)]


def _numbers(message: ChatMessage) -> list[int]:
    text = message.content or ""
    return sources.block_numbers(text) if message.role == MessageRole.TOOL else sources.mentioned(text)

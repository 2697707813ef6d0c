"""A query engine whose answers cite their sources."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from voicevault_retrievers._support.foreign_options import check_options
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.citations import check_unnumbered
from voicevault_retrievers.llama_index.events import heard
from voicevault_retrievers.llama_index.models import llm_of
from voicevault_retrievers.llama_index.responses import CitedAnswer
from voicevault_retrievers.llama_index.source_numbers import aretrieved
from voicevault_retrievers.llama_index.synthesis import CitedSynthesizer, cite_prompts

E = TypeVar("E", bound="CitedQueryEngine")

_OWN = (*(field.name for field in fields(ContextBuilder)), "metadata_mode", "empty_response")


class Retrieved(list[NodeWithScore]):
    """A list of nodes with the failures of the search, which an empty list could not report otherwise."""

    def __init__(self, nodes: Sequence[NodeWithScore], degraded: Sequence[str]) -> None:
        super().__init__(nodes)
        self.degraded = tuple(degraded)


class CitedQueryEngine(RetrieverQueryEngine):
    """Answers questions from a retriever's nodes, with checked citations.

    The answer cites `[n]`, or `[Source: file, p.N]`. `response.citations` are the sources that it names, with page and
    offsets; `response.unresolved` are markers that name none; `response.source_nodes` are the nodes that the model
    read, as they were found. The retriever, and the `node_postprocessors` after it, may be any of LlamaIndex's.

    `llm` is by default the configured `Settings.llm`. `options` are those of `CitedSynthesizer`, and of LlamaIndex's
    `get_response_synthesizer`: response_mode ("compact"), streaming, your own templates, output_cls and so on. A
    `response_synthesizer`, which answers by its own prompts, replaces `llm` and the latter options.
    """

    if TYPE_CHECKING:  # the base's methods, which return its synthesizer's response

        def query(self, str_or_query_bundle: QueryType) -> CitedAnswer: ...

        async def aquery(self, str_or_query_bundle: QueryType) -> CitedAnswer: ...

    def __init__(
        self,
        retriever: BaseRetriever,
        response_synthesizer: BaseSynthesizer | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        *,
        llm: LLM | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(retriever, BaseRetriever):
            raise ConfigError(
                f"a query engine searches a retriever, not a {type(retriever).__name__}; an index has as_retriever()"
            )
        after = list(node_postprocessors or ())
        check_unnumbered(retriever, after)
        own = {name: options.pop(name) for name in _OWN if name in options}
        if response_synthesizer is None:
            check_options(type(self).__name__, options, get_response_synthesizer, type(self).__init__)
            prompts = cite_prompts(own.get("markers", "numbered"))
            given = {name: option for name, option in options.items() if option is not None}
            response_synthesizer = _synthesizer(llm, callback_manager, {**prompts, **given})
        elif llm is not None or options:
            said = ", ".join(["llm"] * (llm is not None) + list(options))
            raise ConfigError(f"a response_synthesizer has its own {said}: give that, or these")
        super().__init__(retriever, CitedSynthesizer(response_synthesizer, **own), after, callback_manager)

    @classmethod
    def from_args(  # type: ignore[override]  # the base's other arguments are options here
        cls: type[E],
        retriever: BaseRetriever,
        llm: LLM | None = None,
        response_synthesizer: BaseSynthesizer | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> E:
        """The constructor with its arguments in the order of LlamaIndex's other engines."""
        return cls(retriever, response_synthesizer, node_postprocessors, callback_manager, llm=llm, **options)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with heard() as degraded:
            return Retrieved(super().retrieve(query_bundle), degraded)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """`retrieve` on the running event loop, which no retriever blocks."""
        with heard() as degraded:
            nodes = await aretrieved(self._retriever, query_bundle)
            return Retrieved(await self._async_apply_node_postprocessors(nodes, query_bundle), degraded)

    def with_retriever(self: E, retriever: BaseRetriever) -> E:
        """This engine over another retriever."""
        twin = copy.copy(self)
        twin._retriever = retriever
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._retriever!r}, {self._response_synthesizer!r})"


def _synthesizer(llm: Any, callback_manager: CallbackManager | None, options: dict[str, Any]) -> BaseSynthesizer:
    model = llm_of(llm)
    if not isinstance(model, LLM):
        raise ConfigError(f"a query engine is answered by a LLM of LlamaIndex's, not by a {type(model).__name__}")
    return get_response_synthesizer(model, callback_manager=callback_manager, **options)

"""Answers that cite their sources, by any response synthesizer of LlamaIndex."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal

from llama_index.core.base.response.schema import RESPONSE_TYPE, AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate, SelectorPromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.prompts.utils import is_chat_model
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryType
from llama_index.core.types import RESPONSE_TEXT_TYPE

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.explanation import degraded_in
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.citations import CitedNodes, sources_of
from voicevault_retrievers.llama_index.convert import provenance
from voicevault_retrievers.llama_index.models import awaits
from voicevault_retrievers.llama_index.responses import CitedAnswer, cited

TOLD = "voicevault"
"""The key of a response's metadata for failures and for nodes that were left out."""

_ANSWER = "Sources:\n\n{context_str}\n\nQuestion: {query_str}\nAnswer: "
_REFINE = (
    "Question: {query_str}\nThe answer so far: {existing_answer}\n\nFurther sources:\n\n{context_msg}\n\n"
    "Write the answer anew, with what these sources add to it. What you keep of it keeps its citations: they name "
    "sources that were shown before. If these sources add nothing, repeat the answer so far.\nAnswer: "
)


class CitedSynthesizer(BaseSynthesizer):
    """Answers from numbered sources through another synthesizer, and checks the answer's citations.

    With any `synthesizer`, the model reads the blocks that `CitationPostprocessor` makes, with the same `context`
    options: markers ("numbered"), max_tokens, max_chars, reorder, count_tokens, page_key, source_key, paths. The
    synthesizer's own prompts say what to do with them: `cite_prompts` are prompts that ask for citations. Sources have
    the same numbers in every call of the model. A synthesizer may cut sources that do not fit into one call;
    `max_tokens` avoids this.

    The response is a `CitedResponse`, or its streaming or structured variant. Where no source was found, or none fits,
    the model is not asked, and the answer is `empty_response`. `metadata["voicevault"]` has `degraded`, the failures of
    the search, and `over_budget`, the ids of nodes left out or cut, where there are any.

    A model whose async calls run on the event loop, such as a CustomLLM, is called in a worker thread.
    """

    def __init__(
        self,
        synthesizer: BaseSynthesizer,
        *,
        metadata_mode: MetadataMode = MetadataMode.NONE,
        empty_response: str = "Nothing was found.",
        **context: Any,
    ) -> None:
        if not isinstance(synthesizer, BaseSynthesizer) or isinstance(synthesizer, CitedSynthesizer):
            raise ConfigError(f"sources are numbered once, for a synthesizer of LlamaIndex's, not for {synthesizer!r}")
        self.builder = ContextBuilder(**{"markers": "numbered", **context})
        self.metadata_mode = metadata_mode
        self.empty_response = empty_response
        self.synthesizer = synthesizer
        super().__init__(
            llm=synthesizer._llm, prompt_helper=synthesizer._prompt_helper, streaming=synthesizer._streaming
        )

    @property
    def callback_manager(self) -> CallbackManager:
        return self.synthesizer.callback_manager

    @callback_manager.setter
    def callback_manager(self, callback_manager: CallbackManager) -> None:
        self.synthesizer.callback_manager = callback_manager

    @property
    def _streaming(self) -> bool:
        """Whether the answer is streamed; chat engines switch it for a call."""
        return self.synthesizer._streaming

    @_streaming.setter
    def _streaming(self, streaming: bool) -> None:
        self.synthesizer._streaming = streaming

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> CitedAnswer:
        sources = self._sources(nodes)
        response = self.synthesizer.synthesize(query, list(sources.blocks), **response_kwargs)
        return self._cited(response, sources, nodes, additional_source_nodes or ())

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> CitedAnswer:
        sources = await aexecute(in_thread("sources", partial(self._sources, nodes)))
        blocks: list[NodeWithScore] = list(sources.blocks)
        if _awaits(self._llm, self._streaming):
            response = await self.synthesizer.asynthesize(query, blocks, **response_kwargs)
        else:
            asked = partial(self.synthesizer.synthesize, query, blocks, **response_kwargs)
            response = _awaitable(await aexecute(in_thread("synthesize", asked)))
        return self._cited(response, sources, nodes, additional_source_nodes or ())

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> RESPONSE_TEXT_TYPE:
        return self.synthesizer.get_response(query_str, text_chunks, **response_kwargs)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        return await self.synthesizer.aget_response(query_str, text_chunks, **response_kwargs)

    def _sources(self, nodes: Sequence[NodeWithScore]) -> CitedNodes:
        return sources_of(nodes, self.builder, self.metadata_mode)

    def _cited(
        self,
        response: RESPONSE_TYPE,
        sources: CitedNodes,
        nodes: Sequence[NodeWithScore],
        additional: Sequence[NodeWithScore],
    ) -> CitedAnswer:
        if not sources.blocks:
            response = _saying(self.empty_response, response)
        missing = {TOLD: told} if (told := _missing(sources, nodes)) else {}
        metadata = {**(response.metadata or {}), **{node.node_id: node.metadata for node in additional}, **missing}
        return cited(response, sources.context, [*sources.nodes, *additional], metadata or None)

    def _get_prompts(self) -> PromptDictType:
        return self.synthesizer._get_prompts()

    def _get_prompt_modules(self) -> PromptMixinType:
        return self.synthesizer._get_prompt_modules()

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self.synthesizer._update_prompts(prompts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.synthesizer).__name__}, {self.builder!r})"


def cite_prompts(markers: Literal["numbered", "source"] = "numbered") -> dict[str, Any]:
    """Prompts that ask for citations, for `get_response_synthesizer(**cite_prompts())`.

    They are `text_qa_template`, `summary_template` and `refine_template`; a chat model gets the instruction as a system
    message. The sources must be blocks of `CitationPostprocessor` or `CitedSynthesizer`, with the same markers.
    """
    instruction = ContextBuilder(markers=markers).instruction
    answer = _prompt(instruction, _ANSWER)
    return {
        "text_qa_template": answer,
        "summary_template": answer,
        "refine_template": _prompt(instruction, _REFINE),
    }


def _prompt(instruction: str, asked: str) -> SelectorPromptTemplate:
    chat = ChatPromptTemplate.from_messages([("system", instruction), ("user", asked)])
    return SelectorPromptTemplate(PromptTemplate(f"{instruction}\n\n{asked}"), [(is_chat_model, chat)])


def _awaits(llm: LLM, streaming: bool) -> bool:
    """Whether a model has its own async versions of the calls that a synthesizer makes."""
    call = "chat" if llm.metadata.is_chat_model else "complete"
    return awaits(llm, f"a{call}") and (not streaming or awaits(llm, f"astream_{call}"))


def _missing(sources: CitedNodes, nodes: Sequence[NodeWithScore]) -> dict[str, list[str]]:
    """The failures of the search, and the ids of the nodes that the model did not read, or not in full."""
    told = [*getattr(nodes, "degraded", ()), *(one for node in nodes for one in degraded_in(provenance(node) or {}))]
    missing = {"degraded": list(dict.fromkeys(told)), "over_budget": list(sources.context.over_budget)}
    return {name: found for name, found in missing.items() if found}


def _saying(text: str, response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """A response of the same type with another answer."""
    if isinstance(response, AsyncStreamingResponse):
        return replace(response, response_gen=_aiter(text))
    said: Any = (piece for piece in (text,)) if isinstance(response, StreamingResponse) else text
    return replace(response, **{fields(response)[0].name: said})


async def _aiter(text: str) -> AsyncGenerator[str, None]:
    yield text


def _awaitable(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """The response, with a stream read in worker threads where it has one."""
    if not isinstance(response, StreamingResponse):
        return response
    return AsyncStreamingResponse(_pulled(response.response_gen), response.source_nodes, response.metadata)


async def _pulled(pieces: Iterator[str]) -> AsyncGenerator[str, None]:
    while (piece := await aexecute(in_thread("stream", partial(next, pieces, None)))) is not None:
        yield piece

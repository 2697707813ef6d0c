"""Nodes as citable sources, and the resolution of an answer's citations to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.chat_engine.types import (
    AGENT_CHAT_RESPONSE_TYPE,
    AgentChatResponse,
    StreamingAgentChatResponse,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.answers import ContextBuilder, ResolvedAnswer, header
from voicevault_retrievers.answers import resolve_citations as markers_of
from voicevault_retrievers.answers.citations import citation_of, is_numbered, numbered_header, without_headers
from voicevault_retrievers.answers.source_numbers import CITATION
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.types import Citation, Context, Hit
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.convert import (
    NodeWithProvenance,
    chunk_of,
    explained,
    hit_of,
    node_of,
    passages_of,
    provenance,
)
from voicevault_retrievers.llama_index.options import CheckedPostprocessor, CountTokens
from voicevault_retrievers.text.tokens import estimate_tokens

_FIELDS = [field.name for field in fields(Citation)]
_RESPONSES = (
    Response,
    StreamingResponse,
    AsyncStreamingResponse,
    PydanticResponse,
    AgentChatResponse,
    StreamingAgentChatResponse,
)

dispatcher = get_dispatcher(__name__)


@dataclass(frozen=True)
class CitedNodes:
    """The context that a model reads; copies of the nodes, best first; and the blocks, in the order of the text.

    All copies carry their citation in their provenance. The copies of nodes are otherwise unchanged. The copies for
    blocks have the block as their text, and models see nothing else of them.
    """

    context: Context
    nodes: tuple[NodeWithProvenance, ...]
    blocks: tuple[NodeWithProvenance, ...]


class CitationPostprocessor(CheckedPostprocessor):
    """Makes each node's text a numbered source that an answer can cite, for any response synthesizer.

    The text becomes a block as in `context.ContextBuilder`: `[1] [Source: report.pdf, p.3 | Section: Results]`,
    newline, the text, in which nothing else reads as a source. A node's number is its rank, also where `reorder` puts
    the best at both ends; numbers that the budget leaves out are missing. The nodes are copies with the same ids,
    metadata, offsets and scores. Their provenance has the citation under `citation`, which `citations_of` and
    `resolve_citations` read. Put this postprocessor last. `instruction` tells a model how to cite, and `cite_prompts`
    are prompts that contain it.
    """

    markers: Literal["numbered", "source"] = Field(
        default="numbered", description="Whether answers cite [n], or [Source: file, p.N]."
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Bounds all texts together; None does not.")
    max_chars: int | None = Field(default=None, ge=1, description="Bounds all texts together; None does not.")
    reorder: bool = Field(default=False, description="Whether to put the best at both ends of the list.")
    count_tokens: CountTokens | None = Field(
        default=None, exclude=True, description="The model's tokens in a text; None estimates."
    )
    metadata_mode: MetadataMode = Field(
        default=MetadataMode.NONE, description="Which metadata stand in the block, above the text."
    )
    page_key: str | None = Field(default=None, description="The metadata key of the page, or a dotted path.")
    source_key: str | None = Field(default=None, description="The metadata key of the file, or a dotted path.")
    paths: bool = Field(default=False, description="Whether to show a file's path instead of its name.")

    @classmethod
    def class_name(cls) -> str:
        return "CitationPostprocessor"

    @property
    def instruction(self) -> str:
        """The instruction that tells a model to cite the sources in its answer."""
        return self._builder().instruction

    def _builder(self) -> ContextBuilder:
        return ContextBuilder(
            self.max_tokens,
            self.max_chars,
            markers=self.markers,
            count_tokens=self.count_tokens or estimate_tokens,
            reorder=self.reorder,
            page_key=self.page_key,
            source_key=self.source_key,
            paths=self.paths,
        )

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return list(sources_of(nodes, self._builder(), self.metadata_mode).blocks)

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        """Number the nodes in a worker thread: counting tokens may ask a server."""
        return await aexecute(in_thread(self.class_name(), partial(self._postprocess_nodes, nodes)))


def check_unnumbered(retriever: BaseRetriever, postprocessors: Sequence[BaseNodePostprocessor]) -> None:
    """Raise ConfigError where a CitationPostprocessor feeds a component that numbers nodes itself."""
    parts = (*getattr(retriever, "node_postprocessors", ()), *postprocessors)
    if any(isinstance(part, CitationPostprocessor) for part in parts):
        raise ConfigError(
            "CitedQueryEngine and RetrievalTool number the sources themselves: leave out the CitationPostprocessor"
        )


def sources_of(
    nodes: Sequence[NodeWithScore], builder: ContextBuilder, metadata_mode: MetadataMode = MetadataMode.NONE
) -> CitedNodes:
    """The nodes, best first, as numbered sources; the number is the rank, and each passage of a group has its own."""
    nodes = passages_of(nodes)
    hits = [source_hit(node, metadata_mode) for node in nodes]
    context = builder.build(hits, numbers=range(1, len(hits) + 1))
    numbered = builder.markers == "numbered"
    cited = {one.index: cited_node(nodes[one.index - 1], one, numbered) for one in context.citations}
    blocks = (cited_node(nodes[one.index - 1], one, numbered, _block(one, numbered)) for one in context.citations)
    return CitedNodes(context, tuple(cited[number] for number in sorted(cited)), tuple(blocks))


def source_hit(node: NodeWithScore, metadata_mode: MetadataMode = MetadataMode.NONE) -> Hit:
    """A node's hit, with its offsets under the keys that citations read and the metadata that its text shows."""
    hit = hit_of(node)
    offsets = {key: getattr(node.node, f"{key}_char_idx", None) for key in ("start", "end")}
    known = {key: offset for key, offset in offsets.items() if offset is not None}
    chunk = replace(hit.chunk, metadata={**hit.chunk.metadata, **known})
    shown = metadata_mode is not MetadataMode.NONE and (hit.context is not None or not hit.over_budget)
    return replace(hit, chunk=chunk, context=node.node.get_content(metadata_mode) if shown else hit.context)


def cited_node(node: NodeWithScore, citation: Citation, numbered: bool, block: str | None = None) -> NodeWithProvenance:
    """A copy of a node with its citation in the provenance; with a `block`, models see the block alone."""
    told = copy.deepcopy(provenance(node) or {})
    told[CITATION] = {**asdict(citation), "numbered": numbered}
    chunk = chunk_of(node.node)
    twin = node_of(chunk, block)
    if block is not None:
        told.setdefault("text", chunk.text)
        twin.excluded_llm_metadata_keys = list(twin.metadata)
    return explained(twin, node.score, told)


def citations_of(nodes: Sequence[NodeWithScore]) -> tuple[Citation, ...]:
    """The citations that `CitationPostprocessor` gave to sources; of other nodes new citations, numbered by place."""
    own = [_told(node) for node in nodes]
    if all(own):
        return tuple(Citation(**{name: told[name] for name in _FIELDS}) for told in own)
    hits = [source_hit(node) for node in passages_of(nodes)]
    read = (numbered for numbered in enumerate(hits, 1) if numbered[1].text or not numbered[1].over_budget)
    return tuple(citation_of(number, hit, hit.text) for number, hit in read)


def resolve_citations(
    answer: str | RESPONSE_TYPE | AGENT_CHAT_RESPONSE_TYPE,
    sources: Context | Sequence[NodeWithScore] | Sequence[Citation] | None = None,
    *,
    numbered: bool | None = None,
) -> ResolvedAnswer:
    """Return an answer's citation markers with the sources that they name; a marker that names none is unresolved.

    `answer` is a text, or the response of a query or chat engine. `sources` are by default the response's own: the
    context that its model read, or its source nodes. Markers are those of `context.resolve_citations`. `numbered` says
    whether `[n]` is a marker; by default it is, except for a context or nodes made with the other markers. Raises
    ConfigError for a text without sources, for answers and sources of other types, and for an unread stream of an async
    query or of a chat.
    """
    given = _sources(answer) if sources is None else sources
    citations, default = _citations(given)
    return markers_of(_text(answer), citations, numbered=default if numbered is None else numbered)


def _block(citation: Citation, numbered: bool) -> str:
    head = numbered_header(citation) if numbered else header(citation)
    return f"{head}\n{without_headers(without_controls(citation.text), numbered=numbered)}"


def _told(node: NodeWithScore) -> Mapping[str, Any]:
    """The citation in a node's provenance; empty where there is none, or not this package's."""
    told = (provenance(node) or {}).get(CITATION)
    return told if isinstance(told, Mapping) and told.keys() >= set(_FIELDS) else {}


def _sources(answer: str | RESPONSE_TYPE | AGENT_CHAT_RESPONSE_TYPE) -> Context | Sequence[NodeWithScore]:
    if not isinstance(answer, _RESPONSES):
        raise ConfigError(f"a {type(answer).__name__} has no sources of its own: give resolve_citations(text, sources)")
    context = getattr(answer, "context", None)
    return context if isinstance(context, Context) else answer.source_nodes


def _citations(sources: Context | Sequence[Any]) -> tuple[tuple[Citation, ...], bool]:
    """The citations, and whether their markers are numbers."""
    if isinstance(sources, Context):
        return sources.citations, is_numbered(sources)
    if all(isinstance(source, NodeWithScore) for source in sources):
        return citations_of(sources), all(_told(node).get("numbered", True) for node in sources)
    if all(isinstance(source, Citation) for source in sources):
        return tuple(sources), True
    raise ConfigError(f"sources are a Context, nodes with scores, or citations, not {sources!r:.200}")


def _text(answer: str | RESPONSE_TYPE | AGENT_CHAT_RESPONSE_TYPE) -> str:
    if isinstance(answer, AsyncStreamingResponse):
        if answer.response_txt is None:
            raise ConfigError("an async stream is read before it is checked: await response.get_response()")
        return answer.response_txt
    if isinstance(answer, StreamingAgentChatResponse) and not answer.response:
        raise ConfigError("the stream of a chat is read before it is checked: by its response_gen, to the end")
    if isinstance(answer, StreamingResponse):
        return answer.get_response().response or ""
    if isinstance(answer, Response | AgentChatResponse | StreamingAgentChatResponse):
        return answer.response or ""
    if isinstance(answer, PydanticResponse):
        return str(answer)
    if not isinstance(answer, str):
        raise ConfigError(f"an answer is a text, or the response of an engine, not a {type(answer).__name__}")
    return answer

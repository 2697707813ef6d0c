"""LlamaIndex responses with checked citations."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.schema import NodeWithScore
from llama_index.core.types import TokenAsyncGen, TokenGen
from llama_index.core.utils import truncate_text

from voicevault_retrievers.answers import Marker, ResolvedAnswer, header, resolve_citations
from voicevault_retrievers.answers.citations import is_numbered, numbered_header
from voicevault_retrievers.core.types import Citation, Context
from voicevault_retrievers.errors import ConfigError


class Cited:
    """An answer that is checked against `context`, which its model read.

    A citation has the node's id as its `chunk_id`, file and page, offsets, and the text that the model read. Of a
    stream, the part that has been read is checked.
    """

    context: Context

    @property
    def said(self) -> str:
        """The answer's text; of a stream, the part that has been read."""
        raise NotImplementedError

    @property
    def resolved(self) -> ResolvedAnswer:
        """The answer's markers with the sources that they name."""
        return resolve_citations(self.said, self.context.citations, numbered=is_numbered(self.context))

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the answer names, each once, in order of first mention."""
        return self.resolved.citations

    @property
    def unresolved(self) -> tuple[Marker, ...]:
        """The markers that name no source, which the model invented."""
        return self.resolved.unresolved

    def get_formatted_sources(self, length: int = 100, trim_text: int = True) -> str:
        """The sources that the model read, by number: marker, node id, and text, truncated by default."""
        head = numbered_header if is_numbered(self.context) else header
        return "\n\n".join(
            f"> {head(one)} (Node id: {one.chunk_id}): {truncate_text(one.text, length) if trim_text else one.text}"
            for one in sorted(self.context.citations, key=lambda one: one.index)
        )


@dataclass
class CitedResponse(Cited, Response):
    """An answer with its sources. `source_nodes` are the nodes that the model read, best first, as they were found."""

    context: Context = field(default_factory=Context)

    @property
    def said(self) -> str:
        return self.response or ""


@dataclass
class CitedPydanticResponse(Cited, PydanticResponse):
    """A structured answer with its sources; its JSON is checked."""

    context: Context = field(default_factory=Context)

    @property
    def said(self) -> str:
        return str(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for these before `response` is set
            raise AttributeError(name)
        return super().__getattr__(name)

    def get_response(self) -> CitedResponse:
        return CitedResponse(self.said, self.source_nodes, self.metadata, self.context)


@dataclass
class CitedStreamingResponse(Cited, StreamingResponse):
    """A streamed answer with its sources."""

    context: Context = field(default_factory=Context)

    def __post_init__(self) -> None:
        self._pieces: list[str] = []
        self.response_gen = self._kept(self.response_gen)

    @property
    def said(self) -> str:
        return "".join(self._pieces)

    def get_response(self) -> CitedResponse:
        for _ in self.response_gen:
            pass
        return CitedResponse(self.said, self.source_nodes, self.metadata, self.context)

    def __str__(self) -> str:
        return str(self.get_response())

    def _kept(self, pieces: Iterable[str]) -> TokenGen:
        for piece in pieces:
            self._pieces.append(piece)
            yield piece
        self.response_txt = self.said


@dataclass
class CitedAsyncStreamingResponse(Cited, AsyncStreamingResponse):
    """A streamed answer with its sources, for `async for`."""

    context: Context = field(default_factory=Context)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pieces: list[str] = []
        self.response_gen = self._kept(self.response_gen)

    @property
    def said(self) -> str:
        return "".join(self._pieces)

    async def get_response(self) -> CitedResponse:
        async for _ in self._yield_response():
            pass
        return CitedResponse(self.said, self.source_nodes, self.metadata, self.context)

    async def _kept(self, pieces: AsyncIterable[str]) -> TokenAsyncGen:
        async for piece in pieces:
            self._pieces.append(piece)
            yield piece
        self.response_txt = self.said


CitedAnswer: TypeAlias = CitedResponse | CitedStreamingResponse | CitedAsyncStreamingResponse | CitedPydanticResponse

_OURS: tuple[tuple[type[Any], type[Any]], ...] = (
    (Response, CitedResponse),
    (StreamingResponse, CitedStreamingResponse),
    (AsyncStreamingResponse, CitedAsyncStreamingResponse),
    (PydanticResponse, CitedPydanticResponse),
)


def cited(
    response: RESPONSE_TYPE, context: Context, nodes: Sequence[NodeWithScore], metadata: dict[str, Any] | None
) -> CitedAnswer:
    """A response with checked citations, from its answer and these nodes. ConfigError for another type of response."""
    for theirs, ours in _OURS:
        if isinstance(response, theirs):
            answer = getattr(response, fields(theirs)[0].name)
            made: CitedAnswer = ours(answer, list(nodes), metadata, context=context)
            return made
    raise ConfigError(f"a response synthesizer gives a Response of LlamaIndex, not a {type(response).__name__}")

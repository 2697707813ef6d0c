"""The three tools of one client, over its offers only. A source keeps its number for a session."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

from mcp import types
from pydantic import BaseModel, ValidationError

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.citations import citation_of, shortened, without_headers
from voicevault_retrievers.answers.source_numbers import Layout, failures, kept_numbers
from voicevault_retrievers.answers.tool_input import check_where, invalid
from voicevault_retrievers.core.blocking import Blocked
from voicevault_retrievers.core.execution.plan import AsyncObserver
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.pages import file_key_of
from voicevault_retrievers.core.types import Chunk, Citation, Hit
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError, told, unknown
from voicevault_retrievers.mcp import schemas, texts
from voicevault_retrievers.mcp.bases import Library, in_thread
from voicevault_retrievers.mcp.configuration import Offer
from voicevault_retrievers.mcp.listing import BaseListing, listing
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.live_curation import always_blocked
from voicevault_retrievers.structure.parent_links import Kinship

KEPT = 1000
"""The most sources that a session remembers; numbers of older ones are not reused."""


class Session:
    """The sources that one client got since it connected."""

    def __init__(self) -> None:
        self._last = 0
        self._given: list[Citation] = []

    def found(self, hits: Sequence[Hit]) -> list[int]:
        """A number for each hit of a search: a source that was given before with the same text keeps its number."""
        return self._counted(kept_numbers(hits, self._given, self._last + 1))

    def read(self, hits: Sequence[Hit]) -> list[int]:
        """A number for each passage to read: a chunk keeps its last number, even with another text.

        A later search that finds the chunk with its own text uses that number too.
        """
        known = {(one.kb, one.chunk_id): one.index for one in self._given}
        fresh = iter(range(self._last + 1, self._last + 1 + len(hits)))
        numbers = self._counted([known.get((hit.chunk.kb, hit.id)) or next(fresh) for hit in hits])
        self.remember(citation_of(number, hit, hit.chunk.text) for number, hit in zip(numbers, hits, strict=True))
        return numbers

    def remember(self, citations: Iterable[Citation]) -> None:
        """Remember the given sources."""
        self._given = [*self._given, *(one for one in citations if one not in self._given)][-KEPT:]

    def source(self, number: int) -> Citation | None:
        """The source with a number; None where it is unknown or forgotten."""
        return next((one for one in self._given if one.index == number), None)

    def _counted(self, numbers: list[int]) -> list[int]:
        self._last = max([self._last, *numbers])
        return numbers


@dataclass(frozen=True)
class Passage:
    """Consecutive chunks of a document; `at` is the position of the requested one."""

    hits: tuple[Hit, ...]
    at: int = 0

    @property
    def ranks(self) -> list[int]:
        """The order in which chunks are kept within a budget: by distance from the requested one."""
        order = sorted(range(len(self.hits)), key=lambda place: (abs(place - self.at), place))
        return [order.index(place) for place in range(len(self.hits))]


def passage(base: KnowledgeBase | Engine | None, offer: Offer, chunk_id: str, neighbours: int) -> Passage | None:
    """A chunk with its parent's text, or with `neighbours` chunks on either side; None where it does not exist.

    Chunks that the offer does not permit, or that the base's owner has blocked, do not exist. An engine's collection
    has no neighbours.
    """
    hidden = always_blocked(base)
    found = {} if base is None else base.get([chunk_id])
    chunk = found.get(chunk_id)
    if base is None or chunk is None or not offer.passes(chunk.metadata) or hidden.has(chunk):
        return None
    parent = base.parents([chunk.parent_id]).get(chunk.parent_id) if chunk.parent_id else None
    if parent is not None and parent.text and offer.permits(parent.metadata) and not hidden.shows(parent):
        return Passage((_hit(Kinship().joined(chunk, parent), offer, parent.text),))
    around = _around(base, chunk, offer, neighbours, hidden) if isinstance(base, KnowledgeBase) else []
    chunks = around or [chunk]
    at = next(place for place, one in enumerate(chunks) if one.id == chunk.id)
    return Passage(tuple(_hit(one, offer) for one in chunks), at)


def _around(base: KnowledgeBase, chunk: Chunk, offer: Offer, neighbours: int, hidden: Blocked) -> Sequence[Chunk]:
    """The chunk with its permitted neighbours in the document, in order; empty where they have no order.

    Chunks that the offer does not permit, or that are blocked, have no influence, not even on whether the indexes give
    an order.
    """
    at, key = chunk.metadata.get("chunk_index"), file_key_of(chunk.metadata) or ""
    file = chunk.metadata.get(key)
    if not neighbours or not isinstance(file, str | int | float) or not isinstance(at, int) or isinstance(at, bool):
        return []
    beside: Filter = {key: file, "chunk_index": {"$gte": at - neighbours, "$lte": at + neighbours}}
    found = base.get(base.view().snapshot.matching(beside)).values()
    of_file = (one for one in found if one.metadata[key] == file)  # the filter passes lists that have it
    shown = (one for one in of_file if offer.passes(one.metadata) and not hidden.has(one))
    chunks = {chunk.id: chunk, **{one.id: one for one in shown}}
    if len({one.metadata["chunk_index"] for one in chunks.values()}) < len(chunks):  # indexes may restart on each page
        return []
    return sorted(chunks.values(), key=_place)


def _place(chunk: Chunk) -> tuple[int, str]:
    return chunk.metadata["chunk_index"], chunk.id


def _hit(chunk: Chunk, offer: Offer, context: str | None = None) -> Hit:
    return Hit(replace(chunk, kb=offer.name), context=context)


Answer: TypeAlias = "tuple[str, BaseModel]"

LONGEST = 4000
"""The most characters of a query."""

PAGE = 50
"""Documents per page of a listing."""

_LOG = logging.getLogger(__name__)
_HINTS = types.ToolAnnotations(readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=False)


class ToldError(Exception):
    """The message to a model for a call without a result."""


@dataclass(frozen=True)
class Tool:
    """A tool: its definition for clients, and its function."""

    title: str
    description: str
    arguments: type[BaseModel]
    gives: type[BaseModel]
    run: Callable[[Any, Session, AsyncObserver | None], Awaitable[Answer]]

    def definition(self, name: str) -> types.Tool:
        """The definition that clients get."""
        return types.Tool(
            name=name,
            title=self.title,
            description=self.description,
            inputSchema=schemas.schema_of(self.arguments),
            outputSchema=schemas.schema_of(self.gives, output=True),
            annotations=_HINTS.model_copy(update={"title": self.title}),
        )


class Tools:
    """The tools over one client's offers; `max_tokens` bounds the text of a result."""

    def __init__(self, offers: Sequence[Offer], library: Library, max_tokens: int) -> None:
        self._offers = {offer.name: offer for offer in offers}
        self._library = library
        self._layout = Layout(ContextBuilder(max_tokens=max_tokens, markers="numbered"))
        self._listings: dict[str, tuple[object, BaseListing]] = {}

    @cached_property
    def every(self) -> Mapping[str, Tool]:
        """The tools by name."""
        offers = tuple(self._offers.values())
        return {
            "search": Tool(
                "Search the documents", texts.SEARCH, schemas.search_arguments(offers), schemas.Sources,
                self._search,
            ),
            "get_context": Tool(
                "Read a source in full",
                texts.CONTEXT,
                schemas.context_arguments(offers),
                schemas.SourceText,
                self._read,
            ),
            "list_sources": Tool(
                "List the documents", texts.LIST, schemas.listing_arguments(offers), schemas.Documents, self._list
            ),
        }  # fmt: skip

    async def call(
        self, name: str, arguments: Mapping[str, Any], session: Session, observe: AsyncObserver | None = None
    ) -> types.CallToolResult:
        """Call a tool; a failure is a result too, with a message for the model."""
        try:
            text, data = await self._called(name, arguments, session, observe)
        except ToldError as error:
            return _result(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a base or a server raised
            _LOG.warning("%s failed: %s", name, told(error))
            return _result(f"{name} failed, so it gave nothing: {type(error).__name__}. It may work later.")
        return _result(text, data)

    async def _called(
        self, name: str, arguments: Mapping[str, Any], session: Session, observe: AsyncObserver | None
    ) -> Answer:
        tool = self.every.get(name)
        if tool is None:
            raise ToldError(str(unknown("tool", name[:100], self.every)))
        for key in arguments.keys() - tool.arguments.model_fields.keys():
            raise ToldError(str(unknown(f"argument of {name}", key[:100], tool.arguments.model_fields)))
        try:
            given = tool.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToldError(invalid(error)) from error
        return await tool.run(given, session, observe)

    async def _search(self, given: Any, session: Session, observe: AsyncObserver | None) -> Answer:
        offers = self._named(given.kb)
        if len(given.query) > LONGEST:
            raise ToldError(f"The query has {len(given.query)} characters, and {LONGEST} is the most: say it shorter.")
        try:
            check_where(given.where, None)
        except ConfigError as error:
            raise ToldError(str(error)) from error
        found = await self._library.search(offers, given.query, where=given.where, k=given.k, observe=observe)
        degraded = failures(found.degraded)
        text, citations = self._layout.listed(found.hits, session.found(found.hits), degraded=degraded)
        session.remember(citations)
        if not found.confident:
            text = f"None of these sources is likely to answer the question.\n{text}"
        confidence: Literal["ok", "none"] = "ok" if found.hits and found.confident else "none"
        return text, schemas.Sources(citations=_guarded(citations), degraded=list(degraded), confidence=confidence)

    async def _read(self, given: Any, session: Session, observe: AsyncObserver | None) -> Answer:
        offer, chunk_id = self._wanted(given, session)
        base = await in_thread("open", partial(self._library.base, offer))
        found = await in_thread("read", partial(passage, base, offer, chunk_id, given.neighbours))
        if found is None:
            raise ToldError(f"There is no {chunk_id[:100]!r} in knowledge base {offer.name!r}, or it is there no more.")
        numbers = session.read(found.hits)
        text, citations = self._layout.listed(found.hits, numbers, ranks=found.ranks)
        session.remember(citations)
        metadata = dict(found.hits[found.at].chunk.metadata)
        said = texts.metadata(numbers[found.at], metadata)
        kept = texts.bounded(metadata)
        data = schemas.SourceText(
            citations=_guarded(citations), metadata=kept, metadata_complete=len(kept) == len(metadata)
        )
        return f"{text}\n\n{said}", data

    async def _list(self, given: Any, session: Session, observe: AsyncObserver | None) -> Answer:
        listings = [(offer, await in_thread("list", partial(self._listing, offer))) for offer in self._named(given.kb)]
        every = [
            schemas.DocumentInfo(kb=offer.name, **_shortened(asdict(document), "source_file"))
            for offer, one in listings
            for document in one.documents
        ]
        pages = max(1, -(-len(every) // PAGE))
        if given.page > pages:
            raise ToldError(f"The list has no page {given.page}: it ends with page {pages}.")
        data = schemas.Documents(
            bases=[
                schemas.BaseInfo(
                    kb=offer.name, description=offer.description, documents=len(one.documents), chunks=one.chunks,
                    keys=[replace(key, name=shortened(key.name)) for key in one.keys],
                )
                for offer, one in listings
            ],
            documents=every[(given.page - 1) * PAGE : given.page * PAGE],
            page=given.page,
            pages=pages,
        )  # fmt: skip
        return texts.listed(data), data

    def _named(self, kb: str | None) -> list[Offer]:
        """The offer of a name, or all offers without one; bases that are not offered are reported as unknown."""
        if kb is None:
            return list(self._offers.values())
        if kb not in self._offers:
            raise ToldError(str(unknown("knowledge base", kb[:100], self._offers)))
        return [self._offers[kb]]

    def _wanted(self, given: Any, session: Session) -> tuple[Offer, str]:
        """The base and the id of the requested source."""
        if given.number is None:
            offers = self._named(given.kb)
            if given.id is None or len(offers) > 1:
                raise ToldError("Give the number of a source of this session, or its `kb` and, as `id`, its chunk_id.")
            return offers[0], given.id
        source = session.source(given.number)
        if source is None:
            raise ToldError(
                f"No source of this session has the number {given.number}, or it was given too long ago: search again."
            )
        return self._offers[source.kb], source.chunk_id

    def _listing(self, offer: Offer) -> BaseListing:
        """The listing of a base, cached for its present commit and curation."""
        base = self._library.base(offer)
        state = (base.view().snapshot, base.curation) if isinstance(base, KnowledgeBase) else None
        known, found = self._listings.get(offer.name, (None, None))
        if found is None or state is None or known != state:
            hidden = always_blocked(base)
            found = listing(chunk for chunk in base or () if offer.passes(chunk.metadata) and not hidden.has(chunk))
            self._listings[offer.name] = state, found
        return found


def _result(text: str, data: BaseModel | None = None) -> types.CallToolResult:
    """A result; without data, an error message for the model."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=_sendable(text))],
        structuredContent=None if data is None else _plain(data),
        isError=data is None,
    )


def _plain(data: BaseModel) -> dict[str, Any]:
    """Data in a form that can be sent: one lone surrogate from a chunk would end the connection."""
    found: dict[str, Any] = json.loads(_sendable(json.dumps(data.model_dump(), ensure_ascii=False, default=str)))
    return found


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _guarded(citations: Iterable[Citation]) -> list[Citation]:
    """Citations with texts and names as in the answer: some clients show their models the data instead."""
    return [
        Citation(
            **_shortened(vars(one), "source_file", "page_number", "section")
            | {"text": without_headers(without_controls(one.text), numbered=True)}
        )
        for one in citations
    ]


def _shortened(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Fields, of which those of the given names are names of bounded length."""
    return {
        name: shortened(value) if name in names and isinstance(value, str) else value for name, value in fields.items()
    }

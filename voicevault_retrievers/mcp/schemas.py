"""The arguments and results of the tools: schemas that clients show to models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema, create_model
from pydantic.json_schema import GenerateJsonSchema

from voicevault_retrievers.answers.tool_input import search_input
from voicevault_retrievers.core.types import Citation
from voicevault_retrievers.mcp.configuration import Offer
from voicevault_retrievers.mcp.listing import Key

MOST = 50
"""The most sources of one search."""

MOST_NEIGHBOURS = 5
_K = f"How many sources, at most {MOST}; leave it out for the usual number."


class Sources(BaseModel):
    """Numbered sources. `text` is what stands under the number; `degraded` says what of the search failed."""

    citations: list[Citation]
    degraded: list[str]
    confidence: Literal["ok", "none"]


class SourceText(BaseModel):
    """A source in full: the citations of its passages in order, with the metadata of the one that was asked for.

    `metadata_complete` is false where metadata was too long, and some is left out.
    """

    citations: list[Citation]
    metadata: dict[str, Any]
    metadata_complete: bool


class BaseInfo(BaseModel):
    """A knowledge base: how much it holds, and by which metadata keys a search of it may be narrowed."""

    kb: str
    description: str
    documents: int
    chunks: int
    keys: list[Key]


class DocumentInfo(BaseModel):
    """A document of a base: its name, null for what is of no file, and how many chunks and pages with text it has."""

    kb: str
    source_file: str | None
    chunks: int
    pages: int


class Documents(BaseModel):
    """One page of the documents of all bases that were asked for, in order of base and name."""

    bases: list[BaseInfo]
    documents: list[DocumentInfo]
    page: int
    pages: int


def search_arguments(offers: Sequence[Offer]) -> type[BaseModel]:
    """The arguments of `search`."""
    return create_model(
        "SearchArguments",
        __base__=search_input("any"),
        kb=_named(offers, _which(offers)),
        k=_whole(_K, least=1, most=MOST),
    )


def context_arguments(offers: Sequence[Offer]) -> type[BaseModel]:
    """The arguments of `get_context`: a number, or a base and an id."""
    beside = "How many passages before and after it, where it is no part of a larger one."
    return create_model(
        "ContextArguments",
        number=_whole("The number of a source of this session, as [n] names it.", least=1, most=None),
        kb=_named(offers, "The knowledge base of `id`, where there is no number."),
        id=_text("The chunk_id of a citation, where there is no number."),
        neighbours=(Annotated[int, Field(ge=0, le=MOST_NEIGHBOURS, description=beside)], 1),
    )


def listing_arguments(offers: Sequence[Offer]) -> type[BaseModel]:
    """The arguments of `list_sources`."""
    page = "Which page of the list, from 1."
    return create_model(
        "ListingArguments", kb=_named(offers, _which(offers)), page=(Annotated[int, Field(ge=1, description=page)], 1)
    )


def schema_of(model: type[BaseModel], *, output: bool = False) -> dict[str, Any]:
    """The JSON schema of arguments or of an answer."""
    return model.model_json_schema(schema_generator=_Untitled, mode="serialization" if output else "validation")


class _Untitled(GenerateJsonSchema):
    """Schemas without titles that repeat the names, as models read schemas and pay by the token."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _which(offers: Sequence[Offer]) -> str:
    described = "; ".join(f"{offer.name}: {offer.description}" for offer in offers if offer.description)
    return f"Which knowledge base; leave it out for all of them.{described and f' {described}.'}"


def _named(offers: Sequence[Offer], description: str) -> Any:
    """An optional name of a base; only the schema enumerates the names, so that the tool itself reports a wrong one."""
    return _optional(str, {"type": "string", "enum": [offer.name for offer in offers], "description": description})


def _text(description: str) -> Any:
    return _optional(str, {"type": "string", "description": description})


def _whole(description: str, *, least: int, most: int | None) -> Any:
    bounds = {"minimum": least} | ({} if most is None else {"maximum": most})
    kind = Annotated[int, Field(ge=least, le=most)]
    return _optional(kind, {"type": "integer", **bounds, "description": description})


def _optional(kind: Any, schema: dict[str, Any]) -> Any:
    """An optional value; null means the same as leaving it out, and the schema does not mention it."""
    return (Annotated[kind | None, WithJsonSchema(schema)], Field(default_factory=lambda: None))

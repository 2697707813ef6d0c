"""Requests, validated before anything else is done, and answers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.inspector.judgments import Judgment

BODY, QUERY, NAME, MOST_HITS, MOST_BASES = 64 * 1024, 4000, 4096, 100, 32
"""The most bytes of a body, characters of a query and of a name; the most hits and bases of a search."""

K = 10


@dataclass(frozen=True)
class SearchRequest:
    """A search request: the query, the names of bases and preset, and the number of hits."""

    query: Query
    kb: tuple[str, ...]
    preset: str
    k: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> SearchRequest:
        """The search in a request's body; ConfigError for missing, mistyped or too large values."""
        kb, k, where = data.get("kb"), data.get("k", K), data.get("where")
        if not isinstance(kb, list) or not 0 < len(kb) <= MOST_BASES:
            raise ConfigError(f"kb is a list of the names of knowledge bases, 1 to {MOST_BASES}, not {_shown(kb)}")
        if isinstance(k, bool) or not isinstance(k, int) or not 0 < k <= MOST_HITS:
            raise ConfigError(f"k is a whole number from 1 to {MOST_HITS}, not {_shown(k)}")
        names = tuple(dict.fromkeys(text("kb", name) for name in kb))
        return cls(Query(_query(data), where=where), names, text("preset", data.get("preset")), k)


def judgment_of(data: Mapping[str, Any]) -> Judgment:
    """The judgement in a request's body; ConfigError as of `SearchRequest.of`."""
    if "grade" not in data:
        raise ConfigError("a judgement has a grade: 1, 0, or null to take it back")
    return Judgment(_query(data), text("kb", data.get("kb")), text("id", data.get("id")), data["grade"])


def text(name: str, value: Any, longest: int = NAME) -> str:
    """A non-empty text, without lone surrogates; ConfigError for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is a text that is not empty, not {_shown(value)}")
    if len(value) > longest:
        raise ConfigError(f"{name} has {len(value)} characters, more than {longest}")
    return encodable(value)


async def body_of(request: Request) -> Mapping[str, Any]:
    """The object in a request's body. HTTPException for another type (415) or a long body (413), else ConfigError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body is JSON: say Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY:
            raise HTTPException(413, f"the body has more than {BODY} bytes")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is not JSON: {type(error).__name__}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"the body is an object of JSON, not {_shown(data)}")
    return data


def _query(data: Mapping[str, Any]) -> str:
    return text("query", data.get("query"), QUERY).strip()


def _shown(value: Any) -> str:
    return repr(value)[:100]


def as_json(data: Any, status: int = 200) -> Response:
    """Data as ASCII JSON without `<`, so that it has no tags even if it is read as HTML."""
    content = json.dumps(data, allow_nan=False, default=str).replace("<", "\\u003c")
    return Response(content, status, media_type="application/json")


def refused(status: int, message: str) -> Response:
    """An error in the form that the page reads."""
    return as_json({"error": message}, status)

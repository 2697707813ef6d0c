"""The page and its API as a Starlette application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from voicevault_retrievers._support.hosts import LOOPBACK
from voicevault_retrievers.core.execution.steps import in_thread
from voicevault_retrievers.errors import (
    ConfigError,
    DocumentError,
    RetrievalError,
    SearchNotAvailableError,
    SearchTimeoutError,
)
from voicevault_retrievers.inspector.guard import Guard
from voicevault_retrievers.inspector.inspection import Inspection, NotFoundError
from voicevault_retrievers.inspector.judgments import Judgments
from voicevault_retrievers.inspector.pages import Pages
from voicevault_retrievers.inspector.registry import Given, Shelf
from voicevault_retrievers.inspector.requests import SearchRequest, as_json, body_of, judgment_of, refused, text
from voicevault_retrievers.store import default_root

STATIC = Path(__file__).parent / "static"
TOKEN_LENGTH = 16
"""The fewest characters of a token, as nothing limits the rate of guesses."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STATUS: Mapping[type[RetrievalError], int] = {
    ConfigError: 400,
    DocumentError: 404,
    NotFoundError: 404,
    SearchTimeoutError: 504,
    SearchNotAvailableError: 503,
}
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def app(
    bases: Iterable[Given] | None = None,
    *,
    root: Path | str | None = None,
    presets: Sequence[str] = (),
    documents: Iterable[Path | str] = (),
    judgments: Path | str | None = None,
    token: str | None = None,
    hosts: Collection[str] = LOOPBACK,
) -> Starlette:
    """The page and its API as an application; see `Shelf` for bases and presets, `Guard` for token and hosts.

    `documents` are folders to search for PDFs, besides the paths that bases record. `judgments` is the file of
    judgements, by default `judgments.jsonl` beside the folder of bases. Raises ConfigError for unknown names, and for a
    token that is too short.
    """
    if token is not None and len(token) < TOKEN_LENGTH:
        raise ConfigError(f"a token has at least {TOKEN_LENGTH} characters, so that nobody guesses it")
    kept = Judgments(judgments or Path(root or default_root()).parent / "judgments.jsonl")
    shelf = Shelf(bases, root=root, presets=presets)
    api = Api(Inspection(shelf, Pages(documents), kept))
    return Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", page),
            Route("/api/bases", answering(api.bases)),
            Route("/api/search", answering(api.search), methods=["POST"]),
            Route("/api/chunk", answering(api.chunk)),
            Route("/api/page", answering(api.page)),
            Route("/api/judgments", answering(api.judgments), methods=["GET"]),
            Route("/api/judgments", answering(api.judge), methods=["PUT"]),
            Route("/api/judgments/export", answering(api.export)),
        ],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={HTTPException: _http_error},
        lifespan=partial(_closing, shelf),
    )


class Api:
    """The endpoints of the API: the results of an `Inspection`, computed in worker threads."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection

    async def bases(self, request: Request) -> Response:
        return await _json(self._inspection.bases)

    async def search(self, request: Request) -> Response:
        return await _json(self._inspection.search, SearchRequest.of(await body_of(request)))

    async def chunk(self, request: Request) -> Response:
        return await _json(self._inspection.chunk, _given(request, "kb"), _given(request, "id"))

    async def page(self, request: Request) -> Response:
        image = await _off_loop(self._inspection.page, _given(request, "kb"), _given(request, "id"))
        return Response(image, media_type="image/png")

    async def judgments(self, request: Request) -> Response:
        return await _json(self._inspection.judged, *(request.query_params.get(name) for name in ("query", "kb")))

    async def judge(self, request: Request) -> Response:
        return await _json(self._inspection.judge, judgment_of(await body_of(request)))

    async def export(self, request: Request) -> Response:
        export = await _off_loop(self._inspection.export, _given(request, "kb"), _given(request, "part"))
        named = {"Content-Disposition": f'attachment; filename="{export.name}"'}
        return Response(export.content, media_type=export.kind, headers=named)


@asynccontextmanager
async def _closing(shelf: Shelf, _: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        shelf.close()


def page(request: Request) -> Response:
    """The page, or one of its static files."""
    name = request.path_params.get("name", "index.html")
    files = {path.name: path for path in STATIC.iterdir()}  # a name is looked up, and never becomes a path
    kind = _TYPES.get(Path(name).suffix)
    if name not in files or kind is None:
        raise HTTPException(404, f"there is no file {name[:100]!r}")
    return Response(files[name].read_bytes(), media_type=kind)


def answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with this package's errors as answers."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RetrievalError as error:
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
            return refused(status, str(error))

    return answered


async def _http_error(_: Request, error: Any) -> Response:
    said = refused(error.status_code, error.detail)
    said.headers.update(error.headers or {})
    return said


async def _json(function: Callable[..., Any], *given: Any) -> Response:
    answer: Response = await _off_loop(lambda: as_json(function(*given)))
    return answer


async def _off_loop(function: Callable[..., Any], *given: Any) -> Any:
    return await in_thread(partial(function, *given))


def _given(request: Request, name: str) -> str:
    return text(name, request.query_params.get(name))

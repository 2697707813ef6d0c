"""The server over streamable HTTP: each client has its own server, chosen by its token."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hmac import compare_digest

import uvicorn
from mcp import types
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    RequestBodyLimitMiddleware,
    StreamableHTTPSessionManager,
)
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voicevault_retrievers._support.hosts import LOOPBACK, in_url, is_loopback
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.mcp.bases import Library
from voicevault_retrievers.mcp.configuration import Client, Configuration
from voicevault_retrievers.mcp.server import server_for

PATH = "/mcp"
IDLE, SESSIONS = 1800, 1000
"""Seconds after which an idle session ends, and the most sessions of a client, as each keeps its sources.

Where there are so many, a new one ends the session that was idle for longest.
"""

DEEPEST = 100
"""The most levels of objects and arrays in a message."""

_CLOSING = 2
"""Seconds for open streams to end at shutdown."""

_OK, _GONE = 200, 404
_SESSION = MCP_SESSION_ID_HEADER.encode()


def application(configuration: Configuration, host: str = "127.0.0.1") -> Starlette:
    """The ASGI application, for a server that listens on `host`.

    Raises ConfigError for a host that others can reach where clients have no tokens, for an unspecified address without
    configured `hosts`, and what opening the bases raises.
    """
    names = _names(configuration, host)
    security = TransportSecuritySettings(
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[
            f"{scheme}://{form}" for scheme in ("http", "https") for name in names for form in (name, f"{name}:*")
        ],
    )
    library = Library()
    for client in configuration.clients:
        library.open(client.offers)
    managers = [
        StreamableHTTPSessionManager(
            server_for(client, library, configuration.max_tokens),
            security_settings=security,
            session_idle_timeout=IDLE,
            max_sessions=SESSIONS,
        )
        for client in configuration.clients
    ]
    doors = [
        (client, _checked(_Door(manager, SESSIONS)))
        for client, manager in zip(configuration.clients, managers, strict=True)
    ]

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for manager in managers:
                await stack.enter_async_context(manager.run())
            yield

    return Starlette(routes=[Route(PATH, _Hall(doors))], lifespan=running)


def serve_http(
    configuration: Configuration,
    host: str = "127.0.0.1",
    port: int = 8461,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve until interrupted; `ready` receives the address. Port 0 takes a free port.

    Raises ConfigError as `application` does, OSError where the address is not available.
    """
    served = application(configuration, host)
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        address = f"http://{in_url(host)}:{listening.getsockname()[1]}{PATH}"
        config = uvicorn.Config(
            served, log_config=None, access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=_CLOSING,
        )  # fmt: skip
        _Server(config, partial(ready or str, address)).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that calls `ready` once it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class _Hall:
    """Routes each request to the server of the client that its token identifies."""

    def __init__(self, doors: Sequence[tuple[Client, ASGIApp]]) -> None:
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        token = given.strip() if scheme.lower() == "bearer" else ""
        found = None
        for client, door in self._doors:  # checks all, so that the duration reveals nothing
            if client.token is None or compare_digest(token.encode(), client.token.encode()):
                found = door
        if found is None:
            refused = PlainTextResponse(
                "a token is needed: Authorization: Bearer ...\n", 401, {"WWW-Authenticate": "Bearer"}
            )
            await refused(scope, receive, send)
        else:
            await found(scope, receive, send)


class _Door:
    """The requests to one client's sessions; a new session ends the idle ones for which there is no room."""

    def __init__(self, manager: StreamableHTTPSessionManager, most: int) -> None:
        self._manager = manager
        self._most = most
        self._beginning = 0
        self._running: dict[str, int] = {}  # requests in flight by session, the session last used at the end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = Headers(scope=scope).get(MCP_SESSION_ID_HEADER)
        if session is None:
            await self._begin(scope, receive, send)
        elif session not in self._running:
            await self._manager.handle_request(scope, receive, send)
        else:
            self._use(session, 1)
            try:
                status, _ = await self._handle(scope, receive, send)
                if status == _GONE or (scope["method"] == "DELETE" and status == _OK):
                    self._running.pop(session, None)
            finally:
                self._use(session, -1)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._beginning += 1
        try:
            await self._make_room(scope)
            status, session = await self._handle(scope, receive, send)
            if status == _OK and session is not None:
                self._running[session] = 0
        finally:
            self._beginning -= 1

    async def _make_room(self, scope: Scope) -> None:
        while len(self._running) + self._beginning > self._most:
            idle = next((session for session, requests in self._running.items() if not requests), None)
            if idle is None:
                return
            del self._running[idle]
            headers = [(name, value) for name, value in scope["headers"] if name in (b"host", b"origin")]
            ending = {**scope, "method": "DELETE", "headers": [*headers, (_SESSION, idle.encode())]}
            await self._manager.handle_request(ending, _nothing, _unsent)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> tuple[int | None, str | None]:
        """Answer a request; returns the status of the answer, and the session that it names."""
        status: int | None = None
        session: str | None = None

        async def sent(message: Message) -> None:
            nonlocal status, session
            if message["type"] == "http.response.start":
                status, session = message["status"], Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
            await send(message)

        await self._manager.handle_request(scope, receive, sent)
        return status, session

    def _use(self, session: str, requests: int) -> None:
        if session in self._running:
            self._running[session] = self._running.pop(session) + requests


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unsent(_: Message) -> None:
    return None


def _checked(app: ASGIApp) -> ASGIApp:
    """The application, where a body that is no JSON, or is nested deeper than DEEPEST, is answered by 400."""

    async def checking(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body() if scope["method"] == "POST" else b""
        wrong = _wrong(body) if body else None
        if wrong is not None:
            error = types.JSONRPCError(
                jsonrpc="2.0", id="server-error", error=types.ErrorData(code=types.PARSE_ERROR, message=wrong)
            )
            await JSONResponse(error.model_dump(exclude_none=True), 400)(scope, receive, send)
            return
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return left.pop() if left else await receive()

        await app(scope, replayed if scope["method"] == "POST" else receive, send)

    return RequestBodyLimitMiddleware(checking, DEFAULT_MAX_REQUEST_BODY_SIZE)


def _wrong(body: bytes) -> str | None:
    """What is wrong with the body of a message; None for JSON that is not too deep."""
    try:
        level = [json.loads(body)]
    except ValueError:
        return "Parse error: this is not JSON"
    except RecursionError:
        level, depth = [], DEEPEST + 1
    else:
        depth = 0
    while level and depth <= DEEPEST:
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [below for one in inner for below in (one.values() if isinstance(one, dict) else one)]
        depth += bool(inner)
    return f"Parse error: the message is nested deeper than {DEEPEST} levels" if depth > DEEPEST else None


def _names(configuration: Configuration, host: str) -> list[str]:
    """The host names, without a port, that requests may use."""
    if not is_loopback(host):
        if not configuration.guarded:
            raise ConfigError(
                f"whoever reaches {host} could read the documents: listen on 127.0.0.1, or give --config FILE with "
                "clients and their tokens"
            )
        if host in ("", "0.0.0.0", "::") and not configuration.hosts:  # noqa: S104 - refused
            raise ConfigError(
                f"{host} is every address of this machine: say in the configuration by which `hosts` it is called"
            )
    return list(dict.fromkeys((*LOOPBACK, in_url(host), *configuration.hosts)))

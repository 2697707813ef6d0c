"""The server over streamable HTTP: each client has its own server, chosen by its token."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hmac import compare_digest

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from voicevault_retrievers._support.hosts import LOOPBACK, in_url, is_loopback
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.mcp.bases import Library
from voicevault_retrievers.mcp.configuration import Client, Configuration
from voicevault_retrievers.mcp.server import server_for

PATH = "/mcp"
IDLE, SESSIONS = 1800, 1000
"""Seconds after which an idle session ends, and the most sessions of a client, as each keeps its sources."""

_CLOSING = 2
"""Seconds for open streams to end at shutdown."""


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
    doors = [
        (
            client,
            StreamableHTTPSessionManager(
                server_for(client, library, configuration.max_tokens),
                security_settings=security,
                session_idle_timeout=IDLE,
                max_sessions=SESSIONS,
            ),
        )
        for client in configuration.clients
    ]

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for door in doors:
                await stack.enter_async_context(door[1].run())
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

    def __init__(self, doors: Sequence[tuple[Client, StreamableHTTPSessionManager]]) -> None:
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        token = given.strip() if scheme.lower() == "bearer" else ""
        found = None
        for client, manager in self._doors:  # checks all, so that the duration reveals nothing
            if client.token is None or compare_digest(token.encode(), client.token.encode()):
                found = manager
        if found is None:
            refused = PlainTextResponse(
                "a token is needed: Authorization: Bearer ...\n", 401, {"WWW-Authenticate": "Bearer"}
            )
            await refused(scope, receive, send)
        else:
            await found.handle_request(scope, receive, send)


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

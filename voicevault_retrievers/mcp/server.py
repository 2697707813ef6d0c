"""The server of one client: the SDK's server, with tools over the client's offers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from itertools import count
from typing import Any, TextIO

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from voicevault_retrievers._support.extras import DISTRIBUTION
from voicevault_retrievers.core.execution.plan import AsyncObserver, Span
from voicevault_retrievers.mcp.bases import Library
from voicevault_retrievers.mcp.configuration import Client, Configuration
from voicevault_retrievers.mcp.texts import instructions
from voicevault_retrievers.mcp.tools import Session, Tools


def server_for(client: Client, library: Library, max_tokens: int) -> Server[Session]:
    """A server with the tools of one client; each of its sessions has its own source numbers."""
    tools = Tools(client.offers, library, max_tokens)
    told = instructions(client.offers)
    server: Server[Session] = Server("voicevault", version(DISTRIBUTION), told, lifespan=_session)

    async def listed(_: types.ListToolsRequest) -> types.ServerResult:
        return types.ServerResult(
            types.ListToolsResult(tools=[tool.definition(name) for name, tool in tools.every.items()])
        )

    async def called(request: types.CallToolRequest) -> types.ServerResult:
        context = server.request_context
        arguments = request.params.arguments or {}
        result = await tools.call(request.params.name, arguments, context.lifespan_context, _progress(context))
        return types.ServerResult(result)

    server.request_handlers[types.ListToolsRequest] = listed
    server.request_handlers[types.CallToolRequest] = called
    return server


def serve_stdio(configuration: Configuration) -> None:
    """Serve the parent process, until it closes the standard input.

    Raises ConfigError for a configuration with clients, as stdio has no tokens; and what opening the bases raises.
    """
    library = Library()
    library.open(configuration.local.offers)
    anyio.run(_serve, server_for(configuration.local, library, configuration.max_tokens))


async def _serve(server: Server[Session]) -> None:
    with _protocol() as out:
        async with stdio_server(stdout=anyio.wrap_file(out)) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


@contextmanager
def _protocol() -> Iterator[TextIO]:
    """Reserve the standard output for protocol messages: anything else printed goes to the standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n") as out:
        os.dup2(2, 1)
        try:
            yield out
        finally:
            os.dup2(out.fileno(), 1)


@asynccontextmanager
async def _session(_: Server[Session]) -> AsyncIterator[Session]:
    """The state of a session, entered by the SDK once for each."""
    yield Session()


def _progress(context: Any) -> AsyncObserver | None:
    """An observer that reports the end of each part of a search, for a client that asked for progress."""
    token = None if context.meta is None else context.meta.progressToken
    if token is None:
        return None
    steps = count(1)

    async def told(span: Span, outcome: Any) -> None:
        if span.kind == "other":
            return
        said = f"{span.kind} {span.name}{' failed' if isinstance(outcome, Exception) else ''}"
        await context.session.send_progress_notification(
            token, next(steps), message=said, related_request_id=str(context.request_id)
        )

    return told

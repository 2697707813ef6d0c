"""The server: listening, and a quiet shutdown."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote

import uvicorn

from voicevault_retrievers._support.hosts import LOOPBACK, in_url, is_loopback
from voicevault_retrievers.inspector.guard import unspecified
from voicevault_retrievers.inspector.registry import Given
from voicevault_retrievers.inspector.web import app

PORT = 8460

_OPTIONS: dict[str, Any] = {
    "access_log": False,
    "log_config": None,
    "log_level": "critical",  # the guard logs failures; Ctrl-C is not a failure
    "server_header": False,
    "timeout_graceful_shutdown": 1,
    "ws": "none",
}


def serve(
    bases: Iterable[Given] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve the inspector until the process is interrupted (Ctrl-C, SIGTERM); `options` are those of `app`.

    `ready` receives the page's address, with the token, once the server answers; port 0 takes a free port. Any address
    but a loopback one needs a token, and gets a generated one by default. Raises what `app` raises, and OSError where
    the address is not available.
    """
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    made = app(bases, token=token, hosts=_hosts(host), **options)
    with closing(_listening(host, port)) as listening, suppress(KeyboardInterrupt):  # uvicorn reraises what ended it
        if ready is not None:
            ready(address(host, listening.getsockname()[1], token))
        uvicorn.Server(uvicorn.Config(made, **_OPTIONS)).run(sockets=[listening])


def address(host: str, port: int, token: str | None) -> str:
    """The page's address for a browser; for a server on all addresses, with the machine's name."""
    named = socket.gethostname() if unspecified(host) else in_url(host)
    return f"http://{named}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")


def _hosts(host: str) -> set[str]:
    named = {in_url(host), *LOOPBACK}
    return named if is_loopback(host) else named | {socket.gethostname()}


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place[:2], family=family)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}, port {port}, cannot be listened at ({error}): choose another") from error

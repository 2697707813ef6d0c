"""Access checks of requests (host names, origins, token), and security headers of answers."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection
from hmac import compare_digest
from ipaddress import ip_address

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voicevault_retrievers._support.hosts import LOOPBACK
from voicevault_retrievers.errors import told
from voicevault_retrievers.inspector.requests import refused

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(?::\d{1,5})?")
_ENTER = '<!doctype html><title>voicevault</title><script src="static/enter.js"></script>'
_logger = logging.getLogger(__name__)


class Guard:
    """Middleware that admits requests by expected host name, origin and, where there is one, token.

    `hosts` are the names in a Host header, without the port. An unspecified address ("0.0.0.0") admits every IP
    address, but no further name, since another site can point a name here (DNS rebinding). The token comes in
    `Authorization: Bearer`, or once as `?token=` of the page itself, which is answered with a session cookie.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] = LOOPBACK, token: str | None = None) -> None:
        self.app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._anywhere = any(unspecified(host) for host in self._hosts)
        self._token = token
        digest = hashlib.sha256(f"voicevault inspect {token}".encode()).hexdigest()
        self._cookie, self._session = f"voicevault-{digest[:8]}", digest[8:]  # each server has its own cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await (self._refusal(Request(scope)) or self.app)(scope, receive, sending)
        except Exception as error:
            if begun:
                raise
            _logger.error("the inspector failed: %s", told(error))
            await refused(500, "this failed, and the server's log says why")(scope, receive, sending)

    def _refusal(self, request: Request) -> Response | None:
        """The answer that refuses a request; None where it is admitted."""
        host = request.headers.get("host", "")
        if not self._expected(host):
            return refused(403, f"this server does not go by the name {host[:100]!r}")
        if _foreign(request, host):
            return refused(403, "this was asked by the page of another site")
        if self._token is None or self._known(request):
            return None
        if _is_page(request) and _same(request.query_params.get("token", ""), self._token):
            return self._entered(request)
        said = refused(401, "open the address that was shown when the server started: it has a token in it")
        said.headers["WWW-Authenticate"] = "Bearer"
        return said

    def _expected(self, host: str) -> bool:
        named = _HOST.fullmatch(host)
        name = named[1].lower() if named else ""
        return name in self._hosts or (self._anywhere and _is_address(name))

    def _known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self._token or ""):
            return True
        return _same(request.cookies.get(self._cookie, ""), self._session)

    def _entered(self, request: Request) -> Response:
        """A page that sets the cookie and loads the inspector without the token in its address.

        A redirect would not work: on a navigation from another site the browser does not send a strict cookie.
        """
        said = HTMLResponse(_ENTER)
        path = request.scope.get("root_path") or "/"
        secure = request.url.scheme == "https"
        said.set_cookie(self._cookie, self._session, path=path, secure=secure, httponly=True, samesite="strict")
        return said


def _foreign(request: Request, host: str) -> bool:
    """Whether the browser says that a page of another origin sent the request, other than a link to the page."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = site in ("same-origin", "none")
    if site is not None and not own and not (_is_page(request) and request.method in ("GET", "HEAD")):
        return True
    if origin is None or (origin == "null" and own):
        return False
    return origin.partition("://")[2].lower() != host.lower()


def _is_page(request: Request) -> bool:
    return str(request.scope["path"]) in ("/", f"{request.scope.get('root_path', '')}/")


def _same(given: str, wanted: str) -> bool:
    return compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def unspecified(host: str) -> bool:
    """Whether a host is the unspecified address, which stands for all addresses of a machine."""
    return _is_address(host) and ip_address(host.strip("[]")).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True

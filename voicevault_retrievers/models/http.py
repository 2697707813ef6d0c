"""One HTTP request and its answer, complete or line by line, which another thread can end.

httpx times each read of a synchronous request and not the whole, so a server that answers byte by byte can delay it
without limit; and closing its client does not interrupt a read that waits for the headers.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from ssl import SSLContext, create_default_context
from urllib.parse import SplitResult, unquote, urlsplit

from voicevault_retrievers._support.hosts import is_loopback
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError, SearchTimeoutError

LONGEST_ANSWER = 4_000_000
"""The most bytes of an answer that are read."""


class Exchange:
    """A request and its answer. `close` in another thread ends the exchange, whatever it waits for.

    `timeout` is in seconds for each wait on the socket. A server on another machine is asked through the proxy that
    HTTP_PROXY, HTTPS_PROXY and NO_PROXY name, if any. Raises SearchNotAvailableError where the server cannot be
    reached, and SearchTimeoutError where it does not answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, timeout: float | None) -> None:
        self._url = urlsplit(url)
        self._headers = headers
        self._body = body
        self._timeout = timeout
        self._socket: socket | None = None
        self._proxy: SplitResult | None = None
        self._closed = False
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None
        self._read = 0

    def run(self) -> tuple[int, bytes]:
        """Send the request, and return the answer's status and body."""
        with self._telling(), closing(self._connected()) as connection, self._asked(connection) as response:
            return response.status, response.read(LONGEST_ANSWER)

    def begin(self) -> int:
        """Send the request, and return the status; then read the body with `line` or `rest`, and call `close`."""
        with self._telling():
            self._connection = self._connected()
            self._response = self._asked(self._connection)
            return self._response.status

    def line(self) -> bytes:
        """The next line of the body; empty at its end, and once more than `LONGEST_ANSWER` bytes were read."""
        if self._response is None or self._read > LONGEST_ANSWER:
            return b""
        with self._telling():
            found = self._response.readline(LONGEST_ANSWER)
        self._read += len(found)
        return found

    def rest(self, most: int) -> bytes:
        """The rest of the body, at most `most` bytes."""
        with self._telling():
            return b"" if self._response is None else self._response.read(most)

    def close(self) -> None:
        """End the exchange. A socket's own timeout would not, as it restarts with each byte that arrives."""
        self._closed = True
        if self._socket is not None:
            with suppress(OSError):
                # A TLS socket's own method would drop the state that the reading thread uses.
                socket.shutdown(self._socket, SHUT_RDWR)

    def free(self) -> None:
        """Close the connection once no thread reads it."""
        self.close()
        for held in (self._response, self._connection):
            if held is not None:
                with suppress(OSError):
                    held.close()

    def _connected(self) -> HTTPConnection:
        kind = partial(HTTPSConnection, context=trusted()) if self._url.scheme == "https" else HTTPConnection
        self._proxy = _proxy_for(self._url)
        at = self._proxy or self._url
        connection = kind(at.hostname or "", at.port or (80 if self._proxy else None), timeout=self._timeout)
        if self._proxy and self._url.scheme == "https":
            told = basic_auth(self._proxy, "Proxy-Authorization")
            connection.set_tunnel(self._url.hostname or "", self._url.port or 443, told)
        connection.connect()
        self._socket = connection.sock
        if self._closed:
            connection.close()
            raise ConnectionAbortedError("nobody waits any more")
        return connection

    def _asked(self, connection: HTTPConnection) -> HTTPResponse:
        path, headers = self._url.path, dict(self._headers)
        if self._proxy and self._url.scheme == "http":
            path, headers = f"http://{self._host}{path}", headers | basic_auth(self._proxy, "Proxy-Authorization")
        connection.request("POST", path, self._body, headers)
        return connection.getresponse()

    @property
    def _host(self) -> str:
        return _named(self._url)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:  # the socket's timeout, about as long as the call's
            raise SearchTimeoutError(f"{self._host} did not answer within {self._timeout:g} s") from error
        except (OSError, HTTPException) as error:
            through = f" through the proxy at {_named(self._proxy)}" if self._proxy else ""
            raise SearchNotAvailableError(
                f"the server at {self._host} cannot be asked{through}: {type(error).__name__}: {error}"
            ) from error


@cache
def trusted() -> SSLContext:
    """The certificates that are trusted. Reading them takes 20 ms, so it is done once and not for each request."""
    context = create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy for a server; None for one on this machine, or where the environment names none."""
    from urllib.request import getproxies, proxy_bypass  # takes longer to load than all else here

    host = url.hostname or ""
    address = None if is_loopback(host) or proxy_bypass(host) else getproxies().get(url.scheme)
    if not address:
        return None
    found = urlsplit(address if "://" in address else f"http://{address}")
    with suppress(ValueError):  # a port that is no number
        if found.scheme == "http" and found.hostname and found.port != 0:
            return found
    raise ConfigError(
        f"{url.scheme.upper()}_PROXY is not the address of an HTTP proxy such as http://host:3128: correct it, or name "
        f"{host} in NO_PROXY"
    )


def _named(url: SplitResult) -> str:
    """The host and port of an address, without its user and password."""
    return url.netloc.rpartition("@")[2]


def basic_auth(url: SplitResult, header: str) -> dict[str, str]:
    """The header that tells the user and password of an address; empty where it has none."""
    if url.username is None:
        return {}
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return {header: f"Basic {b64encode(pair.encode()).decode()}"}

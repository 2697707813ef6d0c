"""One HTTP request and its answer, complete or line by line, which another thread can end.

httpx times each read of a synchronous request and not the whole, so a server that answers byte by byte can delay it
without limit; and closing its client does not interrupt a read that waits for the headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from urllib.parse import urlsplit

from voicevault_retrievers.errors import SearchNotAvailableError, SearchTimeoutError

LONGEST_ANSWER = 4_000_000
"""The most bytes of an answer that are read."""


class Exchange:
    """A request and its answer. `close` in another thread ends the exchange, whatever it waits for.

    `timeout` is in seconds for each wait on the socket. Raises SearchNotAvailableError where the server cannot be
    reached, and SearchTimeoutError where it does not answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, timeout: float | None) -> None:
        self._url = urlsplit(url)
        self._headers = headers
        self._body = body
        self._timeout = timeout
        self._socket: socket | None = None
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
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._timeout)
        connection.connect()
        self._socket = connection.sock
        if self._closed:
            connection.close()
            raise ConnectionAbortedError("nobody waits any more")
        return connection

    def _asked(self, connection: HTTPConnection) -> HTTPResponse:
        connection.request("POST", self._url.path, self._body, dict(self._headers))
        return connection.getresponse()

    @property
    def _host(self) -> str:
        """The server's host, without the user and password of the address."""
        return self._url.netloc.rpartition("@")[2]

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:  # the socket's timeout, about as long as the call's
            raise SearchTimeoutError(f"{self._host} did not answer within {self._timeout:g} s") from error
        except (OSError, HTTPException) as error:
            raise SearchNotAvailableError(
                f"the server at {self._host} cannot be asked: {type(error).__name__}: {error}"
            ) from error

"""Language models that a server offers, as text models: by Ollama's API, and by OpenAI's.

One HTTP request a prompt, without retries, redirects or proxies. Whoever needs those gives a chat model of LangChain's
or an LLM of LlamaIndex's instead.
"""

from __future__ import annotations

import json as json_
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlsplit

from voicevault_retrievers.calls import Call, Plan, value_of
from voicevault_retrievers.checks import seconds_or_none
from voicevault_retrievers.drive import adrive, drive
from voicevault_retrievers.errors import ConfigError, RetrievalError, SearchNotAvailableError, SearchTimeoutError

TIMEOUT = 30.0
LONGEST_ANSWER = 4_000_000
"""Bytes that are read of an answer."""
SHOWN = 200


class ServedModel(ABC):
    """A model that is asked with one HTTP request a prompt.

    `request` has further fields of each request, as the server's API names them. `timeout` is in seconds from the
    beginning until the whole answer is there, however slowly it comes; None waits. Raises SearchNotAvailableError
    where the server cannot be reached, SearchTimeoutError when the time is over, and RetrievalError, with the status
    and the beginning of what the server said, for an answer that is an error or has no text.
    """

    path: str

    def __init__(
        self, model: str, *, base_url: str, timeout: float | None = TIMEOUT, request: Mapping[str, Any] | None = None
    ) -> None:
        self.model = model
        self.base_url = _address(base_url)
        self.timeout = seconds_or_none("timeout", timeout)
        self.request = dict(request or {})

    def complete(self, prompt: str) -> str:
        """What the model answers."""
        return drive(self._asking(prompt))

    async def acomplete(self, prompt: str) -> str:
        """`complete` without blocking the running event loop; when it is cancelled the connection is closed."""
        return await adrive(self._asking(prompt))

    def _asking(self, prompt: str) -> Plan[str]:
        message = {"role": "user", "content": prompt}
        asked = {**self.request, "model": self.model, "messages": [message], "stream": False}
        exchange = _Exchange(self.base_url + self.path, self._headers(), json_.dumps(asked).encode(), self.timeout)
        name = f"{self.model} at {self.base_url}"
        try:
            (outcome,) = yield (Call(name, exchange.run, timeout=self.timeout),)
        finally:
            exchange.close()
        status, said = value_of(outcome)
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            if status == 200 and isinstance(text := self._text(json_.loads(said)), str):
                return text
        shown = said[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
        raise RetrievalError(f"{name} gave no text: status {status}, {shown!r}")

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json"}

    @abstractmethod
    def _text(self, answer: Any) -> Any:
        """The text in an answer; LookupError and TypeError say that it is none."""

    def __repr__(self) -> str:
        request = f", request={self.request}" if self.request else ""
        return f"{type(self).__name__}({self.model!r}, base_url={self.base_url!r}, timeout={self.timeout}{request})"


class OllamaModel(ServedModel):
    """A model of a server that speaks Ollama's API.

    `json` has the server keep the model to JSON: True to an object, a JSON schema to what it says; not for models that
    are to write prose. A prompt longer than the model's context is cut there in silence: say what it needs with
    `request={"options": {"num_ctx": tokens}}`. See `ServedModel`.
    """

    path = "/api/chat"

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "http://localhost:11434",
        timeout: float | None = TIMEOUT,
        json: bool | Mapping[str, Any] = False,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        form = {"format": "json" if json is True else json} if json else {}
        super().__init__(model, base_url=base_url, timeout=timeout, request={**form, **(request or {})})

    def _text(self, answer: Any) -> Any:
        return answer["message"]["content"]


class OpenAIModel(ServedModel):
    """A model of a server that speaks OpenAI's chat completions API.

    `api_key` None is OPENAI_API_KEY of the environment, read at each request; where that is empty none is sent. See
    `ServedModel`.
    """

    path = "/chat/completions"

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        timeout: float | None = TIMEOUT,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, base_url=base_url, timeout=timeout, request=request)
        self._api_key = api_key

    def _headers(self) -> dict[str, str]:
        key = (os.environ.get("OPENAI_API_KEY", "") if self._api_key is None else self._api_key).strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("the API key has characters that no HTTP header can have")
        return super()._headers() | ({"Authorization": f"Bearer {key}"} if key else {})

    def _text(self, answer: Any) -> Any:
        return answer["choices"][0]["message"]["content"]


class _Exchange:
    """A request and its answer; `run` in one thread is ended by `close` in another, whatever it waits for."""

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, timeout: float | None) -> None:
        self._url = urlsplit(url)
        self._headers = headers
        self._body = body
        self._timeout = timeout
        self._socket: socket | None = None
        self._closed = False

    def run(self) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        try:
            with closing(kind(self._url.hostname or "", self._url.port, timeout=self._timeout)) as connection:
                connection.connect()
                self._socket = connection.sock
                if self._closed:
                    raise ConnectionAbortedError("nobody waits any more")
                connection.request("POST", self._url.path, self._body, dict(self._headers))
                with connection.getresponse() as response:
                    return response.status, response.read(LONGEST_ANSWER)
        except TimeoutError as error:  # the socket's, about when the call's time is over too
            raise SearchTimeoutError(f"{self._url.netloc} did not answer within {self._timeout:g} s") from error
        except (OSError, HTTPException) as error:
            raise SearchNotAvailableError(
                f"the server at {self._url.netloc} cannot be asked: {type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        """End the exchange. A socket's own timeout would not: it begins anew with each byte that comes."""
        self._closed = True
        if self._socket is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which takes away what the other thread reads with.
                socket.shutdown(self._socket, SHUT_RDWR)


def _address(url: str) -> str:
    """A server's address without a slash at its end."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, AttributeError):  # a port that is no number, no text
        good = False
    if not good or parts.query or parts.fragment:
        raise ConfigError(f"base_url is the address of a server, such as http://localhost:11434, not {url!r}")
    return url.rstrip("/")

"""Text models on a server with Ollama's or OpenAI's API.

They return complete answers, with token probabilities where the server gives them, and streams. Each prompt is one HTTP
request, without retries or redirects. For these, use a chat model of LangChain or an LLM of LlamaIndex.
"""

from __future__ import annotations

import json as json_
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.errors import ConfigError, ModelNotAvailableError, RetrievalError, SearchTimeoutError
from voicevault_retrievers.models.generation import Written
from voicevault_retrievers.models.http import Exchange, basic_auth

TIMEOUT = 30.0
_NOT_FOUND = 404
SHOWN = 200
ANSWER, TEMPLATE, LEAST_WINDOW = 1024, 64, 4096
"""In tokens: the size of an answer, the overhead of a model's chat template, and the smallest context."""


class ServedModel(ABC):
    """A text model on a server, with one HTTP request per prompt.

    `request` has further fields of each request, as the server's API names them; `{"logprobs": False}` where a model
    refuses requests for probabilities. A user and a password in `base_url` are sent as HTTP basic authentication, and
    never shown. A server on another machine is asked through the proxy in HTTP_PROXY or HTTPS_PROXY, unless NO_PROXY
    names it. `timeout` limits the whole answer in seconds, however slowly it arrives; None waits. Raises
    SearchNotAvailableError where the server cannot be reached, SearchTimeoutError after the timeout,
    ModelNotAvailableError where the server does not know the model (status 404), and RetrievalError, with the status
    and the beginning of the answer, for any other error, or an answer without text.
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
        """The model's answer to a prompt."""
        return execute(self._asking(prompt)).text

    async def acomplete(self, prompt: str) -> str:
        """`complete` without blocking the running event loop. Cancelling it closes the connection."""
        return (await aexecute(self._asking(prompt))).text

    def write(self, prompt: str) -> Written:
        """The model's answer, with token probabilities where the server gives them."""
        return execute(self._asking(prompt, logprobs=True))

    async def awrite(self, prompt: str) -> Written:
        """The async version of `write`."""
        return await aexecute(self._asking(prompt, logprobs=True))

    def stream(self, prompt: str) -> Iterator[Written]:
        """Yield the answer of `write` in parts as they arrive. Closing the iterator closes the connection."""
        reading = _Reading(self, prompt)
        try:
            while (part := execute(reading.next())) is not None:
                yield part
        finally:
            reading.close()

    async def astream(self, prompt: str) -> AsyncIterator[Written]:
        """`stream` on the running event loop."""
        reading = _Reading(self, prompt)
        try:
            while (part := await aexecute(reading.next())) is not None:
                yield part
        finally:
            reading.close()

    def _asking(self, prompt: str, **more: Any) -> Plan[Written]:
        exchange = self._exchange(prompt, stream=False, **more)
        try:
            (outcome,) = yield (Call(self._who, exchange.run, timeout=self.timeout),)
        finally:
            exchange.close()
        status, said = value_of(outcome)
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            if status == 200 and isinstance((written := self._written(json_.loads(said))).text, str):
                return written
        raise self._no_text(status, said)

    def _exchange(self, prompt: str, *, stream: bool, **more: Any) -> Exchange:
        message = {"role": "user", "content": prompt}
        asked = {**more, **self._fields(prompt), "model": self.model, "messages": [message], "stream": stream}
        return Exchange(self.base_url + self.path, self._headers(), json_.dumps(asked).encode(), self.timeout)

    def _fields(self, prompt: str) -> dict[str, Any]:
        """The further fields of the request for a prompt."""
        return self.request

    @property
    def _who(self) -> str:
        return f"{self.model} at {mask_credentials(self.base_url)}"

    def _no_text(self, status: int, said: bytes) -> RetrievalError:
        shown = said[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
        error = ModelNotAvailableError if status == _NOT_FOUND else RetrievalError
        return error(f"{self._who} gave no text: status {status}, {shown!r}")

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json"} | basic_auth(urlsplit(self.base_url), "Authorization")

    @abstractmethod
    def _written(self, answer: Any) -> Written:
        """The text in an answer. Raises LookupError or TypeError where there is none."""

    @abstractmethod
    def _part(self, line: str) -> tuple[Written | None, bool]:
        """The text in a line of a stream, or None, and whether the answer ends there. Raises like `_written`."""

    def __repr__(self) -> str:
        request = f", request={self.request}" if self.request else ""
        address = mask_credentials(self.base_url)
        return f"{type(self).__name__}({self.model!r}, base_url={address!r}, timeout={self.timeout}{request})"


class OllamaModel(ServedModel):
    """A model on a server with Ollama's API.

    `json` constrains answers to JSON: True to an object, a JSON schema to that schema; do not use it for prose. Each
    request sets a context (`options.num_ctx`) that holds its prompt and an answer, see `context_window`: the server's
    default is 4,096 tokens, and it silently cuts longer prompts. Thinking is off (`think`). `request` overrides these
    fields, also single `options`. See `ServedModel`.
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
        options = self.request.get("options", {})
        if not isinstance(options, Mapping):
            raise ConfigError(f"the options of a request to Ollama are a mapping, not a {type(options).__name__}")
        self._options = dict(options)

    def _fields(self, prompt: str) -> dict[str, Any]:
        predicted = self._options.get("num_predict")
        window = context_window(prompt, predicted if isinstance(predicted, int) and predicted > 0 else ANSWER)
        return {"think": False, **self.request, "options": {"num_ctx": window, **self._options}}

    def _written(self, answer: Any) -> Written:
        return Written.of(answer["message"]["content"], answer.get("logprobs"))

    def _part(self, line: str) -> tuple[Written | None, bool]:
        answer = json_.loads(line)
        return self._written(answer), bool(answer.get("done"))


class OpenAIModel(ServedModel):
    """A model on a server with OpenAI's chat completions API.

    `api_key` None reads OPENAI_API_KEY from the environment at each request; an empty key is not sent. See
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

    def _written(self, answer: Any) -> Written:
        choice = answer["choices"][0]
        return Written.of(choice["message"]["content"], _listed(choice))

    def _part(self, line: str) -> tuple[Written | None, bool]:
        if not line.startswith("data:"):  # a comment, or another field of an event
            return None, False
        if (data := line[len("data:") :].strip()) == "[DONE]":
            return None, True
        choices = json_.loads(data)["choices"]
        if not choices:  # usage statistics
            return None, False
        text = (choices[0].get("delta") or {}).get("content") or ""
        return Written.of(text, _listed(choices[0])), choices[0].get("finish_reason") is not None


class _Reading:
    """A streamed answer that is read part by part."""

    def __init__(self, model: ServedModel, prompt: str) -> None:
        self._model = model
        self._exchange = model._exchange(prompt, stream=True, logprobs=True)
        self._end = None if model.timeout is None else time.monotonic() + model.timeout
        self._begun = self._ended = False

    def next(self) -> Plan[Written | None]:
        """The next part with a text; None at the end of the answer."""
        left = None if self._end is None else self._end - time.monotonic()
        done = False
        try:
            (outcome,) = yield (Call(self._model._who, self._read, timeout=left),)
            done = not isinstance(outcome, Exception)
        finally:
            if not done:
                self._exchange.close()
        if isinstance(outcome, SearchTimeoutError):
            said = f"{self._model._who} did not answer within its {self._model.timeout:g} s"
            raise SearchTimeoutError(said) from outcome
        part: Written | None = value_of(outcome)
        return part

    def _read(self) -> Written | None:
        if not self._begun:
            self._begun = True
            if (status := self._exchange.begin()) != 200:
                raise self._model._no_text(status, self._exchange.rest(4 * SHOWN))
        while not self._ended:
            raw = self._exchange.line()
            if not raw:
                raise RetrievalError(f"{self._model._who} ended its answer before it was complete")
            part, self._ended = self._parsed(raw)
            if part is not None and part.text:
                return part
        return None

    def _parsed(self, raw: bytes) -> tuple[Written | None, bool]:
        if not (line := raw.strip()):
            return None, False
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            part, ended = self._model._part(line.decode())
            if part is None or isinstance(part.text, str):
                return part, ended
        raise self._model._no_text(200, line)

    def close(self) -> None:
        self._exchange.free()


def context_window(prompt: str, answer: int = ANSWER) -> int:
    """A context size in tokens for a prompt and an `answer`: a power of two, at least 4,096.

    Every two bytes of the prompt in UTF-8 count as a token, and so does every digit, which is about twice the tokens of
    prose. Powers of two are used because a server reloads its model for each new context size.
    """
    digits = sum(map(str.isdigit, prompt))
    tokens = (len(prompt.encode("utf-8", "surrogatepass")) + digits) // 2 + TEMPLATE + answer
    return max(LEAST_WINDOW, 1 << (tokens - 1).bit_length())


def _listed(choice: Mapping[str, Any]) -> Any:
    """A choice's tokens; None where the server gives none. A malformed value is returned unchanged."""
    logprobs = choice.get("logprobs")
    return logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs


def _address(url: str) -> str:
    """A server's address without a trailing slash. ConfigError for anything else, without repeating it."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"\s", url)
    except (ValueError, AttributeError):  # a port that is no number, or no text
        good = False
    if not good or parts.query or parts.fragment:
        raise ConfigError(
            "base_url is the address of a server, such as http://localhost:11434 or https://user:password@host/v1; in "
            "a user's name or a password each of / ? # @ : [ ] % is written as %2F and so on"
        )
    return url.rstrip("/")

"""A server that speaks the HTTP APIs of Ollama and of OpenAI, and says what a test tells it to: it stands in for a
language model, of which none is asked."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from voicevault_retrievers.models.language import OllamaModel, OpenAIModel, ServedModel

Tokens = Sequence[tuple[str, float]]
"""Texts, each with its probability."""


class ModelServer(ThreadingHTTPServer):
    """`reply` handles each request; `requests` keeps the paths, headers and bodies that came.

    `ended` is set when the test is over, or earlier: what holds an answer back waits for it.
    """

    daemon_threads = True

    def __init__(self, reply: Callable[[Handler], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = reply
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.ended = threading.Event()
        self.prompts: list[str] = []
        """What users said, of the requests that `writes` answered."""
        self.gone = threading.Event()
        """Set where a client closed the connection before it had its answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ollama(self, **options: Any) -> ServedModel:
        return OllamaModel("llama", base_url=self.url, **options)

    def openai(self, **options: Any) -> ServedModel:
        return OpenAIModel("gpt", base_url=f"{self.url}/v1", api_key="key", **options)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.gone.set()


class Handler(BaseHTTPRequestHandler):
    server: ModelServer
    asked: dict[str, Any]
    """The body of the request."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked = json.loads(body)
        self.server.requests.append((self.path, dict(self.headers), self.asked))
        self.server.reply(self)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self, body: bytes, status: int = 200, kind: str | None = None) -> None:
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def say(self, text: Any) -> None:
        """A text as the API that was asked has it."""
        message = {"role": "assistant", "content": text}
        told = {"message": message, "done": True} if self.path == "/api/chat" else {"choices": [{"message": message}]}
        self.answer(json.dumps(told).encode())

    def write(self, tokens: Tokens, listed: Callable[[Tokens], Any] | None = None) -> None:
        """Tokens with their probabilities, where these are asked for: whole, or as a stream where that is.

        `listed` is how their log-probabilities are said, None for not at all.
        """
        said = None if listed is None or not self.asked.get("logprobs") else listed
        if not self.asked.get("stream"):
            self.answer(json.dumps(self._whole(tokens, said)).encode(), kind="application/json")
            return
        self.send_response(200)
        openai = self.path != "/api/chat"
        self.send_header("Content-Type", "text/event-stream" if openai else "application/x-ndjson")
        self.end_headers()
        for event in [*(self._part([token], said) for token in tokens), self._part([], said)]:
            self.event(event)
        if openai:
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, event: Any) -> None:
        line = json.dumps(event)
        self.wfile.write((f"data: {line}\n\n" if self.path != "/api/chat" else f"{line}\n").encode())

    def _whole(self, tokens: Tokens, listed: Callable[[Tokens], Any] | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(text for text, _ in tokens)}
        logprobs = listed(tokens) if listed else None
        if self.path == "/api/chat":
            return {"message": message, "done": True} | ({"logprobs": logprobs} if listed else {})
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": _content(logprobs)}
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1 + len(tokens)}
        return {**_OPENAI, "object": "chat.completion", "choices": [choice], "usage": usage}

    def _part(self, tokens: Tokens, listed: Callable[[Tokens], Any] | None) -> dict[str, Any]:
        delta = {"role": "assistant", "content": "".join(text for text, _ in tokens)}
        logprobs = listed(tokens) if listed and tokens else None
        if self.path == "/api/chat":
            return {"message": delta, "done": not tokens} | ({"logprobs": logprobs} if logprobs else {})
        ended = None if tokens else "stop"
        choice = {"index": 0, "delta": delta, "finish_reason": ended, "logprobs": _content(logprobs)}
        return {**_OPENAI, "object": "chat.completion.chunk", "choices": [choice]}


_OPENAI = {"id": "chatcmpl-1", "created": 1, "model": "gpt"}


def _content(logprobs: Any) -> Any:
    """Log-probabilities as OpenAI's API nests them."""
    return {"content": logprobs, "refusal": None} if isinstance(logprobs, list) else logprobs


def listed(tokens: Tokens) -> list[dict[str, Any]]:
    """Log-probabilities as OpenAI's API and Ollama's list them."""
    return [
        {"token": text, "logprob": math.log(probability), "bytes": [*text.encode()], "top_logprobs": []}
        for text, probability in tokens
    ]


def tokens_in(text: str, probability: float = 0.99, **doubts: float) -> list[tuple[str, float]]:
    """A text as tokens, words with the blank before them; `doubts` are the probabilities of some words."""
    words = re.findall(r"\s*(?:\w+|[^\w\s])", text)
    return [(word, doubts.get(word.strip(), probability)) for word in words]


def writes(
    *answers: str | Tokens | Callable[[Handler], None], listed: Callable[[Tokens], Any] | None = listed
) -> Callable[[Handler], None]:
    """One answer after another, with the probabilities of its tokens; more requests than answers are an error 500."""
    left = list(answers)

    def reply(handler: Handler) -> None:
        handler.server.prompts.append(handler.asked["messages"][-1]["content"])
        if not left:
            handler.answer(b"no answer is left", 500)
            return
        answer = left.pop(0)
        if callable(answer):
            answer(handler)
        else:
            handler.write(tokens_in(answer) if isinstance(answer, str) else answer, listed)

    return reply


def says(text: Any) -> Callable[[Handler], None]:
    return lambda handler: handler.say(text)


def answers(body: bytes, status: int = 200) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(body, status)


def hangs(handler: Handler) -> None:
    """No byte comes until the test is over; the connection stays."""
    handler.server.ended.wait(60)


def dribbles(handler: Handler) -> None:
    """A good answer begins, and then a blank comes now and then, as long as somebody listens."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.ended.wait(0.005):
        handler.wfile.write(b" ")


def dribbles_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not handler.server.ended.wait(0.005):
        handler.wfile.write(b"x")


@contextmanager
def model_server(reply: Callable[[Handler], None]) -> Iterator[ModelServer]:
    with ModelServer(reply) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


def refused_url() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"

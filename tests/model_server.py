"""A server that speaks the HTTP APIs of Ollama and of OpenAI, and says what a test tells it to: it stands in for a
language model, of which none is asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from voicevault_retrievers.models import OllamaModel, OpenAIModel, ServedModel


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

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), json.loads(body)))
        self.server.reply(self)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def say(self, text: Any) -> None:
        """A text as the API that was asked has it."""
        message = {"role": "assistant", "content": text}
        told = {"message": message, "done": True} if self.path == "/api/chat" else {"choices": [{"message": message}]}
        self.answer(json.dumps(told).encode())


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

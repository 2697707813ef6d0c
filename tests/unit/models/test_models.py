"""Models that a server offers, against one that stands in for a language model."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from tests.model_server import (
    answers,
    dribbles,
    dribbles_headers,
    hangs,
    model_server,
    refused_url,
    says,
)
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.errors import (
    ConfigError,
    RetrievalError,
    SearchNotAvailableError,
    SearchTimeoutError,
)
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel, ServedModel

PROMPT = 'Which of these?\n{"number": 1, "text": "é 水"}'
MESSAGES = [{"role": "user", "content": PROMPT}]


async def test_ollama_is_asked_for_a_whole_answer() -> None:
    with model_server(says("[2, 1] é")) as server:
        model = server.ollama(request={"options": {"num_ctx": 8192}, "stream": True})
        assert isinstance(model, TextModel)
        assert model.complete(PROMPT) == await model.acomplete(PROMPT) == "[2, 1] é"
        asked = {"model": "llama", "messages": MESSAGES, "stream": False, "options": {"num_ctx": 8192}, "think": False}
        assert [(path, body) for path, _, body in server.requests] == [("/api/chat", asked)] * 2


@pytest.mark.parametrize(
    ("prompt", "window"),
    [
        ("Why?", 4096),
        ("The oil became too warm. " * 2000, 32_768),  # 50,000 characters, about 12,000 tokens
        ("The oil became too warm. " * 4000, 65_536),  # 50 whole passages of casefile
        ("7" * 10_000, 16_384),  # a token each
        ("水" * 10_000, 16_384),
    ],
)
async def test_ollama_is_asked_for_a_context_that_holds_the_prompt_and_not_to_think(prompt: str, window: int) -> None:
    with model_server(says("[1]")) as server:
        server.ollama().complete(prompt)
        await server.ollama(request={"think": True, "options": {"temperature": 0}}).acomplete(prompt)
        list(server.ollama(request={"options": {"num_ctx": 99, "num_predict": 50_000}}).stream(prompt))
        server.ollama(request={"options": {"num_predict": 70_000}}).complete("Why?")
        bodies = [body for _, _, body in server.requests]
    assert [body["options"].get("num_ctx") for body in bodies] == [window, window, 99, 131_072]
    assert bodies[1]["options"] == {"num_ctx": window, "temperature": 0}
    assert [body["think"] for body in bodies] == [False, True, False, False]


def test_options_of_a_request_to_ollama_are_a_mapping() -> None:
    with pytest.raises(ConfigError, match="options of a request to Ollama"):
        OllamaModel("llama", request={"options": "num_ctx"})


@pytest.mark.parametrize(
    ("json", "sent"),
    [(False, None), (True, "json"), ({"type": "array"}, {"type": "array"})],
)
def test_ollama_keeps_a_model_to_json_or_to_a_schema(json: Any, sent: Any) -> None:
    with model_server(says("{}")) as server:
        server.ollama(json=json).complete(PROMPT)
        assert server.requests[0][2].get("format") == sent


async def test_openai_is_asked_with_the_key_of_the_environment_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with model_server(says("[1]")) as server:
        model = OpenAIModel("gpt", base_url=f"{server.url}/v1/", request={"temperature": 0})
        for key in ("secret\n", ""):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            assert model.complete(PROMPT) == "[1]"
        assert await server.openai().acomplete(PROMPT) == "[1]"
        path, headers, body = server.requests[0]
        asked = {"model": "gpt", "messages": MESSAGES, "stream": False, "temperature": 0}
        assert (path, body) == ("/v1/chat/completions", asked)
        keys = [each.get("Authorization") for _, each, _ in server.requests]
        assert keys == ["Bearer secret", None, "Bearer key"]
    assert headers["Content-Type"] == "application/json"


def test_a_key_is_in_no_recipe_and_in_no_error() -> None:
    model = OpenAIModel("gpt", api_key="se\ncret")
    assert repr(model) == "OpenAIModel('gpt', base_url='https://api.openai.com/v1', timeout=30.0)"
    with pytest.raises(ConfigError, match="API key") as raised:
        model.complete(PROMPT)
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (answers(b'{"error": "model is loading"}', 500), r"status 500, .*model is loading"),
        (answers(b"x" * 300, 404), f"status 404, '{'x' * 200}'$"),
        (answers(b"", 302), "status 302"),
        (answers(b'{"message": {"content": "a"}, "choices": [{"message": {"content": "a"}}]}', 503), "status 503"),
        (answers(b""), "status 200, ''"),
        (answers(b"<html>"), "status 200, '<html>'"),
        (answers(b"[" * 100_000), r"status 200, '\[\["),
        (answers(b'{"message": [], "choices": []}'), "status 200"),
        (answers(b'{"message": null, "choices": null}'), "status 200"),
        (answers(b"\xff\xfe"), "status 200"),
        (says(None), "status 200"),
        (says(["text"]), "status 200"),
    ],
)
async def test_an_answer_without_a_text_is_an_error_that_shows_it(reply: Any, said: str) -> None:
    with model_server(reply) as server:
        for model in (server.ollama(), server.openai()):
            with pytest.raises(RetrievalError, match=said) as raised:
                model.complete(PROMPT)
            with pytest.raises(RetrievalError, match=said):
                await model.acomplete(PROMPT)
            assert f"{model.model} at {server.url}" in str(raised.value)


def test_a_connection_that_ends_early_is_an_error() -> None:
    with model_server(lambda handler: handler.connection.close()) as server, pytest.raises(SearchNotAvailableError):
        server.ollama().complete(PROMPT)


async def test_where_nobody_listens_the_address_is_named() -> None:
    url = refused_url()
    model = OllamaModel("llama", base_url=url)
    with pytest.raises(SearchNotAvailableError, match=url.removeprefix("http://")):
        model.complete(PROMPT)
    with pytest.raises(SearchNotAvailableError, match="ConnectionRefusedError"):
        await model.acomplete(PROMPT)


@pytest.mark.parametrize("reply", [hangs, dribbles, dribbles_headers])
async def test_an_answer_that_does_not_end_is_cut_and_the_connection_closed(reply: Any) -> None:
    with model_server(reply) as server:
        model = server.ollama(timeout=0.1)
        with pytest.raises(SearchTimeoutError, match=r"did not answer within (its )?0\.1 s"):
            model.complete(PROMPT)
        with pytest.raises(SearchTimeoutError):
            await model.acomplete(PROMPT)
        assert reply is hangs or server.gone.wait(30)


async def test_a_cancelled_call_closes_its_connection() -> None:
    with model_server(dribbles) as server:
        asking = asyncio.create_task(server.ollama(timeout=None).acomplete(PROMPT))
        while not server.requests:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert server.gone.wait(30)


@pytest.mark.parametrize(
    "base_url", ["localhost:11434", "ftp://host", "http://", "http://host:port", "http://host?a=1", "", None]
)
def test_what_is_no_address_and_a_wrong_timeout_are_refused(base_url: Any) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        OllamaModel("llama", base_url=base_url)
    with pytest.raises(ConfigError, match="timeout"):
        OpenAIModel("gpt", timeout=0)


def test_a_recipe_makes_an_equal_model_and_a_model_can_be_pickled() -> None:
    model = OllamaModel("llama", json=True, timeout=None, request={"think": False})
    assert repr(eval(repr(model))) == repr(model)  # noqa: S307 - our own text
    assert repr(pickle.loads(pickle.dumps(model))) == repr(model)
    assert isinstance(model, ServedModel)

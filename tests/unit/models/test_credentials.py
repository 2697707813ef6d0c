"""The user and the password of an address: they are sent, and no text shows them."""

from __future__ import annotations

import base64
import re
import traceback
from typing import Any

import pytest

from tests.helpers import ListChannel
from tests.model_server import model_server, refused_url, says
from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import ModelExpansion
from voicevault_retrievers.rerank import LLMRerank
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.names import check_name
from voicevault_retrievers.structure.graph.neo4j import Neo4jGraph

CHANNELS = {"bm25": ListChannel([("x", 1.0), ("y", 0.5)], name="bm25")}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:11434/v1", "http://host:11434/v1"),
        ("http://user:hush@host:11434/v1", "http://***@host:11434/v1"),
        ("redis://:hu/sh@ush@host/0?password=hush", "redis://***@host/0?***"),
        ("postgresql://u:hush@h:5/db?sslpassword=hush#plant", "postgresql://***@h:5/db?***#plant"),
        ("M(base_url='http://u:hush@h', to='me@host'), N('https://k:hush@h')", None),
        ("what is bm25? mail me@host", "what is bm25? mail me@host"),
        ("plant", "plant"),
    ],
)
def test_of_an_address_neither_the_user_nor_the_password_nor_options_are_shown(text: str, shown: str | None) -> None:
    expected = "M(base_url='http://***@h', to='me@host'), N('https://***@h')" if shown is None else shown
    assert mask_credentials(text) == expected


@pytest.mark.parametrize("kind", [OllamaModel, OpenAIModel])
async def test_a_models_password_shows_in_nothing_that_is_made_of_it(kind: type[OllamaModel]) -> None:
    model = kind("llama", base_url=refused_url().replace("http://", "http://user:hush@"), timeout=5)
    pipeline = Pipeline(ModelExpansion(model) >> CHANNELS["bm25"] >> LLMRerank(model), flare=Flare(model))
    result = await pipeline.asearch("what hums")
    raised = []
    for ask in (model.complete, lambda prompt: list(model.stream(prompt))):
        with pytest.raises(RetrievalError) as error:
            ask("q")
        raised.append("".join(traceback.format_exception(error.value)))
    assert len(result.errors) == 2
    for shown in (repr(model), repr(pipeline), pipeline.describe(), repr(pipeline.flare), repr(result), *raised):
        assert "hush" not in shown
    assert "127.0.0.1" in repr(model)
    assert model.base_url.startswith("http://user:hush@")


@pytest.mark.parametrize(
    ("given", "sent"), [("user:p%40ss", "user:p@ss"), ("user", "user:"), (":hush", ":hush"), (None, None)]
)
def test_a_models_user_and_password_are_sent_as_basic_authentication(given: str | None, sent: str | None) -> None:
    with model_server(says("yes")) as server:
        url = server.url if given is None else server.url.replace("http://", f"http://{given}@")
        OllamaModel("llama", base_url=url).complete("q")
        OpenAIModel("gpt", base_url=f"{url}/v1", api_key="key").complete("q")
        basic, bearer = (headers.get("Authorization") for _, headers, _ in server.requests)
    assert basic == (None if sent is None else f"Basic {base64.b64encode(sent.encode()).decode()}")
    assert bearer == "Bearer key"


@pytest.mark.parametrize("address", ["user:hush@h", "http://u:hush@h:0", "http://u:hu/sh@h?a=1", "http://u:hu sh@h"])
def test_an_address_that_is_refused_is_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="base_url is the address of a server") as raised:
        OllamaModel("llama", base_url=address)
    assert address not in str(raised.value)
    assert "hu" not in str(raised.value).replace("such", "")


@pytest.mark.parametrize(
    "data",
    [
        {"flare": {"enabled": True, "ollama": "m", "base_url": "http://u:hush@h"}},
        {"stages": [{"llm_rerank": {"ollama": "m", "base_url": "http://u:hush@h"}}]},
    ],
)
def test_a_presets_model_shows_no_password(data: dict[str, Any]) -> None:
    preset = Preset.of({"version": 1, "channels": {"bm25": {}}, **data})
    pipeline = preset.build(CHANNELS)
    for shown in (repr(preset), repr(preset.stages), repr(pipeline), pipeline.describe(), repr(pipeline.flare)):
        assert "hush" not in shown


@pytest.mark.parametrize(
    "data",
    [
        {"flare": {"base_url": "http://u:hush@h"}},
        {"stages": [{"llm_rerank": {"base_url": "http://u:hush@h"}}]},
        {"flare": {"ollama": "m", "base_url": "http://u:hush@"}},
        {"flare": {"ollama": "m", "openai": "n", "base_url": "http://u:hush@h"}},
    ],
)
def test_an_error_of_a_presets_model_repeats_no_password(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        Preset.of({"version": 1, **data})
    assert "hush" not in str(raised.value)


def test_a_graphs_address_is_shown_without_its_password() -> None:
    assert "hush" not in repr(Neo4jGraph("laws", uri="bolt://u:hush@h:7687"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "postgresql://u:hush@h/db?sslpassword=hush#plant",
            r"'\*\*\*@h/db\?\*\*\*' is not .*; an engine's address is for",
        ),
        ("postgresql//u:hush@h/db#plant", r"'\*\*\*@h/db#plant' is not .*; a folder is given as a Path"),
        ("qdrants:hu@sh@h", r"'\*\*\*@h' is not the name"),
        ("file:///kbs/pl ant?", r"'file:///kbs/pl ant\?\*\*\*' is not .*; a folder is given as a Path"),
    ],
)
def test_an_address_in_place_of_a_name_is_not_repeated(given: str, says: str) -> None:
    for asked in (KnowledgeBase.open, KnowledgeBase.create, check_name):
        with pytest.raises(ConfigError, match=says) as raised:
            asked(given)
        assert not set(re.findall("hush|hu@|sh@", str(raised.value)))

"""Models on other machines are asked through the proxy that the environment names, those on this one directly."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import server_context
from tests.model_server import Handler, ModelServer, model_server, refused_url, says
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError
from voicevault_retrievers.models import http
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel

HOST = "model.example"
ASKED = "Basic YW5uOmh1c2g6"
"""What a proxy is told of the user ann with the password hush:"""


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the environment says, in one of the two spellings alone."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def told(**names: str) -> None:
        for name, value in names.items():
            monkeypatch.setenv(name, value)

    return told


def address(server: ModelServer) -> str:
    return f"http://ann:hush%3A@127.0.0.1:{server.server_port}"


def model(scheme: str, **options: Any) -> OpenAIModel:
    return OpenAIModel("gpt", base_url=f"{scheme}://{HOST}/v1", api_key="key", timeout=30, **options)


async def test_over_http_the_proxy_gets_the_whole_address(proxies: Any) -> None:
    with model_server(says("yes")) as server:
        proxies(http_proxy=address(server), https_proxy=refused_url())
        assert model("http").complete("?") == await model("http").acomplete("?") == "yes"
    for path, headers, _ in server.requests:
        assert path == f"http://{HOST}/v1/chat/completions"
        assert (headers["Host"], headers["Proxy-Authorization"]) == (HOST, ASKED)
        assert headers["Authorization"] == "Bearer key"


@pytest.fixture
def tunnelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Model servers that are proxies, too, and answer in their tunnels; what they were asked for tunnels."""
    tunnels: list[tuple[str, str | None]] = []
    context = server_context(tmp_path, HOST, monkeypatch)
    monkeypatch.setattr(http, "trusted", ssl.create_default_context)

    def connected(handler: Handler) -> None:
        tunnels.append((handler.path, handler.headers["Proxy-Authorization"]))
        handler.send_response(200)
        handler.end_headers()
        with context.wrap_socket(handler.connection, server_side=True) as secure:
            handler.rfile, handler.wfile = secure.makefile("rb"), secure.makefile("wb", buffering=0)  # type: ignore[assignment]
            handler.handle_one_request()
        handler.close_connection = True

    monkeypatch.setattr(Handler, "do_CONNECT", connected, raising=False)
    return tunnels


async def test_over_https_the_proxy_gets_a_tunnel_and_sees_no_key(tunnelled: list[Any], proxies: Any) -> None:
    with model_server(says("yes")) as server:
        proxies(HTTPS_PROXY=address(server), http_proxy=refused_url())
        assert model("https").complete("?") == await model("https").acomplete("?") == "yes"
    assert tunnelled == [(f"{HOST}:443", ASKED)] * 2
    for path, headers, _ in server.requests:
        assert path == "/v1/chat/completions"
        assert "Proxy-Authorization" not in headers
        assert headers["Authorization"] == "Bearer key"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_asked_directly(host: str, proxies: Any) -> None:
    proxies(http_proxy=refused_url(), https_proxy="socks5://nowhere")
    with model_server(says("yes")) as server:
        assert OllamaModel("llama", base_url=f"http://{host}:{server.server_port}").complete("?") == "yes"


def test_a_host_that_is_excepted_is_asked_directly(proxies: Any) -> None:
    with model_server(says("yes")) as server:
        proxies(http_proxy=address(server), no_proxy="other.invalid,.no-such-host.invalid")
        with pytest.raises(SearchNotAvailableError, match="cannot be asked: gaierror"):
            OllamaModel("llama", base_url="http://a.no-such-host.invalid").complete("?")
        assert server.requests == []


@pytest.mark.parametrize(
    "proxy", ["socks5://ann:hush@h:1080", "https://ann:hush@h", "http://ann:hush@h:x", "http://:8"]
)
def test_an_address_that_is_no_http_proxy_is_refused_without_its_password(proxy: str, proxies: Any) -> None:
    proxies(https_proxy=proxy)
    with pytest.raises(
        ConfigError, match=f"HTTPS_PROXY is not the address of an HTTP proxy .* {HOST} in NO_PROXY"
    ) as it:
        model("https").complete("?")
    assert "hush" not in str(it.value)


def test_a_proxy_that_is_away_is_named_without_its_password(proxies: Any) -> None:
    away = refused_url().replace("//", "//ann:hush@")
    proxies(https_proxy=away, http_proxy=away)
    for scheme in ("https", "http"):
        with pytest.raises(SearchNotAvailableError) as raised:
            model(scheme).complete("?")
        assert f"{HOST} cannot be asked through the proxy at {away.rpartition('@')[2]}: Conn" in str(raised.value)
        assert "hush" not in str(raised.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="http.client leaves the socket of a refused tunnel open")
def test_a_proxy_that_gives_no_tunnel_is_an_error(proxies: Any) -> None:
    with model_server(says("yes")) as server:
        proxies(https_proxy=address(server))  # which knows no CONNECT
        with pytest.raises(SearchNotAvailableError, match="Tunnel connection failed: 501"):
            model("https").complete("?")

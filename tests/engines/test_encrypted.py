"""Over TLS, an engine that is reached by HTTP asks only a server whose certificate is that of its host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.certificates import server_context
from tests.engines.engines import SYSTEMS
from tests.engines.http_server import serving
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError
from voicevault_retrievers.testing.corpora import WordEmbedder

SCHEMES = {"chroma": "chromas", "elasticsearch": "elasticsearchs", "opensearch": "opensearchs", "qdrant": "qdrants"}

Asked = Callable[[str], AbstractContextManager[tuple[int, list[str]]]]


class Refusing(BaseHTTPRequestHandler):
    """A server that knows nobody."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Starts one with a certificate of a host; gives its port, and what it is asked."""

    @contextmanager
    def started(host: str) -> Iterator[tuple[int, list[str]]]:
        handler = type("Handler", (Refusing,), {"asked": []})
        with serving(handler, threading.Event(), server_context(tmp_path, host, monkeypatch)) as port:
            yield port, handler.asked

    return started


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("system", SCHEMES)
async def test_a_certificate_of_another_host_is_refused(system: str, host: str, server: Asked) -> None:
    SYSTEMS[system].skip()
    for certified in (host, "elsewhere.example"):
        with server(certified) as (port, asked):
            await _refused(
                connect(f"{SCHEMES[system]}://{host}:{port}/tools", embedder=WordEmbedder()), certified == host
            )
            assert (len(asked) >= 2) == (certified == host)


@pytest.mark.parametrize("system", ["elasticsearch", "opensearch"])
async def test_so_is_one_that_options_trust(
    system: str, server: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SYSTEMS[system].skip()
    for certified in ("127.0.0.1", "elsewhere.example"):
        with server(certified) as (port, _):
            monkeypatch.delenv("SSL_CERT_FILE")
            options = {"ca_certs": str(tmp_path / f"{certified}.pem")}
            address = f"{SCHEMES[system]}://127.0.0.1:{port}/tools"
            engine = connect(address, embedder=WordEmbedder(), client_options=options)
            await _refused(engine, certified == "127.0.0.1")
    engine = connect(address, embedder=WordEmbedder(), client_options={"ca_certs": "none.pem"})
    with pytest.raises(ConfigError, match="refuses its options"):
        await engine.aget(["a"])


async def _refused(engine: Engine, right: bool) -> None:
    """It is asked, and answers that it does not know the user, where its certificate is the `right` one."""
    told = "401|refuses" if right else "(?i)certificate|doesn't match"
    with pytest.raises(SearchNotAvailableError, match=told):
        engine.get(["a"])
    with pytest.raises(SearchNotAvailableError, match=told):
        await engine.aget(["a"])
    engine.close()
    await engine.aclose()

"""`voicevault mcp --http`: a real server, real clients, their tokens."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest

pytest.importorskip("mcp")

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from starlette.testclient import TestClient

from tests.unit.mcp.parts import RUN, citations, make, text, told
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.mcp import application, load_configuration, local, serve_http
from voicevault_retrievers.mcp import http as served

DESK, GUEST = "desk-" + "d" * 20, "guest-" + "g" * 20
CONFIGURATION = """
version: 1
bases:
  plant: {preset: keywords.yaml, root: .}
  office: {preset: keywords.yaml, root: .}
clients:
  desk: {token: "${TEST_DESK}", bases: [plant, office]}
  guest: {token: "${TEST_GUEST}", bases: [plant], require: {public: true}}
"""
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
ACCEPTED = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make(tmp_path_factory.mktemp("kbs"))
    (root / "server.yaml").write_text(CONFIGURATION)
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """A server in a thread, with the two clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_DESK", DESK)
        patch.setenv("TEST_GUEST", GUEST)
        configuration = load_configuration(root / "server.yaml")
        servers: list[served._Server] = []
        real = served._Server.__init__

        def kept(self: served._Server, *args: object) -> None:
            real(self, *args)  # type: ignore[arg-type]
            servers.append(self)

        patch.setattr(served._Server, "__init__", kept)
        told: list[str] = []
        ready = threading.Event()

        def tell(address: str) -> None:
            told.append(address)
            ready.set()

        thread = threading.Thread(target=serve_http, args=(configuration, "127.0.0.1", 0, tell))
        thread.start()
        ready.wait()
        yield told[0]
        servers[0].should_exit = True
        thread.join()


@asynccontextmanager
async def connected(address: str, token: str) -> AsyncIterator[ClientSession]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=30) as client,
        streamable_http_client(address, http_client=client) as (reading, writing, _),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        yield session


async def test_two_clients_at_once_with_rights_of_their_own(address: str) -> None:
    async with connected(address, DESK) as desk, connected(address, GUEST) as guest:
        for _ in range(2):  # the numbers of one are not those of the other
            found = await desk.call_tool("search", {"query": "secret code"})
            assert [(one.index, one.chunk_id) for one in citations(found)] == [(1, "p3")]
            hidden = await guest.call_tool("search", {"query": "secret code"})
            assert citations(hidden) == ()
        assert "No source of this session" in await told(guest, "get_context", number=1)
        assert "unknown knowledge base 'office'. Known: plant." in await told(guest, "search", query="x", kb="office")
        assert citations(await desk.call_tool("search", {"query": "coffee", "kb": "office"}))
        assert "office" not in str(await guest.list_tools())
        assert "Knowledge base office" in text(await desk.call_tool("list_sources", {}))
        assert "Knowledge base office" not in text(await guest.call_tool("list_sources", {}))


async def test_many_searches_at_once_have_numbers_of_their_own(address: str) -> None:
    async with connected(address, DESK) as desk:
        numbers: dict[int, set[str]] = {}

        async def ask(query: str) -> None:
            for one in citations(await desk.call_tool("search", {"query": query, "kb": "plant"})):
                numbers.setdefault(one.index, set()).add(one.chunk_id)

        async with anyio.create_task_group() as tasks:
            for query in ("lever", "red button", "bearings", "boiler", "valve", "pump") * 3:
                tasks.start_soon(ask, query)
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert all(len(sources) == 1 for sources in numbers.values())


def _post(address: str, **headers: str) -> httpx.Response:
    return httpx.post(address, json=HELLO, headers={**ACCEPTED, **headers})


def test_nobody_enters_without_a_token(address: str) -> None:
    for given in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {DESK}x"}, {"Authorization": DESK}):
        refused = _post(address, **given)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert httpx.get(address).status_code == 401
    for scheme in ("Bearer", "bearer"):
        assert _post(address, Authorization=f"{scheme} {DESK}").status_code == 200
    assert _post(address.removesuffix("/mcp")).status_code == 404


def test_a_session_is_of_the_client_that_began_it(address: str) -> None:
    begun = _post(address, Authorization=f"Bearer {DESK}").headers["mcp-session-id"]
    taken = {"Authorization": f"Bearer {GUEST}", "Mcp-Session-Id": begun}
    assert _post(address, **taken).status_code in (400, 404)  # as versions of the SDK say it
    assert httpx.delete(address, headers=taken).status_code in (400, 404)


def test_the_sessions_of_a_client_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "SESSIONS", 2)
    bounded = application(local(["plant"], preset=str(root / "keywords.yaml"), root=root))
    with TestClient(bounded, base_url="http://127.0.0.1") as client:

        def begin() -> dict[str, str]:
            begun = client.post("/mcp", json=HELLO, headers=ACCEPTED)
            assert begun.status_code == 200
            return {**ACCEPTED, "Mcp-Session-Id": begun.headers["mcp-session-id"]}

        def asked(session: dict[str, str]) -> int:
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            return client.post("/mcp", json=ping, headers=session).status_code

        first, second = begin(), begin()
        assert (asked(first), asked(second), asked(first)) == (200, 200, 200)
        third = begin()  # in the place of the one that is idle for longest
        assert (asked(second), asked(first), asked(third)) == (404, 200, 200)
        assert client.post("/mcp", content=b"{", headers=ACCEPTED).status_code == 400  # begins no session
        assert client.delete("/mcp", headers=first).status_code == 200
        fourth = begin()
        assert (asked(third), asked(fourth), asked(first)) == (200, 200, 404)


async def test_a_session_with_an_open_stream_is_not_idle(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "SESSIONS", 1)
    bounded = application(local(["plant"], preset=str(root / "keywords.yaml"), root=root))
    transport = httpx.ASGITransport(bounded)
    async with (
        bounded.router.lifespan_context(bounded),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        begun = await client.post("/mcp", json=HELLO, headers=ACCEPTED)
        session = {**ACCEPTED, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.get, "/mcp", headers=session))
            await anyio.wait_all_tasks_blocked()
            assert (await client.post("/mcp", json=HELLO, headers=ACCEPTED)).status_code == 503
            await client.delete("/mcp", headers=session)
        assert (await client.post("/mcp", json=HELLO, headers=ACCEPTED)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8461"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Host": "localhost"}, 200),
    ],
)
def test_other_hosts_and_origins_are_refused(address: str, headers: dict[str, str], status: int) -> None:
    assert _post(address, Authorization=f"Bearer {DESK}", **headers).status_code == status


def test_what_is_no_message_is_refused(address: str) -> None:
    headers = {**ACCEPTED, "Authorization": f"Bearer {DESK}", "Content-Type": "application/json"}
    nested = [b'{"a":' * 900 + b"1" + b"}" * 900, b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000]
    for content in (b"{", b'"\xff"', b"9" * 5000, *nested):
        refused = httpx.post(address, content=content, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32700)
    assert httpx.post(address, content=b"x" * 5_000_000, headers=headers).status_code in (400, 413)


def test_others_are_let_in_by_tokens_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = local(["plant"], preset=str(root / "keywords.yaml"), root=root)
    everywhere = "0.0.0.0"  # noqa: S104 - is refused
    for host in (everywhere, "10.0.0.5", "search.example.org", "::"):
        with pytest.raises(ConfigError, match="clients and their tokens"):
            application(open_to_all, host)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        application(open_to_all, host)
    monkeypatch.setenv("TEST_DESK", DESK)
    monkeypatch.setenv("TEST_GUEST", GUEST)
    guarded = load_configuration(root / "server.yaml")
    application(guarded, "10.0.0.5")
    with pytest.raises(ConfigError, match="by which `hosts` it is called"):
        application(guarded, everywhere)


@pytest.mark.program
async def test_the_command_listens_and_ends_by_ctrl_c(root: Path) -> None:
    words = ["--kb", "plant", "--root", str(root), "--preset", str(root / "keywords.yaml"), "--http", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "mcp", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    (address,) = re.findall(r"^listening on (http://127\.0\.0\.1:\d+/mcp)$", line)
    async with connected(address, "none is asked for") as client:
        assert citations(await client.call_tool("search", {"query": "red button"}))
    async with connected(address, "none is asked for"):
        process.send_signal(signal.SIGINT)
        out, log = await anyio.to_thread.run_sync(process.communicate)
    assert (out, process.returncode) == ("", 130)
    assert "ClosedResourceError" not in log


def test_a_port_that_is_taken_is_said(root: Path) -> None:
    open_to_all = local(["plant"], preset=str(root / "keywords.yaml"), root=root)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        serve_http(open_to_all, port=taken.getsockname()[1])

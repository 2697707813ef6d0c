"""Who gets an answer from the inspector, and what every answer says to the browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra inspector is not installed")
pytest.importorskip("uvicorn", reason="the extra inspector is not installed")

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.inspector import app, serve
from voicevault_retrievers.store import KnowledgeBase

HOME = "http://127.0.0.1:8460"
TOKEN = "a token of thirty-two characters"  # noqa: S105 - of a test
ODD = "a/b?c&d of sixteen"
PRESET = "version: 1\nchannels: {bm25: {}}\n"
ASKED = {"query": "pump", "kb": ["plant"], "preset": "own", "k": 3}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspected")
    with KnowledgeBase.create("plant", root=folder / "kbs") as base:
        base.add([Chunk("c1", "the pump"), Chunk("c2", "another pump")])
    (folder / "own.yaml").write_text(PRESET)
    return folder / "kbs"


def client(root: Path, home: str = HOME, **options: Any) -> TestClient:
    own = str(root.parent / "own.yaml")
    return TestClient(app(["plant"], root=root, presets=[own], **options), base_url=home, follow_redirects=False)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 200), ("GET", "/api/bases", 200), ("GET", "/no", 404), ("DELETE", "/api/bases", 405),
     ("GET", "/api/chunk", 400), ("POST", "/api/search", 415)],
)  # fmt: skip
def test_every_answer_keeps_the_browser_to_the_page_s_own(root: Path, method: str, path: str, status: int) -> None:
    answer = client(root).request(method, path)
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert set(policy) == {
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob:", "connect-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    }  # fmt: skip
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1:8460", "localhost", "LOCALHOST:1", "[::1]:8460")),
        *((host, 403) for host in (
            "evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "localhost:80:80", "127.0.0.1 evil",
            "10.0.0.1", "localhost.", "[::1", "",
        )),
    ],
)  # fmt: skip
def test_the_names_of_loopback_are_answered_and_no_others(root: Path, host: str, status: int) -> None:
    answer = client(root).get("/api/bases", headers={"Host": host})
    assert answer.status_code == status
    assert status == 200 or "does not go by the name" in answer.json()["error"]


def test_a_server_for_all_addresses_answers_to_them_and_to_no_other_name(root: Path) -> None:
    everywhere = client(root, hosts=["0.0.0.0", "station"])  # noqa: S104 - nothing listens
    for host, status in (("192.0.2.7:8460", 200), ("[2001:db8::1]", 200), ("Station", 200), ("evil.example", 403)):
        assert everywhere.get("/api/bases", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": HOME}, 200),
        ({"Origin": HOME, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://[evil"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "http://127.0.0.1:8460.evil.example"}, 403),
        ({"Origin": HOME, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_pages_of_others_can_neither_search_nor_judge(root: Path, headers: dict[str, str], status: int) -> None:
    inspected = client(root)
    assert inspected.post("/api/search", json=ASKED, headers=headers).status_code == status
    judged = {"query": "pump", "kb": "plant", "id": "c1", "grade": 1}
    assert inspected.put("/api/judgments", json=judged, headers=headers).status_code == status


def test_the_page_itself_may_be_led_to(root: Path) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client(root).get("/", headers=headers).status_code == 200
    assert client(root).get("/api/page", params={"kb": "plant", "id": "c1"}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/api/bases", "/static/app.js", f"/api/bases?token={TOKEN}", "/?token=", "/?token=x"]
)
def test_without_the_token_nothing_is_told(root: Path, path: str) -> None:
    answer = client(root, token=TOKEN).get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert list(answer.json()) == ["error"]


def test_the_token_opens_by_header_or_once_by_address(root: Path) -> None:
    inspected = client(root, token=TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert inspected.get("/api/bases", headers=bearer).status_code == 200
    assert inspected.get("/api/bases", headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert inspected.get("/api/bases", headers=[(b"Authorization", "Bearer é".encode())]).status_code == 401
    entered = inspected.get("/", params={"token": TOKEN})
    cookie = entered.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert TOKEN not in entered.text
    assert '<script src="static/enter.js">' in entered.text
    assert inspected.get("/").status_code == 200
    assert inspected.get("/api/bases").status_code == 200
    inspected.cookies.clear()
    forged = {"Cookie": f"{cookie.partition('=')[0]}={'0' * 56}"}
    assert inspected.get("/api/bases", headers=forged).status_code == 401


def test_below_a_path_it_works_as_well(root: Path) -> None:
    inside = app(["plant"], root=root, presets=[str(root.parent / "own.yaml")], token=TOKEN)
    mounted = TestClient(Starlette(routes=[Mount("/inspect", inside)]), base_url=HOME)
    entered = mounted.get("/inspect/", params={"token": TOKEN})
    assert "Path=/inspect;" in entered.headers["set-cookie"]
    assert mounted.get("/inspect/api/bases").json()["kb"] == ["plant"]


def test_an_address_that_others_reach_has_a_token(root: Path) -> None:
    shown: list[str] = []

    def ready(address: str) -> None:
        shown.append(address)
        raise KeyboardInterrupt

    serve(["plant"], root=root, host="0.0.0.0", port=0, ready=ready)  # noqa: S104 - ends before it answers
    serve(["plant"], root=root, port=0, ready=ready)
    serve(["plant"], root=root, port=0, token=ODD, ready=ready)
    everywhere, loopback, given = (httpx.URL(one) for one in shown)
    assert everywhere.host == socket.gethostname().lower()
    assert len(everywhere.params["token"]) >= 32
    assert (loopback.host, loopback.query) == ("127.0.0.1", b"")
    assert given.params["token"] == ODD
    with pytest.raises(ConfigError, match="a token has at least 16 characters"):
        serve(["plant"], root=root, port=0, token="short")  # noqa: S106 - of a test


def test_a_port_that_is_taken_is_said(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="cannot be listened at"):
        serve(["plant"], root=root, port=taken.getsockname()[1])


@contextmanager
def command(root: Path, preset: Path) -> Iterator[str]:
    """The address that `voicevault inspect` shows; in the end Ctrl-C comes, and nothing more is said."""
    words = ["inspect", "--kb", "plant", "--preset", str(preset), "--root", str(root), "--port", "0"]
    line = [sys.executable, "-W", "error", "-c", "from voicevault_retrievers.cli import main; main()", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0


@pytest.mark.program
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
def test_the_command_serves_until_ctrl_c(root: Path) -> None:
    with command(root, root.parent / "own.yaml") as address:
        assert httpx.get(f"{address}api/bases").json()["bases"] == [{"name": "plant", "chunks": 2}]
        found = httpx.post(f"{address}api/search", json=ASKED, timeout=60).json()
        assert {hit["id"] for hit in found["hits"]} == {"c1", "c2"}
        assert httpx.get(address, headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.program
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_does_not_wait_for_a_search(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as model, ThreadPoolExecutor() as threads:
        model.settimeout(60)
        waits = f"{{ollama: m, base_url: 'http://127.0.0.1:{model.getsockname()[1]}', timeout: 300}}"
        slow = root.parent / "slow.yaml"
        slow.write_text(f"{PRESET}stages: [{{llm_rerank: {waits}}}]\n")
        with command(root, slow) as address:
            body = {**ASKED, "preset": "slow"}
            searching = threads.submit(httpx.post, f"{address}api/search", json=body, timeout=300)
            asked, _ = model.accept()  # the reranker waits for its model by now
        with asked, suppress(httpx.HTTPError):
            assert searching.result(timeout=60).is_error

"""`voicevault mcp` over stdio, as the process that a client starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from tests.unit.mcp.parts import RUN, citations, make, started, text, told

NOISY = """
import os, sys, logging
from voicevault_retrievers.mcp.bases import Library
real = Library.pipeline
def noisy(self, group):
    print("print: not the protocol")
    os.write(1, b"write: not the protocol\\n")
    os.system("echo child: not the protocol")
    logging.getLogger("x").warning("log: not the protocol")
    return real(self, group)
Library.pipeline = noisy
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kbs"))


@pytest.mark.program
async def test_all_tools_in_a_process_of_their_own(root: Path, tmp_path: Path) -> None:
    options = ("--kb", "plant, office", "--root", root, "--preset", root / "keywords.yaml")
    async with started(*options, before=NOISY, errors=tmp_path / "log") as client:
        assert len((await client.list_tools()).tools) == 3
        (found, *_) = citations(await client.call_tool("search", {"query": "red button"}))
        read = citations(await client.call_tool("get_context", {"number": found.index}))
        assert found.chunk_id in [one.chunk_id for one in read]
        assert "Knowledge base office: 1 document, 1 chunk." in text(await client.call_tool("list_sources", {}))
        assert "unknown knowledge base 'none'" in await told(client, "search", query="x", kb="none")
    log = (tmp_path / "log").read_text()
    for what in ("print", "write", "child", "log"):
        assert f"{what}: not the protocol" in log


@pytest.mark.program
def test_only_messages_on_the_standard_output(root: Path) -> None:
    asked: list[object] = [
        "this is no JSON",
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "no/such", "params": {}},
        '{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "search", "arguments": "\\ud800"}}',
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {
            "name": "search", "arguments": {"query": "pump"}}},
    ]  # fmt: skip
    lines = [one if isinstance(one, str) else json.dumps(one) for one in asked]
    process = _command(root)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(f"{line}\n" for line in lines))
    process.stdin.flush()
    answers: dict[object, dict[str, object]] = {}
    while 4 not in answers:
        message = json.loads(process.stdout.readline())
        answers[message.get("id")] = message
    rest, _ = process.communicate()
    assert (rest, process.returncode) == ("", 0)
    assert "pump is started" in json.dumps(answers[4])
    assert "error" in answers[2]


@pytest.mark.program
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_ctrl_c_ends_it_though_it_waits_for_input(root: Path) -> None:
    process = _command(root)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == 1
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    process.communicate()


def _command(root: Path) -> subprocess.Popen[str]:
    words = ["--kb", "plant", "--root", str(root), "--preset", str(root / "keywords.yaml")]
    return subprocess.Popen(
        [sys.executable, "-c", RUN, "mcp", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ),
    )

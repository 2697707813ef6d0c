"""Runs the tests of each framework with the oldest core that its extra allows, and with the newest that installs.

The newest is not tested here while it is what `make test` runs.

Each has an environment of its own, kept between runs as `.venv-langchain-floor` and its like. What is not the
framework's is as in constraints.txt. Two environments are installed and tested at a time. The stores of Chroma, Faiss,
PostgreSQL and, but for the newest LlamaIndex, Qdrant are not installed, and their tests not collected: `make test` has
them. Other tests of what is not installed, and at the floor those that need a newer core, are skipped and say so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
TOOLS = ["hypothesis", "pytest", "pytest-asyncio"]
AT_ONCE = 2
STORES = ("chroma", "faiss", "pgvector", "postgres", "qdrant")


@dataclass(frozen=True)
class Framework:
    """What is installed to test a framework: beside its core always, the newest of, and free of the constraints."""

    core: str
    tests: str
    needed: tuple[str, ...]
    newest: tuple[str, ...]
    free: tuple[str, ...]


FRAMEWORKS = {
    "langchain": Framework(
        "langchain-core",
        "test_*langchain*.py",
        needed=(f"{ROOT}[langchain,rank-bm25]", "langchain-tests"),
        newest=("langchain", "langchain-classic", "langchain-community", "langchain-core"),
        free=("langchain", "langgraph", "certifi"),  # a newer langchain-core asks for a newer certifi
    ),
    "llama-index": Framework(
        "llama-index-core",
        "test_*llama_index*.py",
        needed=(f"{ROOT}[llama-index,rank-bm25]",),
        newest=("llama-index-core", "llama-index-vector-stores-qdrant"),
        free=("llama-index",),
    ),
}


def main() -> None:
    """Install and test each, at the floor and at the newest; ends with the first command that fails, if any."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [
            pool.submit(_checked, name, edge, requirements)
            for name, framework in FRAMEWORKS.items()
            for edge, requirements in {
                "floor": (f"{framework.core}=={_floor(framework.core, pyproject)}",),
                "newest": framework.newest,
            }.items()
        ]
        for run in runs:
            sys.stdout.write(run.result())


def _checked(name: str, edge: str, requirements: tuple[str, ...]) -> str:
    framework = FRAMEWORKS[name]
    if edge == "newest" and not _newer(framework, requirements):
        return f"{name}, newest: {framework.core}=={version(framework.core)}, which `make test` runs\n"
    python = _environment(ROOT / f".venv-{name}-{edge}", framework, requirements)
    installed = _run([sys.executable, "-m", "pip", "--python", python, "list", "--format", "freeze"]).splitlines()
    core = next(line for line in installed if line.startswith(f"{framework.core}=="))
    absent = " or ".join(store for store in STORES if not any(store in requirement for requirement in requirements))
    chosen = ["-k", f"not (engines and ({absent}))", "-p", "no:cacheprovider"]  # which two at a time would write
    tested = _run([python, "-m", "pytest", "-q", *chosen, *_tests(framework)])
    return f"{name}, {edge}: {core}\n{tested}\n"


def _newer(framework: Framework, requirements: tuple[str, ...]) -> bool:
    """Whether any of some packages could be newer than here."""
    with _constraints(framework) as constraints:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        told = _run([*pip, "--report", "-", "--upgrade", "--constraint", constraints, *requirements])
    return bool(json.loads(told)["install"])


def _floor(core: str, pyproject: str) -> str:
    found = re.search(rf'"{core}>=([0-9.]+)', pyproject)
    if found is None:
        raise SystemExit(f"pyproject.toml names no lowest {core}")
    return found[1]


def _tests(framework: Framework) -> list[str]:
    """Its files, but for the programs: those need models' weights."""
    found = (ROOT / "tests").rglob(framework.tests)
    return sorted(str(path) for path in found if path.parent.name != "end_to_end")


def _environment(folder: Path, framework: Framework, requirements: tuple[str, ...]) -> str:
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        venv.create(folder)
    with _constraints(framework) as constraints:
        install = [sys.executable, str(ROOT / "tests" / "packaging" / "install.py"), str(folder), "--upgrade"]
        own, *needed = framework.needed
        _run([*install, "--constraint", constraints, "--editable", own, *needed, *TOOLS, *requirements])
    return python


@contextmanager
def _constraints(framework: Framework) -> Iterator[str]:
    """A file with what is pinned of all that is not the framework's."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(line for line in PINNED if not line.startswith(framework.free)))
        file.flush()
        yield file.name


def _run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()

"""Runs the tests of each framework with the oldest core that its extra allows, and with the newest that installs.

The newest is not tested here while constraints.txt pins it.

Each has an environment of its own, kept between runs as `.venv-langchain-floor` and its like. What is not the
framework's is as in constraints.txt. Two environments are installed and tested at a time. The stores of Chroma, Faiss,
PostgreSQL and, but for the newest LlamaIndex, Qdrant are not installed, and their tests not collected: `make test` has
them. Other tests of what is not installed, and at the floor those that need a newer core, are skipped and say so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    python = _environment(ROOT / f".venv-{name}-{edge}", framework, requirements)
    installed = _run([sys.executable, "-m", "pip", "--python", python, "list", "--format", "freeze"]).splitlines()
    version = next(line for line in installed if line.startswith(f"{framework.core}=="))
    pinned = [line for line in PINNED if line.partition("==")[0] in requirements]
    if pinned and set(pinned) <= set(installed):
        return f"{name}, {edge}: {version} is what constraints.txt pins, and `make test` runs\n"
    absent = " or ".join(store for store in STORES if not any(store in requirement for requirement in requirements))
    chosen = ["-k", f"not (engines and ({absent}))", "-p", "no:cacheprovider"]  # which two at a time would write
    tested = _run([python, "-m", "pytest", "-q", *chosen, *_tests(framework)])
    return f"{name}, {edge}: {version}\n{tested}\n"


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
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write("\n".join(line for line in PINNED if not line.startswith(framework.free)))
        constraints.flush()
        pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
        own, *needed = framework.needed
        pip += ["install", "--upgrade", "--no-compile"]  # most of what comes is never imported
        _run([*pip, "--constraint", constraints.name, "--editable", own, *needed, *TOOLS, *requirements])
    return python


def _run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()

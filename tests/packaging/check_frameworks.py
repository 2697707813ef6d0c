"""Runs the LangChain tests with the oldest langchain-core that the extra `langchain` allows, and with the newest.

Each has an environment of its own, kept between runs as `.venv-floor` and `.venv-newest`. What is not LangChain's is as
in constraints.txt. Tests of what is not installed are skipped and say so: Chroma, which is large, and at the floor what
needs a newer core.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDED = ["--editable", f"{ROOT}[langchain,rank-bm25]", "hypothesis", "langchain-tests", "pytest", "pytest-asyncio"]
NEWEST = ["langchain", "langchain-classic", "langchain-community", "langchain-core"]
FREE = ("langchain", "langgraph", "certifi")  # a newer langchain-core asks for a newer certifi
VERSION = "from importlib.metadata import version; print(version('langchain-core'), end='')"


def main() -> None:
    """Install and test, at the floor and at the newest; the first command that fails ends it."""
    floor = _floor((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, requirements in {"floor": [f"langchain-core=={floor}"], "newest": NEWEST}.items():
        python = _environment(ROOT / f".venv-{name}", requirements)
        version = _run([python, "-c", VERSION])
        sys.stdout.write(f"{name}: langchain-core {version}\n{_run([python, '-m', 'pytest', '-q', *_tests()])}\n")


def _floor(pyproject: str) -> str:
    found = re.search(r'"langchain-core>=([0-9.]+)', pyproject)
    if found is None:
        raise SystemExit("pyproject.toml names no lowest langchain-core")
    return found[1]


def _tests() -> list[str]:
    return sorted(map(str, (ROOT / "tests").rglob("test_*langchain*.py")))


def _environment(folder: Path, requirements: list[str]) -> str:
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        venv.create(folder, with_pip=True)
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write("\n".join(line for line in pinned if not line.startswith(FREE)))
        constraints.flush()
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        _run([*pip, "--constraint", constraints.name, *NEEDED, *requirements])
    return python


def _run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()

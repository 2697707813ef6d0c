"""Runs the tests with the oldest version that pyproject.toml allows of each package that the package depends on.

What only the tests use is as in constraints.txt; what either depends on is what fits. The environment is kept between
runs as `.venv-floors`. Old packages warn of what is to come, so that warnings are no errors here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-floors"
BESIDE = ("pyarrow==20.0.0", "torch==2.13.0")
"""A newer pyarrow needs NumPy 2 and does not say so."""


def main(*arguments: str) -> int:
    """The exit status of pytest, which is given the arguments."""
    if not FOLDER.exists():
        venv.create(FOLDER)
    install = [sys.executable, str(ROOT / "tests" / "packaging" / "install.py"), str(FOLDER)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join([*_tools(), *BESIDE]))
        file.flush()
        own = ["--editable", f"{ROOT}[dev]"]
        subprocess.run([*install, "--resolution", "lowest-direct", "--constraint", file.name, *own], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{FOLDER / 'bin'}{os.pathsep}{environment['PATH']}"
    python = str(FOLDER / "bin" / "python")
    subprocess.run([python, "-m", "tests.compiled_loops"], cwd=ROOT, env=environment, check=True)
    tests = [python, "-m", "pytest", "-o", "filterwarnings=default", *arguments]
    return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


def _tools() -> list[str]:
    """The lines of constraints.txt for what the extra `dev` names."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {re.split(r"[\[<>=;]", requirement)[0].lower() for requirement in extras["dev"]}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in pinned if line.partition("==")[0].lower().replace("_", "-") in names]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

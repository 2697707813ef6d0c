"""The package's types reach its users: mypy reads what they write, away from the checkout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests" / "typed"
NAMED = re.compile(r"  # ([a-z-]+)$")

each = pytest.mark.parametrize("framework", ["langchain", "llama_index"])


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What mypy says of the files in tests/typed."""
    for needed in ("mypy", "langchain", "llama_index.core"):
        pytest.importorskip(needed)
    options = ["--config-file", TYPED / "mypy.ini", "--cache-dir", ROOT / ".mypy_cache", "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, [*options, *sorted(TYPED.glob("*.py"))])],
        cwd=tmp_path_factory.mktemp("away"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [said for said in map(json.loads, done.stdout.splitlines()) if said["severity"] == "error"]


@pytest.mark.program
def test_what_users_write_has_no_error(errors: list[dict[str, Any]]) -> None:
    assert [said for said in errors if said["file"].endswith("_usage.py")] == []


@pytest.mark.program
@each
def test_each_mistake_is_found(errors: list[dict[str, Any]], framework: str) -> None:
    file = TYPED / f"{framework}_mistakes.py"
    lines = file.read_text(encoding="utf-8").splitlines()
    named = [(at, found[1]) for at, line in enumerate(lines, 1) if (found := NAMED.search(line))]
    assert [(said["line"], said["code"]) for said in errors if Path(said["file"]).name == file.name] == named


@each
def test_every_public_name_is_used(framework: str) -> None:
    public = pytest.importorskip(f"voicevault_retrievers.{framework}").__all__
    words = Counter(re.findall(r"\w+", (TYPED / f"{framework}_usage.py").read_text(encoding="utf-8")))
    assert [name for name in public if words[name] < 2] == []  # once it is imported

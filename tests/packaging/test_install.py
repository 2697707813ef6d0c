"""uv is told what pip's configuration says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import module_at

INSTALL = module_at(Path(__file__).with_name("install.py"))
CONFIGURATION = """
[global]
index-url = https://packages.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
constraint = shared.txt
cert = ours.pem
[install]
constraint = own.txt
"""


def test_what_pip_is_told_is_told_to_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable comes before what files say of `install`, and that before what they say of all commands."""
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels more")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    (tmp_path / "pip.conf").write_text(CONFIGURATION, encoding="utf-8")
    asked: list[Any] = []
    real = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        if "uv" not in command:
            return real(command, **options)
        cache = Path(command.pop(command.index("--cache-dir") + 1))
        asked.append((command[command.index("--index-strategy") + 2 :], options["env"]["SSL_CERT_FILE"], cache.parent))
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    assert INSTALL.main(tmp_path, "--editable", ".") == 3
    told = [
        *("--default-index", "https://mirror.example/simple"),
        *("--index", "https://one.example/simple", "--index", "https://two.example/simple"),
        *("--find-links", "wheels", "--find-links", "more"),
        *("--constraint", "own.txt"),
        *("--link-mode", "hardlink", "--cache-dir", "--editable", "."),
    ]
    assert asked == [(told, "ours.pem", tmp_path)]
    assert [path.name for path in tmp_path.iterdir()] == ["pip.conf"], "the cache stays"

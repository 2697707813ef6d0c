"""How every benchmark writes its rows: with the machine and the versions that made them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "results"


class Row(NamedTuple):
    """One figure."""

    system: str
    case: str
    metric: str
    value: float


def write(name: str, rows: Iterable[Row], packages: Iterable[str], *, merge: bool = False) -> Path:
    """`results/NAME.json`: the rows, the machine, the versions.

    With `merge`, rows that were there stay, but for those of the same system, case and metric.
    """
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    if merge:
        rows = {row[:3]: row for row in [*_read(path), *rows]}.values()
    data = {
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
        "rows": [row._asdict() for row in rows],
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def _read(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] if path.is_file() else []


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())

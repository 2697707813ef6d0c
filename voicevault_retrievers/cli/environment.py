"""The environment: installed extras, models that load offline, and the processor's features."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from voicevault_retrievers._support.extras import DISTRIBUTION
from voicevault_retrievers.models.weights import BACKENDS, HUB, PACKED, PROFILES, canonical, find, installed

_COLLECTIONS = ("all", "dev")
"""The extra that combines the others, and that for work on the package itself."""

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[.*?])?\s*\(?(?P<range>[^;)]*)\)?\s*(?:;.*extra == ['\"](?P<extra>.+?)['\"])?"
)
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.]+)")
_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bfloat16",
    "asimd": "NEON",
    "asimddp": "NEON dot product",
    "i8mm": "int8 matrices",
    "bf16": "bfloat16",
}
"""Flags of /proc/cpuinfo that affect the speed of models."""


@dataclass(frozen=True)
class Extra:
    """An extra: its installed packages with versions, the missing ones, and those of unsupported versions."""

    name: str
    packages: Mapping[str, str]
    missing: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """`present`; `missing` where a package is missing; `conflict` where a package has an unsupported version."""
        return "conflict" if self.conflicts else "missing" if self.missing else "present"

    @property
    def install(self) -> str:
        """The command that installs the extra."""
        return f"pip install '{DISTRIBUTION}[{self.name}]'"


@dataclass(frozen=True)
class Model:
    """A model that loads offline: the backends that can, and whether from a package or the hub's cache."""

    name: str
    backends: tuple[str, ...]
    place: str


def extras(requirements: Iterable[str] | None = None) -> list[Extra]:
    """The extras of this package, by name; `requirements` are those of its metadata."""
    wanted: dict[str, dict[str, str]] = {}
    for line in requires(DISTRIBUTION) or () if requirements is None else requirements:
        found = _REQUIREMENT.match(line)
        if found and found["extra"] and found["extra"] not in _COLLECTIONS:
            wanted.setdefault(found["extra"], {})[found["name"]] = found["range"].strip()
    return [_extra(name, packages) for name, packages in sorted(wanted.items())]


def _extra(name: str, packages: Mapping[str, str]) -> Extra:
    here = {package: held for package in packages if (held := _version(package)) is not None}
    wrong = {package: held for package, held in here.items() if not satisfies(held, packages[package])}
    return Extra(
        name,
        here,
        tuple(package for package in packages if package not in here),
        tuple(f"{package} {held} is installed, {packages[package]} is supported" for package, held in wrong.items()),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def satisfies(held: str, wanted: str) -> bool:
    """Whether a version is in a range such as `>=1.4,<2`; suffixes of the release numbers are ignored."""
    holds = {
        ">=": lambda own, other: own >= other,
        "<=": lambda own, other: own <= other,
        "==": lambda own, other: own == other,
        "!=": lambda own, other: own != other,
        "<": lambda own, other: own < other,
        ">": lambda own, other: own > other,
    }
    return all(holds[clause[1]](*_comparable(held, clause[2])) for clause in _CLAUSE.finditer(wanted))


def _comparable(*versions: str) -> list[tuple[int, ...]]:
    numbers = [tuple(map(int, re.findall(r"\d+", (re.match(r"[\d.]*", one) or [""])[0]))) for one in versions]
    longest = max(map(len, numbers))
    return [one + (0,) * (longest - len(one)) for one in numbers]


def models() -> list[Model]:
    """The models that load offline, those in packages first."""
    known = {canonical(name) for name in (*(name for name, _ in PACKED), *PROFILES.values())}
    packed = {name: backends for name in sorted(known) if (backends := _backends(name))}
    cached = {name: backends for name, folder in sorted(_cached().items()) if (backends := _backends(str(folder)))}
    return [
        *(Model(name, backends, "package") for name, backends in packed.items()),
        *(Model(name, backends, "hub cache") for name, backends in cached.items()),
    ]


def _backends(name: str) -> tuple[str, ...]:
    return tuple(backend for backend in BACKENDS if installed(backend) and find(name, backend))


def hub_cache() -> Path:
    """The folder of the hub's cache on this machine."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or home)
    return Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub")


def hub_offline() -> bool:
    """Whether the environment forbids requests to the hub."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in ("HF_HUB_OFFLINE",))


def _cached() -> dict[str, Path]:
    """The newest snapshot of each model in the hub's cache."""
    try:
        folders = hub_cache().glob("models--*--*/snapshots/*")
        newest = sorted((path for path in folders if path.is_dir()), key=lambda path: path.stat().st_mtime)
    except OSError:  # models in an unreadable folder cannot be loaded either
        return {}
    return {_named(path.parts[-3]): path for path in newest}


def _named(folder: str) -> str:
    full = folder.removeprefix("models--").replace("--", "/", 1)
    return next((name for name, known in HUB.items() if known == full), full)


def processor(path: Path = Path("/proc/cpuinfo")) -> dict[str, object]:
    """The processor's name, its usable cores, and its features that speed models up; None where unknown."""
    try:
        told = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    entries = dict(re.findall(r"^([\w ]+?)\s*: *(.*)$", told, re.MULTILINE))
    flags = (entries.get("flags") or entries.get("Features") or "").split()
    usable = getattr(os, "sched_getaffinity", None)
    return {
        "name": entries.get("model name") or platform.processor() or platform.machine(),
        "cores": len(usable(0)) if usable else os.cpu_count(),
        "features": [said for flag, said in _FEATURES.items() if flag in flags] if flags else None,
    }

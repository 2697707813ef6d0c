"""Where a knowledge base lives: a name under a root folder, or a folder."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from voicevault_retrievers.errors import ConfigError

_NAME = re.compile(r"[\w][\w .-]{0,127}")
_LONGEST = 255
"""Bytes of a file name, on most file systems."""


def default_root() -> Path:
    """The folder of knowledge bases: $VOICEVAULT_HOME, else ~/.voicevault/kbs."""
    home = os.environ.get("VOICEVAULT_HOME")
    return Path(home) if home else Path.home() / ".voicevault" / "kbs"


def check_name(name: str) -> str:
    """The name in Unicode's composed form; ConfigError, with the rule, where it is not one."""
    composed = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(composed) or ".." in composed or len(composed.encode()) > _LONGEST:
        raise ConfigError(
            f"{name!r} is not the name of a knowledge base (of a Path the last part is): a name begins with a letter, "
            "digit or underscore, and goes on with up to 127 of those, spaces, single dots and hyphens"
        )
    return composed


def locate(base: str | Path, root: Path | str | None = None) -> Path:
    """The folder of a knowledge base: below the root for a name, itself for a Path; its last part is the name."""
    if isinstance(base, Path):
        return base.parent / check_name(base.name)
    return (default_root() if root is None else Path(root)) / check_name(base)


def vacant(folder: Path) -> bool:
    """Whether there is nothing at all: no folder, or an empty one."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def existing(base: str | Path, root: Path | str | None) -> Path:
    """The folder of a knowledge base; ConfigError, with the known names, where there is none."""
    folder = locate(base, root)
    if vacant(folder):
        known = ", ".join(names(folder.parent)) or "none"
        raise ConfigError(f"there is no knowledge base {folder.name!r} in {folder.parent}; known: {known}")
    return folder


def names(root: Path | str | None = None) -> list[str]:
    """The names of the folders below a root that may be knowledge bases."""
    folder = default_root() if root is None else Path(root)
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))

"""The location of a knowledge base: a name under a root folder, or a folder."""

from __future__ import annotations

import os
import re
import unicodedata
from difflib import get_close_matches
from pathlib import Path

from voicevault_retrievers._support.hosts import MASK
from voicevault_retrievers.errors import ConfigError

_NAME = re.compile(r"\w(?:[\w .-]{0,126}[\w-])?")
_DEVICE = re.compile(r"(?i:con|prn|aux|nul|(?:com|lpt)[0-9¹²³])(?:\..*)?")
"""Windows device names, reserved in every folder: a base of such a name could never be copied there."""

_LONGEST = 255
"""The most bytes of a file name, on most file systems."""


def default_root() -> Path:
    """The folder of knowledge bases: $VOICEVAULT_HOME, else ~/.voicevault/kbs."""
    home = os.environ.get("VOICEVAULT_HOME")
    return Path(home) if home else Path.home() / ".voicevault" / "kbs"


def check_name(name: str) -> str:
    """The name in Unicode's composed form (NFC); ConfigError, stating the rule, for an invalid name.

    A valid name cannot leave the root: it has no separators or dots of any script, no marks that reorder or hide text,
    and no characters that file systems drop or treat specially.
    """
    # NFC takes time quadratic in a run of marks, so overlong names are not composed.
    composed = unicodedata.normalize("NFC", name) if len(name) <= 2 * _LONGEST else name
    if not _is_name(composed):
        raise ConfigError(
            f"{_shown(name)!r} is not the name of a knowledge base (of a Path the last part is){_hint(name)}: a name "
            "begins with a letter, digit or underscore, and goes on with up to 127 of those, spaces, single dots and "
            "hyphens; it does not end with a space or dot, and is not a device of Windows, such as CON"
        )
    return composed


def locate(base: str | Path, root: Path | str | None = None) -> Path:
    """The folder of a knowledge base: below the root for a name, or the Path itself, whose last part is the name.

    Raises ConfigError for an invalid name, and for a name whose folder is a link out of the root. A Path is the
    caller's own choice, and may be such a link.
    """
    if not isinstance(base, str | Path) or not isinstance(root, str | Path | None):
        raise ConfigError(f"a knowledge base is a name in a folder, or a Path, not {base!r} in {root!r}")
    if isinstance(base, Path):
        folder = base.parent / check_name(base.name)
    else:
        folder = (default_root() if root is None else Path(root)) / check_name(base)
    if "\0" in str(folder):
        raise ConfigError(f"{str(folder)!r} is not a path: it holds a NUL character")
    if isinstance(base, str) and _leads_out(folder):
        raise ConfigError(f"{folder} is a link out of {folder.parent}: give the folder itself, as a Path")
    return folder


def vacant(folder: Path) -> bool:
    """Whether the folder is missing or empty."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def free(base: str | Path, root: Path | str | None) -> Path:
    """The folder of a knowledge base to be made; ConfigError where it is not empty."""
    folder = locate(base, root)
    if not vacant(folder):
        raise ConfigError(f"{folder} is there already: remove it, or choose another name")
    return folder


def existing(base: str | Path, root: Path | str | None) -> Path:
    """The folder of a knowledge base; ConfigError, with the nearest and the known names, where there is none."""
    folder = locate(base, root)
    if vacant(folder):
        known = names(folder.parent)
        near = get_close_matches(folder.name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"there is no knowledge base {folder.name!r} in {folder.parent}{hint}; known: {', '.join(known) or 'none'}"
        )
    return folder


def names(root: Path | str | None = None) -> list[str]:
    """The names of the folders below a root that may be knowledge bases."""
    folder = default_root() if root is None else Path(root)
    if not folder.is_dir():
        return []
    return sorted(
        path.name for path in folder.iterdir() if path.is_dir() and _is_name(path.name) and not _leads_out(path)
    )


def _shown(name: str) -> str:
    """The start of what is no name; of what may be an address without what stands before its `@` or after its `?`."""
    _, at, place = name.rpartition("@")
    place, mark, _ = place.partition("?")
    return f"{MASK if at else ''}{at}{place[:200]}{mark}{MASK if mark else ''}"


def _hint(name: str) -> str:
    if "://" in name and not name.startswith("file:"):
        return "; an engine's address is for kb_names of a HybridRetriever, or for LangChain's HybridStore.open"
    return f"; a folder is given as a Path: Path({_shown(name)!r})" if {"/", "\\"} & set(name) else ""


def _is_name(name: str) -> bool:
    fits = _NAME.fullmatch(name) and ".." not in name and len(name.encode()) <= _LONGEST
    return bool(fits) and not _DEVICE.fullmatch(name)


def _leads_out(folder: Path) -> bool:
    """Whether a folder is a link to a place outside its parent."""
    return folder.is_symlink() and not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(folder.parent))

"""Finds the files to read, and says of every other one why it is not read."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from voicevault_retrievers.documents._load import LOADERS, as_unicode, name_below
from voicevault_retrievers.documents._patterns import Patterns
from voicevault_retrievers.errors import DocumentError

Why: TypeAlias = Literal["failed", "unknown type", "second name", "link", "hidden", "ignored", "excluded", "base"]

CHOSEN: frozenset[Why] = frozenset({"hidden", "ignored", "excluded", "base"})
"""Why files are not read where that is no fault: names and rules say so."""

BASE = frozenset({"manifest.json", "lock"})
"""The files by which the folder of a knowledge base is known."""

IGNORE_BYTES, IGNORE_LINES = 256 << 10, 2000
"""The most bytes and lines of a `.gitignore`; one that has more is not followed, and told."""


@dataclass(frozen=True)
class Skipped:
    """A file, or a folder with all that is in it, that was not read; `reason` says why in words."""

    source_file: str
    reason: str
    why: Why = "failed"


@dataclass(frozen=True)
class FoundFiles:
    """Files to read, each as its name below its root, its path and its root; and what is not read."""

    files: list[tuple[str, Path, Path]]
    skipped: list[Skipped]


def discover(
    paths: Iterable[str | Path], *, include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> list[tuple[Path, Path]]:
    """Pairs of root and file, each file once: a file with its folder, a folder with each of its files, sorted.

    In folders, what `.gitignore` files name is left out, and hidden files, files of unknown type, second names of a
    file (links), links to folders and links that lead out. `include` and `exclude` are patterns as in `.gitignore`, of
    paths below the folder: with `include`, other files are left out. Raises DocumentError for a path that does not
    exist, and a given folder that cannot be listed.
    """
    return [(root, file) for _, file, root in find(paths, include=include, exclude=exclude).files]


def find(
    paths: Iterable[str | Path],
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    known: Collection[str] = (),
) -> FoundFiles:
    """The files of `discover`, and what it leaves out.

    Of the names of one file, the first is found, one of the absolute paths `known` before others, and links last.
    """
    rules = _Rules(tuple(include), tuple(exclude))
    found: dict[str, tuple[str, Path, Path]] = {}
    skipped: list[Skipped] = []
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        if not path.exists():
            raise DocumentError(f"{path} does not exist: give the path of a file or folder")
        root, walked = (
            (path, _walk(path, rules, skipped)) if path.is_dir() else (path.parent, [(as_unicode(path.name), path)])
        )
        for name, file in walked:
            found.setdefault(os.path.abspath(file), (name, file, root))
    return _once(found, skipped, known)


def _once(found: dict[str, tuple[str, Path, Path]], skipped: list[Skipped], known: Collection[str]) -> FoundFiles:
    """Each file under one name; the others are skipped."""
    identity = {path: _identity(path) for path in found}
    first: dict[tuple[int, int], str] = {}
    for path in sorted(found, key=lambda path: (path not in known, found[path][1].is_symlink())):
        first.setdefault(identity[path], path)
    files: list[tuple[str, Path, Path]] = []
    for path, (name, file, root) in found.items():
        own = first[identity[path]]
        if own == path:
            files.append((name, file, root))
        else:
            other = name_below(own, root) if Path(own).is_relative_to(os.path.abspath(root)) else own
            skipped.append(Skipped(name, f"second name of {other}", "second name"))
    return FoundFiles(files, sorted(skipped, key=lambda one: one.source_file))


def _identity(path: str) -> tuple[int, int]:
    told = os.stat(path)
    return (told.st_dev, told.st_ino) if told.st_ino else (0, hash(path))


class _Rules:
    """What the user includes and excludes."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include = Patterns(include) if include else None
        self._exclude = Patterns(exclude) if exclude else None

    def excludes(self, name: str) -> str | None:
        """Why a path below a root is not read; folders end in `/`, and are not tested for `include`."""
        if self._exclude is not None and self._exclude(name):
            return "--exclude names it"
        if self._include is not None and not name.endswith("/") and not self._include(name):
            return "--include does not name it"
        return None


def _walk(root: Path, rules: _Rules, skipped: list[Skipped]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the files to read in a folder and those below, sorted; the others go to `skipped`."""
    ignored = _ignored_above(root)
    files: list[tuple[str, str]] = []
    todo = [("", root, ignored)]
    while todo:
        below, folder, ignored = todo.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            wrong = f"{folder} cannot be listed: {error.strerror}"
            if folder == root:
                raise DocumentError(wrong) from error
            skipped.append(Skipped(below.rstrip("/"), wrong))
            continue
        if below and {entry.name for entry in entries} >= BASE:
            skipped.append(Skipped(below, "a knowledge base", "base"))
            continue
        if any(entry.name == ".gitignore" and entry.is_file() for entry in entries):
            try:
                ignored = [*ignored, _ignore_file(folder)]
            except (OSError, DocumentError) as error:
                skipped.append(Skipped(f"{below}.gitignore", f"not followed: {error}"))
        for entry in entries:
            name = below + as_unicode(entry.name)
            left_out = _left_out(entry, name, root, rules, ignored)
            if left_out is not None:
                skipped.append(left_out)
            elif entry.is_dir(follow_symlinks=False):
                todo.append((f"{name}/", Path(entry.path), ignored))
            else:
                files.append((name, entry.path))
    yield from ((name, Path(path)) for name, path in sorted(files, key=lambda file: file[1].split(os.sep)))


def _left_out(
    entry: os.DirEntry[str], name: str, root: Path, rules: _Rules, ignored: list[tuple[str, Patterns]]
) -> Skipped | None:
    """Why an entry of a folder is not read, by its `name` below the root; None for a file, and a folder to list."""
    folder = entry.is_dir(follow_symlinks=False)
    slash = "/" if folder else ""
    if entry.name.startswith("."):
        return Skipped(name + slash, "hidden", "hidden")
    if ignored and _is_ignored(os.path.abspath(entry.path).replace(os.sep, "/") + slash, ignored):
        return Skipped(name + slash, "ignored by .gitignore", "ignored")
    if (reason := rules.excludes(name + slash)) is not None:
        return Skipped(name + slash, reason, "excluded")
    if folder:
        return None
    wrong = _not_here(entry, root, name) if entry.is_symlink() else None
    if wrong is not None:
        return wrong
    if not entry.is_file():
        return Skipped(name, "not a file: a pipe, socket or device")
    suffix = os.path.splitext(entry.name)[1].lower()
    return None if suffix in LOADERS else Skipped(name, f"unknown type {suffix or '(no suffix)'}", "unknown type")


def _not_here(link: os.DirEntry[str], root: Path, name: str) -> Skipped | None:
    """Why what a link names is not read; None for a file below the root."""
    try:
        mode = os.stat(link.path).st_mode
    except OSError:
        return Skipped(name, "link to nothing", "link")
    if stat.S_ISDIR(mode):
        return Skipped(name, "link to a folder: give the folder itself", "link")
    # realpath, since Path.resolve raises for a link to itself
    inside = Path(os.path.realpath(link.path)).is_relative_to(os.path.realpath(root))
    return None if inside else Skipped(name, "link to a file elsewhere: give that file itself", "link")


def _ignored_above(root: Path) -> list[tuple[str, Patterns]]:
    """The `.gitignore` files above a folder in its repository, outermost first, unless they name the folder itself."""
    real = Path(os.path.abspath(root))
    above: list[Path] = []
    for folder in () if (real / ".git").exists() else real.parents:
        above.insert(0, folder)
        if (folder / ".git").exists():
            break
    else:
        return []
    ignored = [_ignore_file(folder) for folder in above if (folder / ".gitignore").is_file()]
    return [] if _is_ignored(f"{real.as_posix()}/", ignored) else ignored


def _ignore_file(folder: Path) -> tuple[str, Patterns]:
    with (folder / ".gitignore").open("rb") as file:
        data = file.read(IGNORE_BYTES + 1)
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) > IGNORE_BYTES or len(lines) > IGNORE_LINES:
        raise DocumentError(f"it has more than {IGNORE_LINES} lines, or {IGNORE_BYTES >> 10} KiB")
    return f"{os.path.abspath(folder).replace(os.sep, '/').rstrip('/')}/", Patterns(lines)


def _is_ignored(path: str, ignored: list[tuple[str, Patterns]]) -> bool:
    """Whether the innermost `.gitignore` that says anything of a path ignores it."""
    for folder, patterns in reversed(ignored):
        if path.startswith(folder) and (told := patterns(path[len(folder) :])) is not None:
            return told
    return False

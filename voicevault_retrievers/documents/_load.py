"""Loads the parts of a file: the loaders by format, and checks that apply to all formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from voicevault_retrievers.documents._docx import load_docx
from voicevault_retrievers.documents._html import load_html
from voicevault_retrievers.documents._markdown import load_markdown, load_text
from voicevault_retrievers.documents._model import Part, with_headings
from voicevault_retrievers.documents._pdf import load_pdf
from voicevault_retrievers.errors import ConfigError, DocumentError, RetrievalError

MAX_FILE_BYTES = 512 << 20
MAX_LINE = 16 << 20
"""The most characters of a line; a longer line is data that only looks like text."""

LOADERS: dict[str, Callable[[Path], list[Part]]] = {
    ".pdf": load_pdf,
    ".docx": load_docx,
    **dict.fromkeys((".md", ".markdown"), load_markdown),
    **dict.fromkeys((".html", ".htm", ".xhtml"), load_html),
    **dict.fromkeys((".txt", ".text", ".log", ".rst", ".csv"), load_text),
}


def parts_of(path: Path) -> tuple[Part, ...]:
    """The parts of a file by its suffix, those without text dropped, those that are only a heading joined to the next.

    Raises DocumentError, with a remedy, for a file that cannot be read or has no text, and MissingExtraError where its
    library is not installed.
    """
    try:
        loader = _check(path)
        parts = with_headings(part for part in loader(path) if part.text.strip())
    except RetrievalError:
        raise
    except OSError as error:
        raise DocumentError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a broken file can make the parsers raise anything
        raise DocumentError(f"{path.name} is damaged or cut short ({error!r}): get a whole copy of it") from error
    if not parts:
        raise DocumentError(f"{path.name} has no text: there is nothing to index")
    _check_lines(parts, path.name)
    return parts


def name_below(path: Path, root: Path) -> str:
    """The posix path of `path` below `root`; `?` replaces what is not Unicode."""
    try:
        relative = Path(os.path.abspath(path)).relative_to(os.path.abspath(root))
    except ValueError as error:
        raise ConfigError(f"{path} is not below {root}: root is a folder that holds the file") from error
    return relative.as_posix().encode("utf-8", "replace").decode()


def _check(path: Path) -> Callable[[Path], list[Part]]:
    size = path.stat().st_size
    if not path.is_file():
        raise DocumentError(f"{path.name} is not a file: give a file, or read the folder")
    if path.suffix.lower() not in LOADERS:
        raise DocumentError(f"{path.name} is of unknown type {path.suffix!r}; known: {', '.join(sorted(LOADERS))}")
    if size == 0:
        raise DocumentError(f"{path.name} is empty (0 bytes): get a whole copy of it")
    if size > MAX_FILE_BYTES:
        limit = f"{size >> 20} MiB, more than {MAX_FILE_BYTES >> 20}"
        raise DocumentError(f"{path.name} is too large ({limit}): divide it into smaller files")
    return LOADERS[path.suffix.lower()]


def _check_lines(parts: Iterable[Part], name: str) -> None:
    longest = max(len(line) for part in parts for line in part.text.split("\n"))
    if longest > MAX_LINE:
        raise DocumentError(f"{name} has a line of {longest} characters, more than {MAX_LINE}: it is data, or cut it")

"""Loads the parts of a file: the loaders by format, and checks that apply to all formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from voicevault_retrievers.documents._code import OTHER, PYTHON, load_code
from voicevault_retrievers.documents._docx import load_docx
from voicevault_retrievers.documents._html import load_html
from voicevault_retrievers.documents._json import LINES, load_json
from voicevault_retrievers.documents._mail import load_eml
from voicevault_retrievers.documents._markdown import load_markdown, load_text
from voicevault_retrievers.documents._model import Document, Part, with_headings
from voicevault_retrievers.documents._pdf import load_pdf
from voicevault_retrievers.documents._slides import load_pptx
from voicevault_retrievers.documents._tables import load_csv, load_xlsx
from voicevault_retrievers.errors import ConfigError, DocumentError, RetrievalError

MAX_FILE_BYTES = 512 << 20
MAX_LINE = 16 << 20
"""The most characters of a line; a longer line is data that only looks like text."""

MAX_PARTS = 500_000
"""The most parts of a file: each is at least one chunk, and an object in memory."""

LOADERS: dict[str, Callable[[Path], list[Part]]] = {
    ".pdf": load_pdf,
    ".docx": load_docx,
    ".pptx": load_pptx,
    ".eml": load_eml,
    **dict.fromkeys((".xlsx", ".xlsm"), load_xlsx),
    **dict.fromkeys((".csv", ".tsv"), load_csv),
    **dict.fromkeys((".json", *LINES), load_json),
    **dict.fromkeys((*PYTHON, *OTHER), load_code),
    **dict.fromkeys((".md", ".markdown"), load_markdown),
    **dict.fromkeys((".html", ".htm", ".xhtml"), load_html),
    **dict.fromkeys((".txt", ".text", ".log", ".rst"), load_text),
}


def read_file(path: Path, source_file: str, text_field: str | None = None) -> Document:
    """Read a file by its suffix. Parts without text are dropped; a part that is only a heading is joined to the next.

    For `text_field` see `load`. Raises DocumentError, with a remedy, for a file that cannot be read or has no text, and
    MissingExtraError where its library is not installed.
    """
    try:
        loader = _check(path, source_file, text_field)
        found = loader(path)
        parts = with_headings(part for part in found if part.text.strip())
    except RetrievalError:
        raise
    except OSError as error:
        raise DocumentError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a broken file can make the parsers raise anything
        raise DocumentError(f"{path.name} is damaged or cut short ({error!r}): get a whole copy of it") from error
    if not parts:
        raise DocumentError(f"{path.name} has no text: there is nothing to index")
    if len(parts) > MAX_PARTS:
        raise DocumentError(f"{path.name} has {len(parts)} parts, more than {MAX_PARTS}: divide it")
    _check_lines(parts, path.name)
    return Document(source_file, parts, tuple(dict.fromkeys(note for part in found for note in part.notes)))


def name_below(path: str | Path, root: str | Path) -> str:
    """The posix path of `path` below `root`; `?` replaces what is not Unicode."""
    whole, folder = os.path.abspath(path), os.path.abspath(root)
    below = folder if folder.endswith(os.sep) else folder + os.sep
    if whole.startswith(below):
        relative = whole[len(below) :].replace(os.sep, "/")
    else:
        try:
            relative = Path(whole).relative_to(folder).as_posix()
        except ValueError as error:
            raise ConfigError(f"{path} is not below {root}: root is a folder that holds the file") from error
    return as_unicode(relative)


def as_unicode(name: str) -> str:
    """A name of a file as text; `?` replaces what is not Unicode."""
    return name.encode("utf-8", "replace").decode()


def _check(path: Path, source_file: str, text_field: str | None) -> Callable[[Path], list[Part]]:
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
    loader = LOADERS[path.suffix.lower()]
    if loader is load_code:
        return partial(load_code, source_file=source_file)
    if text_field is not None and loader in (load_csv, load_json, load_xlsx):
        return partial(loader, text_field=text_field)
    return loader


def _check_lines(parts: Iterable[Part], name: str) -> None:
    longest = max(len(line) for part in parts for line in part.text.split("\n"))
    if longest > MAX_LINE:
        raise DocumentError(f"{name} has a line of {longest} characters, more than {MAX_LINE}: it is data, or cut it")

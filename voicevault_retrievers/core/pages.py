"""The file and page of a chunk, from its metadata: where they stand, and how they are shown.

The keys are those of this package (`source_file`, `page_number`), of LangChain's loaders (`source`, `page`,
`page_label`), of LlamaIndex's readers (`file_path`, `file_name`), of Unstructured (`filename`) and of Docling
(`dl_meta`, or its content at the top). `page` counts from 0, as LangChain's loaders write it, and from 1 beside a
`file_path` or `file_name` without `source`, as LlamaIndex's readers do. PyMuPDFReader of LlamaIndex writes the page
under `source`, beside `total_pages`.

Beside them stand the keys of this package for what has no pages: `section`, `sheet`, `row`, `slide`, `line_start`,
`key_path`, `sender`, `date` (see `shown_section`).

Everywhere, `page_key` and `source_key` replace these keys: a key, or a dotted path into nested metadata. A page under
`page_key` is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import unquote

from voicevault_retrievers.core.filters import plain

FILE_KEYS = ("source_file", "source", "file_path", "file_name", "filename")
"""The keys of a chunk's file at the top of its metadata, the most exact first."""

NESTED_FILE_KEYS = ("dl_meta", "origin")
"""The keys at the top of what holds a chunk's file deeper in."""

_FILES = (*FILE_KEYS, "dl_meta.origin.filename", "origin.filename")
_NAMES = ("source_file", "source", "file_name", "filename", "file_path", *_FILES[len(FILE_KEYS) :])
_PAGES = ("page_number", "page", "page_label", "dl_meta.doc_items.prov.page_no", "doc_items.prov.page_no")
_ABSOLUTE = re.compile(r"[/~\\]|\.\.|[A-Za-z]:[\\/]")
_FILE_URL = re.compile(r"file:/+", re.IGNORECASE)


def file_of(metadata: Mapping[str, Any], source_key: str | None = None) -> Any | None:
    """The file of a chunk; None when it has none."""
    return _first(metadata, _FILES, source_key)


def files_of(metadata: Mapping[str, Any]) -> frozenset[str]:
    """All names that a chunk's metadata give its file, as text; see `file_of` for the one that counts elsewhere."""
    return frozenset(str(value) for key in _FILES if (value := value_at(metadata, key)) is not None)


def page_of(
    metadata: Mapping[str, Any], page_key: str | None = None, source_key: str | None = None
) -> tuple[Any, Any] | None:
    """The (file, page) of a chunk; None when it has no file or no page."""
    file, key = file_of(metadata, source_key), page_key or page_key_of(metadata)
    page = None if key is None else value_at(metadata, key)
    return None if file is None or page is None else (file, page)


def file_key_of(metadata: Mapping[str, Any]) -> str | None:
    """The key of a chunk's file at the top of its metadata, for a filter; None where it has none."""
    return next((key for key in FILE_KEYS if _has_file(metadata, key)), None)


def page_key_of(metadata: Mapping[str, Any], keys: Sequence[str] = _PAGES) -> str | None:
    """The first key of a chunk's page, which may be a dotted path; None where it has none."""
    found = next((key for key in keys if value_at(metadata, key) is not None), None)
    return "source" if found is None and _is_page(metadata) else found


def shown_file(metadata: Mapping[str, Any], source_key: str | None = None, *, paths: bool = False) -> str | None:
    """The file of a chunk as a reader sees it: its name in place of a path of a machine; None when it has none.

    URLs, and paths that are relative and stay below their folder, are shown whole. With `paths` each path is.
    """
    file = _first(metadata, _FILES if paths else _NAMES, source_key)
    return None if file is None else str(file) if paths else _name(str(file))


def shown_page(
    metadata: Mapping[str, Any], page_key: str | None = None, source_key: str | None = None
) -> int | str | None:
    """The page of a chunk as people count; None when it has no file or no page."""
    if page_of(metadata, page_key, source_key) is None:
        return None
    key = page_key or page_key_of(metadata, ("page_number", "page_label", *_PAGES)) or ""
    page = value_at(metadata, key)
    if not isinstance(page, Real) or isinstance(page, bool) or not float(page).is_integer():
        return str(page)
    return int(float(page)) + (1 - first_page(metadata) if key == "page" and page_key is None else 0)


def shown_section(metadata: Mapping[str, Any]) -> str | None:
    """The section of a chunk, with its rows, lines, key path, or sender and date; None when it has none of them.

    The keys are those of this package: `section`; `row` and `row_end`, `line_start` and `line_end`, `key_path`,
    `sender` and `date`.
    """
    section = metadata.get("section")
    told = [] if section in (None, "") else [str(section)]
    for word, first, last in (("row", "row", "row_end"), ("line", "line_start", "line_end")):
        start, end = metadata.get(first), metadata.get(last)
        if start is not None:
            told.append(f"{word} {start}" if end in (None, start) else f"{word}s {start}-{end}")
    told += [str(metadata["key_path"])] if metadata.get("key_path") else []
    if metadata.get("sender"):
        told += [f"from {metadata['sender']}", *([str(metadata["date"])] if metadata.get("date") else [])]
    return ", ".join(told) or None


def first_page(metadata: Mapping[str, Any]) -> int:
    """The number of the first page under the key `page`: 0 or 1."""
    counted_from_1 = any(value_at(metadata, key) is not None for key in ("file_path", "file_name"))
    return int(counted_from_1 and not _has_file(metadata, "source"))


def as_key(value: Any) -> Any:
    """A value of metadata as part of a key: as filters compare it, or its repr where it may not be hashable."""
    value = plain(value)
    return value if isinstance(value, str | int | float) else repr(value)


def value_at(data: Any, path: str) -> Any | None:
    """The value under a key or at a dotted path, in a list that of the first item with one; None for "" and NaN."""
    if isinstance(data, Mapping):
        value = data.get(path)
        nothing = (
            value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and value != value)
        )
        if not nothing:
            return value
        first, dot, rest = path.partition(".")
        return value_at(data.get(first), rest) if dot else None
    found = (value_at(one, path) for one in data) if isinstance(data, list | tuple) else iter(())
    return next((value for value in found if value is not None), None)


def _first(metadata: Mapping[str, Any], keys: tuple[str, ...], given: str | None) -> Any | None:
    if given is not None:
        return value_at(metadata, given)
    return next((value_at(metadata, key) for key in keys if _has_file(metadata, key)), None)


def _has_file(metadata: Mapping[str, Any], key: str) -> bool:
    return value_at(metadata, key) is not None and not (key == "source" and _is_page(metadata))


def _is_page(metadata: Mapping[str, Any]) -> bool:
    """Whether `source` is a page, as PyMuPDFReader of LlamaIndex writes it."""
    counted = metadata.get("total_pages") is not None and metadata.get("file_path") is not None
    return counted and str(metadata.get("source")).isdecimal()


def _name(file: str) -> str:
    if (url := _FILE_URL.match(file)) is not None:
        file = "/" + unquote(file[url.end() :])
    if not _ABSOLUTE.match(file):
        return file
    path = PureWindowsPath(file) if "\\" in file or file[1:2] == ":" else PurePosixPath(file)
    return path.name or file

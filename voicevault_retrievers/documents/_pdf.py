"""Loads PDF files by page."""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from voicevault_retrievers._support.extras import DISTRIBUTION, require
from voicevault_retrievers.documents._model import EXTRA, HeadingPath, Part
from voicevault_retrievers.errors import DocumentError, MissingExtraError

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader
    from pypdf.generic import DictionaryObject

MAX_PAGES = 20_000
MAX_RATIO, RATIO_FROM = 200, 64 << 20
"""The largest ratio of drawn data to file size. Pages that share a drawing each count it."""

_NO_TITLE = re.compile(r"(?i)^(untitled|microsoft \w+ - )|\.(docx?|dvi|html?|indd|pdf|pptx?|tex|xlsx?)$")
_LOCK = Lock()


def load_pdf(path: Path) -> list[Part]:
    """A part per page. Its section is the last heading of the outline at or before the page, below the PDF's title.

    An outline that cannot be read is ignored. Raises DocumentError for a file that is no PDF, needs a password, has too
    many pages or too much on them, or has pages but no text.
    """
    pypdf = require("pypdf", extra=EXTRA)
    with path.open("rb") as file, _quiet():
        if b"%PDF-" not in file.read(1024):
            raise DocumentError(f"{path.name} is not a PDF (it has no %PDF- header): name it by what it is")
        try:
            reader: PdfReader = pypdf.PdfReader(file)
            _check(reader, path.name)
            texts = [_clean(page.extract_text()) for page in _drawn(reader, path)]
        except pypdf.errors.DependencyError as error:
            raise MissingExtraError(f"{path.name}: {error}: pip install '{DISTRIBUTION}[{EXTRA}]'") from error
        title, headings = _title(reader), _headings(reader)
    if not any(text.strip() for text in texts):
        pages = f"{len(texts)} page{'s' * (len(texts) != 1)}"
        raise DocumentError(
            f"{path.name} has {pages} and no text: it seems to be scanned; run OCR on it, as with "
            f"`ocrmypdf {path.name} out.pdf`, and read that"
        )
    starts = [page for page, _ in headings]
    parts = []
    for number, text in enumerate(texts, 1):
        at = bisect_right(starts, number)
        above, section = (headings[at - 1][1][:-1], headings[at - 1][1][-1]) if at else ((), None)
        parts.append(Part(text, number, section, above=title + above))
    return parts


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence pypdf's logger; one thread at a time, so that each thread restores the original level."""
    logger = logging.getLogger("pypdf")
    with _LOCK:
        level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.setLevel(level)


def _check(reader: PdfReader, name: str) -> None:
    if reader.is_encrypted and not reader.decrypt(""):
        raise DocumentError(f"{name} is encrypted and needs a password: save it without one")
    # The declared count is checked first: building the list of pages is expensive for a hostile file.
    tree = cast("DictionaryObject", reader.root_object["/Pages"])
    declared = cast("int", tree["/Count"]) if tree.get("/Count") else 0  # get() does not resolve references
    pages = declared if declared > MAX_PAGES else len(reader.pages)
    if pages == 0:
        raise DocumentError(f"{name} has no pages: it is damaged; get a whole copy of it")
    if pages > MAX_PAGES:
        raise DocumentError(f"{name} has {pages} pages, more than {MAX_PAGES}: divide it into smaller files")


def _drawn(reader: PdfReader, path: Path) -> Iterator[PageObject]:
    """Yield the pages. Raises DocumentError where they draw too much for the file's size."""
    size, drawn = path.stat().st_size, 0
    for page in reader.pages:
        contents = page.get_contents()
        drawn += 0 if contents is None else len(contents.get_data())
        if drawn > max(RATIO_FROM, MAX_RATIO * size):
            raise DocumentError(
                f"{path.name} draws {drawn >> 20} MiB on its pages, {drawn // size} times its size: it looks like a "
                "bomb; print it to a new PDF"
            )
        yield page


def _title(reader: PdfReader) -> tuple[str, ...]:
    """The title in the PDF's metadata; empty where it has none, or a file's name instead."""
    try:
        title = _clean(str((reader.metadata and reader.metadata.title) or "")).strip()
    except _unreadable():
        return ()
    return (title,) if title and not _NO_TITLE.search(title) else ()


def _headings(reader: PdfReader) -> list[tuple[int, tuple[str, ...]]]:
    """The outline: pages from 1, ascending, each with the heading that begins there below those above it."""
    found: list[tuple[int, tuple[str, ...]]] = []
    path = HeadingPath()
    try:
        todo: list[tuple[int, Any]] = [(1, entry) for entry in reversed(reader.outline)]
        while todo:
            level, entry = todo.pop()
            if isinstance(entry, list):
                todo.extend((level + 1, inner) for inner in reversed(entry))
            elif (page := reader.get_destination_page_number(entry)) is not None and entry.title:
                heading = _clean(entry.title).strip()
                found.append((page + 1, (*path.enter(level, heading), heading)))
    except _unreadable():
        return []
    return sorted(found, key=lambda heading: heading[0])


def _unreadable() -> tuple[type[Exception], ...]:
    """What pypdf raises for damaged metadata and outlines."""
    pypdf_error: type[Exception] = require("pypdf", extra=EXTRA).errors.PyPdfError
    return pypdf_error, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError


def _clean(text: str) -> str:
    """The text without NULs and lone surrogates, which broken font maps produce and no store accepts."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")

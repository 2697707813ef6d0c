"""Loads PDF files by page."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from voicevault_retrievers._support.extras import DISTRIBUTION, require
from voicevault_retrievers.documents._model import EXTRA, Part
from voicevault_retrievers.errors import DocumentError, MissingExtraError

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader
    from pypdf.generic import DictionaryObject

MAX_PAGES = 20_000
MAX_RATIO, RATIO_FROM = 200, 64 << 20
"""The largest ratio of drawn data to file size. Pages that share a drawing each count it."""

_LOCK = Lock()


def load_pdf(path: Path) -> list[Part]:
    """A part per page. Its section is the last title of the outline at or before the page.

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
        titles = _titles(reader)
    if not any(text.strip() for text in texts):
        pages = f"{len(texts)} page{'s' * (len(texts) != 1)}"
        raise DocumentError(f"{path.name} has {pages} and no text: it seems to be scanned; run OCR on it first")
    starts = [page for page, _ in titles]
    return [
        Part(text, number, titles[at - 1][1] if (at := bisect_right(starts, number)) else None)
        for number, text in enumerate(texts, 1)
    ]


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


def _titles(reader: PdfReader) -> list[tuple[int, str]]:
    """The flattened outline: pages from 1, ascending, each with the title that begins there."""
    errors = require("pypdf", extra=EXTRA).errors
    found: list[tuple[int, str]] = []
    try:
        todo: list[Any] = list(reversed(reader.outline))
        while todo:
            entry = todo.pop()
            if isinstance(entry, list):
                todo.extend(reversed(entry))
            elif (page := reader.get_destination_page_number(entry)) is not None and entry.title:
                found.append((page + 1, _clean(entry.title).strip()))
    except (errors.PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return []
    return sorted(found, key=lambda title: title[0])


def _clean(text: str) -> str:
    """The text without NULs and lone surrogates, which broken font maps produce and no store accepts."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")

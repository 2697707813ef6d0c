"""The PDF page that a chunk is from, as an image."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.pages import first_page, page_key_of, page_of
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.inspector import pdf_pages
from voicevault_retrievers.inspector.pdf_pages import REFUSED, TOO_LONG
from voicevault_retrievers.store.sources import Source

FILE_BYTES = 512 << 20

SECONDS = 20.0
"""The most seconds to draw a page."""

_PROGRAM = pdf_pages.__file__

_logger = logging.getLogger(__name__)
_LOCK = Mutex()
"""Only one page is drawn at a time, as drawing may use a whole processor."""


class Pages:
    """The pages of PDFs that chunks were read from: files in these folders, or at the paths that a base records.

    Where a base has the digest of a file, only a file with that digest is shown: chunks may not belong to a changed
    file, and a base from someone else must not disclose a file by naming its path. Threads share one object.
    """

    def __init__(self, folders: Iterable[Path | str] = ()) -> None:
        self._folders = [Path(os.path.realpath(folder)) for folder in folders]
        self._digests: LRUCache[tuple[str, int, int], str] = LRUCache(256)

    def has(self, chunk: Chunk, sources: Mapping[str, Source]) -> bool:
        """Whether there is a file for the chunk's page; `png` may still refuse a changed one."""
        try:
            file, _ = _named(chunk)
        except DocumentError:
            return False
        return bool(self._places(file, sources.get(file)))

    def png(self, chunk: Chunk, sources: Mapping[str, Source]) -> bytes:
        """The image of the chunk's page; DocumentError, with the reason, where there is none."""
        file, page = _named(chunk)
        source = sources.get(file)
        places = self._places(file, source)
        if not places:
            raise DocumentError(f"{file!r} is neither in a folder of documents nor where it was read: name its folder")
        try:
            found = next((path for path in places if self._fits(path, source)), None)
            if found is not None:
                return _drawn(found, page)
        except OSError as error:
            raise DocumentError(f"{file!r} cannot be read: {error}") from error
        raise DocumentError(f"{file!r} has changed since it was read: index it again to see its pages")

    def _places(self, file: str, source: Source | None) -> list[Path]:
        """The candidate files: inside a given folder, whatever the name contains, and where the file was read."""
        try:
            real = [(folder, Path(os.path.realpath(folder / file))) for folder in self._folders]
        except ValueError:  # the name is not a valid path
            return []
        places = [path for folder, path in real if path.is_relative_to(folder)]
        if source is not None and source.path:
            places.append(Path(source.path))
        return [path for path in places if os.path.isfile(path)]

    def _fits(self, path: Path, source: Source | None) -> bool:
        """Whether a file has the content that was read; DocumentError for a file over the size limit."""
        state = path.stat()
        if state.st_size > FILE_BYTES:
            raise DocumentError(f"{path.name} has more than {FILE_BYTES >> 20} MiB: too much to show a page of")
        if source is None:
            return True
        key = str(path), state.st_mtime_ns, state.st_size
        digest = self._digests.get(key) or Source.of(path).sha256
        self._digests.put(key, digest)
        return digest == source.sha256


def _named(chunk: Chunk) -> tuple[str, int | str]:
    """The file, and the page as an index from 0, or as a label in the PDF; see `core.pages`."""
    file, page = page_of(chunk.metadata) or (None, None)
    key = page_key_of(chunk.metadata)
    if not isinstance(file, str) or not file.lower().endswith(".pdf"):
        raise DocumentError(f"chunk {chunk.id!r} is not from a page of a PDF")
    if key == "page_label":
        return file, str(page)
    try:
        return file, int(str(page)) - (first_page(chunk.metadata) if key == "page" else 1)
    except ValueError as error:
        raise DocumentError(f"chunk {chunk.id!r} names a page {page!r}, which is no number") from error


def _drawn(path: Path, page: int | str) -> bytes:
    """The page as PNG, drawn in another process; DocumentError where that refuses, crashes or takes too long."""
    require("pypdfium2", extra="inspector")
    asked = {"path": str(path), "page": page, "seconds": SECONDS, "modules": sys.path}
    with _LOCK:
        ended = subprocess.run(  # noqa: S603 - this interpreter, and a file of this package
            [sys.executable, "-I", _PROGRAM], input=json.dumps(asked).encode(), capture_output=True, check=False
        )
    if ended.returncode == 0:
        return ended.stdout
    if ended.returncode == REFUSED:
        why = ended.stdout.decode("utf-8", "replace")
    elif ended.returncode == TOO_LONG:
        why = f"drawing it takes more than {SECONDS:g} s"
    else:
        _logger.warning("drawing %s ended with %d: %s", path, ended.returncode, ended.stderr.decode("utf-8", "replace"))
        why = "drawing it failed, and the server's log says more"
    raise DocumentError(f"no page of {path.name} can be shown: {why}")

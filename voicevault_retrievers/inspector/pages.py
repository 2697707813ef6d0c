"""The page of a PDF that a chunk is from, as an image."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.diversity.page_cap import PAGE_KEYS
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.extras import require
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.recent import Recent
from voicevault_retrievers.store.sources import Source
from voicevault_retrievers.types import Chunk

WIDTH, PIXELS, ENLARGED = 1200, 4_000_000, 4.0
"""At most so wide and so large an image, in pixels, and so many pixels for a point of the page (1/72 inch)."""

FILE_BYTES = 512 << 20

_FIRST = {"page_number": 1, "page": 0}
"""What those who write each of these keys call the first page; a `page_label` is whatever the PDF says."""

_LOCK = Mutex()
"""pdfium may be in one thread at a time, whatever the file."""


class Pages:
    """The pages of PDFs that chunks were read from: files of these folders, or as a base remembers them.

    Where a base knows what a file held, only a file that holds just that is shown: chunks may not be of what it is now,
    and a base that somebody else made must not show files of which they knew the path alone. Threads share one.
    """

    def __init__(self, folders: Iterable[Path | str] = ()) -> None:
        self._folders = [Path(os.path.realpath(folder)) for folder in folders]
        self._digests: Recent[tuple[str, int, int], str] = Recent(256)

    def has(self, chunk: Chunk, sources: Mapping[str, Source]) -> bool:
        """Whether there is a file with a page to show; `png` may yet refuse one that has changed."""
        try:
            file, _ = _named(chunk)
        except DocumentError:
            return False
        return bool(self._places(file, sources.get(file)))

    def png(self, chunk: Chunk, sources: Mapping[str, Source]) -> bytes:
        """The image of the chunk's page; DocumentError, saying why, where there is none to show."""
        file, page = _named(chunk)
        source = sources.get(file)
        places = self._places(file, source)
        if not places:
            raise DocumentError(f"{file!r} is neither in a folder of documents nor where it was read: name its folder")
        try:
            found = next((path for path in places if self._fits(path, source)), None)
            if found is not None:
                return png(_drawn(found, page))
        except OSError as error:
            raise DocumentError(f"{file!r} cannot be read: {error}") from error
        raise DocumentError(f"{file!r} has changed since it was read: index it again to see its pages")

    def _places(self, file: str, source: Source | None) -> list[Path]:
        """The files that may be it: below a folder, whatever the name says, and where it was read."""
        try:
            real = [(folder, Path(os.path.realpath(folder / file))) for folder in self._folders]
        except ValueError:  # no file has such a name
            return []
        places = [path for folder, path in real if path.is_relative_to(folder)]
        if source is not None and source.path:
            places.append(Path(source.path))
        return [path for path in places if os.path.isfile(path)]

    def _fits(self, path: Path, source: Source | None) -> bool:
        """Whether a file holds what was read; DocumentError where it is too large to be looked at."""
        state = path.stat()
        if state.st_size > FILE_BYTES:
            raise DocumentError(f"{path.name} has more than {FILE_BYTES >> 20} MiB: too much to show a page of")
        if source is None:
            return True
        key = str(path), state.st_mtime_ns, state.st_size
        digest = self._digests.get(key) or Source.of(path).sha256
        self._digests.put(key, digest)
        return digest == source.sha256


def png(rows: NDArray[np.uint8]) -> bytes:
    """An image of RGB rows (height, width, 3) as PNG, by the W3C's "Portable Network Graphics", third edition."""
    height, width, _ = rows.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows.reshape(height, -1)], axis=1)  # each without filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", head) + _part(b"IDAT", body) + _part(b"IEND", b"")


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _named(chunk: Chunk) -> tuple[str, int | str]:
    """The file, and the page as an index from 0, or as the label that the PDF has for it; see `PAGE_KEYS`."""
    said = chunk.metadata
    pairs = ((said.get(file), key) for file, key in PAGE_KEYS if said.get(key) not in (None, ""))
    file, key = next(((file, key) for file, key in pairs if file is not None), (None, ""))
    if not isinstance(file, str) or not file.lower().endswith(".pdf"):
        raise DocumentError(f"chunk {chunk.id!r} is not from a page of a PDF")
    if key not in _FIRST:
        return file, str(said[key])
    try:
        return file, int(str(said[key])) - _FIRST[key]
    except ValueError as error:
        raise DocumentError(f"chunk {chunk.id!r} names a page {said[key]!r}, which is no number") from error


def _drawn(path: Path, page: int | str) -> NDArray[np.uint8]:
    """The page as rows of RGB; DocumentError where the file cannot be opened or has no such page."""
    pdfium = require("pypdfium2", extra="inspector")
    with _LOCK:
        try:
            with closing(pdfium.PdfDocument(path)) as document:
                at = page if isinstance(page, int) else _labelled(document, page)
                if not 0 <= at < len(document):
                    raise DocumentError(f"{path.name} has {len(document)} pages, and not the one that the chunk names")
                with closing(document[at]) as opened:
                    return _rendered(opened)
        except pdfium.PdfiumError as error:
            why = "it is encrypted" if "password" in str(error).lower() else f"it seems damaged ({error})"
            raise DocumentError(f"no page of {path.name} can be shown: {why}") from error


def _rendered(page: Any) -> NDArray[np.uint8]:
    width, height = page.get_size()
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise DocumentError(f"the page has no size that could be shown: {width} by {height} points")
    scale = min(ENLARGED, (WIDTH - 0.5) / width, math.sqrt(PIXELS / (width * height)))  # pixels are rounded up
    with closing(page.render(scale=scale, rev_byteorder=True)) as bitmap:
        return np.array(bitmap.to_numpy())


def _labelled(document: Any, label: str) -> int:
    """The index of the page that has a label, which is its number where the PDF gives none; -1 for none."""
    labels = (document.get_page_label(at) or str(at + 1) for at in range(len(document)))
    return next((at for at, own in enumerate(labels) if own == label), -1)

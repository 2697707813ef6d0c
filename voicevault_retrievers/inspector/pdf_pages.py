"""Draws a page of a PDF in a separate process, so that a malicious file can only hang, exhaust or crash that process.

The file is run by its path, so that it starts without importing the package. The request comes as JSON on the standard
input: `path`, `page` (an index from 0, or a label), `seconds` (the time limit), and `modules`, the import path. The
image goes to the standard output, or, with the exit code `REFUSED`, the reason.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import threading
import zlib
from contextlib import closing, suppress
from importlib import import_module
from typing import Any

WIDTH, PIXELS, ENLARGED = 1200, 4_000_000, 4.0
"""The largest width and number of pixels of an image, and the most pixels for a point of the page (1/72 inch)."""

MEMORY = 4 << 30
"""The most bytes of memory, where the system supports a limit; beyond it pdfium ends the process."""

REFUSED, TOO_LONG = 3, 4
"""Exit codes: no page to draw, and time limit exceeded."""


class RefusedError(Exception):
    """The reason why a page cannot be drawn."""


def main() -> int:
    """Answer the request on the standard input; returns the exit code."""
    asked = json.load(sys.stdin)
    watch = threading.Timer(asked["seconds"], os._exit, [TOO_LONG])
    watch.daemon = True
    watch.start()
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.path[:] = asked["modules"]
    try:
        said, code = drawn(asked["path"], asked["page"]), 0
    except RefusedError as error:
        said, code = str(error).encode("utf-8", "replace"), REFUSED
    sys.stdout.buffer.write(said)
    return code


def drawn(path: str, page: int | str) -> bytes:
    """The page as PNG; RefusedError where the file cannot be opened or has no such page."""
    pypdfium2: Any = import_module("pypdfium2")
    try:
        with closing(pypdfium2.PdfDocument(path)) as document:
            at = page if isinstance(page, int) else _labelled(document, page)
            if not 0 <= at < len(document):
                raise RefusedError(f"it has {len(document)} pages, and not the one that the chunk names")
            with closing(document[at]) as opened:
                return _rendered(opened)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise RefusedError("it is encrypted" if locked else f"it seems damaged ({error})") from error


def _rendered(page: Any) -> bytes:
    width, height = page.get_size()
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise RefusedError(f"the page has no size that could be shown: {width} by {height} points")
    scale = min(ENLARGED, (WIDTH - 0.5) / width, math.sqrt(PIXELS / (width * height)))  # pixels are rounded up
    with closing(page.render(scale=scale, rev_byteorder=True)) as bitmap:
        data, stride = bytes(bitmap.buffer), bitmap.stride
        lines = [data[at : at + 3 * bitmap.width] for at in range(0, stride * bitmap.height, stride)]
        return png(bitmap.width, lines)


def _labelled(document: Any, label: str) -> int:
    """The index of the page with a label, by default its number; -1 where there is none."""
    labels = (document.get_page_label(at) or str(at + 1) for at in range(len(document)))
    return next((at for at, own in enumerate(labels) if own == label), -1)


def png(width: int, lines: list[bytes]) -> bytes:
    """A PNG image of RGB lines, after the W3C's "Portable Network Graphics", third edition."""
    head = struct.pack(">IIBBBBB", width, len(lines), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + line for line in lines), 6)  # filter type 0 for each line
    return b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", head) + _part(b"IDAT", body) + _part(b"IEND", b"")


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    sys.exit(main())

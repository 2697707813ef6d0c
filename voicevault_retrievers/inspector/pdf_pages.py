"""Draws a page of a PDF in a process of its own, which a hostile file may keep busy, fill or break without harm.

It is run by its path, so that nothing of the package is imported, and it starts soon. What it is asked for comes as
JSON on the standard input: `path`, `page` (an index from 0, or a label), `seconds` that it may take, and the `modules`,
where to import from. The image goes to the standard output, or with the exit code `REFUSED` why there is none.
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
"""At most so wide and so large an image, in pixels, and so many pixels for a point of the page (1/72 inch)."""

MEMORY = 4 << 30
"""Bytes that the process may have, where the system can be told so; pdfium ends it where it gets no more."""

REFUSED, TOO_LONG = 3, 4
"""Exit codes: there is no page to draw, and the time is over."""


class RefusedError(Exception):
    """Why a page cannot be drawn."""


def main() -> int:
    """Answer what the standard input asks for."""
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
    """The index of the page that has a label, which is its number where the PDF gives none; -1 for none."""
    labels = (document.get_page_label(at) or str(at + 1) for at in range(len(document)))
    return next((at for at, own in enumerate(labels) if own == label), -1)


def png(width: int, lines: list[bytes]) -> bytes:
    """An image of lines of RGB as PNG, by the W3C's "Portable Network Graphics", third edition."""
    head = struct.pack(">IIBBBBB", width, len(lines), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + line for line in lines), 6)  # each line without a filter
    return b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", head) + _part(b"IDAT", body) + _part(b"IEND", b"")


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    sys.exit(main())

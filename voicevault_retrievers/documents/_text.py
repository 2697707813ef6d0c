"""Plain text, and the decoding that Markdown shares."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from voicevault_retrievers.documents._model import Part
from voicevault_retrievers.errors import DocumentError

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def load_text(path: Path) -> list[Part]:
    return [Part(decode(path.read_bytes(), path.name))]


def decode(data: bytes, name: str, encoding: str | None = None) -> str:
    r"""The text of a file, its line ends made `\n`.

    A byte order mark decides, else `encoding`, else UTF-8; nothing is guessed. Raises DocumentError, naming the
    first wrong byte, where that does not fit.
    """
    encoding = next((known for bom, known in _BOMS.items() if data.startswith(bom)), encoding or "utf-8")
    try:
        text = data.decode(encoding)
    except LookupError as error:
        raise DocumentError(f"{name} declares the unknown encoding {encoding!r}: save it as UTF-8") from error
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise DocumentError(f"{name} is not {encoding} text ({wrong}): save it as UTF-8") from error
    if "\0" in text:
        raise DocumentError(f"{name} holds NUL characters: it is binary, or UTF-16 without a mark; save it as UTF-8")
    return re.sub(r"\r\n?", "\n", text)

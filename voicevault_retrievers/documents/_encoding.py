"""Decodes text files: UTF-8 first, then what their bytes tell."""

from __future__ import annotations

import codecs
import re
from typing import TypeAlias

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.documents._model import EXTRA
from voicevault_retrievers.errors import DocumentError

Decoded: TypeAlias = tuple[str, tuple[str, ...]]
"""A text with `\\n` as line end, and notes on how it was read."""

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_PREFERRED = ("cp1252", "cp932", "gb18030", "big5", "cp949", "euc_jp", "cp1250", "iso8859_2", "cp1251", "koi8_r")
_CANDIDATES = (*_PREFERRED, "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258")
_LATIN = frozenset({"cp1250", "cp1252", "cp1254", "cp1257", "cp1258", "iso8859_2"})
_SAMPLE = 64 << 10


def decode(data: bytes, name: str, declared: str | None = None) -> Decoded:
    """Decode the content of the file `name`.

    The encoding is that of a byte order mark, else `declared`, else UTF-8. Where that fails, it is detected, and a note
    says so. Raises DocumentError, naming the first wrong byte, where no encoding fits clearly better than the others.
    """
    marked = next((known for bom, known in _BOMS.items() if data.startswith(bom)), None)
    encoding = marked or declared or "utf-8"
    notes: tuple[str, ...] = ()
    try:
        text = data.decode(encoding)
    except LookupError as error:
        raise DocumentError(f"{name} declares the unknown encoding {encoding!r}: save it as UTF-8") from error
    except UnicodeDecodeError as error:
        wrong = f"{name} is not {encoding} text (byte 0x{data[error.start]:02x} at offset {error.start})"
        if marked:
            raise DocumentError(f"{wrong}: save it as UTF-8") from error
        text, encoding, others = _detect(data, wrong, declared)
        notes = (f"read as {encoding}" + (f", which may be {others}" if others else ""),)
    if "\0" in text and not marked and (wide := _wide(data)):
        text, notes = data.decode(wide), (f"read as {wide}",)
    if "\0" in text:
        raise DocumentError(f"{name} holds NUL characters: it is binary; save it as UTF-8 text")
    return re.sub(r"\r\n?", "\n", text), notes


def _detect(data: bytes, wrong: str, declared: str | None) -> tuple[str, str, str]:
    """The text, its encoding and others that fit as well; `wrong` says what is wrong with the expected one.

    Of several for Latin letters, it is cp1252, as browsers take it; other doubts are errors.
    """
    if declared and (text := _strict(data, "utf-8")) is not None:
        return text, "utf-8", ""
    if (wide := _wide(data)) is not None:
        return data.decode(wide), wide, ""
    found = list(require("charset_normalizer", extra=EXTRA).from_bytes(data, cp_isolation=list(_CANDIDATES)))
    best = [match for match in found if (match.chaos, match.coherence) == (found[0].chaos, found[0].coherence)]
    names = sorted(match.encoding for match in best)
    if len(best) == 1:
        same = best[0].could_be_from_charset
        encoding = next((known for known in _PREFERRED if known in same), best[0].encoding)
    else:
        encoding = "cp1252" if "cp1252" in names and _LATIN.issuperset(names) else ""
    if encoding and (text := _strict(data, encoding)) is not None:
        return text, encoding, ", ".join(name for name in names if len(best) > 1 and name != encoding)
    told = f"it may be {', '.join(names)}" if best else "it fits no known encoding"
    raise DocumentError(f"{wrong}; {told}: save it as UTF-8")


def _wide(data: bytes) -> str | None:
    """UTF-16 without a mark, where every second byte of much is NUL as in Latin text; None for anything else."""
    sample = data[:_SAMPLE]
    for encoding, zeros, others in (("utf-16-le", sample[1::2], sample[::2]), ("utf-16-be", sample[::2], sample[1::2])):
        most = 2 * zeros.count(0) > len(zeros) and 0 not in others
        text = _strict(data, encoding) if most else None
        if text is not None and len(data) >= 8 and all(char.isprintable() or char.isspace() for char in text[:_SAMPLE]):
            return encoding
    return None


def _strict(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None

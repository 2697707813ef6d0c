"""Terms and metadata in a form that PostgreSQL can store and index, without loss; see `engines.encoding`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from voicevault_retrievers.engines.encoding import escaped, unescaped

_HALVES = re.compile("[\ud800-\udfff]")
_CODED_JSON = re.compile(r"\\u000[12]|[\ud7fe\ud7ff]")

LONGEST = 2600
"""The most bytes of an indexed text, somewhat below PostgreSQL's own limit."""

_EXACT = 2.0**53


def is_plain(value: Any) -> bool:
    """Whether a value is a string that PostgreSQL can store unchanged."""
    return isinstance(value, str) and "\0" not in value and not _HALVES.search(value)


def term_key(term: str) -> str:
    """A term as an index key: an overlong one by its first letter and digest, marked by a code that no text has."""
    key = escaped(term)
    if len(key) * 4 <= LONGEST or len(key.encode()) <= LONGEST:
        return key
    return f"{escaped(term[0])}\x02\x08{hashlib.blake2b(key.encode(), digest_size=32).hexdigest()}"


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Metadata as JSON for jsonb, whose decimals keep each number's exact value."""
    return _json(metadata)


def metadata_of(text: str) -> dict[str, Any]:
    """The metadata of a jsonb value, given as text."""
    found: dict[str, Any] = json.loads(text)
    return _plain(found) if _CODED_JSON.search(text) else found


def number_text(value: float) -> str:
    """A finite number as an exact decimal; a whole float keeps its `.0`, so that it is read back as a float."""
    if isinstance(value, float):
        value = float(value)
        return f"{int(value)}.0" if abs(value) >= _EXACT else repr(value)
    return str(int(value))


def _json(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_json(str(key))}:{_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, str):
        return json.dumps(escaped(value), ensure_ascii=False)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value)
    return json.dumps(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {unescaped(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return unescaped(value) if isinstance(value, str) else value

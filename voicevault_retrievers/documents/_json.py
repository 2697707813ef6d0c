"""Loads JSON and JSON Lines by records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from voicevault_retrievers.documents._encoding import decode
from voicevault_retrievers.documents._model import Part
from voicevault_retrievers.documents._records import check_count, missing_field, record_text, without_field
from voicevault_retrievers.errors import DocumentError

LINES = {".jsonl", ".ndjson"}

_Record: TypeAlias = tuple[dict[str, str | int], Any]
"""The place of a record and its value."""

_WORD = re.compile(r"[^\W\d]\w*")


def load_json(path: Path, text_field: str | None = None) -> list[Part]:
    """A part per record: of JSON with its `key_path` (JSONPath), of JSON Lines with its line.

    The text is the field `text_field`, which may be a dotted path, or else all values as `key: value` lines. A line
    that is no JSON is left out, with a note. Raises DocumentError for what is no JSON, is nested too deeply, or has no
    such field.
    """
    text, notes = decode(path.read_bytes(), path.name)
    try:
        records, broken = _read(text, path)
    except RecursionError as error:
        raise DocumentError(f"{path.name} is nested too deeply: it is damaged, or no text") from error
    check_count(len(records), path.name)
    notes += (f"lines that are no JSON were left out: {_few(broken)}",) if broken else ()
    if text_field is None:
        parts = [Part(record_text(dict(_leaves(value))), metadata=place) for place, value in records]
    else:
        found = [(place, _leaf(value, text_field)) for place, value in records]
        parts = [Part(told, metadata=place) for place, told in found if told]
        if not parts:
            raise missing_field(text_field, (key for _, value in records[:100] for key, _ in _leaves(value)), path.name)
        notes += without_field(len(found) - len(parts), len(found), text_field)
    return [replace(part, notes=notes) for part in parts] if notes else parts


def _read(text: str, path: Path) -> tuple[list[_Record], list[int]]:
    """The records, and the numbers of lines that are none."""
    if path.suffix.lower() not in LINES:
        try:
            return [({"key_path": place}, value) for place, value in _records(json.loads(text))], []
        except json.JSONDecodeError as error:
            wrong = error
            if not error.msg.startswith("Extra data"):
                raise DocumentError(f"{path.name} is not JSON ({wrong}): get a whole copy of it") from error
    records: list[_Record] = []
    broken: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                records.append(({"line_start": number, "line_end": number}, json.loads(line)))
        except json.JSONDecodeError:
            broken.append(number)
    if not records or len(broken) > len(records):
        raise DocumentError(f"{path.name} is not JSON, line {_few(broken) or 1}: get a whole copy of it")
    return records, broken


def _records(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the records of a JSON value with their paths.

    They are the items of a list that holds objects or lists, at the top or in a field of the top, the values of an
    object of objects, and the other fields of the top together.
    """
    if isinstance(value, dict) and not _is_table(value):
        rest = {key: field for key, field in value.items() if not _is_table(field)}
        if rest:
            yield "$", rest
        tables = [(f"${_step(key)}", field) for key, field in value.items() if key not in rest]
    else:
        tables = [("$", value)]
    for path, table in tables:
        if not _is_table(table):
            yield path, table
        else:
            items = table.items() if isinstance(table, dict) else enumerate(table)
            yield from ((f"{path}{_step(key)}", item) for key, item in items)


def _is_table(value: Any) -> bool:
    """Whether a value is a list of objects or lists, or an object of several objects."""
    if isinstance(value, dict):
        return len(value) > 1 and all(isinstance(item, dict) for item in value.values())
    return isinstance(value, list) and any(isinstance(item, dict | list) for item in value)


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _WORD.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values in a record with their dotted keys; a list of plain values is one."""
    todo: list[tuple[str, Any]] = [("", value)]
    while todo:
        key, one = todo.pop()
        if isinstance(one, Mapping):
            todo += [(f"{key}.{name}" if key else name, inner) for name, inner in reversed(list(one.items()))]
        elif isinstance(one, list) and any(isinstance(inner, dict | list) for inner in one):
            todo += [(f"{key}[{at}]", inner) for at, inner in reversed(list(enumerate(one)))]
        else:
            yield key or "value", _plain(one)


def _leaf(value: Any, path: str) -> str:
    """The value of a field, "" where there is none."""
    if isinstance(value, dict) and isinstance(whole := value.get(path), str):
        return whole
    return dict(_leaves(value)).get(path, "")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(filter(None, map(_plain, value)))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")

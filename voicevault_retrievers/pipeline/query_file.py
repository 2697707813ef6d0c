"""Query files: JSON, JSON Lines or text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any, TypeAlias

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.types import Query, Route, Variant
from voicevault_retrievers.errors import ConfigError, unknown

File: TypeAlias = str | Path | IO[bytes] | IO[str]

_NAMES = {"query": "text", "_id": "id", "top_k": "k", "max_results": "k"}
_UNUSED = ("answers", "answer", "synthetic")
_KEYS = ("id", "k", *(field.name for field in fields(Query)))
_LINES = (".jsonl", ".ndjson")
_OBJECT, _LIST = re.compile(r'\{\s*["}]'), re.compile(r'\[\s*["{]')
"""How a text begins that looks like JSON."""
_SHOWN = 100


@dataclass(frozen=True)
class FileQuery:
    """A query of a file, its number of hits and its id; `error` is the error of an invalid query."""

    query: Query
    k: int | None = None
    id: str | None = None
    error: ConfigError | None = None


def read_queries(file: File) -> list[FileQuery]:
    """Return the queries of a file: a JSON list, JSON Lines, or one text per line; blank lines are skipped.

    The format is chosen by the file's suffix: JSON (`.json`), JSON Lines (`.jsonl`, `.ndjson`) or text (`.txt`); for
    any other by its content. In JSON a query is a text, or an object with `text` (or `query`) and the other fields of a
    `Query`: `where`, `require`, `route`, `weights`, `variants`, `vectors`, `sparse`, `reference_date`,
    `max_context_tokens`, `history`; and `k` (or `top_k`, `max_results`) and `id` (or `_id`). The key `answers`, which
    `eval` reads, is ignored.

    An invalid query is in the list with its error. Raises ConfigError where the file cannot be read as a whole, or
    holds no query.
    """
    name = "the standard input" if hasattr(file, "read") else str(file)
    found = [_asked(where, data) for where, data in _entries(name, _text(file, name))]
    if not found:
        raise ConfigError(f"{name} holds no queries")
    return found


def _text(file: Any, name: str) -> str:
    try:
        data: bytes | str = file.read() if hasattr(file, "read") else Path(file).read_bytes()
        return data.removeprefix("\ufeff") if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not a text in UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from error


def _entries(name: str, text: str) -> Iterator[tuple[str, Any]]:
    """The place and the content of each query: text, data, or the error of invalid JSON."""
    end = Path(name).suffix.lower()
    lines = [(f"{name}:{at}", line.strip()) for at, line in enumerate(text.split("\n"), 1) if line.strip()]
    data = None if end in (".txt", *_LINES) else _json(name, text)
    if isinstance(data, list):
        yield from ((f"{name}, query {at}", one) for at, one in enumerate(data, 1))
    elif isinstance(data, Mapping):
        yield name, data
    elif end in _LINES or (end != ".txt" and lines and _OBJECT.match(text.lstrip())):
        yield from ((where, _json(where, line)) for where, line in lines)
    elif lines and (end == ".json" or (end != ".txt" and _LIST.match(text.lstrip()))):
        raise data if isinstance(data, ConfigError) else ConfigError(f"{name} holds no list of queries")
    else:
        yield from lines


def _json(where: str, text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError) as error:
        return ConfigError(f"{where} is not JSON: {error}: {text[:_SHOWN]}")


def read_json(text: str) -> Any:
    """Parse a JSON text; also raises ValueError for a repeated key and for NaN, which `json` accepts."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} comes twice in an object")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")


def _asked(where: str, data: Any) -> FileQuery:
    try:
        if isinstance(data, ConfigError):
            raise data
        return FileQuery(Query(data)) if isinstance(data, str) else _from_object(data)
    except (TypeError, ValueError) as error:
        said = error if isinstance(data, ConfigError) else ConfigError(f"{where}: {error}")
        named = data if isinstance(data, Mapping) else {}
        text = named.get("text", named.get("query"))
        name = named.get("id", named.get("_id"))
        return FileQuery(
            Query(text if isinstance(text, str) else where),
            id=None if name is None else str(name),
            error=ConfigError(str(said)),
        )


def _from_object(data: Any) -> FileQuery:
    if not isinstance(data, Mapping):
        raise ConfigError(f"a query is a text, or an object with `text`, not a {type(data).__name__}")
    given: dict[str, Any] = {}
    for key, value in data.items():
        name = _NAMES.get(key, key)
        if name in given:
            raise ConfigError(f"{key!r} is {name!r}, which is there already")
        if name not in (*_KEYS, *_UNUSED):
            raise unknown("key in a query", key, (*_KEYS, *_NAMES))
        given[name] = _READ[name](value) if name in _READ and value is not None else value
    if given.get("text") is None:
        having = (str(key) for key, value in data.items() if value is not None)
        raise ConfigError(f"a query has `text`; this one has {', '.join(having) or 'nothing'}")
    own = {name: value for name, value in given.items() if value is not None and name not in ("id", "k", *_UNUSED)}
    name = given.get("id")
    return FileQuery(Query(**own), whole_or_none("k", given.get("k"), least=0), None if name is None else str(name))


def _route(value: Any) -> Route:
    try:
        return Route(str(value).lower())
    except ValueError:
        raise unknown("route", value, [route.value for route in Route]) from None


def _date(value: Any) -> date | datetime:
    text = str(value)
    return date.fromisoformat(text) if len(text) == len("2026-01-31") else datetime.fromisoformat(text)


def _variants(values: Any) -> tuple[Variant, ...]:
    return tuple(Variant(**one) if isinstance(one, Mapping) else Variant(one) for one in _listed("variants", values))


def _history(values: Any) -> list[Any]:
    """Turns as pairs, or as objects with `question` and `answer`; `Query` refuses anything else."""
    return [Turn(**turn) if isinstance(turn, Mapping) else turn for turn in _listed("history", values)]


def _listed(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ConfigError(f"{name} is a list, not {values!r}")
    return values


_READ: Mapping[str, Callable[[Any], Any]] = {
    "history": _history,
    "reference_date": _date,
    "route": _route,
    "variants": _variants,
}

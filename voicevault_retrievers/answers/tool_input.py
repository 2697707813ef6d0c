"""The arguments of a search tool: a query, and a filter on the metadata keys offered to the model.

Only the frameworks' tools import this module: it needs pydantic, which both frameworks install.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WithJsonSchema, create_model

from voicevault_retrievers.core.filters import Condition, Filter, Node, Not, parse
from voicevault_retrievers.errors import ConfigError, unknown

Offered: TypeAlias = Sequence[str] | Literal["any"] | None
"""The metadata keys by which a model may filter a search; None where it may not filter."""

DESCRIPTION = "Searches the documents and gives the passages that answer a question, as numbered sources to cite."
_QUERY = "What to look for: a question or key words that stand alone, without words such as 'it' or 'the above'."
_WHERE = (
    'Narrows the search by the documents\' metadata: {"year": 2024}, {"year": {"$gte": 2020}}, '
    '{"file": {"$in": ["a.pdf", "b.pdf"]}}, {"$or": [{...}, {...}]}. '
    "Operators: $eq $ne $gt $gte $lt $lte $in $nin $contains $exists $and $or $not. Leave it out to search all."
)
_VALUE = [{"type": kind} for kind in ("string", "number", "boolean", "object")]


def keys_of(filters: Offered) -> frozenset[str] | None:
    """The offered keys, None for any; ConfigError where `filters` is invalid."""
    if filters == "any":
        return None
    if filters is None:
        return frozenset()
    listed = isinstance(filters, Iterable) and not isinstance(filters, str)
    keys = frozenset(filters) if listed else frozenset()
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f'filters is a list of metadata keys, or "any", not {filters!r}')
    return keys


def check_texts(**texts: Any) -> None:
    """Raises ConfigError where a tool's name or description, passed as keyword arguments, is no text."""
    for option, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"the {option} of a tool is a text, not {text!r}")


def check_where(where: Filter | None, keys: frozenset[str] | None) -> None:
    """Raises ConfigError, worded for the model, where a filter is invalid or uses a key that is not offered."""
    try:
        asked = _asked(parse(where))
        for key in sorted(asked - (asked if keys is None else keys)):
            raise unknown("metadata key", key, keys or ())
    except ConfigError as error:
        raise ConfigError(f"The argument `where` is wrong, and nothing was searched: {error}") from error


def search_input(filters: Offered) -> type[BaseModel]:
    """The schema of a tool's arguments."""
    given: dict[str, Any] = {"query": (str, Field(description=_QUERY))}
    if filters is not None:
        given["where"] = (_where(keys_of(filters)), Field(default_factory=dict))
    return create_model("SearchInput", **given)


def invalid(error: ValidationError | Any) -> str:
    """The message to a model for arguments that the schema refuses."""
    wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return f"The arguments are wrong, and nothing was searched: {wrong}"


def _asked(node: Node) -> set[str]:
    """The metadata keys that a filter uses."""
    if isinstance(node, Condition):
        return {node.key}
    parts = (node.part,) if isinstance(node, Not) else node.parts
    return {key for part in parts for key in _asked(part)}


def _where(keys: frozenset[str] | None) -> Any:
    """The type of a filter, whose schema tells the model the keys."""
    schema: dict[str, Any] = {"type": "object", "description": _WHERE}
    if keys is not None:
        schema["description"] += f" Keys: {', '.join(sorted(keys))}."
        schema["properties"] = {key: {"anyOf": _VALUE} for key in sorted(keys)}
    if keys is None or "page" in keys:
        schema["description"] += ' The key "page" counts from 0: p.3 is page 2.'
    return Annotated[dict[str, Any], BeforeValidator(_no_filter), WithJsonSchema(schema)]


def _no_filter(given: object) -> object:
    """An empty filter for null or an empty string, by which some models omit an argument."""
    return {} if given is None or given == "" else given

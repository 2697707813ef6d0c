"""A parent as a store keeps it: JSON `{"id", "text", "token_count", "metadata"}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.text.tokens import TokenCounter, estimate_tokens


def parent_of(parent_id: str, value: Any) -> Chunk | None:
    """The parent that a stored value is: JSON (text or bytes) or a mapping, with `text`, and perhaps `metadata`.

    The store's key says its id. None for what is no parent. `parent_id` is that of its own parent, where it has one.
    """
    told = value if isinstance(value, Mapping) else _json(value)
    if not isinstance(told, Mapping) or not isinstance(told.get("text"), str):
        return None
    above, metadata = told.get("parent_id"), told.get("metadata")
    return Chunk(
        parent_id,
        told["text"],
        above if isinstance(above, str) and above else None,
        metadata if isinstance(metadata, Mapping) else {},
    )


def json_of(parent: Chunk, count_tokens: TokenCounter = estimate_tokens) -> str:
    """What a store keeps of a parent. Raises ConfigError where its metadata are not JSON's."""
    above = {} if parent.parent_id is None else {"parent_id": parent.parent_id}
    told = {"id": parent.id, "text": parent.text, "token_count": count_tokens(parent.text), **above}
    try:
        return json.dumps({**told, "metadata": dict(parent.metadata)}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the metadata of parent {parent.id!r} cannot be kept as JSON ({error}): use strings, finite numbers, "
            "booleans, None, and lists and dicts of these"
        ) from error


def _json(value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None

"""The file and page of a chunk, from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAGE_KEYS = (("source_file", "page_number"), ("source", "page"), ("file_name", "page_label"))
"""Metadata keys of a chunk's file and page; the first pair with both present counts."""


def page_of(metadata: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The (file, page) of a chunk; None when it has no page."""
    for file_key, page_key in PAGE_KEYS:
        if metadata.get(file_key) is not None and metadata.get(page_key) not in (None, ""):
            return metadata[file_key], metadata[page_key]
    return None


def file_of(metadata: Mapping[str, Any]) -> Any | None:
    """The file of a chunk; None when it has none."""
    return next((metadata[key] for key, _ in PAGE_KEYS if metadata.get(key) is not None), None)

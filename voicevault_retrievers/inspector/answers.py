"""Answers as JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response


def as_json(data: Any, status: int = 200) -> Response:
    """Data as JSON in ASCII without a `<`: whoever takes it for a page finds no tag in what documents say."""
    content = json.dumps(data, allow_nan=False, default=str).replace("<", "\\u003c")
    return Response(content, status, media_type="application/json")


def refused(status: int, message: str) -> Response:
    """An error as the page reads it."""
    return as_json({"error": message}, status)

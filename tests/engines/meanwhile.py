"""Others that act while an engine asks its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def meanwhile(
    engine: Any, when: Callable[[Any], bool], act: Callable[[], object], *, after: bool = False
) -> list[Callable[[], object]]:
    """Do something right before, or after, an engine's first request of which `when` is true; empty once it is done."""
    now, waiting = engine._now, [act]

    def asked(request: Any) -> Any:
        acting = waiting.pop() if waiting and when(request) else None
        if acting is not None and not after:
            acting()
        answer = now(request)
        if acting is not None and after:
            acting()
        return answer

    engine._now = asked
    return waiting

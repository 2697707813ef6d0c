"""What a search goes on without is logged: once for each cause, with what was done instead."""

from __future__ import annotations

from collections.abc import Iterable
from logging import INFO, WARNING, Logger

from voicevault_retrievers.core.types import Failure

EXPECTED = frozenset(
    {"NoDates", "NoPositions", "Overtime", "Skipped", "AdaptiveSum", "fallback", "keywords only", "over budget"}
)
"""Kinds of notes that are nobody's mistake: what an option asks for, or what the part itself logs."""


def log_failures(log: Logger, who: str, failures: Iterable[Failure], *, notes: int = WARNING) -> None:
    """A warning for each cause among failures; notes at the level `notes`, or at INFO where they are to be expected.

    Where a result carries the notes, INFO will do: a search that is not degraded then logs no warning.
    What failed in a search of active retrieval too has one cause with what failed in the search before.
    """
    causes: dict[tuple[str, str, str], Failure] = {}
    for failure in failures:
        causes.setdefault((failure.stage.removeprefix("flare/"), failure.kind, failure.message), failure)
    for failure in causes.values():
        if failure.degrades:
            log.warning("%s goes on without %s%s", who, failure, failure.instead and f"; {failure.instead}")
        else:
            log.log(INFO if failure.kind in EXPECTED else notes, "%s notes: %s", who, failure)

"""Calls of a model for chunks, several at a time: a call that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from voicevault_retrievers.core.execution.plan import Call, CircuitBreaker, Plan
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import is_setup_error

Progress: TypeAlias = Callable[[int, int], None]

BATCH = 16
"""The number of chunks whose answers are committed together: a killed run repeats at most so many."""

NOT_ASKED = "not asked, for none of those before were answered in time"
"""Why the chunks after a batch that hung (see `all_hung`) fail."""

_HUNG = "SearchTimeoutError"


def answers(calls: Sequence[tuple[Chunk, Call]], at_once: int) -> Plan[tuple[list[tuple[Chunk, Any]], dict[str, str]]]:
    """The answer to the call of each chunk, `at_once` calls at a time; and the reasons of failures, by chunk id.

    Raises a set-up error, such as that of a missing model. Each group of calls has a new circuit breaker, so that its
    time limit begins with its first call.
    """
    made: list[tuple[Chunk, Any]] = []
    failed: dict[str, str] = {}
    for start in range(0, len(calls), at_once):
        some = calls[start : start + at_once]
        breaker = CircuitBreaker()
        outcomes = yield tuple(replace(call, breaker=breaker) for _, call in some)
        for (chunk, _), outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, Exception):
                if is_setup_error(outcome):
                    raise outcome
                failed[chunk.id] = f"{type(outcome).__name__}: {outcome}"
            else:
                made.append((chunk, outcome))
    return made, failed


def all_hung(made: Collection[Any], failed: Mapping[str, str]) -> bool:
    """Whether all calls of a batch ran out of time, so that the model is not asked for every other chunk too."""
    return bool(failed) and not made and all(said.startswith(_HUNG) for said in failed.values())

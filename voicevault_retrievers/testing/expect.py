"""Assertions whose failures say what differs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

from voicevault_retrievers.core.types import Chunk, Ranking
from voicevault_retrievers.store.codec import same

SHOWN = 600
"""The most characters of a value in a failure message."""


def that(holds: object, message: str) -> None:
    """Fail with the message unless it holds."""
    __tracebackhide__ = True
    if not holds:
        pytest.fail(message)


def refused(result: object, what: str) -> None:
    """Fail: a call that must be refused returned a result."""
    __tracebackhide__ = True
    pytest.fail(f"{what}: was not refused, and gave {_short(result)}")


def equal(found: Any, expected: Any, what: str) -> None:
    """Fail unless the two are equal."""
    __tracebackhide__ = True
    if found != expected:
        pytest.fail(f"{what}: found {_short(found)}, expected {_short(expected)}")


def held(found: Mapping[str, Chunk], expected: Collection[Chunk], kb: str) -> None:
    """Fail unless exactly these chunks were found, equal in all stored fields, as chunks of `kb`."""
    __tracebackhide__ = True
    wanted = {chunk.id: chunk for chunk in expected}
    equal(sorted(found), sorted(wanted), "ids")
    wrong = {one: (found[one], chunk) for one, chunk in wanted.items() if not same(found[one], chunk)}
    that(not wrong, f"chunks that came back otherwise, (found, expected): {_short(wrong)}")
    equal({chunk.kb for chunk in found.values()}, {kb} if wanted else set(), "kb of the chunks")


def alike(found: Ranking, expected: Ranking, what: str, tolerance: float) -> None:
    """Fail unless both rankings have the same chunks in the same order, with scores equal to a tolerance."""
    __tracebackhide__ = True
    that(not found.skipped, f"{what}: {found.skipped}")
    wrong = differences(found, expected, tolerance)
    that(not wrong, f"{what}: {wrong}")


def differences(found: Ranking, expected: Ranking, tolerance: float) -> str:
    """How two rankings differ; empty where they are equal.

    Chunks whose scores are equal to the tolerance may be in any order.
    """
    scores, wanted = scores_of(found), scores_of(expected)
    extra, missing = sorted(scores.keys() - wanted), sorted(wanted.keys() - scores)
    if extra or missing:
        return f"found besides {_short(extra)}, missed {_short(missing)}"
    off = {one: (scores[one], wanted[one]) for one in scores if not near(scores[one], wanted[one], tolerance)}
    if off:
        return f"scores (found, expected) differ: {_short(off)}"
    swapped = [
        (one, other)
        for one, other in zip(found.ids, expected.ids, strict=True)
        if one != other and not near(wanted[one], wanted[other], tolerance)
    ]
    return f"order differs: found {_short(found.ids)}, expected {_short(expected.ids)}" if swapped else ""


def scores_of(ranking: Ranking) -> dict[str, float]:
    """The scores by id; a hit without a score counts as NaN, which equals nothing."""
    return {hit.id: math.nan if hit.score is None else hit.score for hit in ranking}


def near(one: float, other: float, tolerance: float) -> bool:
    """Whether two scores are equal to a tolerance, which is relative for scores above 1."""
    return abs(one - other) <= tolerance * max(1.0, abs(other))


def kendall(found: Sequence[str], expected: Sequence[str]) -> float:
    """Kendall's tau of two orders of the same ids: 1 where they agree, -1 where one is the reverse of the other."""
    place = {one: at for at, one in enumerate(expected)}
    pairs = list(combinations([place[one] for one in found if one in place], 2))
    return sum(1 if first < second else -1 for first, second in pairs) / len(pairs) if pairs else 1.0


def falling(ranking: Ranking, what: str) -> None:
    """Fail unless scores fall and equal scores are in ascending order of ids."""
    __tracebackhide__ = True
    keys = [(-(hit.score or 0.0), hit.id) for hit in ranking]
    equal(keys, sorted(keys), f"{what}: (-score, id) ascending")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"

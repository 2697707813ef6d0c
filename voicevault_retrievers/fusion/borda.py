"""The Borda count. Aslam, Montague (2001), SIGIR, "Models for metasearch": Borda-fuse, and with weights, weighted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Column, Contributions, Evidence, Method, at, ranks


@dataclass(frozen=True)
class Borda(Method):
    """Of c chunks that any channel found, a channel gives its first c points, its second c - 1, and so on.

    The points left over are shared evenly by the chunks that it lacks: `(c - n + 1) / 2` each, where it found n. All
    are multiplied by its weight. A channel that found nothing adds nothing: as much for all would change no order.
    """

    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return {name: _points(one, weights[name]) for name, one in found.items()}


def _points(one: Evidence, weight: float) -> Column:
    count, own = len(one.scores), len(one.places)
    left_over = weight * (count - own + 1) / 2 if own else 0.0
    return at(one, weight * (count + 1 - ranks(one)), left_over)

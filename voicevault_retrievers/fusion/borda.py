"""The Borda count. Aslam, Montague (2001), SIGIR, "Models for metasearch": Borda-fuse and weighted Borda-fuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Column, Contributions, Evidence, Method, at, ranks


@dataclass(frozen=True)
class Borda(Method):
    """Of c chunks that any channel found, a channel gives c points to its first hit, c - 1 to its second, and so on.

    The chunks that it did not find share the remaining points evenly: `(c - n + 1) / 2` each, where it found n. All
    points are multiplied by its weight. A channel that found nothing adds nothing, as equal points change no order.
    """

    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return {name: _points(one, weights[name]) for name, one in found.items()}


def _points(one: Evidence, weight: float) -> Column:
    count, own = len(one.scores), len(one.places)
    left_over = weight * (count - own + 1) / 2 if own else 0.0
    return at(one, weight * (count + 1 - ranks(one)), left_over)

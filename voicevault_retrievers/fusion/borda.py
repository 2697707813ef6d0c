"""The Borda count. Aslam, Montague (2001), SIGIR, "Models for metasearch": Borda-fuse, and with weights, weighted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Contributions, Evidence, Method, all_ids


@dataclass(frozen=True)
class Borda(Method):
    """Of c chunks that any channel found, a channel gives its first c points, its second c - 1, and so on.

    The points left over are shared evenly by the chunks that it lacks: `(c - n + 1) / 2` each, where it found n. All
    are multiplied by its weight. A channel that found nothing adds nothing: as much for all would change no order.
    """

    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        ids = all_ids(found)
        return {name: _points(evidence.ranking.ids, ids, weights[name]) for name, evidence in found.items()}


def _points(ranking: tuple[str, ...], ids: Mapping[str, int], weight: float) -> dict[str, float]:
    if not ranking:
        return {}
    left_over = dict.fromkeys(ids, weight * (len(ids) - len(ranking) + 1) / 2)
    return {**left_over, **{chunk_id: weight * (len(ids) - at) for at, chunk_id in enumerate(ranking)}}

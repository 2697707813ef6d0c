"""How far each channel of a fusion is to be trusted, without labels: how far others confirm what it finds.

`trust` is of the collection, and `confirmed` of one query.

Chunks of a sample are searched for by each other (`Channel.alike`). Where a channel understands them, some of the
nearest neighbours that it gives to a chunk are near in another channel too, though one goes by words and the other by
meaning. An embedder that does not speak the documents' language gives neighbours that share no words. These are the
two independent views of co-training (Blum, Mitchell, 1998, COLT), asked about the collection itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.alike import Alike
from voicevault_retrievers.fusion.method import Evidence
from voicevault_retrievers.recent import Recent

NEIGHBOURS = 5
"""Of so many neighbours the best is looked at in the other channel: one has to be right."""
BEST = 10
"""Of so many hits for a query the best is looked at in the other channel."""
LEAST_FOUND = 3
"""A chunk that fewer others match says nothing."""
DIGITS = 6
LEAST_CHUNKS = 32
"""Fewer chunks do not tell channels apart."""


def trust(alike: Mapping[str, Alike], matching: Collection[str]) -> dict[str, float]:
    """For each channel, in [0, 1], how far the others confirm its neighbours: 1 where all do, or it cannot be said.

    It is asked of those chunks of the sample that share a word with one that matches the query, of which `matching` has
    the ids: what has nothing to do with the query says nothing of how it is searched.
    """
    key = tuple(sorted(alike.items()))
    shown = _known.get(key)
    if shown is None:
        shown = _Shown(alike)
        _known.put(key, shown)
    return shown.among(matching)


class _Shown:
    """For each channel and each chunk of a sample, how far the others confirm the neighbours that it gives to it."""

    def __init__(self, alike: Mapping[str, Alike]) -> None:
        self.names = list(alike)
        shared = sorted(set.intersection(*(set(one.ids) for one in alike.values()))) if alike else []
        self.places = {chunk_id: at for at, chunk_id in enumerate(shared)}
        views = {name: _View(one.among(shared)) for name, one in alike.items()}
        self.telling = np.logical_and.reduce([np.ones(len(shared), np.bool_), *(v.telling for v in views.values())])
        self.linked = np.logical_and.reduce([np.ones(2 * (len(shared),), np.bool_), *(v.found for v in views.values())])
        self.values = {
            name: np.mean([_confirmed(view, other) for key, other in views.items() if key != name], axis=0)
            for name, view in views.items()
            if len(views) > 1
        }

    def among(self, matching: Collection[str]) -> dict[str, float]:
        """The means over the chunks that are linked to any of these."""
        own = [self.places[chunk_id] for chunk_id in matching if chunk_id in self.places]
        rows = self.telling & self.linked[own].any(axis=0)
        if not self.values or rows.sum() < LEAST_CHUNKS:
            return dict.fromkeys(self.names, 1.0)
        # A product of matrices may differ in its last bits with the order of the chunks: they are not to tell.
        return {name: round(float(values[rows].mean()), DIGITS) for name, values in self.values.items()}


_known: Recent[Hashable, _Shown] = Recent(32)


def confirmed(found: Mapping[str, Evidence]) -> dict[str, float]:
    """For each channel, in [0, 1], how far others confirm the best hits that it found; 1 where none can say.

    It is how far the best of them stands above the mean in another channel, as a share of the highest there, and the
    mean of that over the other channels.
    """
    views = {name: one for name, one in sorted(found.items()) if one.listed and one.spread}
    known = {name: [_share(one, other) for key, other in views.items() if key != name] for name, one in views.items()}
    return {name: math.fsum(known[name]) / len(known[name]) if known.get(name) else 1.0 for name in found}


def _share(one: Evidence, other: Evidence) -> float:
    mean = other.spread.mean if other.spread else 0.0
    exact, listed = other.scores or {}, other.listed
    ids = [hit.chunk.id for hit in one.ranking.hits[:BEST]]
    best = max(listed.get(chunk_id, exact.get(chunk_id, mean)) for chunk_id in ids)
    highest = max(listed.values())
    return min(max((best - mean) / (highest - mean), 0.0), 1.0) if highest > mean else 1.0


class _View:
    """What one channel says: standard scores among the chunks that match; that each matches itself is left out."""

    def __init__(self, alike: Alike) -> None:
        self.found = alike.found
        found = alike.found & ~np.eye(len(alike.ids), dtype=np.bool_)
        counts = np.maximum(found.sum(axis=1), 1)
        scores = np.where(found, alike.scores, 0.0)
        means = scores.sum(axis=1) / counts
        spread = np.sqrt((np.where(found, scores - means[:, None], 0.0) ** 2).sum(axis=1) / counts)
        spread = np.maximum(spread, np.maximum(0.1 * np.abs(scores).max(axis=1, initial=0.0), 1e-9))
        self.telling = found.sum(axis=1) >= LEAST_FOUND
        self.standing: NDArray[np.float64] = (scores - means[:, None]) / spread[:, None]
        listed = np.where(found, self.standing, -np.inf)
        self.neighbours = np.argsort(-listed, axis=1, kind="stable")[:, :NEIGHBOURS]
        self.matched = np.take_along_axis(found, self.neighbours, axis=1)
        self.highest = np.maximum(listed.max(axis=1, initial=-np.inf), 1e-9)


def _confirmed(view: _View, other: _View) -> NDArray[np.float64]:
    """For each chunk, how high the best of a channel's neighbours stands in another, as a share of what is highest."""
    standing = np.where(view.matched, np.take_along_axis(other.standing, view.neighbours, axis=1), -np.inf)
    best: NDArray[np.float64] = standing.max(axis=1, initial=-np.inf)
    shares: NDArray[np.float64] = np.clip(best / other.highest, 0.0, 1.0)
    return shares

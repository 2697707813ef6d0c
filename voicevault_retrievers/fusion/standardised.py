"""The default fusion: standard scores over what matches, weighed by how far channels confirm each other.

Scores are comparable once each channel's is divided by its deviation over a population (Montague, Aslam, 2001, CIKM,
"Relevance score normalization for metasearch"). Over the candidates alone, the deviation says how they were cut off;
here it is that over all chunks that share a word with the query, so that documents which do not, however many, change
nothing. The mean is the same for every hit and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.checks import flag, number
from voicevault_retrievers.fusion.distribution import DistributionBased
from voicevault_retrievers.fusion.method import Contributions, Evidence, all_ids
from voicevault_retrievers.fusion.scored import ScoreMethod
from voicevault_retrievers.fusion.trust import confirmed, trust

INSTEAD = DistributionBased()


@dataclass(frozen=True)
class Standardised(ScoreMethod):
    """Each channel adds `weight * share * score / deviation`, scores exact for all hits of all channels.

    The share is `semantic` for semantic channels and 1 for others, times the square of how far the channel is trusted
    in this collection, times how far the others confirm what it found for this query (see `fusion.trust`; 1 for all
    with trust=False), so scaled that the shares' mean is 1. `semantic` did best at 1.2 over all development
    collections: a cosine's deviation over chunks that share a word with the query is larger than that over all.

    Where a channel has no deviation, all are fused by `DistributionBased()`; a chunk that a channel cannot score counts
    as its last hit. A note says so.
    """

    semantic: float = 1.2
    trust: bool = True
    exact = True

    def __post_init__(self) -> None:
        number("semantic", self.semantic)
        flag("trust", self.trust)

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        if _undeviating(found):
            return INSTEAD.contributions(found, weights)
        shares = self.shares(found)
        return {
            name: {
                chunk_id: weights[name] * shares[name] * score / _deviation(one)
                for chunk_id, score in _exact(one, found).items()
            }
            for name, one in found.items()
        }

    def shares(self, found: Mapping[str, Evidence]) -> dict[str, float]:
        """What each channel's standard scores are multiplied by, besides its weight."""
        own = {name: self.semantic if one.kind == "semantic" else 1.0 for name, one in found.items()}
        if self.trust:
            alike = {name: one.alike for name, one in found.items() if one.alike is not None}
            matching = {chunk_id for one in found.values() for chunk_id in one.sample or ()}
            trusted = trust(alike, matching) if len(alike) == len(found) else dict.fromkeys(found, 1.0)
            shown = confirmed(found)
            own = {name: share * trusted[name] ** 2 * shown[name] for name, share in own.items()}
        mean = sum(own.values()) / max(len(own), 1)
        return {name: share / mean for name, share in own.items()} if mean else dict.fromkeys(own, 1.0)

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        if said := super().notes(found):
            return said
        if names := _undeviating(found):
            return (f"no deviation of {', '.join(names)} is known, so all channels are fused by {INSTEAD!r}",)
        blind = sorted(name for name, one in found.items() if one.scores is None and len(one.ranking))
        count = len(all_ids(found))
        blind = [name for name in blind if len(found[name].ranking) < count]
        return (f"no exact scores of {', '.join(blind)}: others' hits count as the last there",) if blind else ()


def _undeviating(found: Mapping[str, Evidence]) -> list[str]:
    return sorted(name for name, one in found.items() if len(one.ranking) and not _deviation(one))


def _deviation(one: Evidence) -> float:
    return one.spread.sd if one.spread else 0.0


def _exact(one: Evidence, found: Mapping[str, Evidence]) -> dict[str, float]:
    """A channel's score of every hit of any channel; nothing where it found nothing and cannot tell."""
    listed = one.listed
    if not _deviation(one):
        return {}
    if one.scores is not None:
        return {**one.scores, **listed}
    last = min(listed.values(), default=0.0)
    return {**dict.fromkeys(all_ids(found), last), **listed}

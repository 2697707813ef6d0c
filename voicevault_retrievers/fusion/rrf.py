"""Reciprocal Rank Fusion. Cormack, Clarke, Büttcher (2009), SIGIR, "Reciprocal rank fusion outperforms Condorcet"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers._support.checks import number, whole
from voicevault_retrievers.fusion.method import Contributions, Evidence, Method, at, ranks


@dataclass(frozen=True)
class RRF(Method):
    """Each channel adds `weight / (k + rank)`, rank from 1. Scores are not used.

    Cormack, Clarke, Büttcher (2009), who chose k = 60. Raises ConfigError for a k that is no number, or below 0.
    """

    k: float = 60

    def __post_init__(self) -> None:
        number("RRF's k", self.k)

    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return {name: at(one, weights[name] / (self.k + ranks(one))) for name, one in found.items()}


@dataclass(frozen=True)
class EngineRRF(RRF):
    """RRF that an engine computes itself: keyword and vector search are one request.

    For pipelines over one collection of an engine with `Capabilities.server_fusion`; `fuse` refuses it. Faster than the
    other methods where the network is slow, but hits may have no votes of the two channels. `k` is a whole number.
    """

    def __post_init__(self) -> None:
        whole("RRF's k", self.k)

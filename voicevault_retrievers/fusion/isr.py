"""Inverse square rank. Mourão, Martins, Magalhães (2014), "Inverse square rank fusion for multimodal search", CBMI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Contributions, Evidence, Method, at, finders, ranks


@dataclass(frozen=True)
class ISR(Method):
    """Each channel adds `n * weight / rank ** 2`, rank from 1; n is the number of channels that found the chunk.

    Mourão, Martins, Magalhães (2014).
    """

    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        n = finders(found)
        return {name: at(one, n[one.places] * weights[name] / ranks(one) ** 2) for name, one in found.items()}

"""Fusion of several channels into one, and the fusion methods, one per file."""

from voicevault_retrievers.fusion.adaptive_sum import AdaptiveSum
from voicevault_retrievers.fusion.borda import Borda
from voicevault_retrievers.fusion.combmnz import CombMNZ
from voicevault_retrievers.fusion.convex import Convex
from voicevault_retrievers.fusion.distribution import DistributionBased
from voicevault_retrievers.fusion.fuse import Fused, fuse
from voicevault_retrievers.fusion.isr import ISR
from voicevault_retrievers.fusion.method import Contributions, Evidence, Method, Pool
from voicevault_retrievers.fusion.methods import METHODS, method_named, method_of, options_of
from voicevault_retrievers.fusion.rrf import RRF, EngineRRF
from voicevault_retrievers.fusion.sum import WeightedSum

__all__ = [
    "ISR",
    "METHODS",
    "RRF",
    "AdaptiveSum",
    "Borda",
    "CombMNZ",
    "Contributions",
    "Convex",
    "DistributionBased",
    "EngineRRF",
    "Evidence",
    "Fused",
    "Method",
    "Pool",
    "WeightedSum",
    "fuse",
    "method_named",
    "method_of",
    "options_of",
]

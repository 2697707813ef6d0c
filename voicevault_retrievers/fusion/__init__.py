"""Fusion: several channels as one, and the methods that say how. One method, one file."""

from voicevault_retrievers.fusion.fuse import Fused, fuse, method_of
from voicevault_retrievers.fusion.method import Contributions, Evidence, Method
from voicevault_retrievers.fusion.rrf import RRF

__all__ = ["RRF", "Contributions", "Evidence", "Fused", "Method", "fuse", "method_of"]

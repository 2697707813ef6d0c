"""Fusion: several channels as one, and the methods that say how. One method, one file."""

from voicevault_retrievers.fusion.fuse import Fused, Method, fuse, method_of
from voicevault_retrievers.fusion.rrf import RRF

__all__ = ["RRF", "Fused", "Method", "fuse", "method_of"]

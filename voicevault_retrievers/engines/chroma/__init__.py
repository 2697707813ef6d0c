"""Chroma: a collection as a vector index, and as an engine."""

from voicevault_retrievers.engines.chroma.engine import ChromaEngine, at
from voicevault_retrievers.engines.chroma.vectors import OTHERS_KEY, PRIVATE_KEY, ChromaVectors

__all__ = ["OTHERS_KEY", "PRIVATE_KEY", "ChromaEngine", "ChromaVectors", "at"]

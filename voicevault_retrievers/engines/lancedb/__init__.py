"""LanceDB as an engine."""

from voicevault_retrievers.engines.lancedb.engine import LanceEngine, at

__all__ = ["LanceEngine", "at"]

"""Milvus as an engine."""

from voicevault_retrievers.engines.milvus.engine import MilvusEngine, at

__all__ = ["MilvusEngine", "at"]

"""Qdrant as an engine: named vectors, BM25 as sparse vectors with exact scores, fusion by the server."""

from voicevault_retrievers.engines.qdrant.engine import QdrantEngine, at

__all__ = ["QdrantEngine", "at"]

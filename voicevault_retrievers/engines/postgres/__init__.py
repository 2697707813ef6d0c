"""PostgreSQL with pgvector as an engine."""

from voicevault_retrievers.engines.postgres.engine import PostgresEngine, at

__all__ = ["PostgresEngine", "at"]

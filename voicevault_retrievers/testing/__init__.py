"""Conformance suites for implementations of this package's protocols; needs pytest."""

from voicevault_retrievers.testing.conformance import EngineConformance

__all__ = ["EngineConformance"]

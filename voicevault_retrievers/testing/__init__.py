"""Conformance suites for what others write against this package's contracts; needs pytest."""

from voicevault_retrievers.testing.conformance import EngineConformance

__all__ = ["EngineConformance"]

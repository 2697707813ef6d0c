"""From hits to the context that a model reads, and from its answer back to the hits."""

from voicevault_retrievers.answers.builder import ContextBuilder, ends_first
from voicevault_retrievers.answers.citations import Marker, ResolvedAnswer, header, resolve_citations
from voicevault_retrievers.core.queries import Turn

__all__ = ["ContextBuilder", "Marker", "ResolvedAnswer", "Turn", "ends_first", "header", "resolve_citations"]

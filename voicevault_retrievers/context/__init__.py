"""From hits to what a model reads, and from its answer back to the hits."""

from voicevault_retrievers.context.builder import ContextBuilder, Turn
from voicevault_retrievers.context.citations import Marker, ResolvedAnswer, header, resolve_citations

__all__ = ["ContextBuilder", "Marker", "ResolvedAnswer", "Turn", "header", "resolve_citations"]

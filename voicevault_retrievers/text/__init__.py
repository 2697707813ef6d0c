"""From text to index terms, and to token counts."""

from voicevault_retrievers.text.analyzer import Analyzer
from voicevault_retrievers.text.tokens import estimate_tokens

__all__ = ["Analyzer", "estimate_tokens"]

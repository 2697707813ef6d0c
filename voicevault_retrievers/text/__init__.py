"""Analysis of text: index terms and token counts."""

from voicevault_retrievers.text.analyzed_texts import Analyzed
from voicevault_retrievers.text.analyzer import Analyzer, QueryTerm
from voicevault_retrievers.text.custom_analyzer import CustomAnalyzer
from voicevault_retrievers.text.languages import untagged
from voicevault_retrievers.text.tokens import estimate_tokens

__all__ = ["Analyzed", "Analyzer", "CustomAnalyzer", "QueryTerm", "estimate_tokens", "untagged"]

"""Hits and results for people: as plain data, as HTML for notebooks, and as pictures."""

from voicevault_retrievers.display.data import BADGES, Lists, alists, analyzer_of, hit_data, result_data
from voicevault_retrievers.display.html import (
    COLOURS,
    Explanation,
    explain,
    explain_result,
    explanation_html,
    result_html,
)
from voicevault_retrievers.display.marking import marked
from voicevault_retrievers.display.plots import plot_result

__all__ = [
    "BADGES",
    "COLOURS",
    "Explanation",
    "Lists",
    "alists",
    "analyzer_of",
    "explain",
    "explain_result",
    "explanation_html",
    "hit_data",
    "marked",
    "plot_result",
    "result_data",
    "result_html",
]

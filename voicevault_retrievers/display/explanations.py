"""Why a hit is there, as text that a notebook shows with badges and bars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from voicevault_retrievers.core.explanation import explain as in_words
from voicevault_retrievers.core.explanation import explain_result as result_in_words
from voicevault_retrievers.core.types import Hit, Result
from voicevault_retrievers.display.html import explanation_html, result_html


class Explanation(str):
    """Text that a notebook shows as HTML; `made` makes that when it is asked for."""

    _made: Callable[[], str] | None

    def __new__(cls, text: str, made: Callable[[], str] | None = None) -> Explanation:
        told = super().__new__(cls, text)
        told._made = made
        return told

    def _repr_html_(self) -> str | None:
        return None if self._made is None else self._made()


def explain(hit: Hit) -> Explanation:
    """Why a hit is there, a line for each channel and stage; contributions add up to the fused score."""
    return Explanation(in_words(hit), partial(explanation_html, hit))


def explain_result(result: Result) -> Explanation:
    """The hits of a result with their reasons, the wordings asked for, channels, timings in milliseconds, failures."""
    return Explanation(result_in_words(result), partial(result_html, result))

"""Analyzers from a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from voicevault_retrievers.text.analyzed_texts import Analyzed
from voicevault_retrievers.text.analyzer import QueryTerm, digest
from voicevault_retrievers.text.probes import TEXT


@dataclass(frozen=True)
class CustomAnalyzer:
    """A function from a text to its terms, with the name under which it is saved."""

    function: Callable[[str], Sequence[str]] = field(repr=False)
    name: str

    def __call__(self, text: str) -> list[str]:
        """The terms of a text, in order, with repeats."""
        return list(self.function(text))

    def analyse(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> Analyzed:
        """The terms of many texts; `progress(done, total)` is called after each."""
        return Analyzed.of(self._each(texts, progress))

    def query(self, text: str, tags: str = "") -> list[QueryTerm]:
        """The terms of a query, each with itself as its only form."""
        return [QueryTerm(term, (term,)) for term in self.function(text)]

    def recipe(self) -> dict[str, Any]:
        """The name alone: the function must be passed again."""
        return {"custom": self.name}

    @property
    def fingerprint(self) -> str:
        """A digest of the name, and of the function's terms for a text in many scripts."""
        return digest([self.recipe(), self(TEXT)])

    def _each(self, texts: Sequence[str], progress: Callable[[int, int], None] | None) -> Iterator[Sequence[str]]:
        for done, text in enumerate(texts, start=1):
            yield self.function(text)
            if progress:
                progress(done, len(texts))

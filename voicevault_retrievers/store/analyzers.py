"""The saved analyzer of a knowledge base: made from its recipe, and checked to still give the indexed terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

SavedAnalyzer: TypeAlias = Analyzer | CustomAnalyzer


def named(analyzer: SavedAnalyzer | None) -> SavedAnalyzer:
    """The analyzer of a new knowledge base, the default one for None.

    Raises ConfigError for a bare function, which has no name to be saved under.
    """
    if analyzer is None or isinstance(analyzer, Analyzer | CustomAnalyzer):
        return analyzer or Analyzer()
    raise ConfigError(
        f"a knowledge base saves its analyzer by name, and {analyzer!r} has none: give it one, "
        'analyzer=CustomAnalyzer(function, name="...")'
    )


def make(recipe: Mapping[str, Any], given: SavedAnalyzer | None, kb: str) -> SavedAnalyzer:
    """The analyzer that a saved recipe describes; a custom analyzer has to be passed as `given`.

    Raises IncompatibleIndexError where the analyzer cannot be made, or `given` is a different one.
    """
    custom = recipe.get("custom")
    if custom is None:
        return _standard(recipe, given, kb)
    if isinstance(given, CustomAnalyzer) and given.name == custom:
        return given
    raise IncompatibleIndexError(
        f"knowledge base {kb!r} was made with the custom analyzer {custom!r}, {_said(given)}: open it with "
        f"analyzer=CustomAnalyzer(function, name={custom!r}), the function being the one that it was made with"
    )


def check(analyzer: SavedAnalyzer, fingerprint: str, kb: str) -> None:
    """Raises IncompatibleIndexError where an analyzer no longer gives the terms that were indexed."""
    if analyzer.fingerprint == fingerprint:
        return
    changed = "the stemmer or the stopwords have" if isinstance(analyzer, Analyzer) else "its function has"
    again = "" if isinstance(analyzer, Analyzer) else ", analyzer=..."
    raise IncompatibleIndexError(
        f"{analyzer!r} gives other terms here (fingerprint {analyzer.fingerprint}) than those indexed in knowledge "
        f"base {kb!r} ({fingerprint}); {changed} changed: index its chunks anew with KnowledgeBase.repair({kb!r}"
        f"{again}), which keeps ids and vectors, or use what made it"
    )


def _standard(recipe: Mapping[str, Any], given: SavedAnalyzer | None, kb: str) -> Analyzer:
    try:
        made = Analyzer(**recipe)
    except (TypeError, ConfigError) as error:
        raise IncompatibleIndexError(
            f"no analyzer here has the recipe {dict(recipe)} of knowledge base {kb!r} ({error}): use the versions that "
            "made it, or index the documents again"
        ) from error
    if given is None or given == made:
        return made
    raise IncompatibleIndexError(
        f"knowledge base {kb!r} was made with {made!r}, {_said(given)}: open it without an analyzer, or index the "
        "documents into a new knowledge base"
    )


def _said(given: SavedAnalyzer | None) -> str:
    return "and none is given" if given is None else f"given {given!r}"

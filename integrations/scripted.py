"""Answers that are a script, so that the examples run without a key: no language model has any part in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import log

from voicevault_retrievers.text import Analyzer

SCRIPTED = "scripted (no language model: it copies sentences from the sources)"
_SOURCE = re.compile(r"^\[(\d+)\] \[Source: .*\]\n((?:(?!\[\d+\] \[Source: ).*\n?)*)", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n{2,}|(?<=\|)\n(?=\|)")


def sources_in(text: str) -> list[tuple[str, str]]:
    """The numbered sources of what a model reads: each its number and its text."""
    return _SOURCE.findall(text)


def extract(question: str, sources: Sequence[tuple[str, str]]) -> str:
    """The two sentences of the sources whose words are rare and in the question, each with the marker of its source."""
    terms = Analyzer()
    parts = [(number, " ".join(one.split())) for number, text in sources for one in _SENTENCE.split(text)]
    sentences = [(number, one.removeprefix("- ")) for number, one in parts if one]
    words = [set(terms(text)) for _, text in sentences]
    common = Counter(word for found in words for word in found)
    asked = set(terms(question))
    scores = [sum(log(1 + len(words) / common[word]) for word in found & asked) for found in words]
    best = sorted(range(len(words)), key=lambda at: -scores[at])[:2]
    told = ["{1} [{0}]".format(*sentences[at]) for at in sorted(best) if scores[at] > 0]
    return " ".join(told) or "The sources do not answer this."

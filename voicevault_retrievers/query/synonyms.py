"""Query expansion by a list of synonyms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.query.corpus import added
from voicevault_retrievers.query.phrases import Phrases, key, reworded

Synonyms: TypeAlias = Mapping[str, str | Sequence[str]] | Iterable[Sequence[str]]

_COMMA = re.compile(r"(?<!\\),")
_ARROW = re.compile(r"(?<!\\)=>")
_ESCAPED = re.compile(r"\\(.)")


class SynonymExpansion(Rewriter):
    """Adds wordings with synonyms in place of words and phrases, until a query has `size`, including its own variants.

    `synonyms` is a mapping from a phrase to its replacements, which is one way, or lists of phrases that are synonyms
    of each other. Phrases are found as whole words, regardless of case. The n-th wording uses the n-th synonym of every
    phrase, or its last one.
    """

    name = "synonyms"

    def __init__(self, synonyms: Synonyms, size: int = 3) -> None:
        super().__init__()
        self.size = whole("size", size)
        self.synonyms = _checked(synonyms)
        self._phrases = Phrases(self.synonyms)

    @classmethod
    def from_file(cls, path: str | Path, size: int = 3) -> SynonymExpansion:
        r"""Synonyms from a file in the format of Solr and Lucene.

        Each line is `a, b, c`, synonyms of each other, or `a, b => c, d`, where a and b gain the synonyms c and d. `#`
        begins a comment; `\,` and `\=>` are literal. Raises ConfigError, which names the line.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the synonyms in {path} cannot be read: {error}") from error
        found: dict[str, tuple[str, ...]] = {}
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                for phrase, others in read_line(line, f"{path}, line {number}"):
                    found[phrase] = (*found.get(phrase, ()), *others)
        return cls(found, size)

    def rewrite(self, query: Query) -> Query:
        found = self._phrases.find(query.text)
        most = max((len(others) for _, others in found), default=0)
        wordings = [
            reworded(query, [(place, others[min(at, len(others) - 1)]) for place, others in found])
            for at in range(most)
        ]
        expanded = added(query, wordings)
        room = max(self.size - 1, len(query.variants))
        return replace(expanded, variants=expanded.variants[:room])

    def __repr__(self) -> str:
        return f"SynonymExpansion({self.synonyms!r}, {self.size})"


def _checked(synonyms: Synonyms) -> dict[str, tuple[str, ...]]:
    """The synonyms of each phrase, by its words, without itself."""
    if isinstance(synonyms, Mapping):
        given = [
            (phrase, (others,) if isinstance(others, str) else tuple(others)) for phrase, others in synonyms.items()
        ]
    elif isinstance(synonyms, str):
        raise ConfigError(f"synonyms are a mapping or lists, not the text {synonyms!r}: from_file reads a file")
    else:
        given = [pair for phrases in map(tuple, synonyms) for pair in _each(phrases)]
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for phrase, others in given:
        for one in (phrase, *others):
            if not isinstance(one, str) or not key(one):
                raise ConfigError(f"a synonym is a text with a word in it, not {one!r}")
        found.setdefault(key(phrase), {}).update(dict.fromkeys(one for one in others if key(one) != key(phrase)))
    return {" ".join(words): tuple(others) for words, others in found.items() if others}


def _each(phrases: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Each of several equivalents, with the others."""
    return [(phrase, tuple(other for other in phrases if other != phrase)) for phrase in phrases]


def read_line(line: str, where: str) -> list[tuple[str, tuple[str, ...]]]:
    """The phrases of a line in Solr's format, each with its synonyms; `where` names the line in errors."""
    sides = [_phrases(side) for side in _ARROW.split(line)]
    if len(sides) > 2 or not all(sides) or (len(sides) == 1 and len(sides[0]) < 2):
        raise ConfigError(f"{where}: a line of synonyms is `a, b, c` or `a, b => c`, not {line.strip()!r}")
    return _each(sides[0]) if len(sides) == 1 else [(phrase, sides[1]) for phrase in sides[0]]


def _phrases(side: str) -> tuple[str, ...]:
    return tuple(bare for phrase in _COMMA.split(side) if (bare := _ESCAPED.sub(r"\1", phrase).strip()))

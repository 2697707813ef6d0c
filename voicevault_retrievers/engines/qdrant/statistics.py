"""The BM25 statistics of a Qdrant collection, counted by Qdrant, and what all its writers share.

Qdrant counts values of a payload index under a filter (a facet), but sums no numbers. So each chunk lists what sums are
made of, and one facet tells them all: `count`, `bit_N` for each binary digit 1 of its length, and `language_X` for each
language of its terms.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.store import files
from voicevault_retrievers.text.analyzed_texts import languages_of, tags_of

Payload: TypeAlias = Mapping[str, Any]

SUMS = "sums"
"""The payload key of what the sums of statistics are made of."""

MEAN = "mean"
"""The payload key of the mean length that a chunk's weights were made with, as text."""

RECIPE, MEAN_LENGTH, WEIGHED = "recipe", "mean_length", "weighed"
"""The keys of the state: the digest of the recipe, the mean length for weights, and over how many chunks it is."""

_COUNT, _BIT, _LANGUAGE = "count", "bit_", "language_"


@dataclass(frozen=True)
class State:
    """What all clients of a collection share: the digest of its recipe, the languages of its terms, the mean length."""

    recipe: str = ""
    languages: str = ""
    mean: float = 0.0
    weighed: int = 0

    @classmethod
    def of(cls, payload: Payload) -> State:
        """The state in the payload of the collection's state point; empty before the first write."""
        mean, weighed = float(payload.get(MEAN_LENGTH, 0.0)), int(payload.get(WEIGHED, 0))
        return cls(str(payload.get(RECIPE, "")), _languages(payload), mean, weighed)


@dataclass(frozen=True)
class Sums:
    """Sums over chunks: how many there are, their length in all, their languages, and a bound of each length.

    `means` are the numbers of chunks by the mean length that their weights were made with. `frequencies` are those of
    all terms where all chunks were read, else None.
    """

    total: int = 0
    length: int = 0
    longest: int = 0
    languages: str = ""
    means: Mapping[float, int] | None = None
    frequencies: Mapping[str, int] | None = None
    counted: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    """The document frequencies that have been counted one by one."""

    @classmethod
    def of(cls, facet: Mapping[str, int], means: Mapping[str, int], frequencies: Mapping[str, int] | None) -> Sums:
        """The sums that are made of the values of `SUMS` and of `MEAN`, each with its number of chunks."""
        bits = {int(key[len(_BIT) :]): chunks for key, chunks in facet.items() if key.startswith(_BIT)}
        length = sum(chunks << bit for bit, chunks in bits.items())
        longest = (2 << max(bits)) - 1 if bits else 0
        known = {float(mean): chunks for mean, chunks in means.items()}
        return cls(facet.get(_COUNT, 0), length, longest, _languages(facet), known, frequencies)

    @classmethod
    def read(cls, payloads: Iterable[Payload]) -> Sums:
        """The sums over the payloads of chunks."""
        facet, means, frequencies = Counter[str](), Counter[str](), Counter[str]()
        for payload in payloads:
            facet.update(payload[SUMS])
            means[payload[MEAN]] += 1
            frequencies.update(payload["terms"])
        return cls.of(facet, means, frequencies)

    @property
    def mean(self) -> float:
        """The mean length of the chunks, in terms."""
        return self.length / self.total if self.total else 0.0

    @property
    def least(self) -> float:
        """The smallest mean length that weights were made with; 0.0 without chunks."""
        return min(self.means or (), default=0.0)


def save(path: Path | str, collection: str, sums: Sums) -> None:
    """Write sums over all chunks as JSON with a checksum, with each term's document frequency and idf."""
    idf = Lucene().idf
    told = {
        "collection": collection,
        "count": sums.total,
        "length": sums.length,
        "average_length": sums.mean,
        "longest": sums.longest,
        "languages": language_keys(sums.languages),
        "means": {str(mean): chunks for mean, chunks in sorted((sums.means or {}).items())},
        "terms": {term: [n, idf(n, sums.total)] for term, n in sorted((sums.frequencies or {}).items())},
    }
    files.write_json(Path(path), told)


def load(path: Path | str) -> Sums:
    """The sums that `save` wrote; IndexDamagedError for any other file."""
    told = files.read_json(Path(path))
    means = {float(mean): chunks for mean, chunks in told["means"].items()}
    frequencies = {term: n for term, (n, _) in told["terms"].items()}
    return Sums(told["count"], told["length"], told["longest"], _languages(told["languages"]), means, frequencies)


def weighing(sums: Sums, state: State) -> dict[str, Any]:
    """How the weights of chunks fit the chunks of now; lengths are in terms.

    `mean_length` is that of the chunks, `weighed_with` the one that new weights are made with, `drift` the relative
    difference (0.0 for none), and `otherwise_weighed` counts chunks whose weights were made with yet another mean.
    """
    drift = sums.mean / state.mean - 1 if sums.mean and state.mean else 0.0
    other = sum(chunks for mean, chunks in (sums.means or {}).items() if mean != state.mean)
    told = {"mean_length": sums.mean, "weighed_with": state.mean, "drift": round(drift, 4)}
    return {**told, "otherwise_weighed": other}


def parts_of(terms: Iterable[str], length: int) -> list[str]:
    """What a chunk lists under `SUMS`."""
    bits = (f"{_BIT}{bit}" for bit in range(length.bit_length()) if length >> bit & 1)
    return [_COUNT, *bits, *language_keys(tags_of(languages_of(terms)))]


def language_keys(tags: str) -> list[str]:
    """The keys of languages, in the state and under `SUMS`; one each, so that no writer undoes another's."""
    return [f"{_LANGUAGE}{ord(tag)}" for tag in tags]


def recipe_digest(recipe: Recipe) -> str:
    """A digest of a recipe."""
    return hashlib.blake2b(recipe.text().encode(), digest_size=16).hexdigest()


def _languages(keys: Iterable[str]) -> str:
    return "".join(sorted(chr(int(key[len(_LANGUAGE) :])) for key in keys if key.startswith(_LANGUAGE)))

"""Test corpora: chunks in several languages, queries for them, and an embedder that needs no model."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.types import Chunk

WORDS = {
    "en": "the harbour pump was measured again and valves were leaking while engineers running repairs noted pressure "
    "losses in every older tank of a northern station where buoys drift".split(),
    "de": "der Druckbehälter wurde gestern geprüft und die Ventile waren undicht während Prüfer am Hafen jede größere "
    "Pumpe der Häuser vermessen haben weil Leitungen rosteten ohne Messwerte".split(),
    "zh": [
        "浮标",
        "电池",
        "检查",
        "港口",
        "压力",
        "水泵",
        "维修",
        "工程师",
        "温度",
        "记录",
        "每年",
        "两次",
        "海洋",
        "系统",
    ],
}
QUERIES = {
    "en": ["leaking valves", "the pump pressure at the harbour", "running repairs repairs", "drift nowhere"],
    "de": ["undichte Ventile", "Wann wurden die Druckbehälter geprüft?", "Haus", "größere Pumpen"],
    "zh": ["浮标的电池多久检查一次", "水泵 压力", "海洋温度记录"],
}
MIXED = [*QUERIES["en"][:2], *QUERIES["de"][:2], *QUERIES["zh"][:2]]
LINES = {"en": (" ", "."), "de": (" ", "."), "zh": ("", "。")}


class WordEmbedder:
    """Embeds texts by hashed words: texts that share words are near. Rows have length 1. Records document texts."""

    def __init__(self, dimension: int = 24, seed: str = "") -> None:
        self.dimension = dimension
        self.seed = seed
        self.asked: list[str] = []

    @property
    def fingerprint(self) -> str:
        return f"words/{self.dimension}/{self.seed}"

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return self.embed_queries(texts)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.array([self._row(text) for text in texts], dtype=np.float64).reshape(len(texts), self.dimension)
        unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def _row(self, text: str) -> NDArray[np.float64]:
        total = np.full(self.dimension, 0.05)
        for word in text.casefold().split():
            total += _direction(f"{self.seed}{word}", self.dimension)
        return total

    def __repr__(self) -> str:
        return f"WordEmbedder({self.dimension}, {self.seed!r})"


@lru_cache(maxsize=100_000)
def _direction(word: str, dimension: int) -> NDArray[np.float64]:
    given = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(given, "big")).standard_normal(dimension)


def chunks_of(language: str, count: int, *, seed: int = 0) -> list[Chunk]:
    """Chunks of 3 to 40 random words of a language, with metadata for filters."""
    draw = random.Random(f"{language} {seed}")  # noqa: S311 - reproducible chunks
    between, end = LINES[language]
    words = WORDS[language]
    weights = [1 / (1 + at % 11) for at in range(len(words))]
    return [
        Chunk(
            f"{language}-{at:05}",
            between.join(draw.choices(words, weights, k=draw.randint(3, 40))) + end,
            metadata={"language": language, "page": at % 7, "even": at % 2 == 0, "at": at},
        )
        for at in range(count)
    ]


def mixed(count: int, *, seed: int = 0) -> list[Chunk]:
    """The same number of chunks of each language."""
    return [chunk for language in WORDS for chunk in chunks_of(language, count, seed=seed)]


def vectors_of(embedder: WordEmbedder, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
    """The vectors of the chunks, without recording their texts."""
    return embedder.embed_queries([chunk.text for chunk in chunks])


VALUES: list[Any] = [
    None,
    0,
    1,
    1.0,
    2.5,
    -3,
    True,
    False,
    "a",
    "b",
    "1",
    "",
    "große",
    ["a", "b"],
    [1, 2],
    [],
    {"in": 1},
]
FILTERS: list[dict[str, Any]] = [
    {"v": 1},
    {"v": True},
    {"v": "a"},
    {"v": {"$ne": "a"}},
    {"v": {"$gt": 1}},
    {"v": {"$gte": 1}},
    {"v": {"$lt": 2.5}},
    {"v": {"$lte": -3}},
    {"v": {"$gte": "b"}},
    {"v": {"$in": [1, "a", True]}},
    {"v": {"$nin": ["a", "b"]}},
    {"v": {"$contains": "a"}},
    {"v": {"$text": "o"}},
    {"v": {"$itext": "GRO"}},
    {"v": {"$any": ["a", 2]}},
    {"v": {"$all": ["a", "b"]}},
    {"v": {"$empty": True}},
    {"v": {"$exists": True}},
    {"v": {"$exists": False}},
    {"$or": [{"v": "a"}, {"w": "y"}]},
    {"$and": [{"w": "x"}, {"v": {"$gte": 0}}]},
    {"$not": {"v": "a"}},
    {"$or": []},
    {},
]
"""At least one filter for each operator."""


def described(values: Sequence[Any]) -> list[Chunk]:
    """Chunks of random words: with each of the values as metadata, without it, and with other keys."""
    held: list[dict[str, Any]] = [{"v": value} for value in values]
    held += [{}, {"w": "x"}]
    texts = chunks_of("en", len(held), seed=5)
    return [
        Chunk(
            f"v{at:03}",
            f"{texts[at].text} pump",
            metadata=each | ({"w": "xy"[at % 2], "page-number": at} if at % 3 else {}),
        )
        for at, each in enumerate(held)
    ]

"""Reranking by late interaction: each query token is matched with the most similar token of the passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.checks import seconds_or_none, whole, whole_or_none
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.types import Failure, Query, Ranking
from voicevault_retrievers.errors import ConfigError, InvalidScoreError, RerankerError
from voicevault_retrievers.models.token_states import OnnxTokenEmbedder
from voicevault_retrievers.rerank.blending import rescored

Tokens: TypeAlias = NDArray[np.float32]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEPTH = 20
"""The fewest hits to request."""
PASSAGES_KEPT = 128
"""The number of cached passages; at 256 tokens of 384 numbers each they take 50 MB."""


@runtime_checkable
class TokenEmbedder(Protocol):
    """Embeds each token of a text. An embedder that treats queries differently has `embed_query_tokens`."""

    @property
    def name(self) -> str: ...

    def embed_tokens(self, texts: Sequence[str]) -> Sequence[ArrayLike]:
        """An array of shape (tokens, dimension) per text, in order; rows may have any length but 0."""
        ...


class MaxSimRerank(Stage):
    """Orders hits by `max_sim` with the query: all hits, of which it requests at least 20, or the first `depth`.

    Hits beyond `depth` follow unscored, in their order.

    Late interaction of Khattab and Zaharia (2020), SIGIR, "ColBERT". A model trained for late interaction does better
    than all-MiniLM-L6-v2, whose tokens were trained for their mean only: pass one as a `TokenEmbedder`. `embedder` may
    be the name of a model for `OnnxTokenEmbedder`, loaded on first use.

    The embedder reads the query's own text, without variants, and the first `max_chars` characters of a chunk, whose
    tokens are cached. Where the query has no token, the ranking stays unchanged, with a note. `timeout` is in seconds;
    None waits. Raises RerankerError for an unexpected number or shape of arrays, InvalidScoreError for a row that is
    zero or not finite, and what the embedder raises.
    """

    blocking = True

    def __init__(
        self,
        embedder: TokenEmbedder | str = DEFAULT_MODEL,
        *,
        depth: int | None = None,
        max_chars: int = 2000,
        timeout: float | None = None,
        name: str = "max_sim",
    ) -> None:
        super().__init__()
        if not isinstance(embedder, str | TokenEmbedder):
            raise ConfigError(
                f"an embedder of tokens is a model's name, or has a name and embed_tokens(), not {embedder!r}"
            )
        self.embedder = OnnxTokenEmbedder(embedder) if isinstance(embedder, str) else embedder
        self.depth = whole_or_none("depth", depth)
        self.max_chars = whole("max_chars", max_chars)
        self.timeout = seconds_or_none("timeout", timeout)
        self.name = name
        self._kept: LRUCache[str, Tokens] = LRUCache(PASSAGES_KEPT)

    def needs(self, k: int) -> int:
        return max(k, self.depth or DEPTH)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        if not ranking.hits:
            return ranking
        embed = getattr(self.embedder, "embed_query_tokens", self.embedder.embed_tokens)
        (asked,) = self._embedded(embed, [query.text])
        if not len(asked):
            return ranking.failing(Failure(self.name, "NoTokens", "the query has no token to compare", degrades=False))
        passages = [hit.chunk.indexed_text[: self.max_chars] for hit in ranking.hits[: self.depth]]
        return rescored(ranking, self.name, [self._score(asked, tokens) for tokens in self._tokens(passages)])

    def warm_up(self) -> None:
        """Load the model, so that the first search does not wait for it."""
        self.embedder.embed_tokens(["warm up"])

    def _score(self, asked: Tokens, passage: Tokens) -> float:
        if len(passage) and passage.shape[1] != asked.shape[1]:
            dimensions = f"{asked.shape[1]} for the query and {passage.shape[1]} for a passage"
            raise RerankerError(f"the embedder {self.embedder.name!r} gave vectors of dimension {dimensions}")
        return max_sim(asked, passage)

    def _tokens(self, passages: Sequence[str]) -> list[Tokens]:
        tokens = {passage: self._kept.get(passage) for passage in passages}
        missing = [passage for passage, found in tokens.items() if found is None]
        if missing:
            for passage, found in zip(missing, self._embedded(self.embedder.embed_tokens, missing), strict=True):
                tokens[passage] = found
                self._kept.put(passage, found)
        return [cast(Tokens, tokens[passage]) for passage in passages]

    def _embedded(self, embed: Callable[[Sequence[str]], Sequence[ArrayLike]], texts: Sequence[str]) -> list[Tokens]:
        found = list(embed(texts))
        if len(found) != len(texts):
            raise RerankerError(f"the embedder {self.embedder.name!r} gave {len(found)} arrays for {len(texts)} texts")
        return [self._unit(at, rows) for at, rows in enumerate(found)]

    def _unit(self, at: int, rows: ArrayLike) -> Tokens:
        """The rows scaled to length 1."""
        matrix = np.asarray(rows, dtype=np.float64)
        said = f"the embedder {self.embedder.name!r} gave for text {at}"
        if matrix.ndim != 2:
            raise RerankerError(f"{said} shape {matrix.shape}; expected (tokens, dimension)")
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise InvalidScoreError(f"{said} a row that is zero or not finite")
        return np.asarray(matrix / lengths, dtype=np.float32)

    def __repr__(self) -> str:
        return (
            f"MaxSimRerank({self.embedder!r}, depth={self.depth}, max_chars={self.max_chars}, "
            f"timeout={self.timeout}, name={self.name!r})"
        )


def max_sim(query: Tokens, passage: Tokens) -> float:
    """The mean over the query's tokens of the highest cosine with a token of the passage, in [-1, 1].

    The arrays have shapes (q, d) and (p, d), with rows of length 1 and q at least 1; -1 for a passage without tokens.
    ColBERT uses the sum. Dividing it by q keeps the order, and makes scores comparable between queries.
    """
    if not len(passage):
        return -1.0
    return float(np.clip((query @ passage.T).max(axis=1).mean(dtype=np.float64), -1.0, 1.0))

"""Stages that compare documents with each other, as document compressors."""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings

from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.langchain.compressors import Reranker, StageCompressor
from voicevault_retrievers.langchain.embedder import as_embedder
from voicevault_retrievers.rerank import MMR, NearDuplicates
from voicevault_retrievers.rerank.comparing import by_place
from voicevault_retrievers.rerank.likeness import By


class MMRFilter(Reranker):
    """Puts documents in the order of maximal marginal relevance, and keeps the first `top_n`.

    `lambda_mult` is in [0, 1]: 1 goes by relevance alone, which is the score or the rank that a document came with.
    `by` is "shingles", an `Embeddings`, an embedder, or a vector channel that has stored the documents, such as a
    knowledge base's. It orders all documents, or the first `depth`; behind a retriever (`>>`) it asks for `depth`, or
    at least 100. `metadata["relevance_score"]` becomes the marginal relevance. See `diversity.MMR`.
    """

    lambda_mult: float = 0.7
    by: Any = "shingles"
    depth: int | None = None
    timeout: float | None = None

    def _build(self) -> Stage:
        return MMR(self.lambda_mult, by=_by(self.by), depth=self.depth, timeout=self.timeout)

    def _placed(self, stage: Stage) -> Stage:
        return by_place(stage)


class NearDuplicateFilter(StageCompressor):
    """Drops each document whose text is nearly that of one before it, and keeps the order of the others.

    Nearly: alike by `threshold` or more; None is 0.8 of the shingles, or a cosine of 0.95. `by` and `timeout` are as of
    `MMRFilter`. See `diversity.NearDuplicates`.
    """

    threshold: float | None = None
    by: Any = "shingles"
    timeout: float | None = None

    def _build(self) -> Stage:
        return NearDuplicates(self.threshold, by=_by(self.by), timeout=self.timeout)

    def _placed(self, stage: Stage) -> Stage:
        return by_place(stage)


def _by(by: Any) -> By:
    given: By = as_embedder(by) if isinstance(by, Embeddings) else by
    return given

"""Stages that compare nodes with each other, as node postprocessors."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.llama_index.embedder import as_embedder
from voicevault_retrievers.llama_index.postprocessors import Reranker, StagePostprocessor
from voicevault_retrievers.rerank import MMR, NearDuplicates
from voicevault_retrievers.rerank.comparing import by_place
from voicevault_retrievers.rerank.likeness import By


class MMRPostprocessor(Reranker):
    """Puts nodes in the order of maximal marginal relevance, which becomes their score, and keeps the first `top_n`.

    `lambda_mult` is in [0, 1]: 1 goes by relevance alone, which is the score or the rank that a node came with. `by` is
    "shingles", a BaseEmbedding, an embedder, or a vector channel that has stored the nodes, such as a knowledge base's.
    It orders all nodes, or the first `depth`; in a retriever it asks for `depth`, or at least 100. See `diversity.MMR`.
    """

    lambda_mult: float = Field(default=0.7, description="How much relevance counts, the rest is diversity.")
    by: Any = Field(default="shingles", exclude=True, description="What nodes are compared by.")
    depth: int | None = Field(default=None, ge=1, description="How many nodes are ordered; None orders all.")
    timeout: float | None = Field(default=None, description="Seconds that vectors may take; None waits.")

    @classmethod
    def class_name(cls) -> str:
        return "MMRPostprocessor"

    def _build(self) -> Stage:
        return MMR(self.lambda_mult, by=_by(self.by), depth=self.depth, timeout=self.timeout)

    def _placed(self, stage: Stage) -> Stage:
        return by_place(stage)


class NearDuplicatePostprocessor(StagePostprocessor):
    """Drops each node whose text is nearly that of one before it, and keeps the order of the others.

    Nearly: alike by `threshold` or more; None is 0.8 of the shingles, or a cosine of 0.95. `by` and `timeout` are as of
    `MMRPostprocessor`. See `diversity.NearDuplicates`.
    """

    threshold: float | None = Field(default=None, description="From where on two nodes are nearly the same.")
    by: Any = Field(default="shingles", exclude=True, description="What nodes are compared by.")
    timeout: float | None = Field(default=None, description="Seconds that vectors may take; None waits.")

    @classmethod
    def class_name(cls) -> str:
        return "NearDuplicatePostprocessor"

    def _build(self) -> Stage:
        return NearDuplicates(self.threshold, by=_by(self.by), timeout=self.timeout)

    def _placed(self, stage: Stage) -> Stage:
        return by_place(stage)


def _by(by: Any) -> By:
    given: By = as_embedder(by) if isinstance(by, BaseEmbedding) else by
    return given

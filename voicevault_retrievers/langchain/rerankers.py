"""Rerankers as document compressors: by a language model, by weighted signals, by age."""

from __future__ import annotations

import copy
from datetime import date, datetime
from typing import Any

from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.stages import ByPlace
from voicevault_retrievers.langchain.compressors import Reranker
from voicevault_retrievers.langchain.models import as_text_model
from voicevault_retrievers.rerank import LLMRerank, RecencyRerank, WeightedRerank
from voicevault_retrievers.rerank.llm import PROMPT


class LLMReranker(Reranker):
    """Asks a language model which documents answer the question best, and keeps the first `top_n`.

    `llm` is a chat model, an LLM, a runnable, a function, or the name of a chat model, which is looked up on first use.
    It reads all documents, or the first `depth`, each whole or its first `max_chars` characters, in one prompt, or
    `window` at a time; what it leaves out follows in the order given. `timeout` is in seconds for all prompts together;
    None waits. Documents have no `metadata["relevance_score"]` afterwards: a model gives an order; the rank is in
    `metadata["voicevault"]["llm_rerank"]`. See `LLMRerank`, also for `window`, `stride` and `prompt`.
    """

    llm: Any
    top_n: int | None = 10
    depth: int | None = None
    max_chars: int | None = None
    window: int | None = None
    stride: int | None = None
    prompt: str = PROMPT
    timeout: float | None = None

    def _build(self) -> Stage:
        return LLMRerank(as_text_model(self.llm), **{name: getattr(self, name) for name in _LLM})

    def _options(self) -> list[Any]:
        return [*super()._options(), self.top_n]  # the model is told of it


class WeightedReranker(Reranker):
    """Orders documents by fused score, cosine, BM25 score and place in their file, and keeps the first `top_n`.

    The signals are read from what this package's retrievers say in `metadata["voicevault"]`, and the place from
    `chunk_index` and `chunks_in_file`. `weights` are those that differ from {"fused": 0.4, "semantic": 0.3,
    "keyword": 0.2, "position": 0.1}. `dense` is a channel that tells the cosines of documents which only keywords
    found, by their ids, such as a knowledge base's. `metadata["relevance_score"]` becomes the sum, and
    `metadata["voicevault"]["weighted"]` has its parts. See `WeightedRerank`.
    """

    weights: dict[str, float] | None = None
    depth: int | None = None
    scale_fused: bool | None = None
    dense: Channel | None = None
    timeout: float | None = None
    chunk_index_key: str = "chunk_index"
    chunks_in_file_key: str = "chunks_in_file"

    def _build(self) -> Stage:
        return WeightedRerank(**{name: getattr(self, name) for name in _WEIGHTED})

    def _placed(self, stage: Stage) -> Stage:
        if self.dense is None:
            return stage
        twin: Any = copy.copy(stage)
        twin.dense = ByPlace(self.dense)
        return twin  # type: ignore[no-any-return]


class RecencyReranker(Reranker):
    """Lets new documents rise: scaled score + `weight * 0.5 ** (age_days / half_life_days)`; keeps the first `top_n`.

    The date is `metadata[date_key]`: a datetime, a date, ISO 8601 text or seconds since 1970. The age is counted from
    `reference_date`, else from now. `metadata["relevance_score"]` becomes the sum, and
    `metadata["voicevault"]["recency"]` has its parts. See `RecencyRerank`.
    """

    weight: float = 0.1
    half_life_days: float = 30.0
    date_key: str = "date"
    reference_date: datetime | date | str | None = None
    depth: int | None = None

    def _build(self) -> Stage:
        return RecencyRerank(**{name: getattr(self, name) for name in _RECENCY})


_LLM = ("depth", "top_n", "max_chars", "window", "stride", "prompt", "timeout")
_WEIGHTED = ("weights", "depth", "scale_fused", "dense", "timeout", "chunk_index_key", "chunks_in_file_key")
_RECENCY = ("weight", "half_life_days", "date_key", "reference_date", "depth")

"""Node postprocessors that rerank, or that compare nodes with each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, ClassVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.bridge.pydantic import Field, SerializeAsAny, field_serializer, field_validator
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin
from typing_extensions import Unpack

from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.stages import ByPlace
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.channels import as_channel
from voicevault_retrievers.llama_index.models import as_embedder, as_text_model, llm_of
from voicevault_retrievers.llama_index.postprocessors import Reranker, RerankerOptions, StagePostprocessor
from voicevault_retrievers.rerank import MMR, NearDuplicates, RecencyRerank, RelevanceThreshold
from voicevault_retrievers.rerank import LLMRerank as LLMStage
from voicevault_retrievers.rerank import WeightedRerank as WeightedStage
from voicevault_retrievers.rerank.likeness import By, by_place
from voicevault_retrievers.rerank.llm import PROMPT

_PROMPT_KEY = "rerank_prompt"
_LLM = ("depth", "top_n", "max_chars", "window", "stride", "timeout")
_WEIGHTED = ("weights", "depth", "scale_fused", "dense", "timeout", "chunk_index_key", "chunks_in_file_key")
_RECENCY = ("weight", "half_life_days", "date_key", "reference_date", "depth")


class LLMRerankOptions(RerankerOptions, total=False):
    """The fields of `LLMRerank`, except its model."""

    depth: int | None
    max_chars: int | None
    window: int | None
    stride: int | None
    prompt: str | BasePromptTemplate
    timeout: float | None


class LLMRerank(Reranker, PromptMixin):
    """Reranks nodes with a language model and keeps the first `top_n`.

    `llm` is an LLM, a function from a prompt to a text, or None for the configured `Settings.llm`. The model reads all
    nodes, or the first `depth`, each whole or its first `max_chars` characters, in one prompt or `window` nodes at a
    time. Nodes that the model leaves out follow in the order given. `timeout` is in seconds for all prompts together;
    None waits. Nodes have no score afterwards, because a model returns an order. `prompt` is a text or a LlamaIndex
    template with the variables {query} (or {query_str}) and {passages} (or {context_str}), and optionally {count}; it
    asks for a JSON list of numbers. It is the prompt `rerank_prompt` of `get_prompts` and `update_prompts`. Raises
    ConfigError without a query. See `rerank.LLMRerank`, also for `window` and `stride`.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "choice_batch_size": "here it is `window`; without it the first `depth` nodes go into one prompt",
        "choice_select_prompt": "here it is `prompt`, which asks for a JSON list of numbers",
        "format_node_batch_fn": "the nodes are lines of JSON in `prompt`",
        "parse_choice_select_answer_fn": "the answer is a JSON list of numbers",
    }
    top_n: int | None = Field(default=10, ge=1, description="How many nodes to return; None returns all.")
    llm: Any = Field(default=None, validate_default=True, exclude=True, repr=False, description="The language model.")
    depth: int | None = Field(default=None, description="How many nodes the model reads; None is all.")
    max_chars: int | None = Field(
        default=None, description="Characters of a node that the model reads; None reads all."
    )
    window: int | None = Field(default=None, description="How many nodes go into one prompt; None is all.")
    stride: int | None = Field(default=None, description="How far apart windows begin; None is half a window.")
    prompt: SerializeAsAny[BasePromptTemplate] = Field(
        default=PROMPT, validate_default=True, description="What the model is asked."
    )
    timeout: float | None = Field(default=None, description="Seconds until reranking is given up; None waits.")

    def __init__(
        self, llm: BaseLLM | TextModel | Callable[[str], str] | None = None, **options: Unpack[LLMRerankOptions]
    ) -> None:
        StagePostprocessor.__init__(self, llm=llm, **options)

    @classmethod
    def class_name(cls) -> str:
        return "LLMRerank"

    @field_validator("llm")
    @classmethod
    def _set(cls, llm: Any) -> Any:
        return llm_of(llm)

    @field_validator("prompt", mode="before")
    @classmethod
    def _template(cls, prompt: Any) -> BasePromptTemplate:
        template = PromptTemplate(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(template, BasePromptTemplate):
            raise ConfigError(f"prompt is a text or a prompt template, not a {type(prompt).__name__}")
        return template

    @field_serializer("prompt")
    def _text(self, prompt: BasePromptTemplate) -> str:
        """The template with the variables that the stage fills."""
        return prompt.format(
            query="{query}", query_str="{query}", passages="{passages}", context_str="{passages}", count="{count}"
        )

    def _asks(self) -> bool:
        return True

    def _build(self) -> Stage:
        options = {name: getattr(self, name) for name in _LLM}
        return LLMStage(as_text_model(self.llm), prompt=self._text(self.prompt), **options)

    def _options(self) -> list[Any]:
        return [*super()._options(), self.top_n]  # the prompt names top_n

    def _get_prompts(self) -> PromptDictType:
        return {_PROMPT_KEY: self.prompt}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        before = self.prompt
        self.prompt = self._template(prompts.get(_PROMPT_KEY, before))
        try:
            self._stage()
        except ConfigError:
            self.prompt = before
            raise


class WeightedRerank(Reranker):
    """Orders nodes by fused score, cosine, BM25 score and place in their file, and keeps the first `top_n`.

    The signals are read from the provenance of this package's nodes, and the place from `chunk_index` and
    `chunks_in_file` of the metadata. `weights` override {"fused": 0.4, "semantic": 0.3, "keyword": 0.2, "position":
    0.1}. `dense` is a channel or a retriever of this package that returns the cosines, by id, of nodes that only the
    keyword channel found; with it, ConfigError is raised without a query. The score becomes the weighted sum, and the
    provenance has its parts under `weighted`. See `rerank.WeightedRerank`.
    """

    weights: dict[str, float] | None = Field(default=None, description="The weights that differ from the usual ones.")
    depth: int | None = Field(default=None, description="How many nodes are ordered; None orders all.")
    scale_fused: bool | None = Field(
        default=None, description="Whether to divide fused scores by the highest; None where that is above 1."
    )
    dense: Any = Field(default=None, exclude=True, description="What tells the cosines that are not known.")
    timeout: float | None = Field(default=None, description="Seconds that `dense` may take; None waits.")
    chunk_index_key: str = Field(default="chunk_index", description="Where metadata has a node's place in its file.")
    chunks_in_file_key: str = Field(
        default="chunks_in_file", description="Where metadata has how many nodes there are."
    )

    @classmethod
    def class_name(cls) -> str:
        return "WeightedRerank"

    @field_validator("dense")
    @classmethod
    def _channel(cls, dense: Any) -> Channel | None:
        return None if dense is None else as_channel(dense)

    def _asks(self) -> bool:
        return self.dense is not None

    def _build(self) -> Stage:
        return WeightedStage(**{name: getattr(self, name) for name in _WEIGHTED})

    def _placed(self, stage: Stage) -> Stage:
        if self.dense is None:
            return stage
        twin: Any = copy.copy(stage)
        twin.dense = ByPlace(self.dense)
        return twin  # type: ignore[no-any-return]


class RecencyPostprocessor(Reranker):
    """Promotes new nodes: scaled score + `weight * 0.5 ** (age_days / half_life_days)`; keeps the first `top_n`.

    The date is the metadata under the first of the date keys that is present: a datetime, a date, ISO 8601 text or
    seconds since 1970. The default keys are `date` and those of SimpleDirectoryReader. The age is counted from
    `reference_date`, else from now. The score becomes the sum, and the provenance has its parts under `recency`. See
    `rerank.RecencyRerank`.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "last_accessed_key": "here it is `date_key`",
        "now": "here it is `reference_date`",
        "time_decay": "here it is `half_life_days`",
        "top_k": "here it is `top_n`",
    }
    weight: float = Field(default=0.1, description="What a node of today gets.")
    half_life_days: float = Field(default=30.0, description="Days after which a node gets half of it.")
    date_key: str | tuple[str, ...] = Field(
        default=("date", "last_modified_date", "creation_date"), description="Where metadata has the date."
    )
    reference_date: datetime | date | str | None = Field(default=None, description="From when ages count; None is now.")
    depth: int | None = Field(default=None, description="How many nodes are ordered; None orders all.")

    @classmethod
    def class_name(cls) -> str:
        return "RecencyPostprocessor"

    @field_serializer("reference_date")
    def _iso(self, reference_date: datetime | date | str | None) -> str | None:
        return reference_date.isoformat() if isinstance(reference_date, date) else reference_date

    def _build(self) -> Stage:
        return RecencyRerank(**{name: getattr(self, name) for name in _RECENCY})


class MMRPostprocessor(Reranker):
    """Orders nodes by maximal marginal relevance, which becomes their score, and keeps the first `top_n`.

    `lambda_mult` is in [0, 1]: 1 orders by relevance alone, which is the score or the rank that a node came with. `by`
    is the similarity: "shingles", a BaseEmbedding, an embedder, or a vector channel that has stored the nodes, such as
    a knowledge base's. The stage orders all nodes, or the first `depth`. In a retriever it asks for `depth` nodes, or
    for at least 100. See `rerank.MMR`.
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
    """Drops each node that nearly repeats an earlier one, and keeps the order of the others.

    Two nodes are near duplicates where their similarity is at least `threshold`; None is 0.8 for shingles, or a cosine
    of 0.95. `by` and `timeout` are as in `MMRPostprocessor`. See `rerank.NearDuplicates`.
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


class RelevancePostprocessor(StagePostprocessor):
    """Drops nodes whose relevance is below `least`, in [0, 1], and keeps the order of the others.

    Relevance is in the provenance, where a CrossEncoderRerank has a calibration, or a `rerank.CalibratedRelevance` is
    among the stages. Raises ConfigError where no node has any. See `rerank.RelevanceThreshold`.
    """

    least: float = Field(description="The lowest relevance that a node is kept with.")

    @classmethod
    def class_name(cls) -> str:
        return "RelevancePostprocessor"

    def _build(self) -> Stage:
        return RelevanceThreshold(self.least)


def _by(by: Any) -> By:
    given: By = as_embedder(by) if isinstance(by, BaseEmbedding) else by
    return given

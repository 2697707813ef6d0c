"""Stages as LlamaIndex postprocessors."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher

from voicevault_retrievers.channel import MAX_DEPTH, Stage
from voicevault_retrievers.diversity import PageCap
from voicevault_retrievers.drive import adrive, drive
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.convert import chunk_of, node_of, query_of
from voicevault_retrievers.llama_index.node import explained, provenance
from voicevault_retrievers.protocols import Scorer
from voicevault_retrievers.rerank.cross_encoder import CrossEncoderRerank as RerankStage
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL
from voicevault_retrievers.types import Hit, Query, Ranking

_LOG = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)


class CrossEncoderRerank(BaseNodePostprocessor):
    """Puts nodes in the order of a cross-encoder's logits, which become their scores; ties as they came.

    Gives new nodes with their provenance; those it was given stay as they are. `model` is a name, found on first use,
    or a scorer. Raises ConfigError without a query.
    """

    model: str = Field(default=DEFAULT_MODEL, description="Name of the cross-encoder.")
    top_n: int | None = Field(default=None, ge=1, description="How many nodes to return; None returns all.")
    timeout: float | None = Field(default=None, gt=0, description="Seconds until reranking is given up; None waits.")
    on_error: Literal["skip", "raise"] = Field(
        default="skip", description="Where reranking fails: keep the order, marked as degraded, or raise."
    )
    _scorer: Scorer | None = PrivateAttr(None)
    _kept: tuple[tuple[Any, ...], Stage] | None = PrivateAttr(None)
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, model: str | Scorer = DEFAULT_MODEL, **fields: Any) -> None:
        if not isinstance(model, str | Scorer):
            raise ConfigError(f"model is a cross-encoder's name or a scorer, not {model!r}")
        super().__init__(**{"model": model if isinstance(model, str) else model.name, **fields})
        self._scorer = None if isinstance(model, str) else model

    @property
    def _stage(self) -> Stage:
        """The stage of the present options; the same, with the model it has loaded, until they change."""
        options = (self.model, self.timeout)
        if self._kept is None or self._kept[0] != options:
            scorer = self._scorer if self._scorer is not None and self._scorer.name == self.model else self.model
            self._kept = (options, RerankStage(scorer, depth=MAX_DEPTH, timeout=self.timeout))
        return self._kept[1]

    @classmethod
    def class_name(cls) -> str:
        return "CrossEncoderRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _asked(query_bundle)
        with self._reported(nodes, query) as reranked:
            reranked += self._reranked(nodes, drive(self._stage.plan(query, _ranking(nodes))))
        return reranked

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _asked(query_bundle)
        with self._reported(nodes, query) as reranked:
            reranked += self._reranked(nodes, await adrive(self._stage.plan(query, _ranking(nodes))))
        return reranked

    @contextmanager
    def _reported(self, nodes: list[NodeWithScore], query: Query) -> Iterator[list[NodeWithScore]]:
        """Tells LlamaIndex of the start and, whatever happens, the end; the list it gives is to be filled."""
        reranked: list[NodeWithScore] = []
        top_n = self.top_n or len(nodes)
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.model,
            EventPayload.QUERY_STR: query.text,
            EventPayload.TOP_K: top_n,
        }
        dispatcher.event(ReRankStartEvent(query=query.text, nodes=nodes, top_n=top_n, model_name=self.model))
        try:
            with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
                yield reranked
                event.on_end(payload={EventPayload.NODES: reranked})
        finally:
            dispatcher.event(ReRankEndEvent(nodes=reranked))

    def _reranked(self, nodes: list[NodeWithScore], ranking: Ranking) -> list[NodeWithScore]:
        if ranking.errors and self.on_error == "raise":
            raise next(failure.error for failure in ranking.errors if failure.error is not None)
        degraded = [str(failure) for failure in ranking.errors]
        if degraded:
            _LOG.warning("%s kept the order it was given: %s", type(self).__name__, "; ".join(degraded))
        return [_told(nodes[int(hit.id)], hit, degraded) for hit in ranking.hits[: self.top_n]]


class PageDiversityPostprocessor(BaseNodePostprocessor):
    """Drops nodes beyond the first `max_chunks_per_page` of their page; the others stay as they are, in their order.

    A page is told by (source_file, page_number), (source, page) or (file_name, page_label) of the metadata. Nodes
    without a page are not capped, unless `max_chunks_per_document` is set.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    max_chunks_per_page: int = Field(default=2, ge=1, description="How many nodes of one page to keep.")
    max_chunks_per_document: int | None = Field(
        default=None, ge=1, description="How many nodes of one file to keep; None keeps all."
    )

    @classmethod
    def class_name(cls) -> str:
        return "PageDiversityPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        cap = PageCap(self.max_chunks_per_page, max_chunks_per_document=self.max_chunks_per_document)
        return [nodes[int(hit.id)] for hit in cap.refine(Query(""), _ranking(nodes))]

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._postprocess_nodes(nodes, query_bundle)


def _asked(query_bundle: QueryBundle | None) -> Query:
    if query_bundle is None:
        raise ConfigError("reranking needs the query: postprocess_nodes(nodes, query_str=...) or query_bundle=...")
    return query_of(query_bundle)


def _ranking(nodes: Sequence[NodeWithScore]) -> Ranking:
    """The nodes in their order, each by its place: two of them may have one id, and neither is to be lost."""
    return Ranking(tuple(Hit(replace(chunk_of(node.node), id=f"{at:09d}")) for at, node in enumerate(nodes)))


def _told(before: NodeWithScore, hit: Hit, degraded: Sequence[str]) -> NodeWithScore:
    """A new node with what the stage said of it, beside what was known before."""
    told: dict[str, Any] = copy.deepcopy(provenance(before) or {"retrieved": {"score": before.score}})
    told |= {vote.stage: {"rank": vote.rank, "score": vote.score} for vote in hit.votes}
    if degraded:
        told["degraded"] = [*told.get("degraded", ()), *degraded]
    return explained(node_of(hit.chunk), before.score if degraded else hit.score, told)

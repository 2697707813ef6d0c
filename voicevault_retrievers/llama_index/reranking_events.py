"""LlamaIndex's events of reranking, in pairs: one at the start and one at the end, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import NodeWithScore
from llama_index_instrumentation import get_dispatcher

from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.plan import Call, Plan
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.stages import StageWrapper, TopN
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.llama_index.events import listened
from voicevault_retrievers.llama_index.foreign_stages import PostprocessorStage
from voicevault_retrievers.llama_index.node import node_of_hit
from voicevault_retrievers.rerank import MMR, CrossEncoderRerank, LLMRerank, RecencyRerank, WeightedRerank

dispatcher = get_dispatcher(__name__)


def reranks(stage: Stage) -> bool:
    """Whether a stage is one of this package's that order anew."""
    return isinstance(_cut(stage), CrossEncoderRerank | LLMRerank | MMR | RecencyRerank | WeightedRerank)


class Announced(StageWrapper):
    """A stage that tells LlamaIndex of the start and the end of its work, where somebody listens.

    Of hits that the query's `require` does not permit nothing is told.
    """

    def __init__(self, stage: Stage, callback_manager: CallbackManager | None) -> None:
        super().__init__(stage)
        self.callback_manager = callback_manager or CallbackManager()

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        if not (listened(dispatcher) or self.callback_manager.handlers):
            return (yield from self.below.plan(query, ranking))
        yield (Call(self.name, _nothing, inline=True, at_home=True),)
        with reranking(query.text, _permitted(query, ranking), self.below, self.callback_manager) as found:
            refined = yield from self.below.plan(query, ranking)
            found += _permitted(query, refined)
        return refined


def _nothing() -> None:
    """What brings a plan back to the thread of its driver, where events are heard."""


def announced(stage: Stage, callback_manager: CallbackManager | None = None) -> Stage:
    """A reranking stage whose plan emits the pair of events; that of a node postprocessor, which emits its own, as is.

    `callback_manager` is told too; None is the global one.
    """
    return stage if isinstance(_cut(stage), PostprocessorStage) else Announced(stage, callback_manager)


@contextmanager
def reranking(
    query: str,
    given: Sequence[NodeWithScore],
    stage: Stage,
    callback_manager: CallbackManager,
    top_n: int | None = None,
) -> Iterator[list[NodeWithScore]]:
    """Emits the start of a reranking and its end, and gives the list to be filled with what was found."""
    found: list[NodeWithScore] = []
    wanted, model = top_n or _top_n(stage) or len(given), _model(stage)
    payload: dict[str, Any] = {
        EventPayload.NODES: list(given),
        EventPayload.MODEL_NAME: model,
        EventPayload.QUERY_STR: query,
        EventPayload.TOP_K: wanted,
    }
    dispatcher.event(ReRankStartEvent(query=query, nodes=list(given), top_n=wanted, model_name=model))
    try:
        with callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            yield found
            event.on_end(payload={EventPayload.NODES: found})
    finally:
        dispatcher.event(ReRankEndEvent(nodes=found))


def _permitted(query: Query, ranking: Ranking) -> list[NodeWithScore]:
    passes = compile_filter(query.require)
    return [node_of_hit(hit) for hit in ranking if passes(hit.access_metadata)]


def _cut(stage: Stage) -> Stage:
    """The stage below what is done around it."""
    return _cut(stage.below) if isinstance(stage, StageWrapper) else stage


def _top_n(stage: Stage) -> int | None:
    return stage.n if isinstance(stage, TopN) else getattr(stage, "top_n", None)


def _model(stage: Stage) -> str:
    """The name of the model that a stage asks; else its own."""
    if isinstance(stage, StageWrapper):
        return _model(stage.below)
    if isinstance(stage, CrossEncoderRerank):
        return stage.scorer if isinstance(stage.scorer, str) else stage.scorer.name
    llm = getattr(getattr(stage, "model", None), "llm", None)
    return stage.name if llm is None else str(getattr(llm, "model", None) or llm.class_name())

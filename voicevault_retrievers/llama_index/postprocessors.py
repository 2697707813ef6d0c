"""Stages as LlamaIndex node postprocessors."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypedDict

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher
from typing_extensions import Unpack

from voicevault_retrievers._support.caches import Parts
from voicevault_retrievers.core.channel import MAX_DEPTH, Stage
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.explanation import after_stage, failures_in, finite
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.stages import place_id, place_of, settled, skipped_since
from voicevault_retrievers.core.types import Hit, Query, Ranking, in_order
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.channels import as_channel
from voicevault_retrievers.llama_index.convert import explained, hit_of, provenance, query_of, read_node
from voicevault_retrievers.llama_index.events import reranking
from voicevault_retrievers.llama_index.options import CheckedPostprocessor
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import Calibration, PageCap
from voicevault_retrievers.rerank import CrossEncoderRerank as CrossEncoderStage
from voicevault_retrievers.rerank.blending import BLEND
from voicevault_retrievers.rerank.cross_encoder import BATCH, MAX_CANDIDATES, OPTIONS, Overtime, Passages
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL

_LOG = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)

# Read at each call: changing one of these does not need a new stage.
_READ_LATE = frozenset({"callback_manager", "on_error", "top_n"})


class StageOptions(TypedDict, total=False):
    """The fields of `StagePostprocessor`, for constructors that have a positional argument."""

    callback_manager: CallbackManager
    on_error: Literal["skip", "raise"]


class RerankerOptions(StageOptions, total=False):
    """The fields of `Reranker`."""

    top_n: int | None


class CrossEncoderOptions(RerankerOptions, total=False):
    """The fields of `CrossEncoderRerank`, except its model."""

    depth: int | None
    max_chars: int
    passages: Passages
    max_candidates: int
    batch_size: int
    top_k: int | None
    certainty: float | None
    sure: float | None
    blend: float
    timeout: float | None
    overtime: Overtime
    calibration: Calibration | None


class StagePostprocessor(CheckedPostprocessor):
    """A stage as a node postprocessor. It returns new nodes with their provenance and leaves its input unchanged.

    The stage sees how the nodes were found, and their scores where these fall. When the stage fails, `on_error` "skip"
    keeps the nodes in their order, names the failure in their provenance under `degraded` and logs a warning; "raise"
    raises the stage's error. Wrong options raise ConfigError.
    """

    on_error: Literal["skip", "raise"] = Field(
        default="skip", description="Where the stage fails: keep the nodes as they were, marked as degraded, or raise."
    )
    _made: Parts = PrivateAttr(default_factory=Parts)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._stage()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        lost = type(self).model_fields.keys() - state["__dict__"].keys() - {"callback_manager"}
        if lost:
            raise ConfigError(f"this {type(self).__name__} cannot be pickled, for its {sorted(lost)} cannot")
        return state

    @property
    def stage(self) -> Stage:
        """The same stage for a pipeline, which itself decides how many hits are kept."""
        return self._stage()

    def __rrshift__(self, retriever: BaseRetriever) -> PipelineRetriever:
        """`retriever >> postprocessor`, for a retriever of LlamaIndex's own; all nodes that it returns are refined."""
        if not isinstance(retriever, BaseRetriever):
            return NotImplemented
        return PipelineRetriever(Pipeline(as_channel(retriever), k=MAX_DEPTH), node_postprocessors=[self])

    def _asks(self) -> bool:
        """Whether the stage needs the query."""
        return False

    def _build(self) -> Stage:
        """Build the stage from the current options."""
        raise NotImplementedError  # not abstract: LlamaIndex puts a span around each call of such a method

    def _stage(self) -> Stage:
        """The built stage; it is built again after a change of options."""
        return self._made.get("own", self._options(), self._build)

    def _options(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).model_fields if name not in _READ_LATE]

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, given = self._query(query_bundle), _ranking(nodes)
        with self._announced(query, nodes) as found:
            found += self._told(nodes, given, execute(self._plan(query, given)))
        return found

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, given = self._query(query_bundle), _ranking(nodes)
        with self._announced(query, nodes) as found:
            found += self._told(nodes, given, await aexecute(self._plan(query, given)))
        return found

    def _query(self, query_bundle: QueryBundle | None) -> Query:
        if query_bundle is not None:
            return query_of(query_bundle)
        if self._asks():
            raise ConfigError(
                f"{type(self).__name__} needs the query: postprocess_nodes(nodes, query_str=...) or query_bundle=..."
            )
        return Query("")

    @contextmanager
    def _announced(self, query: Query, nodes: Sequence[NodeWithScore]) -> Iterator[list[NodeWithScore]]:
        """Announce the work in events; yields a list, to be filled with the resulting nodes."""
        yield []

    def _plan(self, query: Query, given: Ranking) -> Plan[Ranking]:
        ranking = yield from self._placed(self._stage()).plan(query, given)
        return settled(given, ranking, self.on_error, type(self).__name__, _LOG)

    def _placed(self, stage: Stage) -> Stage:
        """The stage for hits whose ids are their places among the nodes (see `place_id`)."""
        return stage

    def _told(self, nodes: Sequence[NodeWithScore], given: Ranking, ranking: Ranking) -> list[NodeWithScore]:
        before = {hit.id: hit for hit in given}
        degraded = skipped_since(given, ranking)
        # Where the stage kept the order, nodes keep their scores, even scores of another order.
        kept = all((hit.votes, hit.score) == (before[hit.id].votes, before[hit.id].score) for hit in ranking)
        found: list[NodeWithScore] = []
        for hit in ranking:
            node = nodes[place_of(hit.id)]
            told = _told_of(node, before[hit.id], hit, degraded)
            found.append(explained(read_node(hit), node.score if kept else hit.score, told))
        return found


class Reranker(StagePostprocessor):
    """A postprocessor that reorders nodes, emits LlamaIndex's reranking events and keeps the first `top_n` nodes."""

    top_n: int | None = Field(default=None, ge=1, description="How many nodes to return; None returns all.")

    @contextmanager
    def _announced(self, query: Query, nodes: Sequence[NodeWithScore]) -> Iterator[list[NodeWithScore]]:
        with reranking(query.text, nodes, self._stage(), self.callback_manager, self.top_n) as found:
            yield found

    def _told(self, nodes: Sequence[NodeWithScore], given: Ranking, ranking: Ranking) -> list[NodeWithScore]:
        return super()._told(nodes, given, ranking.top(self.top_n or len(ranking)))


class CrossEncoderRerank(Reranker):
    """Reranks nodes with a cross-encoder. Nodes with equal scores keep their order.

    A node's score becomes the score that orders the nodes: a weighted sum of its place and its logit, in which `blend`
    is the weight of the logit. With `blend=1` it is the logit itself, unbounded, and the order of the input does not
    count. The provenance has the rank and, as score, the logit.

    `model` is the name of a model or a profile, loaded on first use, or a scorer. It reads `max_chars` characters of a
    node: the window that matches the query best, or with `passages="start"` the first. It scores all nodes up to
    `max_candidates`, or the first `depth`. In a retriever the stage asks for `depth` nodes, or for at least 20. After
    `timeout` seconds (None, the default, waits) the scored nodes come first, and the nodes say so. With `top_k` and
    `certainty` scoring stops as soon as the best are certain; for `sure`, `overtime` and `calibration` see
    `rerank.CrossEncoderRerank`. Raises ConfigError without a query.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "device": "give `model` a SentenceTransformerScorer(name, device=...)",
        "keep_retrieval_score": "it is always kept: see provenance(node)",
        "trust_remote_code": "code that comes with a model is never run",
    }
    model: Any = Field(default=DEFAULT_MODEL, exclude=True, description="Name of the cross-encoder, or a scorer.")
    depth: int | None = Field(default=None, ge=1, description="How many nodes are scored; None scores all.")
    max_chars: int = Field(default=2000, ge=1, description="How many characters of a node are read.")
    passages: Passages = Field(default="window", description="What is read: the window that matches, or the start.")
    max_candidates: int = Field(default=MAX_CANDIDATES, ge=1, description="How many nodes are scored at most.")
    batch_size: int = Field(default=BATCH, ge=1, description="How many nodes the model is given at once.")
    top_k: int | None = Field(default=None, ge=1, description="How many of the best are to be sure, with `certainty`.")
    certainty: float | None = Field(default=None, gt=0, lt=1, description="How sure, before scoring stops early.")
    sure: float | None = Field(default=None, gt=0, description="A lead of the first from which on none is read.")
    blend: float = Field(default=BLEND, gt=0, le=1, description="How much the logit counts; the rest is the place.")
    timeout: float | None = Field(default=None, gt=0, description="Seconds until scoring stops; None waits.")
    overtime: Overtime = Field(default="stop", description='After `timeout`: "stop", or go on and "warn".')
    calibration: Calibration | None = Field(default=None, description="Makes probabilities of scores.")

    def __init__(self, model: str | Scorer = DEFAULT_MODEL, **options: Unpack[CrossEncoderOptions]) -> None:
        StagePostprocessor.__init__(self, model=model, **options)

    @classmethod
    def class_name(cls) -> str:
        return "CrossEncoderRerank"

    def _asks(self) -> bool:
        return True

    def _build(self) -> Stage:
        return CrossEncoderStage(self.model, depth=self.depth, **{name: getattr(self, name) for name in OPTIONS})


class PageDiversityPostprocessor(StagePostprocessor):
    """Keeps the first `max_chunks_per_page` nodes of each page, in their order, and drops the others.

    File and page are those that common readers write (see `core.pages`), or stand under `source_key` and `page_key`.
    Nodes without a page are not capped, unless `max_chunks_per_document` is set; where no node has a page, a warning is
    logged.
    """

    max_chunks_per_page: int | None = Field(
        default=2, ge=1, description="How many nodes of one page to keep; None keeps all."
    )
    max_chunks_per_document: int | None = Field(
        default=None, ge=1, description="How many nodes of one file to keep; None keeps all."
    )
    page_key: str | None = Field(default=None, description="The metadata key of the page, or a dotted path.")
    source_key: str | None = Field(default=None, description="The metadata key of the file, or a dotted path.")

    @classmethod
    def class_name(cls) -> str:
        return "PageDiversityPostprocessor"

    def _build(self) -> PageCap:
        return PageCap(
            self.max_chunks_per_page,
            max_chunks_per_document=self.max_chunks_per_document,
            page_key=self.page_key,
            source_key=self.source_key,
        )


def _ranking(nodes: Sequence[NodeWithScore]) -> Ranking:
    """The nodes as a ranking; ids are their places. Scores are kept where they fall."""
    hits = in_order(hit_of(node, place_id(at, node.node.node_id)) for at, node in enumerate(nodes))
    return Ranking(hits, failures_in(provenance(node) or {} for node in nodes))


def _told_of(node: NodeWithScore, before: Hit, hit: Hit, degraded: Sequence[str]) -> dict[str, Any]:
    """A node's provenance after a stage, added to what was there before; else the score it came with."""
    known: dict[str, Any] = copy.deepcopy(provenance(node) or {})
    told = after_stage(known, before, hit, degraded)
    return told if known or not told else {"retrieved": {"score": finite(node.score)}, **told}

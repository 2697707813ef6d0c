"""The base class of the retrievers: a pipeline behind LlamaIndex's interface."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import IndexNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.utils import print_text
from llama_index_instrumentation import get_dispatcher
from typing_extensions import Never

from voicevault_retrievers._support.caches import Parts
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.adapters.foreign_stages import changing
from voicevault_retrievers.adapters.keyword_copy import refreshed
from voicevault_retrievers.core.channel import Channel, Stage, check_k
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, converting, in_thread, value_of
from voicevault_retrievers.core.explanation import reworded
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.tracing import recording
from voicevault_retrievers.core.types import Query, Result
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.llama_index import conversation, events
from voicevault_retrievers.llama_index.conversation import History
from voicevault_retrievers.llama_index.convert import check_embedding, nodes_of_hits, query_of, text_above
from voicevault_retrievers.llama_index.events import announced, reranks, without_span
from voicevault_retrievers.llama_index.filters import Narrowing, Weighing, Where
from voicevault_retrievers.llama_index.foreign_stages import stage_of, stages_of
from voicevault_retrievers.llama_index.objects import Entered, Entrance, entered
from voicevault_retrievers.llama_index.options import GroupOption, refuse, top_k
from voicevault_retrievers.llama_index.prompts import modules_of
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import GroupBy, RelevanceThreshold

T = TypeVar("T")
R = TypeVar("R", bound="PipelineRetriever")

_LOG = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)


class PipelineRetriever(BaseRetriever):
    """A LlamaIndex retriever over a pipeline. A node's score is the last scoring stage's; None where nothing scored it.

    `k`, or `similarity_top_k`, is the number of nodes that a query returns. `where` narrows every search; `require` is
    the caller's access rights. Both take the portable filter or MetadataFilters. `node_postprocessors` refine the
    ranking one after another, and get as many nodes as they need to return k: LlamaIndex's, this package's, or Stages.
    `retriever >> postprocessor` is a copy with one more. `similarity_cutoff` is the least relevance of a node, from 0
    to 1: see `RelevanceThreshold`. `group_by` is a GroupBy or its key: k nodes are then k groups, such as files, with
    the best passages of each. The returned nodes are copies with their provenance. Where a channel or stage was left
    out, the provenance names it under `degraded`, a warning is logged, and a SearchDegradedEvent is dispatched.

    A bundle's `embedding` stands for its text in vector channels of its dimension; ConfigError, with both dimensions,
    where it fits none of them. Keyword search ignores it.

    Each rewriter, channel, fusion and stage is a span with start and end events, above those of LlamaIndex's parts.

    An index node among the nodes is replaced by the nodes of its `obj`, or of the object in `object_map`. Their
    provenance names the index node under `through`. Where the object has a provenance of its own for a node, the index
    node's is under `index`. Where an object fails, the index node stays, and the failure is handled like a stage's.
    `require` applies to objects too.
    """

    timeout: float | None = None
    metadata_mode: MetadataMode = MetadataMode.EMBED

    def __init__(
        self,
        pipeline: Pipeline | None,
        *,
        k: int | None = None,
        similarity_top_k: int | None = None,
        where: Where = None,
        require: Where = None,
        node_postprocessors: Sequence[BaseNodePostprocessor | Stage] | None = None,
        similarity_cutoff: float | None = None,
        group_by: GroupOption = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **unknown: Never,
    ) -> None:
        refuse(type(self), unknown)
        if not isinstance(pipeline, Pipeline | None):
            raise ConfigError(f"expected a Pipeline, not a {type(pipeline).__name__}")
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)
        self.k = top_k(k, similarity_top_k, 5 if pipeline is None else pipeline.k)
        self.narrowing = Narrowing().further(where, require, None)
        self.node_postprocessors = stages_of(node_postprocessors or ())
        self.limiting = [] if similarity_cutoff is None else [RelevanceThreshold(similarity_cutoff)]
        self.group_by = GroupBy.of(group_by)
        self.history: History = None
        self._given = pipeline
        self._kept = Parts()

    @property
    def similarity_top_k(self) -> int:
        """`k` under LlamaIndex's name."""
        return self.k

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self.k = check_k(k)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of this retriever's current options; knowledge bases are opened on first use."""
        pipeline = self._unstaged()
        for part in (*self.node_postprocessors, *self.limiting):
            pipeline = pipeline >> self._stage(part)
        pipeline = pipeline.grouping(self.group_by)
        return pipeline.within(self.timeout) if self.node_postprocessors and pipeline.timeout is None else pipeline

    @property
    def channel(self) -> Channel:
        """This retriever as a channel for another pipeline, under its own filters and weights."""
        narrowed = self.pipeline.narrowed_by(self.narrowing)
        return Weighing(self.narrowing.weights) >> narrowed if self.narrowing.weights else narrowed

    def __rshift__(self: R, postprocessor: BaseNodePostprocessor | Stage) -> R:
        """A copy of this retriever with one more postprocessor."""
        twin = copy.copy(self)
        twin.node_postprocessors = (*self.node_postprocessors, *stages_of([postprocessor]))
        return twin

    @checks_options
    def search(
        self,
        query: str | QueryBundle | Query,
        k: int | None = None,
        *,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        history: History = None,
        observe: Observer | None = None,
    ) -> Result:
        """Return the whole result of a search: hits, errors, timings, context. For the options see `with_options`.

        `observe` is as in `Pipeline.search`.
        """
        chosen = self.with_options(k=k, where=where, require=require, weights=weights, history=history)
        return chosen._search(query, observe)

    @checks_options
    async def asearch(
        self,
        query: str | QueryBundle | Query,
        k: int | None = None,
        *,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        history: History = None,
        observe: AsyncObserver | None = None,
    ) -> Result:
        """`search` on the running event loop; the result differs only in its timings."""
        chosen = self.with_options(k=k, where=where, require=require, weights=weights, history=history)
        return await chosen._asearch(query, observe)

    @checks_options
    def with_options(
        self: R,
        *,
        k: int | None = None,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        history: History = None,
    ) -> R:
        """A copy with other options, for a single `retrieve`; the copy shares what is searched.

        `where` and `require` are added to the retriever's own and never replace them; `weights` maps channel names to
        weights. `history` is the conversation so far, for rewriters of follow-up questions: turns, ChatMessages, or a
        chat engine's memory, which is read at each search.
        """
        twin = copy.copy(self)
        twin.k = self.k if k is None else check_k(k)
        twin.narrowing = self.narrowing.further(where, require, weights)
        twin.history = self.history if history is None else conversation.checked(history)
        return twin

    def refresh(self) -> bool:
        """Read what was added to the vector stores and indexes whose copies are searched. Returns whether any changed.

        Such copies are made by `from_vector_store` and `from_index`. Deleted and changed nodes need no refresh: every
        search checks them.
        """
        return refreshed(self.pipeline.channel)

    async def arefresh(self) -> bool:
        """`refresh` in a worker thread."""
        return await aexecute(in_thread("refresh", self.refresh))

    def warm_up(self) -> None:
        """Load the models that the first search would otherwise wait for; see `Pipeline.warm_up`."""
        self.pipeline.warm_up()

    async def awarm_up(self) -> None:
        """`warm_up` in a worker thread."""
        await aexecute(in_thread("warm_up", self.warm_up))

    @without_span
    def retrieve(self, str_or_query_bundle: QueryType, **options: Never) -> list[NodeWithScore]:
        """The nodes of a question, as LlamaIndex's; a question's own options are those of `with_options`."""
        self._refuse(options)
        return super().retrieve(str_or_query_bundle)

    @without_span
    async def aretrieve(self, str_or_query_bundle: QueryType, **options: Never) -> list[NodeWithScore]:
        """`retrieve` on the running event loop."""
        self._refuse(options)
        return await super().aretrieve(str_or_query_bundle)

    def _refuse(self, options: Mapping[str, Any]) -> None:
        for name in options:
            self.with_options(**options)  # raises for words that it does not have
            raise ConfigError(f"retrieve has no option {name!r}; here it is `with_options({name}=...).retrieve(...)`")

    def retrieve_many(self, queries: Sequence[str | QueryBundle], **options: Never) -> list[list[NodeWithScore]]:
        """`retrieve` of each query. Where no handler listens, they are searched together (`Pipeline.search_many`)."""
        self._refuse(options)
        if self._is_heard():
            return [self.retrieve(query) for query in queries]
        pipeline = self.pipeline
        bundles = [QueryBundle(query) if isinstance(query, str) else query for query in queries]
        turns = conversation.turns(self.history)
        found = pipeline.search_each([(self._asked(bundle, pipeline, turns), self.k) for bundle in bundles])
        nodes = [self._nodes(pipeline, value_of(result)) for result in found]
        return [self._handle_recursive_retrieval(*one) for one in zip(bundles, nodes, strict=True)]

    async def aretrieve_many(self, queries: Sequence[str | QueryBundle], **options: Never) -> list[list[NodeWithScore]]:
        """`retrieve_many` on the running event loop."""
        self._refuse(options)
        if self._is_heard():
            return [await self.aretrieve(query) for query in queries]
        pipeline = await self._opened()
        bundles = [QueryBundle(query) if isinstance(query, str) else query for query in queries]
        turns = await conversation.aturns(self.history)
        found = await pipeline.asearch_each([(await self._aasked(one, pipeline, turns), self.k) for one in bundles])
        nodes = [await self._anodes(pipeline, value_of(result)) for result in found]
        return [await self._ahandle_recursive_retrieval(*one) for one in zip(bundles, nodes, strict=True)]

    def _is_heard(self) -> bool:
        self._check_callback_manager()
        return bool(self.callback_manager.handlers) or events.is_heard(dispatcher)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        pipeline = self.pipeline
        return self._nodes(pipeline, self._search(query_bundle, over=pipeline))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        pipeline = await self._opened()
        return await self._anodes(pipeline, await self._asearch(query_bundle, over=pipeline))

    def _nodes(self, pipeline: Pipeline, result: Result) -> list[NodeWithScore]:
        events.degraded(result.skipped)
        return nodes_of_hits(pipeline.read(result, text_above), result.skipped, reworded(result))

    async def _anodes(self, pipeline: Pipeline, result: Result) -> list[NodeWithScore]:
        events.degraded(result.skipped)
        read = partial(pipeline.read, result, text_above)
        return await aexecute(
            converting(lambda: nodes_of_hits(read(), result.skipped, reworded(result)), len(result.hits))
        )

    def _unstaged(self) -> Pipeline:
        """The pipeline without the node postprocessors."""
        if self._given is None:
            raise NotImplementedError
        return self._given

    def _ready(self) -> bool:
        """Whether everything is open already."""
        return True

    async def _opened(self) -> Pipeline:
        """The pipeline, opened in a worker thread where opening reads files."""
        if self._ready():
            return self.pipeline
        return await aexecute(in_thread("open", lambda: self.pipeline), timeout=self.timeout)

    def _search(
        self, query: str | QueryBundle | Query, observe: Observer | None = None, over: Pipeline | None = None
    ) -> Result:
        pipeline = self.pipeline if over is None else over
        asked = self._asked(query, pipeline, conversation.turns(self.history))
        with recording(events.recorder()):
            return pipeline.search(asked, self.k, observe=observe)

    async def _asearch(
        self, query: str | QueryBundle | Query, observe: AsyncObserver | None = None, over: Pipeline | None = None
    ) -> Result:
        pipeline = await self._opened() if over is None else over
        asked = await self._aasked(query, pipeline, await conversation.aturns(self.history))
        with recording(events.recorder()):
            return await pipeline.asearch(asked, self.k, observe=observe)

    def _asked(self, query: str | QueryBundle | Query, pipeline: Pipeline, history: Sequence[Turn] = ()) -> Query:
        asked = self.narrowing.of(query_of(query))
        asked = replace(asked, history=tuple(history)) if history else asked
        if not isinstance(query, QueryBundle) or not asked.vectors:
            return asked
        leaves = list(pipeline.channel.leaves())
        if all(leaf.kind == "keyword" for leaf in leaves):
            # Keyword channels have no dimension to compare, and the embedding may be another retriever's.
            return replace(asked, vectors={})
        check_embedding(asked, leaves)
        return asked

    async def _aasked(self, query: str | QueryBundle | Query, pipeline: Pipeline, history: Sequence[Turn]) -> Query:
        asking = partial(self._asked, query, pipeline, history)
        if not isinstance(query, QueryBundle) or query.embedding is None:
            return asking()
        # It may embed a text, to know the model's dimension.
        return await aexecute(in_thread("embedding", asking), timeout=self.timeout)

    def _stage(self, part: BaseNodePostprocessor | Stage) -> Stage:
        stage = self._stage_of(part)
        return announced(stage, self.callback_manager) if reranks(stage) else stage

    def _stage_of(self, part: BaseNodePostprocessor | Stage) -> Stage:
        """The stage of a postprocessor. It is kept between searches, because it counts its abandoned calls."""
        return self._kept.get("stage", [part, *changing(part)], lambda: stage_of(part))

    def _handle_recursive_retrieval(self, query_bundle: QueryBundle, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
        if not any(isinstance(node.node, IndexNode) for node in nodes):
            return nodes
        return self._entered(execute(entered(nodes, self._entrance(query_bundle)), timeout=self.pipeline.timeout))

    async def _ahandle_recursive_retrieval(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore]
    ) -> list[NodeWithScore]:
        if not any(isinstance(node.node, IndexNode) for node in nodes):
            return nodes
        plan = entered(nodes, self._entrance(query_bundle))
        return self._entered(await aexecute(plan, timeout=self.pipeline.timeout))

    def _entrance(self, bundle: QueryBundle) -> Entrance:
        def retrieve(target: Any, score: Any, require: Filter | None) -> list[NodeWithScore]:
            return self._retrieve_from_object(self._entering(target, require), replace(bundle), score)

        async def aretrieve(target: Any, score: Any, require: Filter | None) -> list[NodeWithScore]:
            return await self._aretrieve_from_object(self._entering(target, require), replace(bundle), score)

        return Entrance(self.object_map, self.narrowing.require, retrieve, aretrieve)

    def _entering(self, target: Any, require: Filter | None) -> Any:
        """The object under access rights; FilterNotSupportedError where it cannot apply them."""
        if self._verbose:
            print_text(f"Retrieval entering {type(target).__name__}\n", color="llama_turquoise")
        if require is None or not isinstance(target, BaseRetriever | BaseQueryEngine):
            return target
        if isinstance(target, PipelineRetriever):
            return target.with_options(require=require)
        raise FilterNotSupportedError(
            f"{type(target).__name__} is not given this search's `require`, so it was not entered; let the index "
            "node point to a retriever of this package, HybridRetriever(channels=...), or set no rights here"
        )

    def _entered(self, found: Entered) -> list[NodeWithScore]:
        errors = (failure.error for failure in found.failures if failure.error is not None)
        if found.failures and self.pipeline.on_error == "raise":
            raise next(errors)
        log_failures(_LOG, type(self).__name__, found.failures)
        events.degraded([str(failure) for failure in found.failures if failure.degrades])
        return list(found.nodes)

    def _get_prompt_modules(self) -> PromptMixinType:
        return modules_of(self._parts())

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """The components that may have prompts, by name."""
        yield from ((type(part).__name__, part) for part in self.node_postprocessors)

    def _recipe(self) -> dict[str, Any]:
        """The options that make this retriever, except those that are unset."""
        return {"pipeline": self._given}

    def __repr__(self) -> str:
        options = {**self._recipe(), "k": self.k, "where": self.narrowing.where, "require": self.narrowing.require}
        options["node_postprocessors"] = list(map(self._stage_of, (*self.node_postprocessors, *self.limiting)))
        options["group_by"] = self.group_by
        said = (f"{name}={value!r}" for name, value in options.items() if value is not None and value != [])
        return f"{type(self).__name__}({', '.join(said)})"

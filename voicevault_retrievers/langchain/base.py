"""The base class of the retrievers: a pipeline behind LangChain's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config, patch_config
from pydantic import Field

from voicevault_retrievers._support.checks import seconds_or_none, weights_or_none
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.adapters.foreign_stages import changing
from voicevault_retrievers.adapters.keyword_copy import refreshed
from voicevault_retrievers.core.channel import Channel, Stage, check_k
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import (
    AsyncObserver,
    Observer,
    Plan,
    aoutcome_of,
    converting,
    in_thread,
    outcome_of,
    value_of,
)
from voicevault_retrievers.core.execution.run import ABREAST
from voicevault_retrievers.core.explanation import reworded
from voicevault_retrievers.core.filters import Filter, both, compile_filter, scope
from voicevault_retrievers.core.tracing import recording
from voicevault_retrievers.core.types import Query, Result, as_query
from voicevault_retrievers.langchain.convert import document_of, turns_of
from voicevault_retrievers.langchain.events import DEGRADED_EVENT, below, is_heard, recorder
from voicevault_retrievers.langchain.foreign_stages import arranges, stage_of
from voicevault_retrievers.langchain.validation import AS_GIVEN, STRICT, Checked, OwnFilter
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import GroupBy, RelevanceThreshold

T = TypeVar("T")
R = TypeVar("R", bound="PipelineRetriever")


DEFAULT_K = 5
_INVOKING = ("invoke", "ainvoke", "_get_relevant_documents", "_aget_relevant_documents")


class PipelineRetriever(Checked[Pipeline], BaseRetriever):
    """A LangChain retriever over a pipeline.

    A search returns at most `k` documents (default 5, unless a preset says otherwise), and only documents that matched.
    Each document is a new object (see `convert.document_of`). `where` narrows every search; `require` is the caller's
    access rights. A call may narrow further, never widen. `stages` refine the ranking one after another: document
    compressors of this package or of any other, or Stages. `retriever >> compressor` is a copy with one more stage.
    `score_threshold` is the least relevance of a document, in [0, 1]: see `RelevanceThreshold`. `group_by` is a GroupBy
    or its key: k documents are then k groups, such as files, each with the best passages of its own.
    `timeout` bounds a search, in seconds. A channel or stage that fails is left out: the documents name it in
    `metadata["voicevault"]["degraded"]`, a warning is logged, and the event `voicevault_degraded` is dispatched. With
    `on_error` "raise" the failure's error is raised instead.

    Each rewriter, channel, fusion and stage is a child run (see `events.RunRecorder`), below which LangChain's
    components appear. These runs hold ids, ranks and scores, and with `traced_texts` also texts that no stage masked.
    """

    model_config = STRICT
    k: int | None = None
    where: OwnFilter = None
    require: OwnFilter = None
    stages: Sequence[Any] = Field(default_factory=list)
    score_threshold: float | None = None
    group_by: Annotated[GroupBy | str | dict[str, Any] | None, AS_GIVEN] = None
    timeout: float | None = None
    traced_texts: bool = False

    def _check(self) -> None:
        self._k()
        seconds_or_none("timeout", self.timeout)
        compile_filter(self.where)
        compile_filter(self.require)
        GroupBy.of(self.group_by)
        for stage in self._refining():
            stage_of(stage)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of this retriever. It is built on first use, and again after a field has changed."""
        return self._built()

    @property
    def channel(self) -> Channel:
        """This retriever as a channel for another pipeline, under its own filters as they are at each search."""
        return self.pipeline.narrowed_by(self)

    def __rshift__(self: R, compressor: Any) -> R:
        """A copy of this retriever with one more stage. The stage gets as many documents as it needs to return k."""
        twin = self.model_copy(update={"stages": [*self.stages, compressor]})
        twin._check()
        return twin

    @checks_options
    def search(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        weights: Mapping[str, float] | None = None,
        history: Sequence[Any] = (),
        observe: Observer | None = None,
    ) -> Result:
        """Return the whole result of a search: hits, errors, timings, context.

        `weights` maps channel names to weights. `history` is the conversation so far, as turns or as messages, for
        rewriters of follow-up questions. `observe` is as in `Pipeline.search`.
        """
        asked = self._asked(query, where, require, weights, history)
        return self.pipeline.search(asked, self._k(k), observe=observe)

    @checks_options
    async def asearch(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        weights: Mapping[str, float] | None = None,
        history: Sequence[Any] = (),
        observe: AsyncObserver | None = None,
    ) -> Result:
        """`search` on the running event loop; the result differs only in its timings."""
        pipeline = await aexecute(self._opened(), timeout=self.timeout)
        asked = self._asked(query, where, require, weights, history)
        return await pipeline.asearch(asked, self._k(k), observe=observe)

    def refresh(self) -> bool:
        """Read what was added to the vector stores whose copies are searched. Returns whether anything changed.

        Such copies are made by `from_vector_store`. Deleted and changed documents need no refresh: every search checks
        them.
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

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        with below(ensure_config(config)) as given:
            return super().invoke(input, given, **kwargs)

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        with below(ensure_config(config)) as given:
            return await super().ainvoke(input, given, **kwargs)

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """`invoke` of each input. Where no callbacks listen, they are searched together (`Pipeline.search_many`)."""
        shared = self._shared(config, len(inputs))
        if shared is None:
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        with below(shared) as given:
            called = self._for_call(kwargs)
            asked = called._asked_each(inputs, **kwargs)
            found = zip(called.pipeline.search_each(asked), inputs, strict=True)
            documents: list[Any] = [outcome_of(partial(called._documents, *one, given)) for one in found]
        return documents if return_exceptions else list(map(value_of, documents))

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """`batch` on the running event loop."""
        shared = self._shared(config, len(inputs))
        if shared is None:
            return await super().abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        with below(shared) as given:
            called = self._for_call(kwargs)
            pipeline = await aexecute(called._opened(), timeout=self.timeout)
            asked = called._asked_each(inputs, **kwargs)
            found = zip(await pipeline.asearch_each(asked), inputs, strict=True)
            documents: list[Any] = [await aoutcome_of(called._adocuments(*one, given)) for one in found]
        return documents if return_exceptions else list(map(value_of, documents))

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        **asked: Any,
    ) -> list[Document]:
        with below(patch_config(None, callbacks=run_manager.get_child())) as config, self._recording(config):
            return self._documents(self.search(query, k, **asked), query, config)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **asked: Any,
    ) -> list[Document]:
        with below(patch_config(None, callbacks=run_manager.get_child())) as config, self._recording(config):
            return await self._adocuments(await self.asearch(query, k, **asked), query, config)

    def _recording(self, config: RunnableConfig) -> AbstractContextManager[None]:
        return recording(recorder(config, texts=self.traced_texts))

    def _documents(self, found: Result | Exception, query: str, config: RunnableConfig) -> list[Document]:
        result = value_of(found)
        if (degraded := list(result.skipped)) and is_heard(config):  # it needs a run, which batches have not
            dispatch_custom_event(DEGRADED_EVENT, {"degraded": degraded}, config=config)
        documents = self._converted(result)
        for arrange in self._arranging():
            documents = arrange.compress_documents(documents, query, config.get("callbacks"))
        return list(documents)

    async def _adocuments(self, found: Result | Exception, query: str, config: RunnableConfig) -> list[Document]:
        result = value_of(found)
        if (degraded := list(result.skipped)) and is_heard(config):
            await adispatch_custom_event(DEGRADED_EVENT, {"degraded": degraded}, config=config)
        documents = await aexecute(converting(partial(self._converted, result), len(result.hits)))
        for arrange in self._arranging():
            documents = await arrange.acompress_documents(documents, query, config.get("callbacks"))
        return list(documents)

    def _converted(self, result: Result) -> Sequence[Document]:
        degraded, asked_for = list(result.skipped), reworded(result)
        return [document_of(hit, degraded, asked_for) for hit in self.pipeline.read(result)]

    def _shared(self, config: RunnableConfig | list[RunnableConfig] | None, inputs: int) -> RunnableConfig | None:
        """The config under which a batch is searched together, or None where each input is to be invoked by itself.

        A chain gives one config for each input; these may differ in callbacks and run ids alone. None is returned where
        configs differ otherwise or allow fewer searches at once, where callbacks listen, or where a subclass overrides
        how it is invoked.
        """
        configs = list(map(ensure_config, config if isinstance(config, list) else [config]))
        own = any(getattr(type(self), name) is not getattr(PipelineRetriever, name) for name in _INVOKING)
        if own or len(configs) != (inputs if isinstance(config, list) else 1) or any(map(is_heard, configs)):
            return None
        said = [{name: value for name, value in one.items() if name not in ("callbacks", "run_id")} for one in configs]
        alike = inputs and all(one == said[0] for one in said)
        return configs[0] if alike and (configs[0].get("max_concurrency") or ABREAST) >= ABREAST else None

    def _for_call(self, options: dict[str, Any]) -> PipelineRetriever:
        """This retriever with a call's options applied; removes from `options` those that are not the query's."""
        return self

    def _asked_each(self, inputs: Sequence[str], **options: Any) -> list[tuple[Query, int] | Exception]:
        @checks_options
        def search(
            query: str | Query,
            k: int | None = None,
            where: Filter | None = None,
            require: Filter | None = None,
            weights: Mapping[str, float] | None = None,
            history: Sequence[Any] = (),
        ) -> tuple[Query, int]:
            return self._asked(query, where, require, weights, history), self._k(k)

        return [outcome_of(partial(search, query, **options)) for query in inputs]

    def _k(self, k: int | None = None) -> int:
        """The number of documents that a search returns: the call's k, else this retriever's, else the default."""
        own = self._default_k() if self.k is None else self.k
        return check_k(own if k is None else k)

    def _default_k(self) -> int:
        return DEFAULT_K

    def _unstaged(self) -> Pipeline:
        """The pipeline without this retriever's stages."""
        raise NotImplementedError

    def _build(self) -> Pipeline:
        pipeline = self._unstaged()
        for stage in self._refining():
            pipeline = pipeline >> stage_of(stage)
        pipeline = pipeline.grouping(GroupBy.of(self.group_by))
        return pipeline if pipeline.timeout is not None or not self.stages else pipeline.within(self.timeout)

    def _options(self) -> list[Any]:
        return [*super()._options(), [changing(stage) for stage in self.stages]]

    def _refining(self) -> Sequence[Any]:
        return [*self.stages[: len(self.stages) - len(self._arranging())], *self._limiting()]

    def _limiting(self) -> Sequence[Stage]:
        return [] if self.score_threshold is None else [RelevanceThreshold(self.score_threshold)]

    def _arranging(self) -> Sequence[BaseDocumentCompressor]:
        """The last stage where it arranges the documents for a reader and does not change the ranking."""
        return [stage for stage in self.stages[-1:] if arranges(stage)]

    def _asked(
        self,
        query: str | Query,
        where: Filter | None,
        require: Filter | None,
        weights: Mapping[str, float] | None,
        history: Sequence[Any],
    ) -> Query:
        asked = as_query(query)
        return replace(
            asked,
            where=both(self.where, both(asked.where, where)),
            require=scope(scope(self.require, asked.require), require),
            weights={**(asked.weights or {}), **(weights_or_none(weights) or {})} or None,
            history=tuple(turns_of(history)) or asked.history,
        )

    def _opened(self) -> Plan[Pipeline]:
        """Open the pipeline in a worker thread: opening a knowledge base reads files and would block an event loop."""
        return in_thread("open", lambda: self.pipeline, inline=self._is_built())


class ThreadedIndex(DocumentIndex):
    """A document index whose async methods run the sync methods in a worker thread."""

    async def aupsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """`upsert` in a worker thread."""
        return await aexecute(in_thread("upsert", partial(self.upsert, items, **kwargs)))

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """`delete` in a worker thread."""
        return await aexecute(in_thread("delete", partial(self.delete, ids, **kwargs)))

    async def aget(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """`get` in a worker thread."""
        return await aexecute(in_thread("get", partial(self.get, ids, **kwargs)))

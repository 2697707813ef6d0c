"""What searches several channels as one: fused, reranked, capped by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from typing_extensions import Unpack

from voicevault_retrievers.adapters.placeholders import beside
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, converting
from voicevault_retrievers.core.protocols import Scorer, TextModel
from voicevault_retrievers.core.types import Failure, Query, Result
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import Method, method_of
from voicevault_retrievers.fusion.fuse import DEPTH, OnError
from voicevault_retrievers.llama_index import events
from voicevault_retrievers.llama_index.base import PipelineRetriever, top_k
from voicevault_retrievers.llama_index.convert import nodes_of_hits
from voicevault_retrievers.llama_index.events import announced
from voicevault_retrievers.llama_index.filters import Where, weights_of
from voicevault_retrievers.llama_index.models import as_text_model
from voicevault_retrievers.llama_index.options import CommonOptions, RetrieverOptions
from voicevault_retrievers.llama_index.query import QueryExpander
from voicevault_retrievers.pipeline.composing import compose, router_of
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset, load_preset
from voicevault_retrievers.pipeline.presets.sections import NO_PRESET, store_of
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL
from voicevault_retrievers.structure import parent_store
from voicevault_retrievers.structure.graph import GraphStore
from voicevault_retrievers.structure.parents import Parents

C = TypeVar("C", bound="ComposedRetriever")
Expansion: TypeAlias = bool | QueryExpander | Rewriter | BaseLLM | Callable[[str], str] | Sequence["Expansion"]
Routing: TypeAlias = bool | Rewriter | Mapping[str, Iterable[str]]
Rerank: TypeAlias = bool | str | Scorer | Stage | BaseNodePostprocessor


class ComposedOptions(RetrieverOptions, total=False):
    """What a retriever of several channels takes by name, but for its preset."""

    weights: Mapping[str, float] | None
    depth: int | Mapping[str, int] | None
    fusion: Method | str | None
    expansion: Expansion | None
    rerank: Rerank | None
    max_chunks_per_page: int | None
    route: Routing | None
    parents: Parents | None
    llm: BaseLLM | TextModel | Callable[[str], str] | None
    timeout: float | None
    on_error: OnError | None


class ComposedRetriever(PipelineRetriever):
    """Several channels fused, then reranked and capped by page where that is asked for.

    `weights` and `depth` (hits asked of a channel) go by channel name. `fusion` is a method such as RRF(k=60), or its
    name. `expansion` is True for rules, a QueryExpander, an LLM, a Rewriter, or a list of such. `rerank` is True for
    the default cross-encoder, the name of one, a Scorer, a node postprocessor, or a Stage. `route` is True for rules,
    the channels of each route by name, or a router. `timeout` bounds a search in seconds, and once more the objects
    behind index nodes. `on_error` "skip" (the default) leaves out a channel or stage that fails, and the nodes say so;
    "raise" raises its error. A `preset`, or its name, says all of this itself; `k`, `timeout`, `on_error`, `fusion` and
    `rerank` go over its own, and `llm` over the language model that it names for all. `parents` are where its stage of
    that name reads in place of the knowledge bases: RedisParents, a mapping, or what has `fetch(ids)`. `options` are
    those of `PipelineRetriever`. A `Query` with `history` is a question of a conversation, which a rewriter such as
    FollowUp() in `expansion` reads.

    A call may say `k`, `where`, `require`, `weights`, `fusion` and `rerank` (False for none) itself.
    """

    def __init__(
        self,
        *,
        preset: Preset | str | Path | None = None,
        weights: Mapping[str, float] | None = None,
        depth: int | Mapping[str, int] | None = None,
        fusion: Method | str | None = None,
        expansion: Expansion | None = None,
        rerank: Rerank | None = None,
        max_chunks_per_page: int | None = None,
        route: Routing | None = None,
        parents: Parents | None = None,
        llm: BaseLLM | TextModel | Callable[[str], str] | None = None,
        timeout: float | None = None,
        on_error: OnError | None = None,
        k: int | None = None,
        similarity_top_k: int | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        chosen = preset_of(preset)
        super().__init__(None, k=top_k(k, similarity_top_k, chosen.k if chosen else 5), **options)
        self.preset = chosen
        self.weights = None if weights is None else weights_of(weights)
        self.depth = depth
        self.fusion = method_of(fusion)
        self.expansion = _expanders(expansion)
        self.rerank = rerank
        self.max_chunks_per_page = max_chunks_per_page
        self.route = router_of(route)
        self.parents = parents
        self.llm = None if llm is None else as_text_model(llm)
        self.timeout = timeout
        self.on_error = on_error
        self._check()

    def search(
        self,
        query: str | QueryBundle | Query,
        k: int | None = None,
        *,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        fusion: Method | str | None = None,
        rerank: Rerank | None = None,
        observe: Observer | None = None,
    ) -> Result:
        chosen = self.with_options(k=k, where=where, require=require, weights=weights, fusion=fusion, rerank=rerank)
        return chosen._search(query, observe)

    async def asearch(
        self,
        query: str | QueryBundle | Query,
        k: int | None = None,
        *,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        fusion: Method | str | None = None,
        rerank: Rerank | None = None,
        observe: AsyncObserver | None = None,
    ) -> Result:
        chosen = self.with_options(k=k, where=where, require=require, weights=weights, fusion=fusion, rerank=rerank)
        return await chosen._asearch(query, observe)

    def with_options(
        self: C,
        *,
        k: int | None = None,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        fusion: Method | str | None = None,
        rerank: Rerank | None = None,
    ) -> C:
        twin = super().with_options(k=k, where=where, require=require, weights=weights)
        if fusion is not None:
            twin.fusion = method_of(fusion)
        if rerank is not None:
            twin.rerank = rerank
            twin._reranker()
        return twin

    def hybrid_search(
        self, text: str, top_k: int = 5, *, where: Where = None, require: Where = None
    ) -> list[NodeWithScore]:
        """The best of the keyword and vector channels by RRF alone, under this retriever's filters.

        Cheap enough to be asked for each claim of an answer: no expansion, no reranking. See `Pipeline.hybrid_search`.
        """
        chosen, pipeline = self.with_options(where=where, require=require), self.pipeline
        found = pipeline.hybrid_search(chosen._asked(text, pipeline), top_k)
        events.degraded(found.skipped)
        return nodes_of_hits(found, found.skipped)

    async def ahybrid_search(
        self, text: str, top_k: int = 5, *, where: Where = None, require: Where = None
    ) -> list[NodeWithScore]:
        """`hybrid_search` on the running event loop; the same nodes."""
        chosen = self.with_options(where=where, require=require)
        pipeline = await self._opened()
        found = await pipeline.ahybrid_search(chosen._asked(text, pipeline), top_k)
        events.degraded(found.skipped)
        return await aexecute(converting(partial(nodes_of_hits, found, found.skipped), len(found)))

    def _sources(self) -> tuple[Mapping[str, Channel], Sequence[Failure]]:
        """The channels by name, and what is known beforehand not to be searched."""
        raise NotImplementedError  # not abstract: LlamaIndex puts a span around each call of such a method

    def _unstaged(self) -> Pipeline:
        return self._over(*self._sources())

    def _over(self, channels: Mapping[str, Channel], notes: Sequence[Failure] = ()) -> Pipeline:
        store = self._graph_store()
        if store is not None:
            beside(getattr(self, "channels", {}), {"graph": store})  # says where one is given as a channel too
        own = {name: channel for name, channel in channels.items() if name != "graph" or store is None}
        given: dict[str, Any] = {"notes": notes, "graph": store, **self._surroundings()}
        if self.preset is not None:
            preset = self._varied(self.preset)
            llm = self.llm if preset.asks else None  # a call's `rerank` may leave nothing that asks one
            return preset.build(own, llm=llm, parents=self.parents, **given)
        return compose(
            own,
            weights=self.weights,
            depth=DEPTH if self.depth is None else self.depth,
            fusion=self.fusion,
            expansion=[part.rewriter if isinstance(part, QueryExpander) else part for part in self.expansion],
            rerank=self._reranker(),
            max_chunks_per_page=self.max_chunks_per_page,
            route=self.route,
            timeout=self.timeout,
            on_error=self.on_error or "skip",
            **given,
        )

    def _graph_store(self) -> GraphStore | None:
        """The graph that is read in place of a base's, if one is given."""
        return store_of(getattr(self, "graph", None))

    def _surroundings(self) -> dict[str, Any]:
        """What a preset's stages read from."""
        return {}

    def _varied(self, preset: Preset) -> Preset:
        """The preset with this retriever's own timeout, on_error, fusion and rerank, where given."""
        said = {"timeout": self.timeout, "on_error": self.on_error, "method": self.fusion}
        given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        own = self._bare_reranker()
        varied = preset if self.rerank is None else preset.with_reranker(own)
        stages = (self._announced(stage) if stage is own else self._stage(stage) for stage in varied.stages)
        return replace(varied, stages=tuple(stages), **given)

    def _reranker(self) -> Stage | None:
        stage = self._bare_reranker()
        return None if stage is None else self._announced(stage)

    def _announced(self, stage: Stage) -> Stage:
        return announced(stage, self.callback_manager)

    def _bare_reranker(self) -> Stage | None:
        """The stage that reranks, with what it has loaded; ConfigError where `rerank` is none."""
        if self.rerank is None or self.rerank is False:
            return None
        part = DEFAULT_MODEL if self.rerank is True else self.rerank
        if isinstance(part, str | Scorer):
            stage: Stage = self._kept.get("rerank", [part], lambda: CrossEncoderRerank(part))
            return stage
        return self._stage_of(part)

    def _check(self) -> None:
        self._reranker()
        own = {name: getattr(self, name) for name in ("weights", "depth", "max_chunks_per_page", "route")}
        taken = sorted(name for name, value in own.items() if value is not None)
        taken += ["expansion"] if self.expansion else []
        if self.preset is None and self.parents is not None:
            raise ConfigError(
                "parents= is for the stage of that name of a preset: without one, put "
                "ParentExpansionPostprocessor(store) behind the retriever"
            )
        if self.preset is None and self.llm is not None:
            raise ConfigError(NO_PRESET)
        if self.preset is not None:
            self.preset.refuse_unused(self.parents, self._graph_store(), self.llm)
        if self.preset is not None and taken:
            raise ConfigError(f"preset {self.preset.name!r} sets {', '.join(taken)}; give the preset or these")

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from (("expansion", part) for part in self.expansion)
        yield "rerank", self.rerank
        yield from super()._parts()

    def _recipe(self) -> dict[str, Any]:
        names = ("fusion", "expansion", "max_chunks_per_page", "route", "timeout", "on_error")
        weights = {**(self.weights or {}), **self.narrowing.weights} or None
        preset = None if self.preset is None else self.preset.name
        rerank = self._reranker() or self.rerank
        parents = None if self.parents is None else parent_store(self.parents)  # which does not show what is in it
        said = {"preset": preset, "weights": weights, "depth": self.depth, "rerank": rerank, "parents": parents}
        return {**said, **{name: getattr(self, name) for name in names}}


def preset_of(preset: Preset | str | Path | None) -> Preset | None:
    """The preset of a name or path; one that is given as it is."""
    return preset if preset is None or isinstance(preset, Preset) else load_preset(preset)


def _expanders(expansion: Expansion | None) -> list[QueryExpander | Rewriter]:
    """What expands a query: none, one or several; a language model is a QueryExpander's."""
    if expansion is None or expansion is False:
        return []
    given = expansion if isinstance(expansion, list | tuple) else [expansion]
    return [part if isinstance(part, QueryExpander | Rewriter) else _expander(part) for part in given]


def _expander(part: Any) -> QueryExpander:
    return QueryExpander() if part is True else QueryExpander(part)

"""The base class of retrievers over several channels: fusion, reranking, page cap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from typing_extensions import Unpack

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.adapters.foreign_stages import changing
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, converting
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Failure, Query, Ranking, Result
from voicevault_retrievers.fusion import Method
from voicevault_retrievers.llama_index import events
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.conversation import History
from voicevault_retrievers.llama_index.convert import nodes_of_hits
from voicevault_retrievers.llama_index.events import announced
from voicevault_retrievers.llama_index.filters import Where
from voicevault_retrievers.llama_index.models import as_text_model, flare_of
from voicevault_retrievers.llama_index.options import CommonOptions, top_k
from voicevault_retrievers.llama_index.query import QueryExpander
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Base, Preset, load_preset
from voicevault_retrievers.pipeline.presets.serialization import preset_of_parts
from voicevault_retrievers.structure.graph import GraphStore

C = TypeVar("C", bound="ComposedRetriever")
Rewriters: TypeAlias = bool | QueryExpander | Rewriter | BaseLLM | Callable[[str], str] | Sequence[Any]
Reranker: TypeAlias = bool | str | Scorer | Stage | BaseNodePostprocessor
Expansion: TypeAlias = Expand | Rewriters | Mapping[str, object] | None
FusionOption: TypeAlias = Fusion | Method | str | Mapping[str, object] | None
RerankOption: TypeAlias = Rerank | Reranker | Mapping[str, object] | None


class ComposedRetriever(PipelineRetriever):
    """A retriever over several fused channels, with optional reranking and page cap.

    `expansion` is True for rules, a QueryExpander, an LLM, a Rewriter, or a list of these; `Expand(...)` also sets the
    route and FLARE. `fusion` is a method such as RRF(k=60), or its name; `Fusion(...)` also sets the channels' weights
    and depths, and what happens when a channel fails. `rerank` is True for the default cross-encoder, the name of a
    cross-encoder, a Scorer, a node postprocessor, or a Stage; `Rerank(...)` also sets its depth and the page cap. Each
    of the three may be a mapping with the fields of its group. A `preset` sets all of these: a preset's name, its
    file's path, or the result of `load_preset`. Options given beside it override it. `timeout` bounds a search, in
    seconds, and once more the objects behind index nodes. `k`, `where`, `require`, `node_postprocessors` and
    LlamaIndex's own options are those of `PipelineRetriever`.

    A call may pass its own `k`, `where`, `require`, `weights`, `fusion` and `rerank` (False for none). It may also pass
    the conversation so far as `history`, which a rewriter such as FollowUp() in `expansion` reads. A chat engine's
    conversation reaches it through the memory: `ContextChatEngine.from_defaults(retriever.with_options(history=memory),
    memory=memory)`.
    """

    def __init__(
        self,
        *,
        preset: Preset | str | Path | None = None,
        k: int | None = None,
        expansion: Expansion = None,
        fusion: FusionOption = None,
        rerank: RerankOption = None,
        timeout: float | None = None,
        similarity_top_k: int | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        chosen = preset_of(preset)
        super().__init__(None, k=top_k(k, similarity_top_k, chosen.k if chosen else 5), **options)
        self.preset = chosen
        self.expansion = _prompted(Expand.of(expansion))
        self.fusion = Fusion.of(fusion)
        self.rerank = Rerank.of(rerank)
        self.timeout = timeout

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
        fusion: FusionOption = None,
        rerank: RerankOption = None,
        observe: Observer | None = None,
    ) -> Result:
        asked: dict[str, Any] = {"where": where, "require": require, "weights": weights, "history": history}
        chosen = self.with_options(k=k, **asked, fusion=fusion, rerank=rerank)
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
        fusion: FusionOption = None,
        rerank: RerankOption = None,
        observe: AsyncObserver | None = None,
    ) -> Result:
        asked: dict[str, Any] = {"where": where, "require": require, "weights": weights, "history": history}
        chosen = self.with_options(k=k, **asked, fusion=fusion, rerank=rerank)
        return await chosen._asearch(query, observe)

    @checks_options
    def with_options(
        self: C,
        *,
        k: int | None = None,
        where: Where = None,
        require: Where = None,
        weights: Mapping[str, float] | None = None,
        history: History = None,
        fusion: FusionOption = None,
        rerank: RerankOption = None,
    ) -> C:
        twin = super().with_options(k=k, where=where, require=require, weights=weights, history=history)
        twin.fusion = Fusion.of(fusion).over(self.fusion)
        twin.rerank = Rerank.of(rerank).over(self.rerank)
        if rerank is not None:
            twin._reranking()
        return twin

    def to_preset(self) -> Preset:
        """This retriever as a preset, without its channels' content and its filters; `save_preset` writes it.

        Under `require` the preset's `access` is "mandatory": what is made of it asks for access rights.
        """
        parts, _ = self._sources()
        stages = map(self._stage_of, [*self.node_postprocessors, *self.limiting])
        return preset_of_parts(
            self._preset(parts).guarded(self.narrowing.require), parts, stages, self.k, self.group_by
        )

    @checks_options
    def hybrid_search(
        self, text: str, top_k: int = 5, *, where: Where = None, require: Where = None
    ) -> list[NodeWithScore]:
        """Return the best of the keyword and vector channels, fused by RRF alone, under this retriever's filters.

        There is no expansion and no reranking, so that each claim of an answer can be looked up cheaply. See
        `Pipeline.hybrid_search`.
        """
        chosen, pipeline = self.with_options(where=where, require=require), self.pipeline
        found = pipeline.hybrid_search(chosen._asked(text, pipeline), top_k)
        events.degraded(found.skipped)
        return nodes_of_hits(found, found.skipped)

    @checks_options
    async def ahybrid_search(
        self, text: str, top_k: int = 5, *, where: Where = None, require: Where = None
    ) -> list[NodeWithScore]:
        """`hybrid_search` on the running event loop; the same nodes."""
        chosen = self.with_options(where=where, require=require)
        pipeline = await self._opened()
        found = await pipeline.ahybrid_search(chosen._asked(text, pipeline), top_k)
        events.degraded(found.skipped)
        return await aexecute(converting(partial(nodes_of_hits, found, found.skipped), len(found)))

    def hybrid_ranking(self, query: str | Query, top_k: int) -> Ranking:
        """`hybrid_search` with hits instead of nodes."""
        pipeline = self.pipeline
        return pipeline.hybrid_ranking(self._asked(query, pipeline), top_k)

    async def ahybrid_ranking(self, query: str | Query, top_k: int) -> Ranking:
        """`hybrid_ranking` on the running event loop; the same hits."""
        pipeline = await self._opened()
        return await pipeline.ahybrid_ranking(self._asked(query, pipeline), top_k)

    def _sources(self) -> tuple[Mapping[str, Channel], Sequence[Failure]]:
        """The channels by name, and the failures of channels that are known not to be searchable."""
        raise NotImplementedError  # not abstract: LlamaIndex puts a span around each call of such a method

    def _unstaged(self) -> Pipeline:
        channels, notes = self._sources()
        made = [channels, self.preset, self.expansion, self.fusion, self._reranking(), self.timeout]
        pipeline: Pipeline = self._kept.get(
            "pipeline", [*made, self.callback_manager], lambda: self._over(channels, notes)
        )
        return pipeline

    def _over(self, channels: Mapping[str, Channel], notes: Sequence[Failure] = ()) -> Pipeline:
        preset, reranker = self._preset(channels), self._reranking().model
        stages = (
            announced(stage, self.callback_manager) if stage is reranker else self._stage(stage)
            for stage in preset.stages
        )
        return replace(preset, stages=tuple(stages)).build(channels, notes=notes, base=self._base())

    def _preset(self, channels: Iterable[str]) -> Preset:
        """The preset, or a plain preset of these channels, with this retriever's own options applied."""
        graph = self._graph_store()
        names = [*channels, *(() if graph is None else ("graph",))]
        preset = self._options_over((self.preset or Preset.plain(names)).given(graph=graph))
        return preset if self.timeout is None else replace(preset, timeout=self.timeout)

    def _options_over(self, preset: Preset) -> Preset:
        expand = self.expansion.converted(_rewriter, flare_of, **preset.flare_options)
        return preset.with_options(expand, self.fusion, self._reranking())

    def _reranking(self) -> Rerank:
        """The reranking options with the reranker as a stage. The stage is kept, because it has loaded its model."""
        asked = [self.rerank, *changing(self.rerank.model)]
        convert = cast("Callable[[object], Stage]", self._stage_of)
        made: Rerank = self._kept.get("rerank", asked, lambda: self.rerank.converted(convert))
        return made

    def _base(self) -> Base | None:
        """The base that a preset's stages read from."""
        return None

    def _graph_store(self) -> GraphStore | None:
        """The graph store that replaces a base's own graph, if one is given."""
        return None

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from (("expansion", part) for part in self.expansion.parts)
        yield "rerank", self.rerank.model
        yield from super()._parts()

    def _recipe(self) -> dict[str, Any]:
        weights = {**(self.fusion.weights or {}), **self.narrowing.weights} or None
        groups = {
            "expansion": self.expansion,
            "fusion": replace(self.fusion, weights=weights),
            "rerank": self._reranking(),
        }
        said = {"preset": None if self.preset is None else self.preset.name, "timeout": self.timeout}
        return {**said, **{name: group for name, group in groups.items() if group != type(group)()}}


def preset_of(preset: Preset | str | Path | None) -> Preset | None:
    """The preset of a name or path, or a Preset; a LlamaIndex LLM in it is wrapped as a text model."""
    chosen = preset if preset is None or isinstance(preset, Preset) else load_preset(preset)
    return chosen if chosen is None or chosen.llm is None else replace(chosen, llm=as_text_model(chosen.llm))


def _prompted(expand: Expand) -> Expand:
    """The expansion with its language models as QueryExpanders, which have prompts."""
    return expand if not expand.parts else replace(expand, rewriters=tuple(map(_expander, expand.parts)))


def _rewriter(part: QueryExpander | Rewriter) -> Rewriter:
    return part.rewriter if isinstance(part, QueryExpander) else part


def _expander(part: Any) -> QueryExpander | Rewriter:
    if isinstance(part, QueryExpander | Rewriter):
        return part
    return QueryExpander() if part is True else QueryExpander(part)

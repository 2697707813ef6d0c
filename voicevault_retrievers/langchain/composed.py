"""The base class of retrievers over several channels: fusion, reranking, page cap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import Runnable

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.adapters.foreign_stages import changing
from voicevault_retrievers.adapters.placeholders import beside
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage, check_k
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, converting
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Failure, Query, Ranking, Result
from voicevault_retrievers.fusion import Method
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.convert import document_of
from voicevault_retrievers.langchain.foreign_stages import stage_of
from voicevault_retrievers.langchain.models import as_scorer, as_text_model, flare_of
from voicevault_retrievers.langchain.query import QueryExpander
from voicevault_retrievers.langchain.validation import AS_GIVEN
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Base, Preset, load_preset
from voicevault_retrievers.pipeline.presets.missing_parts import channels_there
from voicevault_retrievers.pipeline.presets.serialization import preset_of_parts
from voicevault_retrievers.rerank import GroupBy
from voicevault_retrievers.structure.graph import GraphStore

C = TypeVar("C", bound="ComposedRetriever")
Rewriters: TypeAlias = bool | QueryExpander | Rewriter | Runnable[Any, Any] | Callable[[str], str] | Sequence[Any]
Reranker: TypeAlias = bool | str | Scorer | Stage | BaseCrossEncoder | BaseDocumentCompressor
Expansion: TypeAlias = Expand | Rewriters | Mapping[str, object] | None
FusionOption: TypeAlias = Fusion | Method | str | Mapping[str, object] | None
RerankOption: TypeAlias = Rerank | Reranker | Mapping[str, object] | None
BASE_CHANNELS = ("bm25", "dense")
"""The channels of a knowledge base that are searched without a preset."""


class ComposedRetriever(PipelineRetriever):
    """A retriever over several fused channels, with optional reranking and page cap.

    `expansion` is True for rules, a QueryExpander, a chat model, or a list of these; `Expand(...)` also sets the route
    and FLARE. `fusion` is a method such as RRF(k=60), or its name; `Fusion(...)` also sets the channels' weights and
    depths, and what happens when a channel fails. `rerank` is True for the default cross-encoder, the name of a
    cross-encoder, a Scorer, a LangChain cross-encoder, or a stage, such as a document compressor; `Rerank(...)` also
    sets its depth and the page cap. Each of the three may be a mapping with the fields of its group. A `preset` sets
    all of these: a preset's name, its file's path, or the result of `load_preset`. Options given beside it override it.

    A call may pass its own `k`, `where`, `require`, `weights`, `fusion` and `rerank` (False for none). It may also pass
    the conversation so far as `history`, which a rewriter such as FollowUp() in `expansion` reads.
    """

    preset: Annotated[str | Path | Preset | None, AS_GIVEN] = None
    expansion: Annotated[Expansion, AS_GIVEN] = None
    fusion: Annotated[FusionOption, AS_GIVEN] = None
    rerank: Annotated[RerankOption, AS_GIVEN] = None

    @checks_options
    def search(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        weights: Mapping[str, float] | None = None,
        fusion: FusionOption = None,
        rerank: RerankOption = None,
        history: Sequence[Any] = (),
        observe: Observer | None = None,
    ) -> Result:
        asked: dict[str, Any] = {"where": where, "require": require, "weights": weights, "history": history}
        return PipelineRetriever.search(self._varied(fusion, rerank), query, k, **asked, observe=observe)

    @checks_options
    async def asearch(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        weights: Mapping[str, float] | None = None,
        fusion: FusionOption = None,
        rerank: RerankOption = None,
        history: Sequence[Any] = (),
        observe: AsyncObserver | None = None,
    ) -> Result:
        asked: dict[str, Any] = {"where": where, "require": require, "weights": weights, "history": history}
        return await PipelineRetriever.asearch(self._varied(fusion, rerank), query, k, **asked, observe=observe)

    @checks_options
    def hybrid_search(
        self, text: str, top_k: int = 5, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Document]:
        """Return the best of the keyword and vector channels, fused by RRF alone, under this retriever's filters.

        There is no expansion and no reranking, so that each claim of an answer can be looked up cheaply. See
        `Pipeline.hybrid_search`.
        """
        found = self.pipeline.hybrid_search(self._asked(text, where, require, None, ()), check_k(top_k))
        return _documents(found)

    @checks_options
    async def ahybrid_search(
        self, text: str, top_k: int = 5, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Document]:
        """`hybrid_search` on the running event loop; the same documents."""
        pipeline = await aexecute(self._opened(), timeout=self.timeout)
        found = await pipeline.ahybrid_search(self._asked(text, where, require, None, ()), check_k(top_k))
        return await aexecute(converting(partial(_documents, found), len(found)))

    def hybrid_ranking(self, query: str | Query, top_k: int) -> Ranking:
        """`hybrid_search` with hits instead of documents."""
        return self.pipeline.hybrid_ranking(self._asked(query, None, None, None, ()), top_k)

    async def ahybrid_ranking(self, query: str | Query, top_k: int) -> Ranking:
        """`hybrid_ranking` on the running event loop; the same hits."""
        pipeline = await aexecute(self._opened(), timeout=self.timeout)
        return await pipeline.ahybrid_ranking(self._asked(query, None, None, None, ()), top_k)

    def _for_call(self, options: dict[str, Any]) -> PipelineRetriever:
        return self._varied(options.pop("fusion", None), options.pop("rerank", None))

    def to_preset(self) -> Preset:
        """This retriever as a preset, without its channels' content and its filters; `save_preset` writes it.

        Under `require` the preset's `access` is "mandatory": what is made of it asks for access rights.
        """
        preset = self._preset(self._channel_names()).guarded(self.require)
        stages = map(stage_of, [*self.stages, *self._limiting()])
        return preset_of_parts(preset, self._parts(), stages, self._k(), GroupBy.of(self.group_by))

    def _channel_names(self) -> Sequence[str]:
        """The names of the channels that are searched."""
        return BASE_CHANNELS

    def _parts(self) -> Mapping[str, Channel]:
        """The channels that are not made by a knowledge base."""
        return {}

    def _varied(self: C, fusion: FusionOption, rerank: RerankOption) -> C:
        """This retriever with a call's own fusion and reranking; the copy shares what was opened and built."""
        said: dict[str, object] = {}
        if fusion is not None:
            said["fusion"] = Fusion.of(fusion).over(Fusion.of(self.fusion))
        if rerank is not None:
            said["rerank"] = Rerank.of(rerank).over(Rerank.of(self.rerank))
        return self.model_copy(update=said) if said else self

    def _default_k(self) -> int:
        preset = self._given_preset()
        return super()._default_k() if preset is None else preset.k

    def _given_preset(self) -> Preset | None:
        return None if self.preset is None else self.made.get("preset", [self.preset], self._loaded)

    def _loaded(self) -> Preset:
        preset = self.preset if isinstance(self.preset, Preset) else load_preset(self.preset or "")
        return preset if preset.llm is None else replace(preset, llm=as_text_model(preset.llm))

    def _preset(self, channels: Iterable[str]) -> Preset:
        """The preset, or a plain preset of these channels, with this retriever's own options applied."""
        graph = self._graph_store()
        names = [*channels, *(() if graph is None else ("graph",))]
        preset = self._options_over((self._given_preset() or Preset.plain(names)).given(graph=graph))
        return preset if self.timeout is None else replace(preset, timeout=self.timeout)

    def _options_over(self, preset: Preset) -> Preset:
        given, rerank = Expand.of(self.expansion), Rerank.of(self.rerank)
        flare = preset.flare_options
        expand = self.made.get("expansion", [given, flare], lambda: given.converted(_rewriter, flare_of, **flare))
        asked = [rerank, *changing(rerank.model)]
        reranker = self.made.get("rerank", asked, lambda: rerank.converted(_stage))
        return preset.with_options(expand, Fusion.of(self.fusion), reranker)

    def _over(
        self, channels: Mapping[str, Channel], notes: Sequence[Failure] = (), base: Base | None = None
    ) -> Pipeline:
        return self._preset(channels).build(channels, notes=notes, base=base)

    def _over_base(
        self, base: Base, made: Mapping[str, Channel] | None = None, more: Mapping[str, Channel] | None = None
    ) -> Pipeline:
        """The pipeline over a base's channels: `made` are built already, `more` are searched beside the base's."""
        made, graph = made or {}, self._graph_store()
        preset = self._given_preset() or Preset.plain(BASE_CHANNELS)
        apart = {*made, *(() if graph is None else ("graph",))}
        wanted = {name: options for name, options in preset.channels.items() if name not in apart}
        channels = beside({**channels_there(base, wanted), **made}, more)
        return self._preset(channels).build(channels, base=base, notes=getattr(base, "notes", ()))

    def _graph_store(self) -> GraphStore | None:
        """The graph store that replaces a base's own graph, if one is given."""
        preset = self._given_preset()
        return None if preset is None else preset.graph


def _documents(found: Ranking) -> list[Document]:
    degraded = found.skipped
    return [document_of(hit, degraded) for hit in found]


def _stage(model: object) -> Stage | Scorer:
    scorer = as_scorer(model)
    return scorer if isinstance(scorer, Scorer) else stage_of(scorer)


def _rewriter(part: object) -> Rewriter:
    if isinstance(part, Rewriter):
        return part
    if not isinstance(part, QueryExpander):
        part = QueryExpander() if part is True else QueryExpander(llm=part)
    return part.rewriter

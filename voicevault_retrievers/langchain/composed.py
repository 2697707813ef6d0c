"""What searches several channels as one: fused, reranked, capped by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.documents import Document
from pydantic import InstanceOf

from voicevault_retrievers.adapters.placeholders import beside
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage, check_k
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, converting
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import Scorer, TextModel
from voicevault_retrievers.core.types import Query, Ranking, Result
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import Method, method_of
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.convert import document_of
from voicevault_retrievers.langchain.foreign_stages import changing, stage_of
from voicevault_retrievers.langchain.models import as_scorer, as_text_model
from voicevault_retrievers.langchain.query import QueryExpander
from voicevault_retrievers.pipeline.composing import compose, router_of
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Base, Preset, load_preset
from voicevault_retrievers.pipeline.presets.missing_parts import channels_there
from voicevault_retrievers.pipeline.presets.sections import NO_PRESET
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL
from voicevault_retrievers.structure import parent_store
from voicevault_retrievers.structure.graph import GraphStore

C = TypeVar("C", bound="ComposedRetriever")


class ComposedRetriever(PipelineRetriever):
    """Several channels fused, then reranked and capped by page where that is asked for.

    `weights` and `depth` (hits asked of a channel) go by channel name. `fusion` is a method such as RRF(k=60), or its
    name. `expansion` is True for rules, a QueryExpander, a chat model, or a list of such. `rerank` is True for the
    default cross-encoder, the name of one, a Scorer, a LangChain cross-encoder, or a stage, such as a document
    compressor. `route` is True for rules, the channels of each route by name, or a router. A `preset` says all of this
    itself; `k`, `timeout`, `on_error`, `fusion` and `rerank` go over its own, and `llm`, a model, over that of the
    whole preset. `parents` are where its stage of that name reads in place of the knowledge bases:
    RedisParents, a mapping, or what has `fetch(ids)`.

    A call may say `k`, `where`, `require`, `weights`, `fusion` and `rerank` (False for none) itself, and bring the
    conversation so far as `history`, which a rewriter such as FollowUp() in `expansion` reads.
    """

    preset: str | Path | InstanceOf[Preset] | None = None
    weights: dict[str, float] | None = None
    depth: int | dict[str, int] = DEPTH
    fusion: Any = None
    expansion: Any = False
    rerank: Any = None
    max_chunks_per_page: int | None = None
    route: Any = False
    parents: Any = None
    llm: Any = None

    def search(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        weights: Mapping[str, float] | None = None,
        fusion: Method | str | None = None,
        rerank: Any = None,
        history: Sequence[Any] = (),
        observe: Observer | None = None,
    ) -> Result:
        asked: dict[str, Any] = {"where": where, "require": require, "weights": weights, "history": history}
        return PipelineRetriever.search(self._varied(fusion, rerank), query, k, **asked, observe=observe)

    async def asearch(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        weights: Mapping[str, float] | None = None,
        fusion: Method | str | None = None,
        rerank: Any = None,
        history: Sequence[Any] = (),
        observe: AsyncObserver | None = None,
    ) -> Result:
        asked: dict[str, Any] = {"where": where, "require": require, "weights": weights, "history": history}
        return await PipelineRetriever.asearch(self._varied(fusion, rerank), query, k, **asked, observe=observe)

    def hybrid_search(
        self, text: str, top_k: int = 5, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Document]:
        """The best of the keyword and vector channels by RRF alone, under this retriever's filters.

        Cheap enough to be asked for each claim of an answer: no expansion, no reranking. See `Pipeline.hybrid_search`.
        """
        found = self.pipeline.hybrid_search(self._asked(text, where, require, None, ()), check_k(top_k))
        return _documents(found)

    async def ahybrid_search(
        self, text: str, top_k: int = 5, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Document]:
        """`hybrid_search` on the running event loop; the same documents."""
        pipeline = await aexecute(self._opened(), timeout=self.timeout)
        found = await pipeline.ahybrid_search(self._asked(text, where, require, None, ()), check_k(top_k))
        return await aexecute(converting(partial(_documents, found), len(found)))

    def _for_call(self, options: dict[str, Any]) -> PipelineRetriever:
        return self._varied(options.pop("fusion", None), options.pop("rerank", None))

    def _varied(self: C, fusion: Method | str | None, rerank: Any) -> C:
        """This retriever with a call's own fusion and reranking; it shares what was opened and made."""
        given = {"fusion": fusion, "rerank": rerank}
        said = {name: value for name, value in given.items() if value is not None}
        return self.model_copy(update=said) if said else self

    def _check(self) -> None:
        super()._check()
        method_of(self.fusion)
        self._reranker()
        if self.preset is None:
            if self.parents is not None:
                raise ConfigError(
                    "parents= is for the stage of that name of a preset: without one, put ParentExpander(store=...) "
                    "behind the retriever"
                )
            if self.llm is not None:
                raise ConfigError(NO_PRESET)
            _expanders(self.expansion)
            router_of(self.route)
            return
        if self.parents is not None:
            parent_store(self.parents)
        self._whole().refuse_unused(self.parents, self._graph_store(), self._llm())
        fields = {name: type(self).model_fields[name].get_default() for name in _COMPOSED}
        taken = [name for name, default in fields.items() if getattr(self, name) != default]
        if taken:
            raise ConfigError(f"the preset {self.preset!r} has its own {', '.join(taken)}: leave out one or the other")
        if not self._said("k"):
            self.k = self._preset().k

    def _preset(self) -> Preset:
        """The preset, with this retriever's timeout and on_error, and a call's fusion and rerank, where given."""
        preset = self._whole()
        given: dict[str, Any] = {name: getattr(self, name) for name in ("timeout", "on_error") if self._said(name)}
        if self.fusion is not None:
            given["method"] = method_of(self.fusion)
        if self.rerank is not None:
            preset = preset.with_reranker(self._reranker())
        return replace(preset, **given)

    def _whole(self) -> Preset:
        return self.made.get("preset", [self.preset], self._loaded)

    def _loaded(self) -> Preset:
        return self.preset if isinstance(self.preset, Preset) else load_preset(self.preset or "")

    def _over_base(self, base: Base, more: Mapping[str, Channel] | None = None) -> Pipeline:
        given, wanted = dict(more or {}), dict(_BOTH)
        if self.preset is not None:
            apart = {"graph"} if self._graph_store() is not None else set()
            channels = self._preset().channels
            wanted = {name: options for name, options in channels.items() if name not in (*given, *apart)}
        own = channels_there(base, wanted)
        return self._over(beside(own, given), base=base, notes=getattr(base, "notes", ()))

    def _llm(self) -> TextModel | None:
        return None if self.llm is None else self.made.get("llm", [self.llm], lambda: as_text_model(self.llm))

    def _graph_store(self) -> GraphStore | None:
        """The graph that is read in place of a base's, if one is given."""
        return None

    def _over(self, channels: Mapping[str, Channel], base: Base | None = None, **options: Any) -> Pipeline:
        given: dict[str, Any] = {"base": base, "graph": self._graph_store(), **options}
        if self.preset is not None:
            preset = self._preset()
            llm = self._llm() if preset.asks else None  # a call's `rerank` may leave nothing that asks one
            return preset.build(channels, llm=llm, parents=self.parents, **given)
        return compose(
            channels,
            weights=self.weights,
            depth=self.depth,
            fusion=method_of(self.fusion),
            expansion=[_rewriter(part) for part in _expanders(self.expansion)],
            rerank=self._reranker(),
            max_chunks_per_page=self.max_chunks_per_page,
            route=self.route,
            timeout=self.timeout,
            on_error=self.on_error,
            **given,
        )

    def _reranker(self) -> Stage | None:
        if self.rerank is None or self.rerank is False:
            return None
        return self.made.get("rerank", [self.rerank, *changing(self.rerank)], lambda: _stage(self.rerank))


def _documents(found: Ranking) -> list[Document]:
    degraded = found.skipped
    return [document_of(hit, degraded) for hit in found]


def _stage(rerank: Any) -> Stage:
    scorer = as_scorer(DEFAULT_MODEL if rerank is True else rerank)
    return CrossEncoderRerank(scorer) if isinstance(scorer, str | Scorer) else stage_of(scorer)


def _expanders(expansion: Any) -> list[Rewriter | QueryExpander]:
    """What expands a query: none, one or several; a chat model is a QueryExpander's."""
    if expansion is False:
        return []
    given = expansion if isinstance(expansion, list | tuple) else [expansion]
    return [part if isinstance(part, Rewriter | QueryExpander) else _expander(part) for part in given]


def _expander(part: Any) -> QueryExpander:
    return QueryExpander() if part is True else QueryExpander(llm=part)


def _rewriter(part: Rewriter | QueryExpander) -> Rewriter:
    return part.rewriter if isinstance(part, QueryExpander) else part


_BOTH: Mapping[str, Mapping[str, Any]] = {"bm25": {}, "dense": {}}
"""The channels of a knowledge base that are searched where no preset says it."""
_COMPOSED = ("weights", "depth", "expansion", "max_chunks_per_page", "route")

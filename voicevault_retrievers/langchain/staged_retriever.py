"""Retrievers of any package with stages behind them."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import ConfigurableFieldSpec
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import InstanceOf

from voicevault_retrievers.core.channel import MAX_DEPTH
from voicevault_retrievers.core.types import Query, Result
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.langchain.base import DEFAULT_K, PipelineRetriever
from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.langchain.models import bound_of
from voicevault_retrievers.langchain.retriever_options import asks_for_k, takes_k
from voicevault_retrievers.langchain.validation import LIVE
from voicevault_retrievers.pipeline.pipeline import Pipeline


class StagedRetriever(PipelineRetriever):
    """Any LangChain retriever, or runnable from a question to documents, with stages behind it: `retriever >> stage`.

    A retriever whose search takes `k`, and has no `k` set, is asked for as many documents as the stages need. Any other
    retriever returns as many as it is set to, also by `bind`, `configurable_fields` and similar wrappers; a call's `k`
    is passed on to it. The access rights (`require`) of a retriever of this package hold for the stages too.
    """

    retriever: Annotated[InstanceOf[Runnable], LIVE]  # type: ignore[type-arg]  # pydantic cannot check what it takes and gives
    on_error: OnError = "skip"

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """The fields of the retriever that a call can configure."""
        return self.retriever.config_specs

    def search(self, query: str | Query, k: int | None = None, **asked: Any) -> Result:
        return super(StagedRetriever, self._bound(k)).search(query, k, **asked)

    async def asearch(self, query: str | Query, k: int | None = None, **asked: Any) -> Result:
        return await super(StagedRetriever, self._bound(k)).asearch(query, k, **asked)

    def _for_call(self, options: dict[str, Any]) -> PipelineRetriever:
        return self._bound(options.get("k"))

    def _bound(self, k: int | None) -> StagedRetriever:
        """This retriever for one search; `k` is passed on to a retriever that has its own."""
        part = self.retriever
        if k is None or isinstance(part, PipelineRetriever) or asks_for_k(part) or not takes_k(bound_of(part)):
            return self
        return self.model_copy(update={"retriever": part.bind(k=k)})

    def _unstaged(self) -> Pipeline:
        return Pipeline(as_channel(self.retriever), timeout=self.timeout, on_error=self.on_error)


def staged(retriever: Runnable[str, list[Document]], compressor: Any) -> StagedRetriever:
    """A retriever with one stage behind it, which returns as many documents as the retriever does alone."""
    if not isinstance(retriever, Runnable):
        return NotImplemented  # lets Python raise the TypeError of an unsupported operand
    return StagedRetriever(retriever=retriever, stages=[compressor], k=_own_k(retriever))


def _own_k(retriever: Runnable[str, list[Document]]) -> int:
    """The number of documents that a retriever returns; MAX_DEPTH, which cuts nothing, where its owner has set it."""
    if not (isinstance(retriever, PipelineRetriever) or asks_for_k(retriever)):
        return MAX_DEPTH
    k = getattr(retriever, "k", None)
    if isinstance(retriever, VectorStoreRetriever):
        default = inspect.signature(type(retriever.vectorstore).similarity_search).parameters.get("k")
        k = None if default is None else default.default
    return k if isinstance(k, int) and k > 0 else DEFAULT_K

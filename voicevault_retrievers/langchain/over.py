"""Any retriever with stages behind it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import ConfigurableFieldSpec
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import InstanceOf

from voicevault_retrievers.channel import MAX_DEPTH
from voicevault_retrievers.filters import scope
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.langchain.models import bound_of
from voicevault_retrievers.pipeline import Pipeline
from voicevault_retrievers.types import Query


class StagedRetriever(PipelineRetriever):
    """Any LangChain retriever, or runnable from a question to documents, with stages behind it: `retriever >> stage`.

    The retriever is asked for as many documents as the stages need where its search takes `k`; any other gives what it
    is set to. The rights of a retriever of this package, `require`, hold for the stages too.
    """

    retriever: InstanceOf[Runnable]  # type: ignore[type-arg]  # pydantic cannot check what it takes and gives

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What the retriever can be configured with."""
        return self.retriever.config_specs

    def _asked(self, query: str | Query, *narrowing: Any) -> Query:
        asked, inner = super()._asked(query, *narrowing), bound_of(self.retriever)
        if not isinstance(inner, PipelineRetriever):
            return asked
        return replace(asked, require=scope(asked.require, inner.require))

    def _unstaged(self) -> Pipeline:
        return Pipeline(as_channel(self.retriever), timeout=self.timeout, on_error=self.on_error)


def staged(retriever: Runnable[str, list[Document]], compressor: Any) -> StagedRetriever:
    """A retriever with one stage behind it, which gives as many documents as the retriever would by itself."""
    if not isinstance(retriever, Runnable):
        return NotImplemented  # as operators do
    return StagedRetriever(retriever=retriever, stages=[compressor], k=_own_k(retriever))


def _own_k(retriever: Runnable[str, list[Document]]) -> int:
    """How many documents a retriever gives; what does not say is not cut."""
    part, k = bound_of(retriever), None
    if isinstance(part, VectorStoreRetriever):
        default = inspect.signature(type(part.vectorstore).similarity_search).parameters.get("k")
        k = part.search_kwargs.get("k", None if default is None else default.default)
    k = getattr(part, "k", k)
    if isinstance(k, int) and k > 0:
        return k
    takes_k = isinstance(part, BaseRetriever) and "k" in inspect.signature(part._get_relevant_documents).parameters
    return int(StagedRetriever.model_fields["k"].default) if takes_k else MAX_DEPTH

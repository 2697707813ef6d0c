"""Any retriever with stages behind it."""

from __future__ import annotations

from typing import Any

from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.utils import ConfigurableFieldSpec

from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.pipeline import Pipeline


class StagedRetriever(PipelineRetriever):
    """Any LangChain retriever with stages behind it: what `retriever >> compressor` gives.

    The retriever is asked for as many documents as the stages need where its search takes `k`; any other gives what it
    is set to.
    """

    retriever: BaseRetriever

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What the retriever can be configured with."""
        return self.retriever.config_specs

    def _unstaged(self) -> Pipeline:
        return Pipeline(as_channel(self.retriever), timeout=self.timeout, on_error=self.on_error)


def staged(retriever: Any, compressor: Any) -> StagedRetriever:
    """A retriever with one stage behind it; NotImplemented where it is no retriever, as for an operator."""
    if not isinstance(retriever, BaseRetriever):
        return NotImplemented  # type: ignore[no-any-return]  # as operators do
    return StagedRetriever(retriever=retriever, stages=[compressor])

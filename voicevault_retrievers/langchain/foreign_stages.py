"""Document compressors and transformers as stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_core.runnables import ensure_config

from voicevault_retrievers.adapters.foreign_stages import ForeignStage, Returned, own_stage
from voicevault_retrievers.core import stages
from voicevault_retrievers.core.access_control import found_under
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.event_loop import overrides
from voicevault_retrievers.core.stages import Headed
from voicevault_retrievers.core.types import Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.convert import PROVENANCE, document_of, header_of, hit_of, told_of

ID = "id"
"""The provenance key of a document's original id: some compressors return documents without an id."""


class CompressorStage(ForeignStage):
    """A LangChain document compressor or transformer as a stage; see `ForeignStage`.

    A returned document is matched to its hit by its id, or by its provenance. Its score is
    `metadata["relevance_score"]`.
    """

    def __init__(self, compressor: BaseDocumentCompressor | BaseDocumentTransformer) -> None:
        super().__init__(compressor)
        self.awaits = _awaits(compressor)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        documents = [_tagged(hit) for hit in found_under(ranking, query.require)]
        if isinstance(self.part, BaseDocumentTransformer):
            return self.arrived(query, ranking, map(_returned, self.part.transform_documents(documents)))
        found = self.part.compress_documents(documents, query.text, _callbacks())
        return self.arrived(query, ranking, map(_returned, found))

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        documents = [_tagged(hit) for hit in found_under(ranking, query.require)]
        if isinstance(self.part, BaseDocumentTransformer):
            return self.arrived(query, ranking, map(_returned, await self.part.atransform_documents(documents)))
        found = await self.part.acompress_documents(documents, query.text, _callbacks())
        return self.arrived(query, ranking, map(_returned, found))


def skippable(part: BaseDocumentCompressor | BaseDocumentTransformer | Stage) -> Stage:
    """A compressor, transformer or stage whose failure a search survives; see `stages.skippable`."""
    return stages.skippable(stage_of(part))


def stage_of(part: Any) -> Stage:
    """A stage from a document compressor or transformer. A compressor of this package gives its own stage and `top_n`.

    Raises ConfigError for a ContextReorder, which comes after all stages, and for anything else.
    """
    if (own := own_stage(part)) is not None:
        text_of = getattr(part, "text_of", None)
        return own if text_of is None else Headed(own, partial(header_of, text_of=text_of))
    if arranges(part):
        raise ConfigError(f"{type(part).__name__} comes last: the stages after it would rank by its order")
    if isinstance(part, BaseDocumentCompressor | BaseDocumentTransformer):
        return CompressorStage(part)
    raise ConfigError(f"a stage is a document compressor or a Stage, not a {type(part).__name__}")


def arranges(part: Any) -> bool:
    """Whether a compressor arranges documents for a reader and leaves their ranking as it is."""
    return getattr(part, "arranges", False) is True


def _awaits(compressor: BaseDocumentCompressor | BaseDocumentTransformer) -> bool:
    if isinstance(compressor, BaseDocumentTransformer):
        return overrides(compressor, BaseDocumentTransformer, "atransform_documents")
    return overrides(compressor, BaseDocumentCompressor, "acompress_documents")


def _callbacks() -> Callbacks:
    return ensure_config().get("callbacks")


def _tagged(hit: Hit) -> Document:
    document = document_of(hit)
    document.metadata[PROVENANCE][ID] = hit.id
    return document


def _returned(document: Document) -> Returned:
    """A document as a compressor returned it."""
    known_as = document.id or told_of(document).get(ID)
    hit = hit_of(document)
    chunk = replace(hit.chunk, text=document.page_content)
    return Returned(chunk, hit.score, None if known_as is None else str(known_as))

"""Stages after a search: this package's, and any document compressor of LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import ensure_config

from voicevault_retrievers.channel import Stage
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.langchain.convert import SCORE, document_of
from voicevault_retrievers.langchain.reorder import ContextReorder
from voicevault_retrievers.types import Hit, Query, Ranking, Vote


class CompressorStage(Stage):
    """Any document compressor of LangChain as a stage: keeps its order, and its scores where they fall.

    A text that it shortens becomes the hit's context. Raises RetrievalError where it gives a document that it was not
    given; documents are told by their ids.
    """

    blocking = True

    def __init__(self, compressor: BaseDocumentCompressor) -> None:
        super().__init__()
        self.compressor = compressor
        self.name = type(compressor).__name__
        self.awaits = type(compressor).acompress_documents is not BaseDocumentCompressor.acompress_documents

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        documents = [document_of(hit) for hit in ranking]
        found = self.compressor.compress_documents(documents, query.text, _callbacks()) if documents else []
        return self._ranking(ranking, found)

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        documents = [document_of(hit) for hit in ranking]
        found = await self.compressor.acompress_documents(documents, query.text, _callbacks()) if documents else []
        return self._ranking(ranking, found)

    def _ranking(self, ranking: Ranking, documents: Sequence[Document]) -> Ranking:
        given = {hit.id: hit for hit in ranking}
        strangers = [document.id for document in documents if document.id not in given]
        if strangers:
            raise RetrievalError(f"{self.name} gave documents that it was not given: {strangers[:3]}")
        kept = {document.id: document for document in documents}
        scores = _falling(list(kept.values()))
        hits = [
            _refined(given[str(chunk_id)], document, Vote(self.name, rank, score))
            for rank, ((chunk_id, document), score) in enumerate(zip(kept.items(), scores, strict=True), 1)
        ]
        return replace(ranking, hits=tuple(hits))

    def __repr__(self) -> str:
        return f"CompressorStage({self.name})"


def stage_of(part: Any) -> Stage:
    """A stage from a document compressor; one of this package's as it is.

    Raises ConfigError for a ContextReorder, which comes after all stages, and for anything else.
    """
    if isinstance(part, Stage):
        return part
    own = getattr(part, "stage", None)
    if isinstance(own, Stage):
        return own
    if isinstance(part, ContextReorder):
        raise ConfigError("ContextReorder comes last: the stages after it would rank by its order")
    if isinstance(part, BaseDocumentCompressor):
        return CompressorStage(part)
    raise ConfigError(f"a stage is a document compressor or a Stage, not a {type(part).__name__}")


def _callbacks() -> Callbacks:
    return ensure_config().get("callbacks")


def _refined(hit: Hit, document: Document, vote: Vote) -> Hit:
    context = hit.context if document.page_content == hit.text else document.page_content
    return replace(hit.voted(vote), score=vote.score, context=context)


def _falling(documents: Sequence[Document]) -> list[float | None]:
    """The documents' scores where each has one, and the order is theirs; else none, for the order says more."""
    given = [document.metadata.get(SCORE) for document in documents]
    scores = [float(score) for score in given if isinstance(score, int | float) and not isinstance(score, bool)]
    keys = [(-score, str(document.id)) for score, document in zip(scores, documents, strict=False)]
    falls = len(scores) == len(given) and keys == sorted(keys)
    return list(scores) if falls else [None] * len(given)

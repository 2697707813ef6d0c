"""Stages after a search: this package's, and any document compressor or transformer of LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_core.runnables import ensure_config

from voicevault_retrievers.channel import Stage
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.explanation import finite
from voicevault_retrievers.langchain.convert import PROVENANCE, SCORE, document_of, told_of
from voicevault_retrievers.stages import TopN
from voicevault_retrievers.types import Hit, Query, Ranking, Vote

ID = "id"
"""The key, beside the provenance, of the id that a document had: some compressors make documents without one."""


class CompressorStage(Stage):
    """Any document compressor of LangChain as a stage: keeps its order, and its scores where they fall.

    It is asked once, with as many documents as are wanted. A text that it changes is the hit's from then on, and so are
    the parts together that it splits one into: what was masked or left out is not read again. Raises RetrievalError
    where it gives a document that it was not given.
    """

    blocking = True
    refills = False

    def __init__(self, compressor: BaseDocumentCompressor | BaseDocumentTransformer) -> None:
        super().__init__()
        self.compressor = compressor
        self.name = type(compressor).__name__
        self.awaits = _awaits(compressor)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        documents = [_tagged(hit) for hit in ranking]
        if isinstance(self.compressor, BaseDocumentTransformer):
            return self._ranking(ranking, self.compressor.transform_documents(documents))
        return self._ranking(ranking, self.compressor.compress_documents(documents, query.text, _callbacks()))

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        documents = [_tagged(hit) for hit in ranking]
        if isinstance(self.compressor, BaseDocumentTransformer):
            return self._ranking(ranking, await self.compressor.atransform_documents(documents))
        return self._ranking(ranking, await self.compressor.acompress_documents(documents, query.text, _callbacks()))

    def _ranking(self, ranking: Ranking, documents: Sequence[Document]) -> Ranking:
        given = {hit.id: hit for hit in ranking}
        kept = _by_id(documents)
        if strangers := len(kept.keys() - given.keys()):
            raise RetrievalError(f"{self.name} gave {strangers} documents that it was not given, told by their ids")
        scored = zip(kept.items(), _falling(kept), strict=True)
        hits = [
            _refined(given[chunk_id], document, Vote(self.name, rank, score))
            for rank, ((chunk_id, document), score) in enumerate(scored, 1)
        ]
        return replace(ranking, hits=tuple(hits))

    def __repr__(self) -> str:
        return f"CompressorStage({self.name})"


def stage_of(part: Any) -> Stage:
    """A stage from a document compressor or transformer, which keeps its `top_n`; one of this package's as it is.

    Raises ConfigError for a ContextReorder, which comes after all stages, and for anything else.
    """
    own = part if isinstance(part, Stage) else getattr(part, "stage", None)
    if isinstance(own, Stage):
        top_n = getattr(part, "top_n", None)
        return own if isinstance(part, Stage) or top_n is None else TopN(own, top_n)
    if arranges(part):
        raise ConfigError(f"{type(part).__name__} comes last: the stages after it would rank by its order")
    if isinstance(part, BaseDocumentCompressor | BaseDocumentTransformer):
        return CompressorStage(part)
    raise ConfigError(f"a stage is a document compressor or a Stage, not a {type(part).__name__}")


def arranges(part: Any) -> bool:
    """Whether a compressor changes the order of documents for a reader, and not their ranking."""
    return getattr(part, "arranges", False) is True


def changing(part: Any) -> list[Any]:
    """What of a part may be another one later: its stage, of its present options, and how many it keeps."""
    return [getattr(part, "stage", None), getattr(part, "top_n", None)]


def _awaits(compressor: BaseDocumentCompressor | BaseDocumentTransformer) -> bool:
    if isinstance(compressor, BaseDocumentTransformer):
        return type(compressor).atransform_documents is not BaseDocumentTransformer.atransform_documents
    return type(compressor).acompress_documents is not BaseDocumentCompressor.acompress_documents


def _callbacks() -> Callbacks:
    return ensure_config().get("callbacks")


def _tagged(hit: Hit) -> Document:
    document = document_of(hit)
    document.metadata[PROVENANCE][ID] = hit.id
    return document


def _id_of(document: Document) -> str:
    return str(document.id or told_of(document).get(ID))


def _by_id(documents: Sequence[Document]) -> dict[str, Document]:
    """Documents by their ids; what a splitter made of one is one again."""
    kept: dict[str, Document] = {}
    for document in documents:
        first = kept.setdefault(_id_of(document), document)
        if first is not document:
            text = f"{first.page_content}\n\n{document.page_content}"
            kept[_id_of(document)] = first.model_copy(update={"page_content": text})
    return kept


def _refined(hit: Hit, document: Document, vote: Vote) -> Hit:
    voted = replace(hit.voted(vote), score=vote.score)
    if document.page_content == hit.text:
        return voted
    return replace(voted, chunk=replace(hit.chunk, text=document.page_content), context=None)


def _falling(kept: dict[str, Document]) -> list[float | None]:
    """The documents' scores where each has one, and the order is theirs; else none, for the order says more."""
    given = (finite(document.metadata.get(SCORE)) for document in kept.values())
    scores = [score for score in given if score is not None]
    keys = [(-score, chunk_id) for score, chunk_id in zip(scores, kept, strict=False)]
    falls = len(scores) == len(kept) and keys == sorted(keys)
    return list(scores) if falls else [None] * len(kept)

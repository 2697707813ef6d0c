"""Stages as document compressors."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import RunnableLambda

from voicevault_retrievers.channel import MAX_DEPTH, Stage
from voicevault_retrievers.diversity import PageCap
from voicevault_retrievers.drive import Plan, adrive, drive
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.checked import STRICT, Checked
from voicevault_retrievers.langchain.convert import PROVENANCE, SCORE, chunk_of, told_of
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL
from voicevault_retrievers.types import Hit, Query, Ranking

_LOG = logging.getLogger(__name__)


class StageCompressor(Checked[Stage], BaseDocumentCompressor):
    """A stage as a document compressor: gives new documents, and leaves those it was given as they are.

    Where the stage fails, `on_error` "skip" keeps the documents in their order, says so in
    `metadata["voicevault"]["degraded"]` and logs a warning; "raise" raises its error.
    """

    model_config = STRICT
    on_error: Literal["skip", "raise"] = "skip"

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        asked = {"query": query, "documents": list(documents)}
        return self._runnable().invoke(asked, {"callbacks": callbacks})

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        asked = {"query": query, "documents": list(documents)}
        return await self._runnable().ainvoke(asked, {"callbacks": callbacks})

    def _check(self) -> None:
        self._built()

    def _runnable(self) -> RunnableLambda[dict[str, Any], list[Document]]:
        """The work as a runnable: a compressor is none itself, and would not show in traces."""
        return RunnableLambda(self._compress, self._acompress, name=type(self).__name__)

    def _compress(self, asked: dict[str, Any]) -> list[Document]:
        return self._told(asked["documents"], drive(self._plan(**asked)))

    async def _acompress(self, asked: dict[str, Any]) -> list[Document]:
        return self._told(asked["documents"], await adrive(self._plan(**asked)))

    def _plan(self, query: str, documents: Sequence[Document]) -> Plan[Ranking]:
        ranking = yield from self._built().plan(Query(query), _ranking(documents))
        for failure in ranking.errors:
            if self.on_error == "raise" and failure.error is not None:
                raise failure.error
            _LOG.warning("%s kept the order it was given: %s", type(self).__name__, failure)
        return ranking

    def _told(self, documents: Sequence[Document], ranking: Ranking) -> list[Document]:
        degraded = [str(failure) for failure in ranking.errors]
        return [_annotated(documents[int(hit.id)], hit, degraded) for hit in ranking]


class CrossEncoderReranker(StageCompressor):
    """Puts documents in the order of a cross-encoder's logits, ties as they came, and keeps the first `top_n`.

    `scorer` is the name of a model, found on first use, or a Scorer. It reads the first `max_chars` characters of a
    document. `timeout` is in seconds; None waits. `metadata["relevance_score"]` becomes the logit, unbounded, higher is
    better, and `metadata["voicevault"]["rerank"]` has rank and score.
    """

    scorer: Any = DEFAULT_MODEL
    top_n: int | None = None
    max_chars: int = 2000
    timeout: float | None = None

    def _check(self) -> None:
        super()._check()
        if self.top_n is not None and self.top_n < 1:
            raise ConfigError(f"top_n is a whole number of at least 1, or None for all, not {self.top_n!r}")

    def _build(self) -> Stage:
        return CrossEncoderRerank(self.scorer, depth=MAX_DEPTH, max_chars=self.max_chars, timeout=self.timeout)

    def _told(self, documents: Sequence[Document], ranking: Ranking) -> list[Document]:
        return super()._told(documents, ranking)[: self.top_n]


class PageDiversityFilter(StageCompressor):
    """Drops documents beyond the first `max_chunks_per_page` of their page, and keeps the order of the others.

    A page is told by (source_file, page_number), (source, page) or (file_name, page_label) of the metadata. Documents
    without one are kept, unless `max_chunks_per_document` is set, which caps each file's.
    """

    max_chunks_per_page: int = 2
    max_chunks_per_document: int | None = None

    def _build(self) -> Stage:
        return PageCap(self.max_chunks_per_page, max_chunks_per_document=self.max_chunks_per_document)


def _ranking(documents: Sequence[Document]) -> Ranking:
    """The documents in their order, each by its place: two of them may have one id, and neither is to be lost."""
    chunks = (chunk_of(document.model_copy(update={"id": f"{at:09d}"})) for at, document in enumerate(documents))
    return Ranking(tuple(Hit(chunk) for chunk in chunks))


def _annotated(document: Document, hit: Hit, degraded: Sequence[str]) -> Document:
    """A copy of a document with what the stage said of it, beside what was said before."""
    told = copy.deepcopy(dict(told_of(document)))
    told |= {vote.stage: {"rank": vote.rank, "score": vote.score} for vote in hit.votes}
    if degraded:
        told["degraded"] = [*told.get("degraded", ()), *degraded]
    metadata = copy.deepcopy({key: value for key, value in document.metadata.items() if key != PROVENANCE})
    if told:
        metadata[PROVENANCE] = told
    if hit.score is not None:
        metadata[SCORE] = hit.score
    return document.model_copy(update={"metadata": metadata})

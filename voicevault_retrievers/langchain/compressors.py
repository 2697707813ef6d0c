"""Stages as document compressors: rerankers, page cap, deduplication."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from voicevault_retrievers._support.duplicates import duplicate
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, Plan
from voicevault_retrievers.core.explanation import after_stage, failures_in
from voicevault_retrievers.core.stages import ByPlace, place_id, place_of, settled, skipped_since
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, in_order
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.convert import PROVENANCE, SCORE, TextOf, hit_of, told_of, write_provenance
from voicevault_retrievers.langchain.events import below
from voicevault_retrievers.langchain.models import as_embedder, as_scorer, as_text_model
from voicevault_retrievers.langchain.staged_retriever import StagedRetriever, staged
from voicevault_retrievers.langchain.validation import LIVE, STRICT, Checked, GivenTextOf
from voicevault_retrievers.rerank import (
    MMR,
    Calibration,
    CrossEncoderRerank,
    LLMRerank,
    NearDuplicates,
    PageCap,
    RecencyRerank,
    RelevanceThreshold,
    WeightedRerank,
)
from voicevault_retrievers.rerank.blending import BLEND
from voicevault_retrievers.rerank.cross_encoder import BATCH, MAX_CANDIDATES, OPTIONS, Overtime
from voicevault_retrievers.rerank.likeness import By, by_place
from voicevault_retrievers.rerank.llm import PROMPT
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL

_LOG = logging.getLogger(__name__)


class StageCompressor(Checked[Stage], BaseDocumentCompressor):
    """A stage as a document compressor. It returns new documents and leaves its input unchanged.

    The stage sees how the documents were found (`metadata["voicevault"]`), and their scores where these fall. When the
    stage fails, `on_error` "skip" keeps the documents in their order, names the failure in
    `metadata["voicevault"]["degraded"]` and logs a warning; "raise" raises the stage's error. `text_of` says what a
    model reads before a document's text (a function of the document, or metadata keys); documents that were found with
    a header keep it.
    """

    model_config = STRICT
    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("docs", "documents", "nodes"), "`compress_documents(documents, query)`"),
        **dict.fromkeys(("base_compressor", "base_retriever"), "`retriever >> compressor`"),
    }
    on_error: Literal["skip", "raise"] = "skip"
    text_of: GivenTextOf = None

    @property
    def stage(self) -> Stage:
        """The same stage for a pipeline, which itself decides how many hits are kept."""
        return self._built()

    def __rrshift__(self, retriever: Runnable[str, list[Document]]) -> StagedRetriever:
        """`retriever >> compressor`, for a retriever of another package."""
        return staged(retriever, self)

    @checks_options
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        asked = {"query": query, "documents": list(documents)}
        return self._runnable().invoke(asked, {"callbacks": callbacks})

    @checks_options
    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        asked = {"query": query, "documents": list(documents)}
        return await self._runnable().ainvoke(asked, {"callbacks": callbacks})

    def _check(self) -> None:
        self._built()

    def _runnable(self) -> RunnableLambda[dict[str, Any], list[Document]]:
        """The stage as a runnable, so that it shows in traces: a compressor is no runnable."""
        return RunnableLambda(self._compress, self._acompress, name=type(self).__name__)

    def _compress(self, asked: dict[str, Any]) -> list[Document]:
        given = ranking_of(asked["documents"], self.text_of)
        return self._told(asked["documents"], given, execute(self._plan(asked["query"], given)))

    async def _acompress(self, asked: dict[str, Any], config: RunnableConfig) -> list[Document]:
        given = ranking_of(asked["documents"], self.text_of)
        with below(config):
            return self._told(asked["documents"], given, await aexecute(self._plan(asked["query"], given)))

    def _plan(self, query: str, given: Ranking) -> Plan[Ranking]:
        # Building may load a model, which would block an event loop.
        (stage,) = yield (Call("open", self._built, inline=self._is_built()),)
        if isinstance(stage, Exception):
            ranking = given.failing(Failure.of(type(self).__name__, stage))
        else:
            ranking = yield from self._placed(stage).plan(Query(query), given)
        return settled(given, ranking, self.on_error, type(self).__name__, _LOG)

    def _placed(self, stage: Stage) -> Stage:
        """The stage for hits whose ids are their places among the documents (see `place_id`)."""
        return stage

    def _told(self, documents: Sequence[Document], given: Ranking, ranking: Ranking) -> list[Document]:
        before = {hit.id: hit for hit in given}
        degraded = skipped_since(given, ranking)
        found = [_annotated(documents[place_of(hit.id)], before[hit.id], hit, degraded) for hit in ranking]
        if all((hit.votes, hit.score) == (before[hit.id].votes, before[hit.id].score) for hit in ranking):
            return found  # the stage kept the order: documents keep their scores, even scores of another order
        return [_scored(document, hit) for document, hit in zip(found, ranking, strict=True)]


class Reranker(StageCompressor):
    """A compressor that reorders documents and keeps the first `top_n`; None keeps all."""

    top_n: int | None = None

    def _check(self) -> None:
        super()._check()
        if self.top_n is not None and self.top_n < 1:
            raise ConfigError(f"top_n is a whole number of at least 1, or None for all, not {self.top_n!r}")

    def _told(self, documents: Sequence[Document], given: Ranking, ranking: Ranking) -> list[Document]:
        return super()._told(documents, given, ranking)[: self.top_n]


class CrossEncoderReranker(Reranker):
    """Reranks documents with a cross-encoder and keeps the first `top_n`. Documents with equal scores keep their order.

    `scorer` is the name of a model or a profile, loaded on first use, a Scorer, or a LangChain cross-encoder. The model
    reads `max_chars` characters of a document: the window that matches the query best, or with `passages="start"` the
    first. It scores all documents up to `max_candidates`, or the first `depth`. Behind a retriever (`>>`) the stage
    asks for `depth` documents, or for at least 20. After `timeout` seconds (None, the default, waits) the scored
    documents come first, and `degraded` says so. With `top_k` and `certainty` scoring stops as soon as the best are
    certain; for `sure`, `overtime` and `calibration` see `rerank.CrossEncoderRerank`. `metadata["relevance_score"]`
    becomes the score that orders the documents: a weighted sum of the place and the logit, in which `blend` is the
    weight of the logit. With `blend=1` it is the logit itself, unbounded, and the order of the input does not count.
    `metadata["voicevault"]["rerank"]` has the rank and, as score, the logit.
    """

    scorer: Any = DEFAULT_MODEL
    depth: int | None = None
    max_chars: int = 2000
    passages: Literal["window", "start"] = "window"
    max_candidates: int = MAX_CANDIDATES
    batch_size: int = BATCH
    top_k: int | None = None
    certainty: float | None = None
    sure: float | None = None
    blend: float = BLEND
    timeout: float | None = None
    overtime: Overtime = "stop"
    calibration: Calibration | None = None

    def _build(self) -> Stage:
        options = {name: getattr(self, name) for name in OPTIONS}
        return CrossEncoderRerank(as_scorer(self.scorer), depth=self.depth, **options)


class PageDiversityFilter(StageCompressor):
    """Keeps the first `max_chunks_per_page` documents of each page, in their order, and drops the others.

    File and page are those that common loaders write (see `core.pages`), or stand under `source_key` and `page_key`,
    which are metadata keys or dotted paths. Documents without a page are kept, unless `max_chunks_per_document` is set,
    which caps each file's documents; where no document has a page, a warning is logged. None means no cap.
    """

    max_chunks_per_page: int | None = 2
    max_chunks_per_document: int | None = None
    page_key: str | None = None
    source_key: str | None = None

    def _build(self) -> Stage:
        return PageCap(
            self.max_chunks_per_page,
            max_chunks_per_document=self.max_chunks_per_document,
            page_key=self.page_key,
            source_key=self.source_key,
        )


def ranking_of(documents: Sequence[Document], text_of: TextOf = None) -> Ranking:
    """The documents as a ranking; ids are their places. Scores are kept where the first has one and they fall."""
    hits = (hit_of(document, place_id(at, document.id), text_of) for at, document in enumerate(documents))
    return Ranking(in_order(hits), failures_in(map(told_of, documents)))


def _annotated(document: Document, before: Hit, hit: Hit, degraded: Sequence[str]) -> Document:
    """A copy of a document after the stage, with the stage's provenance added to what was there before."""
    said = {key: document.metadata[key] for key in (SCORE, PROVENANCE) if key in document.metadata}
    metadata = duplicate({**hit.chunk.metadata, **said})
    twin = document.model_copy(update={"page_content": hit.text, "metadata": metadata})
    if told := after_stage(told_of(twin), before, hit, degraded):
        write_provenance(twin, told)
    return twin


def _scored(document: Document, hit: Hit) -> Document:
    """The document with the score of a hit, or without a score. Changes the document: it must be the caller's own."""
    document.metadata.pop(SCORE, None)
    if hit.score is not None:
        document.metadata[SCORE] = hit.score
    return document


class MMRFilter(Reranker):
    """Orders documents by maximal marginal relevance and keeps the first `top_n`.

    `lambda_mult` is in [0, 1]: 1 orders by relevance alone, which is the score or the rank that a document came with.
    `by` is the similarity: "shingles", an `Embeddings`, an embedder, or a vector channel that has stored the documents,
    such as a knowledge base's. The stage orders all documents, or the first `depth`. Behind a retriever (`>>`) it asks
    for `depth` documents, or for at least 100. `metadata["relevance_score"]` becomes the marginal relevance. See
    `rerank.MMR`.
    """

    lambda_mult: float = 0.7
    by: Any = "shingles"
    depth: int | None = None
    timeout: float | None = None

    def _build(self) -> Stage:
        return MMR(self.lambda_mult, by=_by(self.by), depth=self.depth, timeout=self.timeout)

    def _placed(self, stage: Stage) -> Stage:
        return by_place(stage)


class NearDuplicateFilter(StageCompressor):
    """Drops each document that nearly repeats an earlier one, and keeps the order of the others.

    Two documents are near duplicates where their similarity is at least `threshold`; None is 0.8 for shingles, or a
    cosine of 0.95. `by` and `timeout` are as in `MMRFilter`. See `rerank.NearDuplicates`.
    """

    threshold: float | None = None
    by: Any = "shingles"
    timeout: float | None = None

    def _build(self) -> Stage:
        return NearDuplicates(self.threshold, by=_by(self.by), timeout=self.timeout)

    def _placed(self, stage: Stage) -> Stage:
        return by_place(stage)


def _by(by: Any) -> By:
    given: By = as_embedder(by) if isinstance(by, Embeddings) else by
    return given


class RelevanceFilter(StageCompressor):
    """Drops documents whose relevance is below `least`, in [0, 1], and keeps the order of the others.

    Relevance is in `metadata["voicevault"]["relevance"]`, where a CrossEncoderReranker has a calibration, or a
    `rerank.CalibratedRelevance` is among the stages. Raises ConfigError where no document has any. See
    `rerank.RelevanceThreshold`.
    """

    least: float

    def _build(self) -> Stage:
        return RelevanceThreshold(self.least)


class LLMReranker(Reranker):
    """Reranks documents with a language model and keeps the first `top_n`.

    `llm` is a chat model, an LLM, a runnable, a function, or the name of a chat model, which is looked up on first use.
    The model reads all documents, or the first `depth`, each whole or its first `max_chars` characters, in one prompt
    or `window` documents at a time. Documents that the model leaves out follow in the order given. `timeout` is in
    seconds for all prompts together; None waits. Documents have no `metadata["relevance_score"]` afterwards, because a
    model returns an order; the rank is in `metadata["voicevault"]["llm_rerank"]`. See `LLMRerank`, also for `window`,
    `stride` and `prompt`.
    """

    llm: Any
    top_n: int | None = 10
    depth: int | None = None
    max_chars: int | None = None
    window: int | None = None
    stride: int | None = None
    prompt: str = PROMPT
    timeout: float | None = None

    def _build(self) -> Stage:
        return LLMRerank(as_text_model(self.llm), **{name: getattr(self, name) for name in _LLM})

    def _options(self) -> list[Any]:
        return [*super()._options(), self.top_n]  # the prompt names top_n


class WeightedReranker(Reranker):
    """Orders documents by fused score, cosine, BM25 score and place in their file, and keeps the first `top_n`.

    The signals are read from `metadata["voicevault"]`, which this package's retrievers write, and the place from
    `chunk_index` and `chunks_in_file`. `weights` override {"fused": 0.4, "semantic": 0.3, "keyword": 0.2,
    "position": 0.1}. `dense` is a channel that returns the cosines, by id, of documents that only the keyword channel
    found, such as a knowledge base's. `metadata["relevance_score"]` becomes the weighted sum, and
    `metadata["voicevault"]["weighted"]` has its parts. See `WeightedRerank`.
    """

    weights: dict[str, float] | None = None
    depth: int | None = None
    scale_fused: bool | None = None
    dense: Annotated[Channel | None, LIVE] = None
    timeout: float | None = None
    chunk_index_key: str = "chunk_index"
    chunks_in_file_key: str = "chunks_in_file"

    def _build(self) -> Stage:
        return WeightedRerank(**{name: getattr(self, name) for name in _WEIGHTED})

    def _placed(self, stage: Stage) -> Stage:
        if self.dense is None:
            return stage
        twin: Any = copy.copy(stage)
        twin.dense = ByPlace(self.dense)
        return twin  # type: ignore[no-any-return]


class RecencyReranker(Reranker):
    """Promotes new documents: scaled score + `weight * 0.5 ** (age_days / half_life_days)`; keeps the first `top_n`.

    The date is `metadata[date_key]`: a datetime, a date, ISO 8601 text or seconds since 1970. The age is counted from
    `reference_date`, else from now. `metadata["relevance_score"]` becomes the sum, and
    `metadata["voicevault"]["recency"]` has its parts. See `RecencyRerank`.
    """

    weight: float = 0.1
    half_life_days: float = 30.0
    date_key: str = "date"
    reference_date: datetime | date | str | None = None
    depth: int | None = None

    def _build(self) -> Stage:
        return RecencyRerank(**{name: getattr(self, name) for name in _RECENCY})


_LLM = ("depth", "top_n", "max_chars", "window", "stride", "prompt", "timeout")
_WEIGHTED = ("weights", "depth", "scale_fused", "dense", "timeout", "chunk_index_key", "chunks_in_file_key")
_RECENCY = ("weight", "half_life_days", "date_key", "reference_date", "depth")

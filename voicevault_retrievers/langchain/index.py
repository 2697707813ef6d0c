"""A knowledge base as LangChain's document index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, TypeVar

from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, UpsertResponse

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import Plan, in_thread
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.base import ThreadedIndex
from voicevault_retrievers.langchain.bm25 import analyzer_of
from voicevault_retrievers.langchain.composed import ComposedRetriever
from voicevault_retrievers.langchain.convert import chunk_of, kept_document
from voicevault_retrievers.langchain.models import as_embedder
from voicevault_retrievers.langchain.validation import LIVE, STRICT, GivenTextOf
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import KnowledgeBase, Limits
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.names import locate, vacant

D = TypeVar("D", bound="HybridIndex")


class HybridIndex(ComposedRetriever, ThreadedIndex):
    """A knowledge base on disk as a retriever, and as a destination of LangChain's `index` and `aindex`.

    `kb` is an open knowledge base. Without vectors, only its keyword channel (`bm25`) is searched, else both channels
    (`bm25` and `dense`). Each change is one atomic commit. A search reads the last commit made through `kb`, by this
    index or another; commits of other processes are seen after `reload`. `where` and `require` apply to searches alone:
    `get` and `delete` reach all documents. `text_of` says what is indexed before a document's text: a function of the
    document, or metadata keys.

    The first change takes the base's lock; `close`, or the end of a `with` block, releases it. Changes raise
    LockedError while another process holds the lock, and ConfigError for metadata that is not JSON; tuples come back as
    lists.
    """

    model_config = STRICT
    kb: Annotated[KnowledgeBase, LIVE]
    text_of: GivenTextOf = None

    @classmethod
    def open(
        cls: type[D],
        base: str | Path,
        *,
        root: str | Path | None = None,
        embeddings: Any = None,
        language: str | None = "auto",
        analyzer: SavedAnalyzer | None = None,
        vectors: VectorSearch | None = None,
        wait: float = 0.0,
        limits: Limits | None = None,
        **options: Any,
    ) -> D:
        """Open the knowledge base that a name under `root`, or a Path, stands for; create it where there is none.

        `embeddings` are LangChain Embeddings, an Embedder, False for keywords alone, or None: all-MiniLM-L6-v2 in a new
        base, the base's own in an existing one. `language` chooses the stemmer and stopwords ("auto" detects each
        document's language, None uses neither); `analyzer` makes the terms instead. An existing base keeps its own
        analyzer, which need not be given again. `vectors`, `wait`, `limits` and errors are as in
        `KnowledgeBase.open_or_create`; `options` are this class's fields.
        """
        kb = open_base(
            base,
            root=root,
            embedding=embeddings,
            language=language,
            analyzer=analyzer,
            vectors=vectors,
            wait=wait,
            limits=limits,
        )
        return cls(kb=kb, **options)

    @classmethod
    async def aopen(cls: type[D], base: str | Path, **options: Any) -> D:
        """`open` in a worker thread; async embeddings are awaited."""
        return await aexecute(in_thread("open", partial(cls.open, base, **options)))

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add documents in one commit. A document replaces the one with the same id.

        The response has the ids in the documents' order. A document without an id gets a digest of its content as id,
        so that adding it again changes nothing. Unchanged documents are not embedded again. A document that cannot be
        stored raises an error and nothing is changed: `failed` is always empty. `kwargs` are those of
        `KnowledgeBase.add`, such as `parents`, which may be documents, and `progress`, which is called with (done,
        total) of the texts to embed.
        """
        chunks = [chunk_of(item, self.text_of) for item in items]
        if kwargs.get("parents"):
            kwargs["parents"] = [chunk_of(part) if isinstance(part, Document) else part for part in kwargs["parents"]]
        self.kb.add(dict.fromkeys(chunks), **kwargs)
        return UpsertResponse(succeeded=[chunk.id for chunk in chunks], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents in one commit; `num_deleted` counts the documents that were present.

        The documents are given by id, or in `kwargs` by a filter `where`, or by their file, `source`. Raises
        ConfigError unless exactly one of the three is given.
        """
        return DeleteResponse(num_deleted=self.kb.delete(ids, **kwargs), num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """The requested documents that are in the base, as they were upserted."""
        return [kept_document(chunk) for chunk in self.kb.get(ids, **kwargs).values()]

    def reload(self) -> bool:
        """Read what other processes have committed since. Returns whether there was anything new."""
        return self.kb.reload()

    def close(self) -> None:
        """Release the lock, so that others can write. Searches go on; a further change takes the lock again."""
        self.kb.close()

    def __enter__(self: D) -> D:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def channel(self) -> Channel:
        """This index as a channel for another pipeline, under its own filters; the channel follows the commits."""
        return _Live(self)

    def _built(self) -> Pipeline:
        if not self._is_built():
            self.made.forget(type(self).__name__, lambda options: options[-1] is not self.kb.parts)
        return super()._built()

    def _check(self) -> None:
        super()._check()
        self._preset(self._channel_names())

    def _channel_names(self) -> Sequence[str]:
        return ("bm25",) if self.kb.manifest.embedder is None else super()._channel_names()

    def _unstaged(self) -> Pipeline:
        commit = self.kb.view()
        if self.preset is None and self.kb.manifest.embedder is None:
            return self._over({"bm25": commit.bm25()}, notes=commit.notes, base=commit)
        return self._over_base(commit)

    def _options(self) -> list[Any]:
        return [*super()._options(), self.kb.parts]

    def _opened(self) -> Plan[Pipeline]:
        """Open the pipeline in a worker thread: the first search after a commit reads files."""
        return in_thread("open", lambda: self.pipeline)


def open_base(
    base: str | Path,
    *,
    root: str | Path | None = None,
    embedding: Any = None,
    language: str | None = "auto",
    analyzer: SavedAnalyzer | None = None,
    vectors: VectorSearch | None = None,
    wait: float = 0.0,
    limits: Limits | None = None,
) -> KnowledgeBase:
    """Open or create a knowledge base; as `HybridIndex.open`."""
    own = embedding is None and not vacant(locate(base, root))
    kb = KnowledgeBase.open_or_create(
        base,
        root=root,
        analyzer=analyzer if language == "auto" else analyzer_of(language, analyzer),  # type: ignore[arg-type]
        embedder=None if own or embedding is False else as_embedder(embedding),
        vectors=vectors,
        wait=wait,
        limits=limits,
    )
    if embedding is False and kb.manifest.embedder is not None:
        raise ConfigError(f"knowledge base {kb.name!r} holds vectors: open it without embeddings=False")
    return kb


class _Live(Channel):
    """An index as a channel. Each search reads the last commit; `below` is the channel of the previous search."""

    def __init__(self, index: HybridIndex) -> None:
        self.index = index
        self.below = self._now()
        self.name, self.kind = self.below.name, self.below.kind

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        below = self.below = yield from in_thread("open", self._now)
        return (yield from below.plan(query, k))

    def children(self) -> Mapping[str, Channel]:
        return {self.below.name: self.below}

    def _now(self) -> Channel:
        return self.index.pipeline.narrowed(self.index.where, self.index.require)

    def __repr__(self) -> str:
        return repr(self.index)

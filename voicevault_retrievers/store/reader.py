"""The search side: a knowledge base at one commit, and the channels over one or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.leaf import LeafChannel
from voicevault_retrievers.core.listing import Listing, merged
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Failure, Vector
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import ExactVectors
from voicevault_retrievers.dense.funnel import FunnelChannel, MatryoshkaFunnel
from voicevault_retrievers.errors import NotIndexedError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.chroma import ChromaCopy, SnapshotVectors
from voicevault_retrievers.store.live_curation import BaseGuard, CuratedBase, LiveCuration
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.snapshot import Snapshot

L = TypeVar("L", bound=LeafChannel)


class ChunkBatch(NamedTuple):
    """Chunks by ascending id; `vectors` (n, dimension) has a row for each, None where there are no vectors."""

    chunks: list[Chunk]
    vectors: NDArray[np.float32] | None


@dataclass(frozen=True, eq=False)
class View:
    """A knowledge base at one commit, unaffected by later writes; `prefix` precedes every id.

    Its channels do not find what `curation` blocks at the time of the search.
    """

    snapshot: Snapshot
    embedder: Callable[[], Embedder | None]
    chroma: ChromaCopy | None = None
    prefix: str = ""
    curation: LiveCuration | None = None

    @property
    def notes(self) -> tuple[Failure, ...]:
        """The failures that a search reports: that the base is empty, and that the end of its log is damaged."""
        name = self.snapshot.folder.name
        return (*damaged(name, self.snapshot), *(() if len(self) else (nothing_in(name),)))

    def curations(self) -> list[CuratedBase]:
        """The curation of this knowledge base; empty for a base without a place for one."""
        return [] if self.curation is None else [CuratedBase(self.curation, self.snapshot, self.prefix)]

    def __len__(self) -> int:
        return len(self.snapshot)

    def bm25(self, **options: Any) -> BM25:
        """The keyword channel; as `KnowledgeBase.bm25`."""
        return keyword_channel([self], self.snapshot.analyzer, **options)

    def dense(self, **options: Any) -> VectorChannel:
        """The vector channel; as `KnowledgeBase.dense`."""
        return vector_channel([self], self.embedder(), [self.snapshot.folder.name], **options)

    def batches(self, size: int = 1024, *, after: str | None = None, vectors: bool = True) -> Iterator[ChunkBatch]:
        """The chunks; as `KnowledgeBase.batches`."""
        return self._batches(whole("size", size), after, vectors and self.snapshot.manifest.embedder is not None)

    def _batches(self, size: int, after: str | None, vectors: bool) -> Iterator[ChunkBatch]:
        ids = (one for one in self.snapshot.ids() if after is None or self.prefix + one > after)
        while some := list(islice(ids, size)):
            chunks = [chunk.prefixed(self.prefix) for one in some if (chunk := self.snapshot.get(one)) is not None]
            yield ChunkBatch(chunks, np.array([self.snapshot.vector(one) for one in some]) if vectors else None)

    def iter_parents(self) -> Iterator[Chunk]:
        """The parents; as `KnowledgeBase.iter_parents`."""
        found = map(self.snapshot.parent, self.snapshot.parent_ids())
        return (parent.prefixed(self.prefix) for parent in found if parent is not None)

    @cached_property
    def parts(self) -> tuple[SearchedPart, ...]:
        own = self.snapshot.parts
        return tuple(part.renamed(_prefixed(part.rows, self.prefix)) for part in own) if self.prefix else own

    @property
    def index(self) -> ExactVectors | SnapshotVectors:
        """The vector index of a knowledge base that has vectors."""
        present = self.snapshot.manifest
        if self.chroma is None or present.dimension is None:
            return ExactVectors((part.dense for part in self.parts if part.dense), present.dimension or 0)
        return SnapshotVectors(
            self.parts, self.chroma, present.id, present.generation, present.dimension, prefix=self.prefix
        )


def keyword_channel(views: Iterable[View], analyzer: SavedAnalyzer, **options: Any) -> BM25:
    """BM25 over the chunks of all views as one collection."""
    given = list(views)
    index = LexicalIndex(part.lexical for view in given for part in view.parts)
    return guarded(BM25(index, analyzer, **options), given)


def vector_channel(
    views: Sequence[View],
    embedder: Embedder | None,
    kbs: Sequence[str],
    *,
    funnel: Mapping[str, Any] | None = None,
    **options: Any,
) -> VectorChannel:
    """Vector search over all views, through a `MatryoshkaFunnel` if its options are given in `funnel`.

    Raises NotIndexedError where the knowledge bases, named in `kbs`, have no embedder.
    """
    if embedder is None:
        raise NotIndexedError(keywords_only(*kbs))
    if funnel is not None:
        parts = (part.dense for view in views for part in view.parts if part.dense)
        index = MatryoshkaFunnel(ExactVectors(parts, embedder.dimension), **funnel)
        return guarded(FunnelChannel(index, embedder, **options), views)
    indices = [view.index for view in views]
    channel = VectorChannel(
        indices[0] if len(indices) == 1 else _Several(indices, embedder.dimension), embedder, **options
    )
    return guarded(channel, views)


def guarded(channel: L, views: Iterable[View]) -> L:
    """The channel, which does not find what is blocked in the knowledge bases of the views."""
    bases = tuple(base for view in views for base in view.curations())
    if bases:
        channel.guard = BaseGuard(bases)
    return channel


def nothing_in(name: str) -> Failure:
    """The note that a knowledge base is empty."""
    return Failure(name, "empty", f"knowledge base {name!r} holds no chunks and is not searched", degrades=False)


def damaged(name: str, snapshot: Snapshot) -> tuple[Failure, ...]:
    """The failure that the last record of a knowledge base's log is damaged; none where it is sound."""
    said = f"the last record in the log of knowledge base {name!r} is damaged and is not read: index again what was "
    return () if snapshot.damage is None else (Failure(name, "damaged", f"{said}added last"),)


def keywords_only(*names: str) -> str:
    """The message that knowledge bases have no vectors, and how to add them."""
    first, named = names[0], " and ".join(map(repr, names))
    return (
        f"knowledge base {named} was created without an embedder and is searched by keywords only; to have vectors, "
        f"copy it: `voicevault kb export {first} -o {first}.jsonl`, then `voicevault kb import {first}.jsonl --kb NEW "
        "--model all-MiniLM-L6-v2`; in Python export(kb, file), then restore(file, NEW, embedder=...)"
    )


@dataclass(frozen=True, eq=False)
class _Several:
    """Several vector indexes as one; each id is in one of them."""

    indices: Sequence[ExactVectors | SnapshotVectors]
    dimension: int
    local = True

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Listing[Found]:
        return merged([index.nearest(vector, k, where=where, require=require) for index in self.indices], k)

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for index in self.indices:
            found.update(index.similarities(vector, ids, where=where, require=require) or {})
        return found

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        wanted = list(ids)
        return {chunk_id: row for index in self.indices for chunk_id, row in index.vectors(wanted).items()}


def _prefixed(rows: Rows, prefix: str) -> Rows:
    def chunk(at: int) -> Chunk:
        return rows.chunks[at].prefixed(prefix)

    ids = Lazy(len(rows), lambda at: prefix + rows.ids[at])
    return Rows(Lazy(len(rows), chunk), ids, rows.live, rows.columns)

"""The channels of a knowledge base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.fusion.hybrid import HybridSearch
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.store.curation import Curation
from voicevault_retrievers.store.graphs import KeptGraph, SnapshotGraph, graph_channel
from voicevault_retrievers.store.live_curation import CuratedBase, LiveCuration
from voicevault_retrievers.store.questions import question_channel
from voicevault_retrievers.store.reader import ChunkBatch, View, guarded
from voicevault_retrievers.structure.graph import GraphChannel
from voicevault_retrievers.structure.questions import QuestionChannel


class Searched(HybridSearch, ABC):
    """A search source at its present commit."""

    _graphs: KeptGraph
    _curation: LiveCuration

    @property
    @abstractmethod
    def path(self) -> Path: ...

    @property
    def name(self) -> str:
        return self.path.name

    @abstractmethod
    def view(self, prefix: str = "") -> View: ...

    def batches(self, size: int = 1024, *, after: str | None = None, vectors: bool = True) -> Iterator[ChunkBatch]:
        """The chunks with their vectors, `size` at a time, by ascending id: for a copy in another engine.

        All chunks are of the commit that is present at the call, whatever is written meanwhile. To resume a copy that
        was cut off, give as `after` the id of the last chunk copied. A batch's `vectors` are float32 (n, dimension), of
        length 1; None without an embedder, or where `vectors` is false. Raises ConfigError for a size that is not above
        0.
        """
        return self.view().batches(size, after=after, vectors=vectors)

    def iter_parents(self) -> Iterator[Chunk]:
        """All parents of the present commit, by ascending id."""
        return self.view().iter_parents()

    def bm25(self, **options: Any) -> BM25:
        """The keyword channel over the present chunks; `options` are those of `BM25`."""
        return self.view().bm25(**options)

    def dense(self, **options: Any) -> VectorChannel:
        """The vector channel over the present chunks; `options` are those of `VectorChannel`.

        With `funnel`, the options of a `MatryoshkaFunnel` (`{}` for the defaults), the vectors are searched through a
        funnel. Raises ConfigError in a base for keywords only, and what `embedder` raises.
        """
        return self.view().dense(**options)

    def questions(self, **options: Any) -> QuestionChannel:
        """The channel over the questions that chunks answer; as `store.questions.question_channel`."""
        return question_channel(self, **options)

    def graph(self, **options: Any) -> GraphChannel:
        """The channel over the references of the present chunks.

        `options` are `hops`, and those of `GraphChannel` except `depth`. The graph is built when first searched;
        `store.graphs.update_graph` keeps it in a file.
        """
        return guarded(graph_channel(self.references(), **options), [self.view()])

    @property
    def curation(self) -> Curation | None:
        """The curation that is in force: synonyms, pinned and blocked documents; None where there is none.

        It is in the file `curation.yaml` in the folder, which a search reads again when it has changed.
        """
        return self._curation.now().curation

    def unresolved_curation(self) -> list[str]:
        """What the curation names that is not in the knowledge base, one line each, with the nearest name."""
        return [line for base in self.curations() if (rules := base.rules) is not None for line in rules.unresolved()]

    def curations(self) -> list[CuratedBase]:
        """The curation with the present chunks, for a pipeline."""
        return self.view().curations()

    def references(self) -> SnapshotGraph:
        """The graph of the references of the present chunks, for `GraphExpansion`."""
        return self._graphs.of([self.view()], self.path)

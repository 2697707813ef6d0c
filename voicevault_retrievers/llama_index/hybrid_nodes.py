"""Changes and searches of a HybridVectorStore's nodes: of its knowledge base and its vectors together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult

from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.filters import Filter, compile_filter, says_nothing
from voicevault_retrievers.core.leaf import LeafChannel
from voicevault_retrievers.core.types import PARENT_TYPE, Chunk, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import Method
from voicevault_retrievers.llama_index.convert import REF_DOC, chunk_of, node_of, node_of_hit, stored
from voicevault_retrievers.llama_index.external_vectors import Calling, Vectors
from voicevault_retrievers.llama_index.vector_query import searching
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.reader import guarded

_LOG = logging.getLogger(__name__)


class HybridNodes:
    """The operations of a HybridVectorStore, as plans whose calls a `Calling` makes.

    A change takes the base's lock before it reads anything, so that it covers the commits of others too. Where another
    process is writing, or a node cannot be stored, the vectors stay unchanged.
    """

    def __init__(
        self,
        base: KnowledgeBase,
        vectors: Vectors,
        fusion: Method | None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
    ) -> None:
        self.base = base
        self.vectors = vectors
        self.fusion = fusion
        self.metadata_mode = metadata_mode
        self._searched: tuple[object, Mapping[str, LeafChannel]] = (None, {})

    def nodes(self, node_ids: Sequence[str] | None, where: Filter | None) -> list[BaseNode]:
        """The nodes with these ids, or all nodes, that pass a filter."""
        return [node_of(chunk) for chunk in self._chunks(node_ids, where)]

    def adding(self, nodes: Sequence[BaseNode], call: Calling) -> Plan[list[str]]:
        """A plan that adds nodes and returns their ids. Parents are stored without their embedding and not searched."""
        every = list({node.node_id: node for node in nodes}.values())
        given = [node for node in every if PARENT_TYPE not in node.metadata.items()]
        rows = yield from call(partial(self.vectors.checked, given))
        above = [node for node in every if PARENT_TYPE in node.metadata.items()]
        chunks = yield from call(lambda: [stored(chunk_of(node, self.metadata_mode)) for node in given])
        parents = yield from call(lambda: [stored(chunk_of(node, self.metadata_mode)) for node in above])
        yield from self.vectors.adding(given, chunks, call)
        yield from call(partial(self.base.add, chunks, rows, parents=parents))
        return [node.node_id for node in nodes]

    def forgetting(self, ref_doc_id: str, call: Calling) -> Plan[None]:
        """A plan that deletes the nodes of a document."""
        yield from call(self.base.hold)
        ids = yield from call(partial(self._ids, None, {REF_DOC: ref_doc_id}))
        afterwards = self.vectors.forgetting(ref_doc_id, ids, call)
        yield from call(partial(self.base.delete, ids))
        yield from afterwards

    def deleting(self, node_ids: Sequence[str] | None, where: Filter | None, call: Calling) -> Plan[None]:
        """A plan that deletes the nodes with these ids that pass a filter; ConfigError without either."""
        if node_ids is None and where is None:
            raise ConfigError("say which nodes to delete: node_ids, filters or both; clear() deletes all of them")
        if where is not None and says_nothing(where):
            raise ConfigError("the filters have a part that says nothing: say what is to go, or use clear()")
        yield from call(self.base.hold)
        ids = yield from call(partial(self._ids, node_ids, where))
        afterwards = self.vectors.removing(ids, call)
        yield from call(partial(self.base.delete, ids))
        yield from afterwards

    def clearing(self, call: Calling) -> Plan[None]:
        """A plan that deletes all nodes."""
        yield from call(self.base.hold)
        afterwards = self.vectors.clearing(call)
        yield from call(self.base.clear)
        yield from afterwards

    def querying(self, asked: VectorStoreQuery, call: Calling) -> Plan[VectorStoreQueryResult]:
        """A plan that returns the nodes that match a query."""
        channels = yield from call(self._channels)
        ranking = yield from searching(asked, channels, self.base.get, self._ids, self.vectors.fingerprint, self.fusion)
        return (yield from call(partial(_result, ranking)))

    def _channels(self) -> Mapping[str, LeafChannel]:
        """The two channels over the current chunks, both of one commit."""
        view = self.base.view()
        searched = self._searched
        if searched[0] is not view.snapshot:
            dense = guarded(self.vectors.channel(view), [view])
            searched = self._searched = view.snapshot, {"bm25": view.bm25(), "dense": dense}
        return searched[1]

    def _ids(self, node_ids: Sequence[str] | None, where: Filter | None) -> list[str]:
        if node_ids is None and where is not None:
            return sorted(self.base.view().snapshot.matching(where))
        return [chunk.id for chunk in self._chunks(node_ids, where)]

    def _chunks(self, node_ids: Sequence[str] | None, where: Filter | None) -> list[Chunk]:
        if node_ids is not None:
            passes = compile_filter(where)
            return [chunk for chunk in self.base.get(node_ids).values() if passes(chunk.metadata)]
        snapshot = self.base.view().snapshot
        found = (snapshot.get(chunk_id) for chunk_id in sorted(snapshot.matching(where or {})))
        return [chunk for chunk in found if chunk is not None]


def _result(ranking: Ranking) -> VectorStoreQueryResult:
    skipped = ranking.skipped
    log_failures(_LOG, "HybridVectorStore", ranking.errors)
    scores = [hit.score for hit in ranking if hit.score is not None]
    return VectorStoreQueryResult(
        nodes=[node_of_hit(hit, skipped).node for hit in ranking],
        similarities=scores if len(scores) == len(ranking) else None,
        ids=list(ranking.ids),
    )

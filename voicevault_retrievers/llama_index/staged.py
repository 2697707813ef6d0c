"""Stages after a search: this package's, and any node postprocessor of LlamaIndex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from voicevault_retrievers.channel import Stage
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import compile_filter
from voicevault_retrievers.llama_index.convert import chunk_of, node_of
from voicevault_retrievers.llama_index.node import hit_of, node_of_hit
from voicevault_retrievers.stages import TopN, in_order
from voicevault_retrievers.types import ANY_EMBEDDER, Hit, Query, Ranking, Vote

# Kept beside a node's fields, as its provenance is: nodes of several knowledge bases may have one id.
_HIT = "_voicevault_hit"


class PostprocessorStage(Stage):
    """Any node postprocessor of LlamaIndex as a stage: keeps its order, and its scores where they fall.

    It is asked once, with as many nodes as are wanted, which are copies. A node whose text it changes is the hit's from
    then on, and so are the parts together that it splits one into: what was masked or left out is not read again. A
    node that it adds becomes a hit with this stage's vote; one that the query's `require` does not permit is left out.
    Raises InvalidScoreError where it gives a score that is NaN or infinite.
    """

    blocking = True
    refills = False

    def __init__(self, postprocessor: BaseNodePostprocessor) -> None:
        super().__init__()
        self.postprocessor = postprocessor
        self.name = type(postprocessor).__name__
        self.awaits = _awaits(postprocessor)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        asked = [_marked(hit) for hit in ranking]
        ids = _ids(asked)
        return self._ranking(query, ranking, ids, self.postprocessor.postprocess_nodes(asked, bundle_of(query)))

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        asked = [_marked(hit) for hit in ranking]
        ids = _ids(asked)
        return self._ranking(query, ranking, ids, await self.postprocessor.apostprocess_nodes(asked, bundle_of(query)))

    def _ranking(self, query: Query, ranking: Ranking, ids: dict[str, str], found: Sequence[NodeWithScore]) -> Ranking:
        given = {hit.id: hit for hit in ranking}
        permitted = compile_filter(query.require)
        parts: dict[str, list[NodeWithScore]] = {}
        for node in found:
            parts.setdefault(node.node.__dict__.get(_HIT) or ids.get(node.node_id, node.node_id), []).append(node)
        known = [(given.get(chunk_id) or hit_of(nodes[0]), nodes) for chunk_id, nodes in parts.items()]
        kept = [(hit, nodes) for hit, nodes in known if hit.id in given or permitted(hit.chunk.metadata)]
        hits = (_refined(hit, nodes, self.name, rank) for rank, (hit, nodes) in enumerate(kept, 1))
        return replace(ranking, hits=in_order(hits))

    def __repr__(self) -> str:
        return f"PostprocessorStage({self.name})"


def stage_of(part: Any) -> Stage:
    """A stage from a node postprocessor, which keeps its `top_n`; one of this package's as it is.

    Raises ConfigError for anything else.
    """
    own = part if isinstance(part, Stage) else getattr(part, "stage", None)
    if isinstance(own, Stage):
        top_n = getattr(part, "top_n", None)
        return own if isinstance(part, Stage) or top_n is None else TopN(own, top_n)
    if isinstance(part, BaseNodePostprocessor):
        return PostprocessorStage(part)
    raise ConfigError(f"a stage is a node postprocessor or a Stage, not a {type(part).__name__}")


def bundle_of(query: Query) -> QueryBundle:
    """A new bundle of the query's own text and its vector."""
    vector = query.vectors.get(ANY_EMBEDDER)
    return QueryBundle(query.text, embedding=None if vector is None else vector.tolist())


def _awaits(postprocessor: BaseNodePostprocessor) -> bool:
    """False where the async call is the library's, which runs the sync one in asyncio's threads."""
    own, base = type(postprocessor), BaseNodePostprocessor
    return any(getattr(own, name) is not getattr(base, name) for name in ("apostprocess_nodes", "_apostprocess_nodes"))


def _marked(hit: Hit) -> NodeWithScore:
    node = node_of_hit(hit)
    node.node.__dict__[_HIT] = hit.id
    return node


def _ids(asked: Sequence[NodeWithScore]) -> dict[str, str]:
    """The hits' ids by the nodes' own, of equal ones the first, for nodes that are made anew."""
    return {node.node_id: node.node.__dict__[_HIT] for node in reversed(asked)}


def _refined(hit: Hit, nodes: Sequence[NodeWithScore], stage: str, rank: int) -> Hit:
    """A hit after a stage, which gave these nodes for it."""
    texts = dict.fromkeys(node.node.get_content(metadata_mode=MetadataMode.NONE) for node in nodes)
    text = "\n\n".join(texts)
    score = None if nodes[0].score is None else float(nodes[0].score)
    voted = replace(hit.voted(Vote(stage, rank, score)), score=score)
    if text == hit.text:
        return voted
    node = node_of(chunk_of(nodes[0].node), text)
    # The metadata stay what filters and rights have looked at.
    return replace(
        voted, chunk=replace(chunk_of(node), id=hit.id, kb=hit.chunk.kb, metadata=hit.chunk.metadata), context=None
    )

"""Stages after a search: this package's, and any node postprocessor of LlamaIndex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from voicevault_retrievers.adapters.foreign_stages import ForeignStage, Returned, own_stage
from voicevault_retrievers.core import stages
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.event_loop import overrides
from voicevault_retrievers.core.types import ANY_EMBEDDER, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.convert import chunk_of, node_of_hit

# Kept beside a node's fields, as its provenance is: nodes of several knowledge bases may have one id.
_HIT = "_voicevault_hit"


class PostprocessorStage(ForeignStage):
    """A node postprocessor of LlamaIndex's as a stage, see `ForeignStage`. It is given copies.

    A node is told by its id; one with another is new.
    """

    def __init__(self, postprocessor: BaseNodePostprocessor) -> None:
        super().__init__(postprocessor)
        self.awaits = _awaits(postprocessor)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        asked = [_marked(hit) for hit in ranking]
        ids = _ids(asked)
        found = self.part.postprocess_nodes(asked, bundle_of(query))
        return self.arrived(query, ranking, [_returned(node, ids) for node in found])

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        asked = [_marked(hit) for hit in ranking]
        ids = _ids(asked)
        found = await self.part.apostprocess_nodes(asked, bundle_of(query))
        return self.arrived(query, ranking, [_returned(node, ids) for node in found])


def skippable(part: BaseNodePostprocessor | Stage) -> Stage:
    """A postprocessor or stage without which a search goes on where it fails, see `stages.skippable`."""
    return stages.skippable(stage_of(part))


def stage_of(part: Any) -> Stage:
    """A stage from a node postprocessor; of one of this package's its own, which keeps its `top_n`.

    Raises ConfigError for anything else.
    """
    if (own := own_stage(part)) is not None:
        return own
    if isinstance(part, BaseNodePostprocessor):
        return PostprocessorStage(part)
    raise ConfigError(f"a stage is a node postprocessor or a Stage, not a {type(part).__name__}")


def bundle_of(query: Query) -> QueryBundle:
    """A new bundle of the query's own text and its vector."""
    vector = query.vectors.get(ANY_EMBEDDER)
    return QueryBundle(query.text, embedding=None if vector is None else vector.tolist())


def _awaits(postprocessor: BaseNodePostprocessor) -> bool:
    """False where the async call is the library's, which runs the sync one in asyncio's threads."""
    calls = ("apostprocess_nodes", "_apostprocess_nodes")
    return any(overrides(postprocessor, BaseNodePostprocessor, call) for call in calls)


def _marked(hit: Hit) -> NodeWithScore:
    node = node_of_hit(hit)
    node.node.__dict__[_HIT] = hit.id
    return node


def _ids(asked: Sequence[NodeWithScore]) -> dict[str, str]:
    """The hits' ids by the nodes' own, of equal ones the first, for nodes that are made anew."""
    return {node.node_id: node.node.__dict__[_HIT] for node in reversed(asked)}


def _returned(node: NodeWithScore, ids: dict[str, str]) -> Returned:
    """A node as a postprocessor returned it."""
    first = ids.get(node.node_id)
    known_as = None if first is None else node.node.__dict__.get(_HIT, first)
    score = None if node.score is None else float(node.score)
    return Returned(chunk_of(node.node), score, known_as)

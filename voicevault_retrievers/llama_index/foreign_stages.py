"""Node postprocessors as stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from voicevault_retrievers.adapters.foreign_stages import ForeignStage, Returned, own_stage
from voicevault_retrievers.core import stages
from voicevault_retrievers.core.access_control import found_under
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.event_loop import overrides
from voicevault_retrievers.core.types import ANY_EMBEDDER, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.convert import chunk_of, node_of_hit

# Beside the node's fields, as the provenance is: nodes of several knowledge bases may share an id.
_HIT = "_voicevault_hit"


class PostprocessorStage(ForeignStage):
    """A LlamaIndex node postprocessor as a stage; see `ForeignStage`. It gets copies of the nodes.

    A returned node is matched to its hit by its id; a node with another id is new.
    """

    def __init__(self, postprocessor: BaseNodePostprocessor) -> None:
        super().__init__(postprocessor)
        self.awaits = _awaits(postprocessor)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        asked = [_marked(hit) for hit in found_under(ranking, query.require)]
        ids = _ids(asked)
        found = self.part.postprocess_nodes(asked, bundle_of(query))
        return self.arrived(query, ranking, [_returned(node, ids) for node in found])

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        asked = [_marked(hit) for hit in found_under(ranking, query.require)]
        ids = _ids(asked)
        found = await self.part.apostprocess_nodes(asked, bundle_of(query))
        return self.arrived(query, ranking, [_returned(node, ids) for node in found])


def skippable(part: BaseNodePostprocessor | Stage) -> Stage:
    """A postprocessor or stage whose failure a search survives; see `stages.skippable`."""
    return stages.skippable(stage_of(part))


def stage_of(part: Any) -> Stage:
    """A stage from a node postprocessor. A postprocessor of this package gives its own stage and `top_n`.

    Raises ConfigError for anything else.
    """
    if (own := own_stage(part)) is not None:
        return own
    if isinstance(part, BaseNodePostprocessor):
        return PostprocessorStage(part)
    raise ConfigError(f"a stage is a node postprocessor or a Stage, not a {type(part).__name__}")


def bundle_of(query: Query) -> QueryBundle:
    """A new bundle with the query's text and vector."""
    vector = query.vectors.get(ANY_EMBEDDER)
    return QueryBundle(query.text, embedding=None if vector is None else vector.tolist())


def _awaits(postprocessor: BaseNodePostprocessor) -> bool:
    """Whether a postprocessor has its own async call: LlamaIndex's default runs the sync call in asyncio's threads."""
    calls = ("apostprocess_nodes", "_apostprocess_nodes")
    return any(overrides(postprocessor, BaseNodePostprocessor, call) for call in calls)


def _marked(hit: Hit) -> NodeWithScore:
    node = node_of_hit(hit)
    node.node.__dict__[_HIT] = hit.id
    return node


def _ids(asked: Sequence[NodeWithScore]) -> dict[str, str]:
    """The hits' ids by node id, the first of equal ones, for nodes that a postprocessor recreates."""
    return {node.node_id: node.node.__dict__[_HIT] for node in reversed(asked)}


def _returned(node: NodeWithScore, ids: dict[str, str]) -> Returned:
    """A node as a postprocessor returned it."""
    first = ids.get(node.node_id)
    known_as = None if first is None else node.node.__dict__.get(_HIT, first)
    score = None if node.score is None else float(node.score)
    return Returned(chunk_of(node.node), score, known_as)


def stages_of(parts: Sequence[BaseNodePostprocessor | Stage]) -> tuple[BaseNodePostprocessor | Stage, ...]:
    """The postprocessors, each checked to be a stage; ConfigError for one that is not."""
    if not isinstance(parts, Iterable):
        raise ConfigError(f"node_postprocessors are a list of node postprocessors or Stages, not {parts!r}")
    given = tuple(parts)
    for part in given:
        stage_of(part)
    return given

"""LlamaIndex: access rights, and what a search skipped, go with the nodes through any part of LlamaIndex between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import MockEmbedding
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever, TransformRetriever
from llama_index.core.schema import IndexNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from tests.helpers import Adding
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    CitedQueryEngine,
    HybridRetriever,
    NodeWithProvenance,
    ParentExpansionPostprocessor,
    provenance,
)

RIGHTS = {"acl": "a"}
TEXT, SECRET = "The pump hums.", "SECRET manual of the pump"
MODEL = MockEmbedding(embed_dim=8)


def child() -> TextNode:
    above = {NodeRelationship.PARENT: RelatedNodeInfo(node_id="P")}
    return TextNode(id_="c", text=TEXT, metadata=RIGHTS, relationships=above)


def expander() -> ParentExpansionPostprocessor:
    return ParentExpansionPostprocessor({"P": TextNode(id_="P", text=SECRET, metadata={"acl": "b"})})


def retriever() -> HybridRetriever:
    return HybridRetriever.from_nodes([child()], embed_model=MODEL, require=RIGHTS)


def fused(*retrievers: BaseRetriever) -> QueryFusionRetriever:
    return QueryFusionRetriever(list(retrievers), llm=MockLLM(), num_queries=1)


PARTS: dict[str, Callable[[], BaseRetriever]] = {
    "of its own": retriever,
    "transformed": lambda: TransformRetriever(retriever(), IdentityQueryTransform()),
    "fused": lambda: fused(retriever(), BM25Retriever.from_nodes([child()], require=RIGHTS)),
    "a channel": lambda: HybridRetriever(channels={"x": retriever()}),
    "channels": lambda: HybridRetriever(
        channels={"x": retriever(), "y": BM25Retriever.from_nodes([child()], require=RIGHTS)}
    ),
    "a wrapped channel": lambda: HybridRetriever(
        channels={"x": TransformRetriever(retriever(), IdentityQueryTransform())}
    ),
}


@pytest.mark.parametrize(
    "stage",
    [expander, lambda: Adding(Chunk("s", SECRET, None, {"acl": "b"}))],
    ids=["a parent", "a stage of somebody's"],
)
@pytest.mark.parametrize("part", PARTS)
def test_a_stage_adds_nothing_that_the_rights_of_the_search_behind_it_do_not_permit(
    part: str, stage: Callable[[], Any]
) -> None:
    found_by = PARTS[part]()
    own = found_by if isinstance(found_by, HybridRetriever) else HybridRetriever(channels={"x": found_by})
    staged: Any = own >> stage()
    for found in (staged.retrieve("pump"), asyncio.run(staged.aretrieve("pump"))):
        assert [node.node.get_content() for node in found] == [TEXT]


@pytest.mark.parametrize("part", PARTS)
def test_nor_does_a_postprocessor_of_an_engine(part: str) -> None:
    made: list[Any] = [CitedQueryEngine, RetrieverQueryEngine.from_args]
    for make in made:
        engine = make(PARTS[part](), llm=MockLLM(), node_postprocessors=[expander()])
        for answer in (engine.query("pump"), asyncio.run(engine.aquery("pump"))):
            assert [node.node.get_content() for node in answer.source_nodes] == [TEXT]


def test_what_a_search_skipped_is_told_behind_any_part() -> None:
    class Down(MockEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            raise ConnectionError

        async def _aget_query_embedding(self, query: str) -> list[float]:
            raise ConnectionError

    own = HybridRetriever.from_nodes([child()], embed_model=Down(embed_dim=8))
    wrapped = TransformRetriever(own, IdentityQueryTransform())
    (plain,) = (provenance(node) for node in own.retrieve("pump"))
    for each in (wrapped >> expander(), fused(own) >> expander(), HybridRetriever(channels={"x": wrapped})):
        found: list[NodeWithScore] = each.retrieve("pump")
        (told,) = map(provenance, found)
        assert told is not None
        assert plain is not None
        assert told["degraded"][0].endswith(plain["degraded"][0])


@pytest.mark.parametrize("mapped", [True, False])
async def test_what_an_index_node_leads_to_is_under_the_rights_that_it_was_found_under(mapped: bool) -> None:
    manual = BM25Retriever.from_nodes([child(), TextNode(id_="s", text=SECRET, metadata={"acl": "b"})])
    link = IndexNode(id_="link", text="all about the pump", index_id="m", obj=None if mapped else manual)
    link.metadata = dict(RIGHTS)
    inner = BM25Retriever.from_nodes([link], require=RIGHTS, object_map={"m": manual} if mapped else None)
    outer = HybridRetriever(channels={"x": inner}, object_map={"m": manual} if mapped else None)
    for retriever in (inner, outer):
        for found in (retriever.retrieve("pump"), await retriever.aretrieve("pump")):
            assert [node.node_id for node in found] == ["c"]
            told = provenance(found[0])
            assert told is not None
            assert told["require"] == RIGHTS
            assert [node.node.get_content() for node in expander().postprocess_nodes(found)] == [TEXT]
    engine = CitedQueryEngine(outer, llm=MockLLM())
    assert [node.node.get_content() for node in engine.query("pump").source_nodes] == [TEXT]


def test_rights_with_dates_and_numbers_are_plain_in_provenance() -> None:
    rights = {"until": {"$gte": date(2026, 1, 1)}, "n": {"$in": np.arange(3)}, "limit": {"$lte": Decimal("2.5")}}
    node = TextNode(text="pump", metadata={"until": "2030-01-01", "n": 2, "limit": 1})
    (found,) = BM25Retriever.from_nodes([node], require=rights).retrieve("pump")
    told = provenance(found)
    assert told is not None
    plain = {"until": {"$gte": "2026-01-01"}, "n": {"$in": [0, 1, 2]}, "limit": {"$lte": 2.5}}
    assert told["require"] == json.loads(json.dumps(told))["require"] == plain
    assert NodeWithProvenance.from_json(found.to_json()) == found

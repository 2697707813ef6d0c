"""LlamaIndex: filters, channels, nodes and embedding models."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import (
    BaseNode,
    Document,
    IndexNode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
)

from tests.frameworks.llama_index_parts import KEPT, HashEmbedding, ListRetriever, nodes, scored
from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError, InvalidScoreError
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    HybridRetriever,
    LlamaIndexEmbedder,
    NodeWithProvenance,
    as_channel,
    provenance,
)
from voicevault_retrievers.llama_index.convert import chunk_of, node_of, query_of
from voicevault_retrievers.llama_index.filters import filter_of


@pytest.mark.parametrize(
    ("condition", "passing"),
    [(FilterCondition.AND, [3]), (FilterCondition.OR, [1, 2, 3]), (FilterCondition.NOT, [0]), (None, [3])],
)
def test_conditions_nest(condition: FilterCondition | None, passing: list[int]) -> None:
    low = MetadataFilters(filters=[_filter("low", 1)], condition=FilterCondition.OR)
    high = MetadataFilters(filters=[_filter("high", 1)])
    passes = compile_filter(filter_of(MetadataFilters(filters=[low, high], condition=condition)))
    assert [n for n in range(4) if passes({"low": n % 2, "high": n // 2})] == passing


def test_filters_that_say_nothing_or_something_unknown() -> None:
    assert filter_of(None) is filter_of(MetadataFilters(filters=[])) is None
    unknown = MetadataFilter.model_construct(key="a", value=1, operator="near")
    with pytest.raises(FilterNotSupportedError, match=r"'near' is unknown; use one of ==.*is_empty"):
        filter_of(MetadataFilters.model_construct(filters=[unknown], condition=FilterCondition.AND))
    with pytest.raises(FilterNotSupportedError, match="'xor' is unknown"):
        filter_of(MetadataFilters.model_construct(filters=[_filter("a", 1)], condition="xor"))
    with pytest.raises(ConfigError, match="Did you mean"):
        filter_of({"a": {"$gtt": 1}})


def _filter(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


@pytest.mark.parametrize("node", [nodes()[0], *KEPT.values()], ids=["nested", *KEPT])
def test_nodes_survive_the_round_trip(node: BaseNode) -> None:
    chunk = chunk_of(node)
    again = node_of(chunk)
    assert (again, type(again)) == (node, type(node))
    assert again is not node
    assert again.metadata is not node.metadata
    assert chunk_of(again) == chunk
    found = NodeWithProvenance(node=again, score=0.5, provenance={"found_by": "keyword"})
    assert NodeWithProvenance.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "content",
    [
        '{"class_name": ["TextNode"]}',
        '{"class_name": "TextNode", "relationships": 5}',
        '{"class_name": "TextNode", "text_resource": 5}',
        '{"class_name": "TextNode", "metadata": 5}',
        '{"class_name": "IndexNode"}',
        "[]",
        "[" * 100_000,
        None,
    ],
)
def test_a_key_that_looks_like_a_kept_node_is_somebody_elses(content: Any) -> None:
    found = node_of(Chunk("a", "text", metadata={"_node_content": content}))
    assert (type(found), found.node_id, found.get_content()) == (TextNode, "a", "text")
    assert found.metadata == {"_node_content": content}


def test_a_bundles_embedding_may_be_an_array() -> None:
    bundle = QueryBundle("zzz", embedding=np.array([3.0, 4.0]), custom_embedding_strs=["one"])  # type: ignore[arg-type]
    query = query_of(bundle)
    assert query.vectors[ANY_EMBEDDER].tolist() == [3.0, 4.0]
    assert [each.text for each in query.texts_for("dense", "semantic")] == ["zzz", "one"]


def test_a_chunk_does_not_share_nested_metadata_with_its_node() -> None:
    node = nodes()[0]
    chunk = chunk_of(node)
    node.metadata["tags"].clear()
    assert chunk.metadata["tags"] == ["pump", {"n": 0}]


def test_a_parent_is_the_parent_or_else_the_source() -> None:
    source, parent = RelatedNodeInfo(node_id="document"), RelatedNodeInfo(node_id="section")
    both = {NodeRelationship.SOURCE: source, NodeRelationship.PARENT: parent}
    assert chunk_of(TextNode(id_="a", relationships=both)).parent_id == "section"
    assert chunk_of(TextNode(id_="a", relationships={NodeRelationship.SOURCE: source})).parent_id == "document"
    assert chunk_of(TextNode(id_="a")).parent_id is None


def test_chunks_become_text_nodes() -> None:
    chunk = Chunk("a", "text", "section", {"list": [1]})
    node = node_of(chunk)
    node.metadata["list"].append(2)
    assert chunk.metadata == {"list": [1]}
    assert chunk_of(node_of(chunk)).parent_id == "section"
    assert node_of(chunk, context="the whole section").get_content() == "the whole section"


class Own(TextNode):
    """A node of somebody's own class, with a field of its own."""

    own: dict[str, list[int]] = {"a": [1]}  # noqa: RUF012 - pydantic copies it


@pytest.mark.parametrize("kind", [TextNode, Own, Document])
def test_a_copied_node_shares_nothing_that_can_change(kind: type[BaseNode]) -> None:
    related = RelatedNodeInfo(node_id="b", metadata={"tags": ["x"]})
    node = kind(
        id_="a",
        text="pump",
        metadata={"list": [1, {"deep": [2]}]},
        embedding=[0.5],
        excluded_llm_metadata_keys=["list"],
        relationships={NodeRelationship.SOURCE: related, NodeRelationship.CHILD: [related]},
    )
    (found,) = BM25Retriever.from_nodes([node, TextNode(id_="c", text="else")], k=1).retrieve("pump")
    again = node_of(chunk_of(found.node))
    before, first = node.model_dump(), found.node.model_dump()
    assert first == again.model_dump() == before
    assert again.model_dump(exclude_unset=True) == found.node.model_dump(exclude_unset=True)
    for copied in (found.node, again):
        copied.metadata["list"][1]["deep"].append(3)
        assert copied.embedding is not None
        copied.embedding.append(1.0)
        copied.excluded_llm_metadata_keys.append("y")
        copied.relationships[NodeRelationship.SOURCE].metadata["tags"].append("y")  # type: ignore[union-attr]
        copied.relationships[NodeRelationship.CHILD].pop()  # type: ignore[union-attr]
        if isinstance(copied, Own):
            copied.own["a"].append(2)
        assert node.model_dump() == before
        assert copied is again or again.model_dump() == first
    again.__dict__["_voicevault"]["channels"].clear()
    assert (provenance(found) or {})["channels"]
    assert found.node.__dict__["_voicevault"]["channels"]


def test_what_an_index_node_points_to_is_not_copied() -> None:
    target = BM25Retriever.from_nodes(nodes())
    node = IndexNode(id_="a", text="pump", index_id="target", obj=target)
    copied = node_of(chunk_of(node))
    assert isinstance(copied, IndexNode)
    assert copied.obj is target


def test_embedding_models_become_embedders() -> None:
    embedder = LlamaIndexEmbedder(MockEmbedding(embed_dim=4))
    assert isinstance(embedder, Embedder)
    assert embedder.dimension == 4
    assert LlamaIndexEmbedder(HashEmbedding()).fingerprint == "llama_index/HashEmbedding/hash"
    assert np.array_equal(embedder.embed_documents(["a", "b"]), np.full((2, 4), 1 / 2, dtype=np.float32))
    assert embedder.embed_queries([]).shape == (0, 4)
    texts = ["the pump", "the valve"]
    assert LlamaIndexEmbedder(HashEmbedding()).embed_queries(texts) == pytest.approx(
        HashEmbedder().embed_queries(texts)
    )


def test_a_child_without_scores_is_rank_only() -> None:
    child = ListRetriever(scored(("b", None), ("a", 0.9)))
    ranking = as_channel(child).search("pump", 5)
    assert ranking.ids == ("b", "a")
    assert [hit.score for hit in ranking] == [None, None]
    (first, second) = HybridRetriever(channels={"child": child}).retrieve("pump")
    assert (first.node_id, first.score, second.score) == ("b", 1 / 61, 1 / 62)


def test_a_childs_order_wins_over_scores_that_rise() -> None:
    distances = as_channel(ListRetriever(scored(("near", 0.1), ("far", 0.7))))
    assert distances.search("pump", 5).ids == ("near", "far")
    with pytest.raises(InvalidScoreError):
        as_channel(ListRetriever(scored(("a", float("nan"))))).search("pump", 5)


def test_children_keep_their_scores_and_get_a_bundle_of_their_own() -> None:
    child = ListRetriever(scored(("a", 0.9), ("b", 0.9), ("a", 0.1)))
    query = Query("pump", variants=(Variant("pumps"),), vectors={"": np.ones(2)})
    ranking = as_channel(child, kind="graph").search(query, 5)
    assert [(hit.id, hit.score, hit.found_by) for hit in ranking] == [("a", 0.9, "graph"), ("b", 0.9, "graph")]
    asked = {bundle.query_str: bundle.embedding for bundle in child.asked}
    assert asked == {"pump": [1.0, 1.0], "pumps": None}


def test_a_filter_that_a_child_cannot_apply_skips_it() -> None:
    child = ListRetriever(scored(("secret", 0.9)))
    channels: dict[str, Any] = {"child": child, "own": BM25Retriever.from_nodes(nodes())}
    for narrowed in (
        HybridRetriever(channels=channels).with_options(where={"key": 0}),
        HybridRetriever(channels=channels, require={"key": 0}),
    ):
        (found,) = narrowed.retrieve("pump")
        assert found.node_id == "pump"
        assert "FilterNotSupportedError" in (provenance(found) or {})["degraded"][0]
    assert child.asked == []
    with pytest.raises(FilterNotSupportedError, match="set the filter on that retriever"):
        HybridRetriever(channels={"child": child}, where={"key": 0}).retrieve("pump")


def test_an_index_gives_as_many_as_are_wanted() -> None:
    index = VectorStoreIndex(nodes(), embed_model=HashEmbedding())
    assert len(as_channel(index).search("pump", 3)) == 3
    assert len(as_channel(index.as_retriever(similarity_top_k=1)).search("pump", 3)) == 1
    assert as_channel(index).search("", 3).hits == ()
    assert as_channel(ListRetriever([])).search("pump", 3).hits == ()


async def test_a_child_without_async_never_runs_on_the_event_loop() -> None:
    threads = []

    class Watching(ListRetriever):
        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            threads.append(threading.current_thread())
            return self.found

    await as_channel(Watching(scored(("a", 1.0)))).asearch("pump", 1)
    assert threading.main_thread() not in threads
    assert len(threads) == 1
    index = VectorStoreIndex(nodes(), embed_model=HashEmbedding())
    assert as_channel(index).awaits is False


def test_what_can_be_a_channel() -> None:
    own = ListChannel([("a", 1.0)])
    assert as_channel(own) is own
    assert isinstance(as_channel(BM25Retriever.from_nodes(nodes())), Channel)
    with pytest.raises(ConfigError, match="embed_model"):
        as_channel(SimpleVectorStore())
    with pytest.raises(ConfigError, match="not a str"):
        as_channel("a")  # type: ignore[arg-type]

"""LlamaIndex: the retrievers."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from tests.frameworks.llama_index_parts import HashEmbedding, ListRetriever, hybrid, nodes, scored, told
from tests.helpers import FailingChannel, HashEmbedder, ListChannel
from voicevault_retrievers import llama_index as vv
from voicevault_retrievers.errors import ConfigError, MissingExtraError, SearchError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    HybridRetriever,
    PipelineRetriever,
    VectorRetriever,
    provenance,
)
from voicevault_retrievers.llama_index.convert import chunks_of
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import PageCap
from voicevault_retrievers.store import KnowledgeBase

QUESTION = "drain the pump before winter"


def base_of(given: list[TextNode], folder: Path) -> KnowledgeBase:
    base = KnowledgeBase.create("manual", root=folder, embedder=HashEmbedder())
    base.add(chunks_of(given))
    return base


def index_of(given: list[TextNode]) -> VectorStoreIndex:
    return VectorStoreIndex(given, embed_model=HashEmbedding())


Make = Callable[..., PipelineRetriever]
EVERY: dict[str, Make] = {
    "BM25Retriever": lambda given, folder, **o: BM25Retriever.from_nodes(given, **o),
    "VectorRetriever": lambda given, folder, **o: VectorRetriever.from_nodes(given, HashEmbedding(), **o),
    "VectorRetriever, index": lambda given, folder, **o: VectorRetriever.from_vector_store(index_of(given), **o),
    "HybridRetriever": lambda given, folder, **o: HybridRetriever.from_nodes(given, HashEmbedding(), **o),
    "HybridRetriever, index": lambda given, folder, **o: HybridRetriever.from_index(index_of(given), **o),
    "HybridRetriever, bases": lambda given, folder, **o: HybridRetriever([base_of(given, folder)], **o),
    "HybridRetriever, channels": lambda given, folder, **o: HybridRetriever(
        channels={"bm25": BM25Retriever.from_nodes(given), "index": index_of(given)}, **o
    ),
    "PipelineRetriever": lambda given, folder, **o: PipelineRetriever(
        Pipeline(BM25.from_chunks(chunks_of(given))), **o
    ),
}
contract = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())


@contract
async def test_a_retrievers_async_search_agrees(make: Make, tmp_path: Path) -> None:
    retriever = make(nodes(), tmp_path)
    found = retriever.retrieve(QUESTION)
    assert found[0].node_id == "valve"
    assert found == await retriever.aretrieve(QUESTION)
    assert all(isinstance(node, vv.NodeWithProvenance) and told(node)["channels"] for node in found)
    result, again = retriever.search(QUESTION, k=1), await retriever.asearch(QUESTION, k=1)
    assert (result.hits, result.errors) == (again.hits, again.errors)
    assert [hit.id for hit in result.hits] == ["valve"]


@contract
async def test_nothing_asked_and_nothing_to_search(make: Make, tmp_path: Path) -> None:
    for number, (given, question) in enumerate(((nodes(), ""), (nodes(), " "), ([], "pump"), ([], ""))):
        retriever = make(given, tmp_path / str(number))
        assert retriever.retrieve(question) == await retriever.aretrieve(question) == []
    assert make(nodes(), tmp_path / "none", k=0).retrieve("pump") == []


@contract
async def test_what_is_given_stays_as_it_was(make: Make, tmp_path: Path) -> None:
    where = {"$or": [{"page_label": "1"}, {"tags": {"$contains": "alarm"}}]}
    rights = MetadataFilters(filters=[MetadataFilter(key="key", value=3, operator=FilterOperator.LTE)])
    bundle = QueryBundle(QUESTION, custom_embedding_strs=["winter"], embedding=[0.5] * 16)
    given = nodes(), where, rights, bundle
    before = copy.deepcopy(given)
    retriever = make(given[0], tmp_path, where=where, require=rights)
    for found in (retriever.retrieve(bundle), await retriever.aretrieve(bundle)):
        for node in found:
            node.node.metadata["tags"].append("written by the caller")
            node.node.relationships.clear()
            told(node)["channels"].clear()
    where["$or"].clear()
    retriever.search("pump", where={"key": 1}, require={"key": 1})
    assert (given[0], before[1], given[2], given[3]) == (before[0], before[1], before[2], before[3])
    assert not any("_voicevault" in node.__dict__ for node in given[0])
    again = retriever.retrieve(bundle)
    assert again
    assert all("written by the caller" not in found.metadata["tags"] and told(found)["channels"] for found in again)


@contract
def test_repr_is_the_recipe(make: Make, tmp_path: Path) -> None:
    retriever = make(nodes(), tmp_path, k=3, where={"key": 1}, node_postprocessors=[PageCap(1)])
    said = repr(retriever)
    assert said.startswith(f"{type(retriever).__name__}(")
    assert said.endswith(f"k=3, where={{'key': 1}}, node_postprocessors=[{PageCap(1)!r}])")
    assert repr(retriever.with_options()) == said
    assert "require={'key': 2}" in repr(retriever.with_options(require={"key": 2}))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("similarity_topk", "Did you mean 'similarity_top_k'"),
        ("node_postprocessor", "Did you mean 'node_postprocessors'"),
        ("required", "Did you mean 'require'"),
        ("retrievers", "`channels`"),
        ("retriever_weights", "Fusion\\(weights="),
        ("mode", "`fusion`"),
        ("num_queries", "QueryExpander"),
        ("llm", "QueryExpander|a function from a prompt to a text, not a int"),
        ("query_gen_prompt", "QueryExpander"),
        ("use_async", "at the same time"),
        ("filters", "`where`"),
        ("stemmer", "`from_nodes\\(nodes, language"),
        ("top_k", "`k`"),
    ],
)
@contract
def test_an_option_that_is_none_is_told_what_it_is_here(make: Make, tmp_path: Path, option: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(nodes(), tmp_path, **{option: 1})


@contract
def test_options_are_checked_at_once(make: Make, tmp_path: Path) -> None:
    for number, (options, said) in enumerate(
        (
            ({"k": -1}, "k is"),
            ({"k": 1, "similarity_top_k": 2}, "same option"),
            ({"where": {"key": {"$near": 1}}}, "\\$near"),
            ({"require": {"key": {"$near": 1}}}, "\\$near"),
            ({"node_postprocessors": [BM25Retriever]}, "a stage is"),
        )
    ):
        with pytest.raises(ConfigError, match=said):
            make(nodes(), tmp_path / str(number), **options)


@pytest.mark.parametrize("scores", [(None, None), (0.9, None), (0.0, 0.0), (-1.0, -2.0)])
async def test_scores_of_others_may_be_none(scores: tuple[float | None, float | None]) -> None:
    child = ListRetriever(scored(("pump", scores[0]), ("valve", scores[1])))
    retriever = HybridRetriever(channels={"child": child}, fusion="rrf")
    found = retriever.retrieve("pump")
    assert [(node.node_id, node.score) for node in found] == [("pump", 1 / 61), ("valve", 1 / 62)]
    assert found == await retriever.aretrieve("pump")
    bare = PipelineRetriever(Pipeline(ListChannel([("a", None)])))
    assert (
        [node.score for node in bare.retrieve("pump")]
        == [node.score for node in await bare.aretrieve("pump")]
        == [None]
    )


def test_all_is_sorted_and_true() -> None:
    assert vv.__all__ == sorted(vv.__all__)
    assert all(hasattr(vv, name) for name in vv.__all__)


def test_without_llama_index_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in list(sys.modules) if name.startswith("voicevault_retrievers.llama_index")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in list(sys.modules) if name.startswith("llama_index")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"voicevault-retrievers\[llama-index\]"):
        import_module("voicevault_retrievers.llama_index")


@pytest.mark.parametrize("option", ["k", "similarity_top_k"])
def test_k_has_two_names(option: str) -> None:
    assert len(hybrid(**{option: 2}).retrieve(QUESTION)) == 2


def test_options_of_one_call_leave_the_retriever_alone() -> None:
    retriever = hybrid(k=3)
    assert len(retriever.search(QUESTION, k=1).hits) == 1
    assert len(retriever.with_options(k=2).retrieve(QUESTION)) == 2
    assert retriever.search("pump", weights={"dense": 0}).hits[0].found_by == "keyword"
    varied = retriever.with_options(weights={"dense": 0}, fusion=RRF())
    assert varied.retrieve("pump")[0].score == 1 / 61
    assert len(retriever.retrieve(QUESTION)) == 3
    with pytest.raises(ConfigError, match="Did you mean 'dense'"):
        retriever.search(QUESTION, weights={"dence": 1})


def test_parts_add_up_exactly_to_the_score() -> None:
    for found in hybrid(fusion=Fusion(weights={"bm25": 0.3})).retrieve(QUESTION):
        channels = [*told(found)["channels"].values(), *told(found).get("also_scored", {}).values()]
        assert math.fsum(channel["contribution"] for channel in channels) == told(found)["fused"] == found.score


def test_provenance_names_ranks_words_and_channels() -> None:
    first = told(hybrid(fusion=RRF(k=10)).retrieve("draining pumps")[0])
    assert first["found_by"] == "hybrid"
    assert first["channels"]["bm25"]["matched_terms"] == ["draining", "pumps"]
    assert first["channels"]["bm25"]["rank"] == 1
    assert first["channels"]["bm25"]["contribution"] == 1 / 11


def test_filters_nest_and_only_narrow() -> None:
    page_two = MetadataFilter(key="page_label", value="2")
    not_alarm = MetadataFilters(filters=[MetadataFilter(key="key", value=3)], condition=FilterCondition.NOT)
    where = MetadataFilters(filters=[page_two, not_alarm])
    retriever = hybrid(where=where)
    assert [found.node_id for found in retriever.retrieve("water")] == ["filter"]
    assert retriever.search("water", where={"page_label": "1"}).hits == ()
    assert hybrid(require={"key": {"$lt": 2}}).search("pump water", where={"key": {"$gte": 1}}).ranking.ids == (
        "valve",
    )


def test_a_retriever_inside_another_keeps_its_filter() -> None:
    inner = BM25Retriever.from_nodes(nodes(), where={"page_label": "1"})
    outer = HybridRetriever(channels={"words": inner, "vectors": VectorRetriever.from_nodes(nodes(), HashEmbedder())})
    for found in outer.retrieve("the water pump"):
        assert ("words" in told(found)["channels"]) == (found.metadata["page_label"] == "1")
        assert "parts" not in told(found)["channels"].get("words", {})
    for found in outer.with_options(where={"page_label": "2"}).retrieve("the water pump"):
        assert list(told(found)["channels"]) == ["vectors"]
    assert list(outer._get_prompt_modules()) == ["words", "vectors"]


def test_returned_nodes_are_what_was_indexed() -> None:
    originals = {node.node_id: node for node in nodes()}
    for found in hybrid().retrieve(QUESTION):
        original = originals[found.node_id]
        assert found.node == original
        assert found.node.hash == original.hash
        assert found.node.to_json() == original.to_json()
        assert found.get_content(MetadataMode.LLM) == original.get_content(MetadataMode.LLM)


@pytest.mark.parametrize("restored", ["json", "pydantic", "pickle"])
def test_nodes_with_provenance_can_be_stored(restored: str) -> None:
    for found in hybrid().retrieve(QUESTION):
        if restored == "json":
            again = type(found).from_json(found.to_json())
            assert json.loads(found.to_json())["class_name"] == "NodeWithProvenance"
        elif restored == "pydantic":
            again = type(found).model_validate_json(found.model_dump_json())
        else:
            again = pickle.loads(pickle.dumps(found))
        assert again == found
        assert again.node.hash == found.node.hash
        assert provenance(again) == provenance(found)


def test_a_node_of_an_unknown_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"class_name is one of .*TextNode.* not 'Other'"):
        vv.NodeWithProvenance.from_dict({"node": {"class_name": "Other"}, "score": 1.0})


async def test_provenance_survives_a_query_engine_and_stock_postprocessors() -> None:
    class Rebuilding(SimilarityPostprocessor):
        """Makes new NodeWithScores, as many parts do."""

        def _postprocess_nodes(
            self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
        ) -> list[NodeWithScore]:
            return [NodeWithScore(node=node.node, score=node.score) for node in nodes]

    synthesizer = get_response_synthesizer(llm=MockLLM(), prompt_helper=PromptHelper(tokenizer=str.split))
    engine = RetrieverQueryEngine(
        hybrid(), synthesizer, node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.001), Rebuilding()]
    )
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert {type(node) for node in response.source_nodes} == {NodeWithScore}
        assert all(told(node)["fused"] == node.score for node in response.source_nodes)


async def test_a_failing_channel_degrades_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    parts = {"bm25": BM25.from_chunks(chunks_of(nodes())), "broken": FailingChannel(SearchError("server down"))}
    retriever = HybridRetriever(channels=parts)
    for found in (retriever.retrieve("pump"), await retriever.aretrieve("pump")):
        assert [told(node)["degraded"] for node in found] == [["broken: SearchError: server down"]] * 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    with pytest.raises(SearchError, match="server down"):
        HybridRetriever(channels=parts, fusion=Fusion(on_error="raise")).retrieve("pump")


def test_a_preset_is_the_whole_pipeline() -> None:
    retriever = HybridRetriever.from_nodes(nodes(), HashEmbedding(), preset=_preset())
    assert retriever.k == 2
    assert told(retriever.retrieve(QUESTION)[0])["channels"]["bm25"]["contribution"] == 1 / 8
    assert "Okapi" in retriever.pipeline.describe()
    with pytest.raises(ConfigError, match="which BM25 formula"):
        HybridRetriever.from_nodes(nodes(), HashEmbedding(), preset=_preset(), formula="lucene")


def _preset() -> Any:
    from voicevault_retrievers.pipeline.presets import Preset

    fusion = {"method": "rrf", "k": 7, "weights": {"dense": 0.5}}
    return Preset.of({"version": 1, "k": 2, "channels": {"bm25": {"formula": "okapi"}, "dense": {}}, "fusion": fusion})


def test_knowledge_bases_by_name(tmp_path: Any) -> None:
    with KnowledgeBase.create("manual", root=tmp_path, embedder=HashEmbedder()) as base:
        base.add(chunks_of(nodes()))
        retriever = HybridRetriever([base], k=2)
        found = retriever.retrieve(QUESTION)
        assert found[0].node_id == "valve"
        assert told(found[0])["found_by"] == "hybrid"
        assert found[0].node.parent_node is not None
        assert found[0].metadata == nodes()[1].metadata
        degraded = HybridRetriever([base, tmp_path / "missing"]).retrieve("pump")
        assert "missing" in told(degraded[0])["degraded"][0]
        nested = HybridRetriever(channels={"bases": HybridRetriever([base, tmp_path / "missing"])})
        assert "missing" in told(nested.retrieve("pump")[0])["degraded"][0]

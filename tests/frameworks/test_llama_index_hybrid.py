"""LlamaIndex: what HybridRetriever searches, what a call may say, stages behind it, and what index nodes lead to."""

from __future__ import annotations

import asyncio
import copy
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import LLMRerank as TheirLLMRerank
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import (
    IndexNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from tests.frameworks.llama_index_parts import (
    Answering,
    HashEmbedding,
    ListRetriever,
    hybrid,
    ids,
    nodes,
    scored,
    told,
)
from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers.errors import (
    ConfigError,
    InvalidScoreError,
    MissingExtraError,
    RerankerNotAvailableError,
    RetrievalError,
)
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    CitationPostprocessor,
    CitedQueryEngine,
    CrossEncoderRerank,
    HybridRetriever,
    HybridVectorStore,
    LlamaIndexEmbedder,
    LLMRerank,
    PageDiversityPostprocessor,
    VectorRetriever,
)
from voicevault_retrievers.llama_index.convert import chunks_of
from voicevault_retrievers.llama_index.query import QueryExpander
from voicevault_retrievers.pipeline.options import Fusion, Rerank
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank import CallableScorer, PageCap
from voicevault_retrievers.store import KnowledgeBase

QUESTION = "drain the pump before winter"
SHORT_FIRST = CallableScorer(lambda query, passages: [-float(len(p)) for p in passages], name="short first")
LONG_FIRST = CallableScorer(lambda query, passages: [float(len(p)) for p in passages], name="long first")


def lengths(found: Sequence[NodeWithScore]) -> list[int]:
    return [len(node.text) for node in found]


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    with KnowledgeBase.create("manual", root=tmp_path, embedder=LlamaIndexEmbedder(HashEmbedding())) as base:
        base.add(chunks_of(nodes()))
    return tmp_path


def over(root: Path, **options: Any) -> HybridRetriever:
    return HybridRetriever(root / "manual", embed_model=HashEmbedding(), **options)


# What it searches


def test_knowledge_bases_and_channels_of_any_kind_are_searched_together(manual: Path, tmp_path: Path) -> None:
    store = HybridVectorStore.open("store", root=tmp_path, embed_model=HashEmbedding())
    VectorStoreIndex.from_vector_store(store, HashEmbedding()).insert_nodes(nodes())
    store.close()
    more = {
        "child": ListRetriever(scored(("pump", 0.5))),
        "index": VectorStoreIndex(nodes(), embed_model=HashEmbedding()),
        "store": store,
        "list": ListChannel([("pump", 1.0)]),
        "vectors": VectorRetriever.from_nodes(nodes(), HashEmbedding()),
    }
    found = over(manual, channels=more).retrieve(QUESTION)
    pump = next(node for node in found if node.node_id == "pump")
    assert set(told(pump)["channels"]) == {"bm25", "dense", *more}
    assert "degraded" not in told(pump)
    for made in (
        HybridRetriever.from_nodes(nodes(), HashEmbedding(), channels=more),
        HybridRetriever.from_index(more["index"], channels=more, embed_model=HashEmbedding()),
    ):
        assert set(told(next(n for n in made.retrieve(QUESTION) if n.node_id == "pump"))["channels"]) == {
            "bm25",
            "dense",
            *more,
        }


def test_a_vector_store_is_searched_with_the_model_that_is_given_or_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HybridVectorStore.open("store", root=tmp_path, embed_model=HashEmbedding())
    VectorStoreIndex.from_vector_store(store, HashEmbedding()).insert_nodes(nodes())
    given = HybridRetriever(channels={"store": store}, embed_model=HashEmbedding()).retrieve(QUESTION)
    monkeypatch.setattr(Settings, "_embed_model", HashEmbedding())
    assert HybridRetriever(channels={"store": store}).retrieve(QUESTION) == given
    assert ids(given)[0] == "valve"
    monkeypatch.setattr(Settings, "_embed_model", None)
    with pytest.raises(ConfigError, match="embed_model"):
        HybridRetriever(channels={"store": store})


async def test_weights_of_its_own_go_with_a_retriever_that_is_a_channel() -> None:
    inner = hybrid(k=4).with_options(weights={"bm25": 0})
    outer = HybridRetriever(channels={"inner": inner}, k=4)
    for found in (outer.retrieve("pump"), await outer.aretrieve("pump")):
        assert ids(found) == ids(inner.retrieve("pump"))
        assert {tuple(told(node)["channels"]["inner"]["parts"]) for node in found} == {("dense",)}
    found = outer.with_options(weights={"bm25": 1, "dense": 0}).retrieve("pump")
    assert {tuple(told(node)["channels"]["inner"]["parts"]) for node in found} == {("bm25",)}


async def test_two_models_of_different_size_in_one_retriever() -> None:
    small, large = HashEmbedding(embed_dim=8), HashEmbedding(embed_dim=32)
    retriever = HybridRetriever.from_nodes(
        nodes(),
        small,
        channels={"large": VectorRetriever.from_nodes(nodes(), large)},
        fusion=Fusion(weights={"bm25": 0}),
    )
    found = retriever.retrieve(QUESTION)
    assert set(told(found[0])["channels"]) == {"dense", "large"}
    assert found == await retriever.aretrieve(QUESTION)
    for model, channel in ((small, "dense"), (large, "large")):
        bundle = QueryBundle("zzz", embedding=model.get_query_embedding(nodes()[3].text))
        votes = {node.node_id: told(node)["channels"].get(channel, {}) for node in retriever.retrieve(bundle)}
        assert votes["alarm"]["score"] == pytest.approx(1.0)
        assert bundle == QueryBundle("zzz", embedding=model.get_query_embedding(nodes()[3].text))
    with pytest.raises(ConfigError, match="dimension 5, which fits no channel"):
        retriever.retrieve(QueryBundle("zzz", embedding=[1.0] * 5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "kb_names, channels, or both"),
        ({"channels": [BM25.from_chunks([])]}, "mapping of names"),
        ({"channels": {"a": 3}}, "a channel is"),
        ({"channels": {"a": BM25.from_chunks([])}, "root": "here"}, "here it is `kb_names`, a base by its path"),
        ({"channels": {"a": BM25.from_chunks([])}, "embed_model": HashEmbedding()}, "embed_model is for"),
        ({"kb_names": "manual", "channels": {"dense": BM25.from_chunks([])}}, "give dense other names"),
        ({"kb_names": "manual", "fusion": {"weights": {"bm52": 1.0}}}, "Did you mean 'bm25'"),
        ({"kb_names": "manual", "fusion": "rff"}, "Did you mean 'rrf'"),
        ({"kb_names": "manual", "fusion": 60}, "fusion method"),
        ({"kb_names": "manual", "rerank": 3}, "a stage is"),
        ({"kb_names": "manual", "expansion": 3}, "llm is"),
        ({"kb_names": "manual", "node_postprocessors": [3]}, "a stage is"),
        ({"kb_names": "manual", "fusion": {"on_error": "ignore"}}, "on_error"),
        ({"kb_names": "manual", "timeout": -1}, "timeout"),
        ({"channels": {"inner": hybrid(timeout=5.0)}}, "has no timeout"),
    ],
)
def test_what_does_not_go_together_is_said_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HybridRetriever(**options)


# Knowledge bases


async def test_a_base_is_opened_on_first_use_once_and_never_on_the_event_loop(
    manual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    open_ = KnowledgeBase.open

    def noted(*given: Any, **options: Any) -> KnowledgeBase:
        threads.append(threading.get_ident())
        return open_(*given, **options)

    monkeypatch.setattr(KnowledgeBase, "open", noted)
    retriever = over(manual, k=2)
    assert repr(retriever).startswith(f"HybridRetriever(kb_names=[{manual / 'manual'!r}]")
    assert threads == []
    every = await asyncio.gather(*(retriever.aretrieve(QUESTION) for _ in range(50)))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert [ids(found)[0] for found in every] == ["valve"] * 50
    retriever.with_options(k=1, fusion=RRF(k=1), rerank=SHORT_FIRST).retrieve(QUESTION)
    (retriever >> PageDiversityPostprocessor()).retrieve(QUESTION)
    assert len(threads) == 1


def test_what_is_committed_is_seen_after_a_reload_by_all_copies(manual: Path) -> None:
    retriever = over(manual, k=9)
    assert retriever.reload() is False
    twin = retriever.with_options(k=8)
    before = ids(retriever.retrieve("oil"))
    with KnowledgeBase.open("manual", root=manual, embedder=LlamaIndexEmbedder(HashEmbedding())) as base:
        base.add(chunks_of([TextNode(id_="oil", text="Oil for the hinge")]))
    assert ids(twin.retrieve("oil")) == before
    assert retriever.reload() is True
    assert retriever.reload() is False
    assert ids(twin.retrieve("oil"))[0] == ids(retriever.retrieve("oil"))[0] == "oil"


def test_nodes_of_two_bases_with_one_id_are_two_nodes(manual: Path) -> None:
    with KnowledgeBase.create("other", root=manual, embedder=LlamaIndexEmbedder(HashEmbedding())) as base:
        base.add(chunks_of(nodes()))
    retriever = HybridRetriever([manual / "manual", manual / "other"], embed_model=HashEmbedding(), k=9)
    found = [node.node_id for node in retriever.retrieve("pump") if "pump" in node.text]
    assert sorted(found) == ["manual:pump", "manual:valve", "other:pump", "other:valve"]


# What a call says


async def test_a_call_says_how_it_is_fused_and_reranked() -> None:
    by_short = CrossEncoderRerank(SHORT_FIRST, blend=1)
    retriever = hybrid(rerank=CrossEncoderRerank(LONG_FIRST, blend=1))
    long = retriever.retrieve("pump")
    short = retriever.with_options(rerank=by_short).retrieve("pump")
    assert lengths(long) == sorted(lengths(long), reverse=True)
    assert lengths(short) == sorted(lengths(long))
    assert short == await retriever.with_options(rerank=by_short).aretrieve("pump")
    bare = retriever.with_options(rerank=False, fusion=RRF(k=1)).retrieve("pump")
    assert "rerank" not in told(bare[0])
    assert bare[0].score == sum(1 / (1 + vote["rank"]) for vote in told(bare[0])["channels"].values())
    assert retriever.search("pump", rerank=False, fusion=RRF(k=1)).hits[0].score == bare[0].score
    assert (await retriever.asearch("pump", rerank=False, fusion="rrf")).hits[0].score == pytest.approx(
        2 / 61, abs=1e-3
    )
    assert retriever.retrieve("pump") == long
    with pytest.raises(ConfigError, match="Did you mean 'rrf'"):
        retriever.search("pump", fusion="rff")
    with pytest.raises(ConfigError, match="a stage is"):
        retriever.with_options(rerank=3)  # type: ignore[arg-type]


def test_rights_only_narrow() -> None:
    page_one = MetadataFilters(filters=[MetadataFilter(key="page_label", value="1")])
    retriever = hybrid(require=page_one)
    assert set(retriever.search("the water pump").ranking.ids) == {"pump", "valve"}
    assert retriever.search("the water pump", require={"key": 0}).ranking.ids == ("pump",)
    assert retriever.search("the water pump", require={"page_label": "2"}).hits == ()
    assert retriever.with_options(require={}).retrieve("the water pump") == []
    assert retriever.with_options(require=MetadataFilters(filters=[])).retrieve("the water pump") == []
    assert set(ids(retriever.with_options(where={"key": {"$gte": 1}}).retrieve("the water pump"))) == {"valve"}


def test_a_model_that_reranks_is_loaded_once_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(name: str) -> Any:
        loaded.append(name)
        return LONG_FIRST

    monkeypatch.setattr("voicevault_retrievers.rerank.cross_encoder.shared_scorer", load)
    retriever = hybrid()
    for _ in range(3):
        retriever.search("pump", rerank="some model")
        retriever.with_options(k=2).search("pump", rerank=True)
    assert loaded == ["some model", "ms-marco-MiniLM-L-12-v2"]


# Expansion


@pytest.mark.parametrize("given", ["model", "expander", "rewriter", "list"])
async def test_what_expands(given: str) -> None:
    model = Answering(answer="rinsed with clean water\nwater level is too high")
    expander = QueryExpander(model)
    expansion: Any = {"model": model, "expander": expander, "rewriter": expander.rewriter, "list": [True, expander]}
    retriever = hybrid(expansion=expansion[given])
    found = retriever.retrieve("zeppelin")
    words = [told(node)["channels"]["bm25"]["query"] for node in found if "bm25" in told(node)["channels"]]
    assert sorted(words) == ["rinsed with clean water", "water level is too high"]
    assert found == await retriever.aretrieve("zeppelin")


async def test_a_model_that_fails_leaves_the_question_and_says_so() -> None:
    retriever = hybrid(expansion=Answering(answer=""))
    for found in (retriever.retrieve("pump"), await retriever.aretrieve("pump")):
        assert ids(found) == ids(hybrid().retrieve("pump"))
        assert told(found[0])["degraded"] == ["expansion: OSError"]
    with pytest.raises(OSError, match="no route"):
        hybrid(expansion=Answering(answer=""), fusion=Fusion(on_error="raise")).retrieve("pump")


def test_prompts_reach_the_expansion_and_the_children() -> None:
    class Prompted(ListRetriever):
        prompt = PromptTemplate("{query_str}")

        def _get_prompts(self) -> dict[str, Any]:
            return {"own": self.prompt}

        def _update_prompts(self, prompts: dict[str, Any]) -> None:
            self.prompt = prompts.get("own", self.prompt)

    class Asking(SimilarityPostprocessor):
        """One with a prompt; the library's have the mixin's hooks, and not the mixin."""

        def _get_prompts(self) -> dict[str, Any]:
            return {"choice": PromptTemplate("{query_str}")}

    model, child = Answering(answer="water"), Prompted(scored(("pump", 0.5)))
    retriever = HybridRetriever(channels={"child": child}, expansion=QueryExpander(model)) >> Asking() >> Asking()
    assert set(retriever.get_prompts()) == {
        "child:own",
        "expansion:expansion",
        "Asking:choice",
        "Asking 2:choice",
    }
    retriever.update_prompts(
        {"child:own": PromptTemplate("new"), "expansion:expansion": PromptTemplate("Say it anew: {query_str}")}
    )
    assert child.prompt.template == "new"
    retriever.retrieve("pump")
    assert model.prompts[-1] == "Say it anew: pump"


def test_a_part_that_changes_is_searched_as_it_is_now() -> None:
    model = Answering(answer="[1]")
    cap, rerank = PageDiversityPostprocessor(max_chunks_per_page=2), LLMRerank(model)
    for retriever in (hybrid(node_postprocessors=[cap, rerank]), hybrid(rerank=rerank) >> cap):
        cap.max_chunks_per_page = 2
        assert {"pump", "valve"} < set(ids(retriever.retrieve("pump water")))
        cap.max_chunks_per_page = 1
        assert len(retriever.retrieve("pump water")) == 2
        (key,) = (name for name in retriever.get_prompts() if name.endswith("rerank_prompt"))
        retriever.update_prompts({key: PromptTemplate(f"{key} {{query_str}}: {{context_str}}")})
        retriever.retrieve("pump water")
        assert model.prompts[-1].startswith(f'{key} "pump water": {{"number": 1')


def test_repr_shows_no_key_of_the_parts_of_others() -> None:
    class Keyed(HashEmbedding):
        api_key: str = "secret"

    class KeyedLLM(Answering):
        api_key: str = "secret"

    model, llm = Keyed(), KeyedLLM(answer="[1]")
    for retriever in (
        HybridRetriever("manual", embed_model=model),
        HybridRetriever.from_nodes(nodes(), model),
        VectorRetriever.from_nodes(nodes(), model),
        hybrid(rerank=TheirLLMRerank(llm=llm)),
        hybrid(rerank=LLMRerank(llm), expansion=llm),
        hybrid(node_postprocessors=[LLMRerank(llm), TheirLLMRerank(llm=llm)]),
    ):
        assert "secret" not in repr(retriever)
        assert repr(copy.deepcopy(retriever)) == repr(retriever)
    assert "secret" not in repr(LLMRerank(llm))


# Vectors alone


def test_a_models_dimension_is_that_of_its_first_rows() -> None:
    model = Counting()
    embedder = LlamaIndexEmbedder(model)
    assert embedder.embed_documents(["pump"]).shape == (1, 16)
    assert (embedder.dimension, model.asked) == (16, [])
    model.embed_dim = 8
    with pytest.raises(RetrievalError, match="expected dimension 16"):
        embedder.embed_queries(["valve"])


def test_vectors_are_kept_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("chromadb")
    made = VectorRetriever.from_nodes(nodes(), HashEmbedding(), persist_dir=tmp_path, where={"page_label": "1"})
    again = VectorRetriever.from_persist_dir(tmp_path, HashEmbedding(), where={"page_label": "1"})
    exact = VectorRetriever.from_nodes(nodes(), HashEmbedding(), where={"page_label": "1"})
    expected = [(node.node, pytest.approx(node.score)) for node in exact.retrieve(QUESTION)]
    for retriever in (made, again):
        assert [(node.node, node.score) for node in retriever.retrieve(QUESTION)] == expected
    more = VectorRetriever.from_nodes([TextNode(id_="oil", text="Oil.")], HashEmbedding(), persist_dir=tmp_path, k=9)
    assert {"oil", "pump"} <= set(ids(more.retrieve("pump oil")))
    with pytest.raises(ConfigError, match="holds no Chroma collection 'other'"):
        VectorRetriever.from_persist_dir(tmp_path, HashEmbedding(), collection_name="other")
    with pytest.raises(ConfigError, match="holds no Chroma collection"):
        VectorRetriever.from_persist_dir(tmp_path / "none", HashEmbedding())


async def test_vectors_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HybridVectorStore.open("store", root=tmp_path, embed_model=HashEmbedding())
    index = VectorStoreIndex.from_vector_store(store, HashEmbedding())
    index.insert_nodes(nodes())
    exact = VectorRetriever.from_nodes(nodes(), HashEmbedding())
    expected = [(node.node_id, pytest.approx(node.score)) for node in exact.retrieve(QUESTION)]
    for retriever in (
        VectorRetriever.from_vector_store(store, HashEmbedding()),
        VectorRetriever.from_vector_store(index),
        VectorRetriever(store, LlamaIndexEmbedder(HashEmbedding())),
    ):
        found = retriever.retrieve(QUESTION)
        assert [(node.node_id, node.score) for node in found] == expected
        assert found == await retriever.aretrieve(QUESTION)
        assert set(told(found[0])["channels"]) == {"dense"}
        assert ids(retriever.with_options(where={"key": 1}).retrieve(QUESTION)) == ["valve"]
    with pytest.raises(ConfigError, match="has its own embed_model"):
        VectorRetriever.from_vector_store(index, HashEmbedding())
    with pytest.raises(ConfigError, match="with a BaseEmbedding"):
        VectorRetriever(store, HashEmbedder())
    with pytest.raises(ConfigError, match="expected a VectorIndex"):
        VectorRetriever(nodes(), HashEmbedding())  # type: ignore[arg-type]
    monkeypatch.setattr(Settings, "_embed_model", None)
    with pytest.raises(ConfigError, match="embed_model"):
        VectorRetriever(store)


# Query bundles


class Counting(HashEmbedding):
    """Keeps what was embedded."""

    asked: list[str] = Field(default_factory=list)

    def _get_query_embedding(self, query: str) -> list[float]:
        self.asked.append(query)
        return super()._get_query_embedding(query)


@pytest.mark.parametrize(
    ("strings", "embedded"),
    [
        (None, {"pump"}),
        ([], {"pump"}),
        (["pump", "winter"], {"pump", "winter"}),
        (["winter"], {"winter"}),
        (["winter", " "], {"winter"}),
    ],
)
async def test_custom_embedding_strings_are_what_is_embedded(strings: list[str] | None, embedded: set[str]) -> None:
    """A transform that leaves the question out, HyDE's with include_original=False, has it left out."""
    model = Counting()
    retriever = HybridRetriever.from_nodes(nodes(), model)
    bundle = QueryBundle("pump", custom_embedding_strs=strings)
    before, model.asked = copy.deepcopy(bundle), []
    found = retriever.retrieve(bundle)
    assert set(model.asked) == embedded
    assert found == await retriever.aretrieve(bundle)
    assert bundle == before
    assert {told(node)["channels"]["bm25"]["query"] for node in found if "bm25" in told(node)["channels"]} == {"pump"}


def test_a_bundles_embedding_stands_for_its_text() -> None:
    model = Counting()
    retriever = HybridRetriever.from_nodes(nodes(), model, fusion=Fusion(weights={"bm25": 0}))
    model.asked = []
    vector = model._embed(nodes()[3].text)
    found = retriever.retrieve(QueryBundle("zzz", custom_embedding_strs=["winter"], embedding=vector))
    assert model.asked == ["winter"]
    assert told(found[0])["channels"]["dense"]["score"] == pytest.approx(1.0)


# Presets


def preset(**more: Any) -> Preset:
    stages = [{"rerank": {"model": "not there"}}, {"page_cap": {"max_chunks_per_page": 1}}]
    return Preset.of(
        {"version": 1, "k": 3, "timeout": 3600, "fusion": {"method": "rrf", "k": 7}, "stages": stages, **more}
    )


def test_k_timeout_fusion_and_rerank_go_over_a_presets_own() -> None:
    own = hybrid(preset=preset())
    assert own.k == 3
    with pytest.raises((RerankerNotAvailableError, MissingExtraError), match="not there"):
        own.retrieve("pump")
    bare = own.with_options(rerank=False, fusion=RRF(k=1)).retrieve("pump")
    assert "degraded" not in told(bare[0])
    assert bare[0].score == sum(1 / (1 + vote["rank"]) for vote in told(bare[0])["channels"].values())
    assert len({node.metadata["page_label"] for node in bare}) == len(bare)
    reranked = hybrid(preset=preset(), k=2, timeout=5.0, rerank=LONG_FIRST)
    assert (reranked.k, reranked.pipeline.timeout) == (2, 5.0)
    assert all(told(node)["rerank"]["score"] == len(node.text) for node in reranked.retrieve("pump"))


def test_what_is_given_beside_a_preset_goes_over_its_own() -> None:
    options = {
        "expansion": True,
        "fusion": Fusion(weights={"bm25": 2}, depth=5),
        "rerank": Rerank(max_chunks_per_page=1),
    }
    told_of = repr(hybrid(preset=preset(), **options).pipeline)
    for said in ("RuleExpansion(", "'bm25': 2", "5", "PageCap(1"):
        assert said in told_of


# Stages behind it


class Backwards(BaseNodePostprocessor):
    """Somebody else's: turns the order round, and keeps how many it was given."""

    given: list[int] = Field(default_factory=list)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        self.given.append(len(nodes))
        return nodes[::-1]


async def test_postprocessors_get_as_many_nodes_as_they_need_to_give_k() -> None:
    for retriever in (
        hybrid(k=2, node_postprocessors=[PageDiversityPostprocessor(max_chunks_per_page=1)]),
        hybrid(k=2) >> PageDiversityPostprocessor(max_chunks_per_page=1),
        hybrid(k=2) >> PageCap(1),
    ):
        found = retriever.retrieve("the pump and the valve")
        assert [node.metadata["page_label"] for node in found] in (["1", "2"], ["2", "1"])
        assert found == await retriever.aretrieve("the pump and the valve")
    foreign = Backwards()
    turned = hybrid(k=3) >> foreign
    assert ids(turned.retrieve("pump")) == ids(hybrid(k=3).retrieve("pump"))[::-1]
    assert turned.retrieve("pump") == await turned.aretrieve("pump")
    assert foreign.given == [3, 3, 3]
    assert len(hybrid(k=3).node_postprocessors) == 0


async def test_every_retriever_takes_postprocessors() -> None:
    reranker = CrossEncoderRerank(LONG_FIRST)
    for retriever in (
        BM25Retriever.from_nodes(nodes()),
        VectorRetriever.from_nodes(nodes(), HashEmbedding()),
        hybrid(),
    ):
        found = (retriever >> reranker).retrieve("the pump")
        assert lengths(found) == sorted(lengths(found), reverse=True)
        assert found == await (retriever >> reranker).aretrieve("the pump")
        assert "rerank" in told(found[0])
        assert type(retriever >> reranker) is type(retriever)
    with pytest.raises(ConfigError, match="a stage is"):
        hybrid() >> BM25Retriever


def test_a_postprocessor_that_changes_is_seen() -> None:
    reranker = CrossEncoderRerank(LONG_FIRST, top_n=3)
    behind, inside = hybrid() >> reranker, hybrid(rerank=reranker)
    assert [len(each.retrieve("pump")) for each in (behind, inside)] == [3, 3]
    reranker.top_n = 1
    assert [len(each.retrieve("pump")) for each in (behind, inside)] == [1, 1]


def test_the_deadline_of_a_search_holds_for_the_stages_behind_it() -> None:
    for retriever in (
        BM25Retriever.from_nodes(nodes(), timeout=7.0),
        VectorRetriever.from_nodes(nodes(), HashEmbedding(), timeout=7.0),
        hybrid(timeout=7.0),
    ):
        assert (retriever >> PageCap(1)).pipeline.timeout == 7.0
    inner = VectorRetriever.from_nodes(nodes(), HashEmbedding(), timeout=7.0)
    assert ids(HybridRetriever(channels={"inner": inner}).retrieve(QUESTION))[0] == "valve"


# Index nodes


class Engine(BaseQueryEngine):
    def __init__(self) -> None:
        super().__init__(None)

    def _query(self, query_bundle: QueryBundle) -> Any:
        return Response(f"answer to {query_bundle.query_str}", metadata={"of": "engine"})

    async def _aquery(self, query_bundle: QueryBundle) -> Any:
        return self._query(query_bundle)

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}


class Broken(ListRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise OSError("no route to the child")


def pointing(target: Any, text: str = "All about the pump.") -> list[TextNode]:
    return [IndexNode(id_="index", text=text, index_id="target", obj=target, metadata={"of": "index"})]


async def reached(target: Any, **options: Any) -> list[NodeWithScore]:
    """What is found through an index node, by both searches, with the object on the node and in the map."""
    on_node = BM25Retriever.from_nodes(pointing(target), **options)
    in_map = BM25Retriever.from_nodes(pointing(None), object_map={"target": target}, **options)
    found, mapped = on_node.retrieve("pump"), in_map.retrieve("pump")
    assert found == await on_node.aretrieve("pump")
    assert mapped == await in_map.aretrieve("pump")
    assert [(told(node), node.score, node.text) for node in found] == [
        (told(node), node.score, node.text) for node in mapped
    ]
    return found


async def test_a_node_that_an_index_node_points_to_is_reached_through_it() -> None:
    target = TextNode(id_="table", text="a,b\n1,2", metadata={"rows": [1]})
    before = copy.deepcopy(target)
    (index,) = BM25Retriever.from_nodes(pointing(None)).retrieve("pump")
    (found,) = await reached(target)
    assert (found.node_id, found.score) == ("table", index.score)
    assert told(found) == {**told(index), "through": "index"}
    found.node.metadata["rows"].append("written by the caller")
    assert target == before
    assert "_voicevault" not in target.__dict__


@pytest.mark.parametrize("score", [None, 0.0, -1.5])
async def test_scores_on_the_way_stay_as_they_are(score: float | None) -> None:
    found = scored(("pump", score))
    assert [node.score for node in await reached(found[0])] == [score]
    assert [node.score for node in await reached(ListRetriever(found))] == [score]
    index = NodeWithScore(node=pointing(TextNode(id_="t", text="t"))[0], score=score)
    retriever = BM25Retriever.from_nodes([])
    assert [node.score for node in retriever._handle_recursive_retrieval(QueryBundle("pump"), [index])] == [score]


async def test_retrievers_and_engines_are_entered() -> None:
    inner = BM25Retriever.from_nodes(nodes(), k=2)
    found = await reached(inner)
    assert found == [
        type(node)(
            node=node.node,
            score=node.score,
            provenance={**told(node), "through": "index", "index": told(found[0])["index"]},
        )
        for node in inner.retrieve("pump")
    ]
    assert told(found[0])["index"]["channels"]["bm25"]["matched_terms"] == ["pump"]
    (answer,) = await reached(Engine())
    assert (answer.text, answer.metadata, answer.node_id) == ("answer to pump", {"of": "engine"}, "index/response")
    assert told(answer)["through"] == "index"


async def test_an_object_that_fails_leaves_the_index_node_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for target, said, raised in (
        (Broken([]), "OSError", "no route to the child"),
        (3, "ValueError", "Object 3 is not retrievable"),
        (ListRetriever(scored(("pump", math.nan))), "InvalidScoreError: the score of chunk 'pump' is nan", "is nan"),
    ):
        (found,) = await reached(target)
        assert found.node_id == "index"
        assert said in told(found)["degraded"][0]
        assert said in caplog.records[-1].getMessage()
        retriever = BM25Retriever.from_nodes(pointing(target), on_error="raise")
        errors = OSError, ValueError, InvalidScoreError
        with pytest.raises(errors, match=raised):
            retriever.retrieve("pump")
        with pytest.raises(errors, match=raised):
            await retriever.aretrieve("pump")


async def test_rights_hold_for_what_index_nodes_lead_to() -> None:
    rights = {"of": "index"}
    secret, shared = TextNode(text="secret", metadata={"of": "b"}), TextNode(text="shared", metadata=rights)
    assert await reached(secret, require=rights) == []
    assert [node.text for node in await reached(shared, require=rights)] == ["shared"]
    inner = BM25Retriever.from_nodes([TextNode(id_="s", text="pump"), TextNode(id_="p", text="pump", metadata=rights)])
    assert ids(await reached(inner, require=rights)) == ["p"]
    for foreign in (Engine(), ListRetriever(scored(("pump", 1.0)))):
        (found,) = await reached(foreign, require=rights)
        assert found.node_id == "index"
        assert "FilterNotSupportedError" in told(found)["degraded"][0]


async def test_each_node_is_there_once_and_a_child_gets_a_bundle_of_its_own() -> None:
    child = ListRetriever(scored(("pump", 0.5), ("valve", 0.4)))
    given = [
        *pointing(child),
        IndexNode(id_="second", text="The pump again.", index_id="more", obj=child),
        TextNode(id_="pump", text="A pump."),
    ]
    found = BM25Retriever.from_nodes(given).retrieve(bundle := QueryBundle("pump"))
    assert sorted(ids(found)) == ["pump", "valve"]
    assert all(asked == bundle and asked is not bundle for asked in child.asked)


async def test_objects_are_known_where_the_index_node_does_not_carry_them() -> None:
    table = TextNode(id_="table", text="a,b")
    index = VectorStoreIndex(nodes(), objects=pointing(table), embed_model=HashEmbedding())
    inner = BM25Retriever.from_nodes(pointing(None), object_map={"target": table})
    for retriever in (
        HybridRetriever.from_index(index, k=9),
        HybridRetriever(channels={"inner": inner}),
        BM25Retriever.from_vector_store(index, k=9),
    ):
        found = retriever.retrieve("all about the pump")
        assert "table" in ids(found)
        assert "index" not in ids(found)
        assert ids(found) == ids(await retriever.aretrieve("all about the pump"))


async def test_objects_are_entered_at_the_same_time_and_off_the_event_loop() -> None:
    barrier, loop = threading.Barrier(3, timeout=30), threading.get_ident()

    class Meeting(ListRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            assert threading.get_ident() != loop
            barrier.wait()
            return self.found

    given = [
        IndexNode(id_=f"i{at}", text="pump", index_id=f"t{at}", obj=Meeting(scored((f"n{at}", 1.0)))) for at in range(3)
    ]
    retriever = BM25Retriever.from_nodes(given)
    assert ids(await retriever.aretrieve("pump")) == ids(retriever.retrieve("pump")) == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: HybridRetriever.from_nodes(nodes(), HashEmbedding()).with_options(weights=[1]),
            "weights is a mapping",
        ),
        (
            lambda: HybridRetriever.from_nodes(nodes(), HashEmbedding(), fusion=Fusion(weights=3)),
            "weights is a mapping",
        ),
        (
            lambda: CitedQueryEngine(VectorStoreIndex(nodes(), embed_model=HashEmbedding()), llm=MockLLM()),
            "an index has as_retriever",
        ),
        (lambda: CitationPostprocessor(marker="source"), "markers"),
        (lambda: BM25Retriever.from_nodes(nodes(), index=1), "from_vector_store"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_this_package(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    "make", [BM25Retriever.from_nodes, lambda given: HybridRetriever.from_nodes(given, HashEmbedder())]
)
def test_what_was_indexed_comes_back_though_its_owner_changes_the_node(make: Any) -> None:
    first, later = (TextNode(id_=name, text=f"The pump {name}.", metadata={"acl": ["a"]}) for name in ("hums", "leaks"))
    own = make([first])
    own.add([later])
    for node in (first, later):
        node.set_content("SECRET text")
        node.metadata["acl"].append("b")
        node.excluded_embed_metadata_keys.append("acl")
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="other")
    found = {one.node_id: one.node for one in own.retrieve("pump")}
    assert {name: node.get_content() for name, node in found.items()} == {
        "hums": "The pump hums.", "leaks": "The pump leaks.",
    }  # fmt: skip
    for node in found.values():
        assert (node.metadata, node.relationships) == ({"acl": ["a"]}, {})
        assert "acl" in node.get_content(metadata_mode=MetadataMode.EMBED)
    assert own.retrieve("SECRET") == [] or isinstance(own, HybridRetriever)

"""The faults of LlamaIndex's own parts beside this package, on the same input: theirs have them, ours do not.

A test fails too once a peer has mended its fault: then the claim goes, wherever it is made.

QueryFusionRetriever
    its RRF ignores weights                        test_weights_count_in_rrf
    ... and counts ranks from 0, k is fixed        test_rrf_is_the_papers_and_its_constant_can_be_chosen
    a negative weight is accepted                  test_a_negative_weight_is_refused
    a language model even where none is asked      test_no_language_model_is_needed
    fuses by a hash of the text                    test_two_nodes_of_the_same_text_stay_two
    ... and of the metadata                        test_a_node_with_more_metadata_in_one_list_is_still_one
    a score of None crashes it                     test_a_missing_score_crashes_no_fusion
    ... or counts as 0                             test_a_childs_own_order_counts
    writes into its children's nodes               test_childrens_nodes_stay_as_they_are
    the first model's vector is for all            test_each_index_is_asked_with_its_own_model
    one failing child fails all                    test_one_failing_child_does_not_fail_the_search
    a model's chatter becomes queries              test_a_models_chatter_is_no_query
BaseRetriever
    the async search is the sync one on the loop   test_a_child_without_async_leaves_the_event_loop_free
    a score of 0 becomes 1 through an IndexNode    test_a_score_of_0_stays_0_through_an_index_node
VectorIndexRetriever
    writes into the query                          test_the_query_stays_as_it_is
NodeWithScore
    cannot be read from its own JSON               test_a_node_is_read_from_its_own_json
RetrieverTool
    changes the query                              test_a_tool_searches_for_what_it_was_asked
    ... and numbers no sources                     test_a_tool_numbers_its_sources
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import RetrieverTool

from tests.frameworks.llama_index_parts import HashEmbedding, ListRetriever, nodes, scored
from tests.oracles.llama_index_peers import Answering, child, child_of, degraded, fusions, ids, pairs
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, NodeWithProvenance
from voicevault_retrievers.llama_index.query import QueryExpander
from voicevault_retrievers.llama_index.tools import RetrievalTool
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.rerank import CallableScorer

A, B = (TextNode(id_=name, text=f"text {name}") for name in "ab")


# QueryFusionRetriever


def test_weights_count_in_rrf() -> None:
    one, other = child(("a", 0.9)), child(("b", 0.9))
    theirs, _ = fusions(one, other, retriever_weights=[1.0, 9.0])
    assert pairs(theirs.retrieve("pump")) == [("a", 1 / 60), ("b", 1 / 60)]
    ours = HybridRetriever(
        channels={"one": one, "other": other}, fusion=Fusion("rrf", weights={"one": 1.0, "other": 9.0})
    )
    assert pairs(ours.retrieve("pump")) == [("b", 9 / 61), ("a", 1 / 61)]


def test_rrf_is_the_papers_and_its_constant_can_be_chosen() -> None:
    one, other = child(("a", 0.9)), child(("b", 0.9), ("a", 0.8))
    theirs, ours = fusions(one, other)
    assert pairs(theirs.retrieve("pump")) == [("a", 1 / 60 + 1 / 61), ("b", 1 / 60)]
    assert pairs(ours.retrieve("pump")) == [("a", 1 / 61 + 1 / 62), ("b", 1 / 61)]
    chosen = HybridRetriever(channels={"one": one, "other": other}, fusion=RRF(k=10))
    assert pairs(chosen.retrieve("pump")) == [("a", 1 / 11 + 1 / 12), ("b", 1 / 11)]
    with pytest.raises(TypeError, match="'k'"):
        fusions(one, other, k=10)


def test_a_negative_weight_is_refused() -> None:
    one, other = child(("a", 0.9)), child(("b", 0.9))
    theirs, _ = fusions(one, other, mode="relative_score", retriever_weights=[2.0, -1.0])
    assert pairs(theirs.retrieve("pump")) == [("a", 2.0), ("b", -1.0)]
    with pytest.raises(ConfigError, match="at least 0"):
        HybridRetriever(channels={"one": one, "other": other}, fusion=Fusion(weights={"one": 2.0, "other": -1.0}))


def test_no_language_model_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises((ImportError, ValueError), match=r"(?i)openai"):
        QueryFusionRetriever([child(("a", 0.9))], num_queries=1)
    assert ids(HybridRetriever(channels={"child": child(("a", 0.9))}).retrieve("pump")) == ["a"]


def test_two_nodes_of_the_same_text_stay_two_where_they_are_found_together_or_their_metadata_says_so() -> None:
    page, again = (TextNode(id_=name, text="Close the valve.") for name in ("page 2", "page 7"))
    theirs, ours = fusions(child_of(page, again), child_of(A))
    assert len(set(ids(theirs.retrieve("valve"))) - {"a"}) == 1  # which of the two goes by the core's version
    both = set(ids(child_of(page, again).retrieve("valve")))  # of which an older core itself drops one
    assert set(ids(ours.retrieve("valve"))) == {*both, "a"}
    told = [TextNode(id_=str(at), text="Close the valve.", metadata={"page": at}) for at in (2, 7)]
    for retriever in fusions(*map(child_of, told)):
        assert ids(retriever.retrieve("valve")) == ["2", "7"]
    for retriever in fusions(child_of(page), child_of(again)):
        assert len(retriever.retrieve("valve")) == 1


def test_a_node_with_more_metadata_in_one_list_is_still_one() -> None:
    told = TextNode(id_="a", text="text a", metadata={"retrieval_score": 0.5})
    theirs, ours = fusions(child_of(A), child_of(told))
    assert set(pairs(theirs.retrieve("pump"))) == {("a", 1 / 60)}
    ours = ours.with_options(fusion="rrf")
    assert pairs(ours.retrieve("pump")) == [("a", 1 / 61 + 1 / 61)]


@pytest.mark.parametrize("mode", ["relative_score", "dist_based_score"])
def test_a_missing_score_crashes_no_fusion(mode: str) -> None:
    theirs, ours = fusions(child(("a", None), ("b", 0.5)), mode=mode)
    with pytest.raises(TypeError, match="NoneType"):
        theirs.retrieve("pump")
    assert ids(ours.retrieve("pump")) == ["a", "b"]


def test_a_childs_own_order_counts() -> None:
    theirs, ours = fusions(child(("a", None), ("b", 0.5)))
    assert ids(theirs.retrieve("pump")) == ["b", "a"]
    assert ids(ours.retrieve("pump")) == ["a", "b"]


def test_childrens_nodes_stay_as_they_are() -> None:
    below = child(("a", 0.9))
    theirs, ours = fusions(below)
    ours.retrieve("pump")
    assert pairs(below.found) == [("a", 0.9)]
    theirs.retrieve("pump")
    assert pairs(below.found) == [("a", 1 / 60)]


class Asked(HashEmbedding):
    """Keeps the queries that it embeds."""

    queries: list[str] = []  # noqa: RUF012 - pydantic copies it

    def _get_query_embedding(self, query: str) -> list[float]:
        self.queries.append(query)
        return super()._get_query_embedding(query)


def test_each_index_is_asked_with_its_own_model() -> None:
    for dimension in (16, 32):
        first, second = Asked(embed_dim=16), Asked(embed_dim=dimension)
        indexes = [VectorStoreIndex(nodes=nodes(), embed_model=model) for model in (first, second)]
        theirs, ours = fusions(*(index.as_retriever() for index in indexes))
        if dimension == 16:
            theirs.retrieve("pump")
        else:
            with pytest.raises(ValueError, match="shapes"):
                theirs.retrieve("pump")
        assert (first.queries, second.queries) == (["pump"], [])
        assert not ours.search("pump").skipped
        assert (first.queries, second.queries) == (["pump", "pump"], ["pump"])


class Down(ListRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise ConnectionError("the server is down")


async def test_one_failing_child_does_not_fail_the_search() -> None:
    theirs, ours = fusions(Down([]), child(("a", 0.9)))
    with pytest.raises(ConnectionError):
        theirs.retrieve("pump")
    with pytest.raises(ConnectionError):
        await theirs.aretrieve("pump")
    for found in (ours.retrieve("pump"), await ours.aretrieve("pump")):
        assert ids(found) == ["a"]
        assert degraded(found) == "child 0: ConnectionError"


def test_a_models_chatter_is_no_query() -> None:
    said = 'Here are 3 queries:\n\n1. how to prime a pump\n2. "pump maintenance"\n- pump'
    below = child(("a", 0.9))
    QueryFusionRetriever([below], llm=Answering(answer=said), num_queries=4, use_async=False).retrieve("pump")
    assert [bundle.query_str for bundle in below.asked] == [
        "pump", "Here are 3 queries:", "1. how to prime a pump", '2. "pump maintenance"',
    ]  # fmt: skip
    below.asked.clear()
    expander = QueryExpander(Answering(answer=said), size=4)
    HybridRetriever(channels={"child": below}, expansion=expander).retrieve("pump")
    assert {bundle.query_str for bundle in below.asked} == {"pump", "how to prime a pump", "pump maintenance"}


# BaseRetriever


class Meeting(ListRetriever):
    """Notes the thread it is asked in, and waits there."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__(scored(("a", 0.9)))
        self.threads: set[int] = set()
        self.wait = wait

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.threads.add(threading.get_ident())
        self.wait()
        return self.found


async def test_a_child_without_async_leaves_the_event_loop_free() -> None:
    in_turn = Meeting(lambda: None)
    await asyncio.gather(*(in_turn.aretrieve("pump") for _ in range(3)))
    assert in_turn.threads == {threading.get_ident()}
    together = Meeting(threading.Barrier(3, timeout=60).wait)
    ours = HybridRetriever(channels={"child": together}, fusion=Fusion(on_error="raise"))
    await asyncio.gather(*(ours.aretrieve("pump") for _ in range(3)))
    assert threading.get_ident() not in together.threads


async def test_a_score_of_0_stays_0_through_an_index_node() -> None:
    table = IndexNode(id_="i", text="pump table", index_id="t", obj=TextNode(id_="table", text="the table"))
    for score in (0.0, None):
        theirs = ListRetriever([NodeWithScore(node=table, score=score)])
        assert pairs(theirs.retrieve("pump")) == pairs(await theirs.aretrieve("pump")) == [("table", 1.0)]
    scorer = CallableScorer(lambda query, passages: [0.0 for _ in passages], name="zero")
    ours = HybridRetriever(channels={"bm25": BM25Retriever.from_nodes([table])}, rerank=scorer)
    assert pairs(ours.retrieve("pump")) == pairs(await ours.aretrieve("pump")) == [("table", 0.0)]


def test_the_query_stays_as_it_is() -> None:
    theirs = VectorStoreIndex(nodes=nodes(), embed_model=HashEmbedding()).as_retriever()
    for retriever, written in ((HybridRetriever(channels={"dense": theirs}), False), (theirs, True)):
        query = QueryBundle("pump")
        retriever.retrieve(query)
        assert (query.embedding is not None) == written


def test_a_node_is_read_from_its_own_json() -> None:
    (found,) = BM25Retriever.from_nodes([A]).retrieve("text")
    with pytest.raises(TypeError, match="abstract"):
        NodeWithScore.from_json(NodeWithScore(node=A, score=0.5).to_json())
    assert NodeWithProvenance.from_json(found.to_json()) == found


# RetrieverTool


async def test_a_tool_searches_for_what_it_was_asked() -> None:
    below = child(("a", 0.9))
    theirs = RetrieverTool.from_defaults(below, name="search")
    for tool, query in ((theirs, "\ninput is what is BM25?\n"), (RetrievalTool(below), "what is BM25?")):
        below.asked.clear()
        tool.call(input="what is BM25?")
        await tool.acall(input="what is BM25?")
        assert [bundle.query_str for bundle in below.asked] == [query] * 2


def test_a_tool_numbers_its_sources() -> None:
    page = TextNode(id_="a", text="Close the valve.", metadata={"file_name": "manual.pdf", "page_label": "2"})
    theirs = RetrieverTool.from_defaults(child_of(page)).call("valve")
    assert theirs.content == "file_name: manual.pdf\npage_label: 2\n\nClose the valve.\n\n"
    ours = RetrievalTool(child_of(page)).call("valve")
    assert "[1] [Source: manual.pdf, p.2]\nClose the valve." in ours.content
    assert [citation.chunk_id for citation in ours.raw_output.citations] == ["a"]

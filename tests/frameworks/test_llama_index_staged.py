"""Node postprocessors of LlamaIndex's and of others as stages."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import (
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
    SentenceTransformerRerank,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from tests.frameworks.llama_index_parts import Lengths, nodes
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.explanation import provenance
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError, StageError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever
from voicevault_retrievers.llama_index import provenance as provenance_of
from voicevault_retrievers.llama_index.convert import NodeChunk, chunks_of
from voicevault_retrievers.llama_index.foreign_stages import PostprocessorStage, stage_of
from voicevault_retrievers.llama_index.postprocessors import CrossEncoderRerank, PageDiversityPostprocessor
from voicevault_retrievers.rerank import CallableScorer, WeightedRerank
from voicevault_retrievers.text import Analyzer

QUESTION = "pump water"


class Gives(BaseNodePostprocessor):
    """Gives what a function makes of the nodes, and keeps how it was asked."""

    make: Any
    asked: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def _postprocess_nodes(self, nodes: Any, query_bundle: QueryBundle | None = None) -> list[NodeWithScore]:
        self.asked.append((query_bundle, threading.current_thread()))
        return self.make(nodes)  # type: ignore[no-any-return]


class Awaited(Gives):
    async def _apostprocess_nodes(self, nodes: Any, query_bundle: QueryBundle | None = None) -> list[NodeWithScore]:
        return self._postprocess_nodes(nodes, query_bundle)


def words() -> Channel:
    return BM25.from_chunks(chunks_of(nodes()), Analyzer("en"))


def neighbours() -> SimpleDocumentStore:
    """The nodes, and one between the pump and the valve; each knows the next."""
    given = [nodes()[0], TextNode(id_="between", text="Between them.", metadata={"key": 9}), *nodes()[1:]]
    for node, following in pairwise(given):
        node.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=following.node_id)
        following.relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=node.node_id)
    store = SimpleDocumentStore()
    store.add_documents(given)
    return store


def _single(score: float) -> Any:
    """As models give it."""
    return np.float32(score)


def linked() -> Channel:
    return BM25.from_chunks(chunks_of(neighbours().docs[name] for name in ("pump", "valve", "alarm")), Analyzer("en"))


@pytest.mark.parametrize("kind", [Gives, Awaited])
async def test_the_order_and_the_scores_are_the_parts(kind: type[Gives]) -> None:
    before = words().search(QUESTION)
    assert len(before) == 4
    for make, scores in [
        (lambda found: found[:2], [hit.score for hit in before][:2]),
        (lambda found: [NodeWithScore(node=f.node, score=_single(1 - n / 10)) for n, f in enumerate(found[::-1])],
         pytest.approx([1.0, 0.9, 0.8, 0.7])),
        (lambda found: found[::-1], [hit.score for hit in before][::-1]),
        (lambda found: [NodeWithScore(node=f.node) for f in found], [None] * 4),
        (lambda found: [found[1], found[0]], [before.hits[1].score, before.hits[0].score]),
    ]:  # fmt: skip
        part = kind(make=make)
        after = (words() >> stage_of(part)).search(QUESTION)
        assert [hit.score for hit in after] == scores
        assert not after.errors
        for rank, hit in enumerate(after, 1):
            (old,) = [old for old in before if old.id == hit.id]
            assert (hit.chunk, hit.votes[:-1], hit.context) == (old.chunk, old.votes, None)
            assert provenance(hit)[kind.__name__]["rank"] == rank
        assert (await (words() >> stage_of(part)).asearch(QUESTION)).hits == after.hits
        ((bundle, _), (again, thread)) = part.asked
        assert bundle == again == QueryBundle(QUESTION)
        assert bundle is not again
        assert (thread is threading.main_thread()) == (kind is Awaited)


def test_what_a_postprocessor_writes_into_nodes_and_bundles_stays_with_it() -> None:
    def spoil(found: list[NodeWithScore]) -> list[NodeWithScore]:
        for node in found:
            node.node.metadata["tags"].append("spoilt")
            node.score = 0.5
        return sorted(found, key=lambda node: node.node_id)

    query = Query(QUESTION, vectors={"": np.ones(2, dtype=np.float32)})
    channel = words()
    before = channel.search(query)
    part = Gives(make=spoil)
    after = (channel >> stage_of(part)).search(query)
    assert [(hit.id, hit.score) for hit in after] == [(name, 0.5) for name in sorted(before.ids)]
    assert channel.search(query) == before
    assert all("spoilt" in hit.chunk.metadata["tags"] for hit in after)
    assert part.asked[0][0].embedding == [1.0, 1.0]


def test_a_text_that_changes_is_the_hits_from_then_on() -> None:
    metadata = [{"window": "A wider text."}, {}]
    hits = [Hit(Chunk(f"{at}", "text", metadata=own), 1.0 - at) for at, own in enumerate(metadata)]
    stage = stage_of(MetadataReplacementPostProcessor(target_metadata_key="window"))
    found = stage.refine(Query(""), Ranking(tuple(hits)))
    assert [(hit.id, hit.score, hit.chunk.text) for hit in found] == [("0", 1.0, "A wider text."), ("1", 0.0, "text")]
    assert "text" not in provenance(found.hits[0])
    again = stage_of(SimilarityPostprocessor(similarity_cutoff=0.5)).refine(Query(""), found)
    assert [hit.text for hit in again] == ["A wider text."]

    def split(given: list[NodeWithScore]) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_=node.node_id, text=text)) for node in given for text in ("te", "xt")]

    parts = stage_of(Gives(make=split)).refine(Query(""), found)
    assert [(hit.id, hit.text) for hit in parts] == [("0", "te"), ("0#2", "xt"), ("1", "te"), ("1#2", "xt")]


def test_what_is_masked_no_later_stage_reads() -> None:
    def masked(given: list[NodeWithScore]) -> list[NodeWithScore]:
        for node in given:
            node.node.set_content("MASKED")
            node.node.metadata["mask"] = 1
        return given

    read: list[str] = []

    def score(query: str, passages: Sequence[str]) -> list[float]:
        read.extend(passages)
        return [0.0] * len(passages)

    whole = (
        BM25Retriever.from_nodes(nodes()) >> Gives(make=masked) >> CrossEncoderRerank(CallableScorer(score, name="x"))
    )
    found = whole.retrieve("pump valve")
    assert {node.text for node in found} == set(read) == {"MASKED"}
    assert all(node.metadata["mask"] == 1 for node in found)
    assert all("text" not in (provenance_of(node) or {}) for node in found)


def test_neighbours_are_hits_of_which_the_stage_knows() -> None:
    stage = stage_of(PrevNextNodePostprocessor(docstore=neighbours(), mode="next"))
    before = linked().search("pump")
    found = (linked() >> stage).search("pump", 10)
    assert before.ids == ("pump", "valve")
    assert found.ids == ("pump", "between", "valve", "filter")
    (added,) = [hit for hit in found if hit.id == "between"]
    told = provenance(added)
    assert (added.text, added.score, told["channels"]) == ("Between them.", None, {})
    assert told["PrevNextNodePostprocessor"] == {"rank": 2, "score": None}
    assert all(provenance(hit)["channels"] for hit in found if hit.id in before.ids)
    narrowed = (linked() >> stage).search(Query("pump", require={"key": {"$lt": 9}}), 10)
    assert narrowed.ids == ("pump", "valve", "filter")
    assert not narrowed.errors


def test_nodes_of_one_id_in_two_knowledge_bases_stay_apart() -> None:
    chunks = [NodeChunk(f"{kb}:pump", f"in {kb}", kb=kb, node=TextNode(id_="pump", text=f"in {kb}")) for kb in "ab"]
    hits = Ranking(tuple(map(Hit, chunks)))
    found = stage_of(Gives(make=lambda given: given[::-1])).refine(Query(""), hits)
    assert [(hit.id, hit.text) for hit in found] == [("b:pump", "in b"), ("a:pump", "in a")]
    made_anew = stage_of(Gives(make=lambda given: [NodeWithScore(node=TextNode(id_="pump", text="in a"))]))
    assert made_anew.refine(Query(""), hits).ids == ("a:pump",)


def test_a_part_that_fails_or_has_no_number_fails_the_search() -> None:
    for make, said in [
        (lambda given: given[0].missing, "AttributeError"),
        (lambda given: [NodeWithScore(node=given[0].node, score=math.nan)], "InvalidScoreError"),
    ]:
        with pytest.raises(StageError, match=f"Gives raised {said}"):
            (words() >> stage_of(Gives(make=make))).search(QUESTION)


class Scores:
    def predict(self, pairs: list[tuple[str, str]]) -> list[np.float32]:
        return [np.float32(len(text)) for _, text in pairs]


def theirs() -> list[tuple[BaseNodePostprocessor, int]]:
    rerank = SentenceTransformerRerank.model_construct(top_n=2, model="m", device="cpu", keep_retrieval_score=True)
    rerank._model = Scores()
    return [
        (rerank, 2),
        (LongContextReorder(), 4),
        (SimilarityPostprocessor(similarity_cutoff=1e9), 0),
        (LLMRerank(MockLLM(), parse_choice_select_answer_fn=lambda answer, n: ([2, 1, 2], [9.0, 8.0, 7.0])), 3),
    ]


@pytest.mark.parametrize(("part", "count"), theirs(), ids=lambda given: type(given).__name__)
async def test_the_librarys_own(part: BaseNodePostprocessor, count: int) -> None:
    channel = HybridRetriever.from_nodes(nodes(), HashEmbedder(16)).pipeline.channel
    before = channel.search(QUESTION, 4)
    after = (channel >> stage_of(part)).search(QUESTION, 4)
    assert (len(after), after.errors) == (count, ())
    assert await (channel >> stage_of(part)).asearch(QUESTION, 4) == after
    expected = part.postprocess_nodes(
        HybridRetriever.from_nodes(nodes(), HashEmbedder(16), k=4).retrieve(QUESTION), query_str=QUESTION
    )
    assert [hit.id.removesuffix("#2") for hit in after] == [node.node_id for node in expected]
    assert [hit.score for hit in after] == [node.score for node in expected]
    assert channel.search(QUESTION, 4) == before


def test_what_is_a_stage() -> None:
    own = WeightedRerank()
    assert stage_of(own) is own
    cap = PageDiversityPostprocessor()
    assert stage_of(cap) is cap.stage
    assert repr(stage_of(CrossEncoderRerank(Lengths(), top_n=3))).startswith("TopN(CrossEncoderRerank(")
    assert isinstance(stage_of(LongContextReorder()), PostprocessorStage)
    assert repr(stage_of(LongContextReorder())) == "PostprocessorStage(LongContextReorder)"
    with pytest.raises(ConfigError, match="a stage is a node postprocessor or a Stage, not a str"):
        stage_of("rerank")


def test_nodes_that_rights_do_not_permit_after_a_stage_are_told() -> None:
    fresh = Gives(make=lambda nodes: [NodeWithScore(node=TextNode(text=one.node.get_content()[:4])) for one in nodes])
    node = TextNode(id_="a", text="the pump hums", metadata={"acl": "x"})
    result = (HybridRetriever.from_nodes([node], HashEmbedder(), require={"acl": "x"}) >> fresh).search("pump")
    assert result.hits == ()
    (failure,) = result.errors
    assert failure.degrades
    assert failure.message.startswith("Gives returned new documents whose metadata this search's `require` does not")

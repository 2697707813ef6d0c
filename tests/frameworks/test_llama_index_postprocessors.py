"""What all node postprocessors do, the cross-encoder and the page cap; and those of others as stages."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import (
    LLMRerank as TheirLLMRerank,
)
from llama_index.core.postprocessor import (
    LongContextReorder,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import BaseComponent, NodeWithScore, QueryBundle, TextNode

from tests.frameworks.llama_index_parts import Broken, Lengths, ListRetriever, nodes, recorded, scored
from tests.helpers import HashEmbedder
from voicevault_retrievers.errors import ConfigError, RerankerError
from voicevault_retrievers.llama_index import HybridRetriever, NodeWithProvenance, provenance
from voicevault_retrievers.llama_index.parents import ParentExpansionPostprocessor, SentenceWindowPostprocessor
from voicevault_retrievers.llama_index.postprocessors import (
    CrossEncoderRerank,
    PageDiversityPostprocessor,
    Reranker,
    StagePostprocessor,
)
from voicevault_retrievers.llama_index.rerankers import (
    LLMRerank,
    MMRPostprocessor,
    NearDuplicatePostprocessor,
    RecencyPostprocessor,
    WeightedRerank,
)

QUESTION = "pump"


def says(prompt: str) -> str:
    return "[2, 1]"


def fails(prompt: str) -> str:
    raise RuntimeError("out of memory")


def parts() -> list[StagePostprocessor]:
    return [
        CrossEncoderRerank(Lengths()),
        LLMRerank(says),
        WeightedRerank(),
        RecencyPostprocessor(reference_date="2024-07-01"),
        MMRPostprocessor(by=HashEmbedder()),
        NearDuplicatePostprocessor(),
        PageDiversityPostprocessor(max_chunks_per_page=1),
        ParentExpansionPostprocessor({"manual": TextNode(id_="manual", text="All of it.")}, use_source=True),
        SentenceWindowPostprocessor(window_key="key"),
    ]


every = pytest.mark.parametrize("part", parts(), ids=lambda part: type(part).__name__)


def found() -> list[NodeWithScore]:
    """Nodes with provenance, one without a score, one without provenance, and one twice."""
    retrieved = HybridRetriever.from_nodes(nodes(), HashEmbedder(16)).retrieve(QUESTION)
    return [*retrieved, *scored(("bare", 0.3), ("unscored", None), ("bare", 0.3))]


def told(node: NodeWithScore) -> dict[str, Any]:
    return provenance(node) or {}


# All of them


@every
def test_they_are_llama_index_components(part: StagePostprocessor) -> None:
    kind = type(part)
    assert [StagePostprocessor, BaseNodePostprocessor, BaseComponent] == [
        c for c in kind.__mro__ if c in (StagePostprocessor, BaseNodePostprocessor, BaseComponent)
    ]
    assert (
        kind.class_name() == kind.__name__ == part.to_dict()["class_name"] == json.loads(part.to_json())["class_name"]
    )
    elsewhere = {name: getattr(part, name) for name in part.to_dict().get("objects", ())}
    assert kind.from_dict(json.loads(part.to_json()), **elsewhere).to_dict() == part.to_dict()
    assert all(field.description for name, field in kind.model_fields.items() if name != "callback_manager")


@every
async def test_sync_and_async_agree_and_leave_their_input_as_it_was(part: StagePostprocessor) -> None:
    given = found()
    before = copy.deepcopy(given)
    bundle = QueryBundle(QUESTION)
    after = part.postprocess_nodes(given, bundle)
    assert await part.model_copy().apostprocess_nodes(given, bundle) == after
    assert (given, bundle) == (before, QueryBundle(QUESTION))
    assert [told(node) for node in given] == [told(node) for node in before]
    assert after
    assert all(type(node) is NodeWithProvenance for node in after)
    assert all(new.node is not old.node for new in after for old in given)
    assert {node.node_id for node in after} <= {node.node_id for node in given}
    for node in after:
        (old, *_) = [old for old in before if old.node_id == node.node_id]
        assert (node.metadata, node.node.excluded_llm_metadata_keys) == (
            old.metadata,
            old.node.excluded_llm_metadata_keys,
        )
        assert node.metadata.get("tags") is None or node.metadata["tags"] is not old.metadata["tags"]
    assert part.postprocess_nodes([], bundle) == await part.apostprocess_nodes([], bundle) == []


@every
def test_nodes_of_one_id_are_two_nodes(part: StagePostprocessor) -> None:
    twins = [NodeWithScore(node=TextNode(id_="same", text=text), score=0.5) for text in ("one text", "another text")]
    after = part.postprocess_nodes(twins, query_str=QUESTION)
    assert sorted(node.text for node in after) == ["another text", "one text"]


@every
@pytest.mark.parametrize("scores", [(None, None), (math.nan, 0.5), (0.1, 0.5), (0.5, None), (math.inf, 1.0)])
async def test_any_scores_will_do(part: StagePostprocessor, scores: tuple[float | None, float | None]) -> None:
    given = scored(*zip(("pump", "valve"), scores, strict=True))
    after = part.postprocess_nodes(given, query_str=QUESTION)
    assert {node.node_id for node in after} == {"pump", "valve"}
    if isinstance(part, Reranker):
        assert all(node.score is None or math.isfinite(node.score) for node in after)
    else:
        assert [repr(node.score) for node in after] == [repr(score) for score in scores]


@every
@pytest.mark.parametrize("is_async", [False, True])
async def test_rerankers_and_no_others_tell_of_their_work(part: StagePostprocessor, is_async: bool) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    part = part.model_copy(update={"callback_manager": CallbackManager([debug])})
    wanted = 2 * isinstance(part, Reranker)
    for given in (found(), []):
        with recorded() as events:
            if is_async:
                after = await part.apostprocess_nodes(given, query_str=QUESTION)
            else:
                after = part.postprocess_nodes(given, query_str=QUESTION)
        assert [type(event) for event in events] == [ReRankStartEvent, ReRankEndEvent][:wanted]
        assert all(event.nodes == nodes for event, nodes in zip(events, (given, after), strict=False))
    assert len(debug.get_event_pairs(CBEventType.RERANKING)) == wanted


@every
def test_a_query_is_asked_for_where_it_is_needed(part: StagePostprocessor) -> None:
    if isinstance(part, CrossEncoderRerank | LLMRerank):
        with pytest.raises(ConfigError, match=f"{type(part).__name__} needs the query"):
            part.postprocess_nodes(found())
    else:
        assert part.postprocess_nodes(found())


@every
def test_copies_and_pickles_do_the_same(part: StagePostprocessor) -> None:
    after = part.postprocess_nodes(found(), query_str=QUESTION)
    for twin in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part), part.model_copy()):
        assert twin.postprocess_nodes(found(), query_str=QUESTION) == after
    assert part.model_copy().stage is part.stage


def test_what_cannot_be_pickled_is_said() -> None:
    with pytest.raises(ConfigError, match="LLMRerank cannot be pickled, for its \\['llm'\\]"):
        pickle.dumps(LLMRerank(lambda prompt: "[1]"))


@every
@pytest.mark.parametrize("is_async", [False, True])
async def test_they_work_in_a_query_engine(part: StagePostprocessor, is_async: bool) -> None:
    given = found()[:-1]  # a retriever gives each id once
    engine = RetrieverQueryEngine(
        ListRetriever(given), get_response_synthesizer(llm=MockLLM()), node_postprocessors=[part]
    )
    response = await engine.aquery(QUESTION) if is_async else engine.query(QUESTION)
    assert response.source_nodes == part.postprocess_nodes(given, query_str=QUESTION)


PEERS = [
    SimilarityPostprocessor(similarity_cutoff=-1e9),
    LongContextReorder(),
    MetadataReplacementPostProcessor(target_metadata_key="window"),
    TheirLLMRerank(llm=MockLLM(), parse_choice_select_answer_fn=lambda answer, count: ([1], [9.0])),
]


@every
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: type(peer).__name__)
def test_provenance_is_read_behind_other_postprocessors(part: StagePostprocessor, peer: BaseNodePostprocessor) -> None:
    retrieved = HybridRetriever.from_nodes(nodes(), HashEmbedder(16)).retrieve(QUESTION)
    mine = part.postprocess_nodes(retrieved, query_str=QUESTION)
    known = {node.node_id: copy.deepcopy(told(node)) for node in mine}
    theirs = peer.postprocess_nodes(mine, query_str=QUESTION)
    assert theirs or all(node.score is None for node in mine)
    assert all(told(node) == known[node.node_id] for node in theirs)
    assert all(told(node)["channels"] for node in part.postprocess_nodes(theirs, query_str=QUESTION))


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (CrossEncoderRerank, {"dept": 3}, "Did you mean 'depth'"),
        (CrossEncoderRerank, {"keep_retrieval_score": True}, r"provenance\(node\)"),
        (CrossEncoderRerank, {"device": "cpu"}, "SentenceTransformerScorer"),
        (CrossEncoderRerank, {"trust_remote_code": True}, "never run"),
        (CrossEncoderRerank, {"model": 3}, "cross-encoder's name"),
        (CrossEncoderRerank, {"top_n": 0}, "top_n is 0"),
        (CrossEncoderRerank, {"timeout": -1}, "timeout"),
        (CrossEncoderRerank, {"on_error": "ignore"}, "on_error"),
        (PageDiversityPostprocessor, {"max_chunks_per_page": 0}, "max_chunks_per_page"),
        (PageDiversityPostprocessor, {"max_chunks_per_pages": 1}, "Did you mean 'max_chunks_per_page'"),
    ],
)
def test_a_wrong_option_is_refused(kind: type[StagePostprocessor], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**options)


# The cross-encoder


async def test_reranking_gives_new_nodes_with_scores_and_reasons() -> None:
    given = [*scored(("pump", 0.5), ("valve", None)), *scored(("pump", 0.5))]
    rerank = CrossEncoderRerank(Lengths(), blend=1)
    after = rerank.postprocess_nodes(given, query_str="pump")
    assert [(node.node_id, node.score) for node in after] == [("pump", 56.0), ("pump", 56.0), ("valve", 49.0)]
    assert told(after[0]) == {"retrieved": {"score": 0.5}, "rerank": {"rank": 1, "score": 56.0}}
    ties = scored(*((f"{at:02d}", None) for at in range(12, 0, -1)))
    assert [node.node_id for node in rerank.postprocess_nodes(ties, query_str="")] == [node.node_id for node in ties]
    assert len(CrossEncoderRerank(Lengths(), top_n=1).postprocess_nodes(given, query_str="pump")) == 1


def test_reranking_adds_to_what_is_known() -> None:
    retrieved = HybridRetriever.from_nodes(nodes(), HashEmbedder(16)).retrieve("pump")
    before = {node.node_id: told(node) for node in retrieved}
    for node in CrossEncoderRerank(Lengths(), blend=1).postprocess_nodes(retrieved, query_str="pump"):
        assert told(node).items() > before[node.node_id].items()
        assert told(node)["rerank"]["score"] == node.score == len(node.text)


async def test_a_stage_that_fails_keeps_the_order(caplog: pytest.LogCaptureFixture) -> None:
    given = scored(("valve", 0.1), ("pump", 0.5), ("alarm", 0.3))
    rerank = CrossEncoderRerank(Broken(), top_n=2)
    for after in (
        rerank.postprocess_nodes(given, query_str="pump"),
        await rerank.apostprocess_nodes(given, query_str="pump"),
    ):
        assert [(node.node_id, node.score) for node in after] == [("valve", 0.1), ("pump", 0.5)]
        assert told(after[0])["degraded"] == ["rerank: RerankerError: out of memory"]
    (again, _) = LLMRerank(fails).postprocess_nodes(after, query_str="pump")
    assert told(again)["degraded"] == [
        "rerank: RerankerError: out of memory",
        "llm_rerank: RuntimeError",
    ]
    assert caplog.text.count("out of memory") == 2
    with recorded() as events, pytest.raises(RerankerError, match="out of memory"):
        CrossEncoderRerank(Broken(), on_error="raise").postprocess_nodes(given, query_str="pump")
    assert [(type(event), len(event.nodes)) for event in events] == [(ReRankStartEvent, 3), (ReRankEndEvent, 0)]


def test_reranking_says_which_model_and_how_many() -> None:
    with recorded() as events:
        CrossEncoderRerank(Lengths(), top_n=2).postprocess_nodes(found(), query_str="pump")
    assert (events[0].model_name, events[0].top_n, events[0].query) == ("lengths", 2, "pump")


async def test_reranking_leaves_the_event_loop_free() -> None:
    scoring, freed = threading.Event(), threading.Event()

    class Waiting(Lengths):
        def score(self, query: str, passages: Sequence[str]) -> list[float]:
            scoring.set()
            if not freed.wait(timeout=10):
                raise RerankerError("the event loop was blocked")
            return super().score(query, passages)

    async def free() -> None:
        while not scoring.is_set():
            await asyncio.sleep(0)
        freed.set()

    rerank = CrossEncoderRerank(Waiting(), on_error="raise", blend=1)
    after, _ = await asyncio.gather(rerank.apostprocess_nodes(scored(("pump", 0.5)), query_str="pump"), free())
    assert after[0].score == 56.0


def test_a_stage_is_made_once_for_its_options() -> None:
    rerank = CrossEncoderRerank(Lengths(), depth=3, blend=1)
    stage = rerank.stage
    rerank.top_n = 1
    assert rerank.stage is stage
    assert "depth=3" in repr(stage)
    rerank.max_chars = 4
    (best,) = rerank.postprocess_nodes(scored(("pump", None), ("valve", None)), query_str="")
    assert (best.node_id, best.score) == ("pump", 4.0)


# The page cap


async def test_pages_are_capped_and_nodes_keep_their_scores() -> None:
    given = [NodeWithScore(node=node, score=score) for node, score in zip(nodes(), (0.1, 0.9, 0.5, 0.3), strict=True)]
    kept = PageDiversityPostprocessor(max_chunks_per_page=1).postprocess_nodes(given)
    assert [(node.node_id, node.score) for node in kept] == [("pump", 0.1), ("filter", 0.5)]
    assert told(kept[0]) == {}
    document = PageDiversityPostprocessor(max_chunks_per_document=3)
    assert len(await document.apostprocess_nodes(given)) == 3

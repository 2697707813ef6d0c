"""LlamaIndex: what a search shows in events, spans and callbacks, of one retrieve and one aretrieve."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.event_handlers import BaseEventHandler
from llama_index_instrumentation.span import SimpleSpan
from llama_index_instrumentation.span_handlers import SimpleSpanHandler

from tests.frameworks.llama_index_parts import HashEmbedding, ListRetriever, nodes, recorded, scored
from tests.helpers import TRACED_PARTS, Careless, CarelessPlan, FailingChannel, HeldChannel, late_when, until
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.plan import Span
from voicevault_retrievers.core.stages import skippable
from voicevault_retrievers.core.tracing import Work
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.errors import MissingExtraError, RerankerNotAvailableError, SearchNotAvailableError
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    CrossEncoderRerank,
    HybridRetriever,
    PageDiversityPostprocessor,
    RecencyPostprocessor,
    provenance,
)
from voicevault_retrievers.llama_index import events as told
from voicevault_retrievers.llama_index.events import (
    SearchDegradedEvent,
    SearchStepEndEvent,
    SearchStepStartEvent,
    SpanRecorder,
)
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.rerank import CallableScorer

QUESTION = "where is the pump valve"
SCORER = CallableScorer(lambda query, passages: [float(len(p)) for p in passages], name="by length")


Events = Callable[..., list[Any]]


@pytest.fixture
def events() -> Iterator[Events]:
    """Gives the events of some kinds."""
    with recorded(BaseEvent) as kept:
        yield lambda *kinds: [event for event in kept if isinstance(event, kinds)]


@pytest.fixture
def spans() -> Iterator[SimpleSpanHandler]:
    root, handler = get_dispatcher(), SimpleSpanHandler()
    before = list(root.span_handlers)
    root.add_span_handler(handler)
    yield handler
    root.span_handlers[:] = before


class AsyncList(ListRetriever):
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.found


def searched(child: type[ListRetriever] = AsyncList, **options: Any) -> HybridRetriever:
    return HybridRetriever.from_nodes(
        nodes(),
        HashEmbedding(),
        channels={"child": child(scored(("pump", 0.9), ("valve", 0.5)))},
        expansion=True,
        **{
            "rerank": SCORER,
            "node_postprocessors": [PageDiversityPostprocessor(max_chunks_per_page=1)],
            **options,
        },
    )


async def run(retriever: Any, is_async: bool, asked: str = QUESTION) -> list[NodeWithScore]:
    found: list[NodeWithScore] = await retriever.aretrieve(asked) if is_async else retriever.retrieve(asked)
    return found


both = pytest.mark.parametrize("is_async", [False, True])


# Steps


WORDINGS = [QUESTION, "the pump valve", "pump valve"]


def pairs(events: Events) -> list[tuple[SearchStepStartEvent, SearchStepEndEvent]]:
    """The events of each step, in the order of their starts."""
    ends = {event.span_id: event for event in events(SearchStepEndEvent)}
    starts = events(SearchStepStartEvent)
    assert len(ends) == len(starts)
    return [(start, ends[start.span_id]) for start in starts]


@both
async def test_each_step_starts_and_ends_with_an_event(events: Events, is_async: bool) -> None:
    found = await run(searched(), is_async)
    steps = pairs(events)
    assert Counter(f"{start.kind} {start.name}" for start, _ in steps) == TRACED_PARTS
    for start, end in steps:
        assert (end.name, end.kind, end.error) == (start.name, start.kind, None)
        assert start.timestamp <= end.timestamp
        for event in (start, end):
            assert event.model_dump(mode="json")["class_name"] == type(event).__name__
            assert nodes()[0].text not in event.model_dump_json()
    by_name = {start.name: (start, end) for start, end in steps}
    assert by_name["expansion"][1].wordings == WORDINGS
    assert by_name["dense"][0].queries == WORDINGS
    start, end = by_name["bm25"]
    assert (start.queries, start.k) == ([QUESTION], 100)
    assert [(hit["id"], hit["rank"]) for hit in end.hits] == [("valve", 1), ("pump", 2)]
    assert all(isinstance(hit["score"], float) for hit in end.hits)
    assert [hit["score"] for hit in by_name["rerank"][1].hits] == sorted(
        (float(len(node.text)) for node in nodes()), reverse=True
    )
    assert by_name["page_cap"][1].hits == [
        {"id": node.node_id, "rank": rank, "score": node.score} for rank, node in enumerate(found, 1)
    ]
    assert by_name["fused"][1].timestamp <= by_name["rerank"][0].timestamp


@both
async def test_retrieval_is_told_of_once(events: Events, is_async: bool) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    retriever = searched(AsyncList, callback_manager=CallbackManager([debug]))
    found = await run(retriever, is_async)
    own = [event for event in events(RetrievalStartEvent) if event.span_id.startswith("HybridRetriever")]
    (end,) = [event for event in events(RetrievalEndEvent) if event.span_id.startswith("HybridRetriever")]
    assert len(own) == 1
    assert end.nodes == found
    assert len(debug.get_event_pairs(CBEventType.RETRIEVE)) == 1
    assert len(debug.get_event_pairs(CBEventType.RERANKING)) == 1


@both
async def test_an_event_comes_as_soon_as_its_part_has_ended(is_async: bool) -> None:
    """The reranker waits for the event of the channel before it."""
    ended = threading.Event()

    class Waited(BaseEventHandler):
        def handle(self, event: BaseEvent, **kwargs: Any) -> None:
            if isinstance(event, SearchStepEndEvent) and event.kind == "channel":
                ended.set()

    def waiting(query: str, passages: Sequence[str]) -> list[float]:
        return [float(ended.wait(10))] * len(passages)

    dispatcher = get_dispatcher("voicevault_retrievers.llama_index.events")
    waited = Waited()
    dispatcher.add_event_handler(waited)
    try:
        retriever = BM25Retriever.from_nodes(nodes()) >> CrossEncoderRerank(CallableScorer(waiting, name="waiting"))
        assert {(provenance(node) or {})["rerank"]["score"] for node in await run(retriever, is_async)} == {1.0}
    finally:
        dispatcher.event_handlers.remove(waited)


@both
async def test_a_failing_channels_event_has_its_error(events: Events, is_async: bool) -> None:
    down = FailingChannel(SearchNotAvailableError("the server is down"))
    await run(HybridRetriever(channels={"bm25": BM25Retriever.from_nodes(nodes()), "far": down}), is_async)
    errors = {step.name: step.error for step in events(SearchStepEndEvent)}
    assert errors == {"far": "SearchNotAvailableError: the server is down", "bm25": None, "fused": None}
    (degraded,) = events(SearchDegradedEvent)
    assert degraded.degraded == ["far: SearchNotAvailableError: the server is down"]
    assert degraded.class_name() == "SearchDegradedEvent"


@both
async def test_a_degraded_search_that_finds_nothing_says_so(
    events: Events, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    down = FailingChannel(SearchNotAvailableError("the server is down"))
    retriever = HybridRetriever(channels={"bm25": BM25Retriever.from_nodes(nodes()), "far": down})
    assert await run(retriever, is_async, "zeppelin") == []
    assert [event.degraded for event in events(SearchDegradedEvent)] == [
        ["far: SearchNotAvailableError: the server is down"]
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@both
async def test_an_object_that_fails_is_in_an_event(events: Events, is_async: bool) -> None:
    index = IndexNode(id_="i", text="pump", index_id="target", obj=3)
    await run(BM25Retriever.from_nodes([index]), is_async)
    (degraded,) = events(SearchDegradedEvent)
    assert degraded.degraded[0].startswith("object target: ValueError")


@both
async def test_what_a_search_is_told_to_observe_is_told_too(events: Events, is_async: bool) -> None:
    seen: list[tuple[str, str]] = []

    def observe(span: Span, outcome: Any) -> None:
        seen.append((span.name, span.kind))

    async def aobserve(span: Span, outcome: Any) -> None:
        seen.append((span.name, span.kind))

    if is_async:
        await searched().asearch(QUESTION, observe=aobserve)
    else:
        searched().search(QUESTION, observe=observe)
    steps = Counter((step.name, step.kind) for step in events(SearchStepEndEvent))
    assert Counter(call for call in seen if call[1] != "other") == steps
    assert {name for name, kind in seen if kind == "other"} == {"bm25 scores", "dense scores"}


# Reranking


@pytest.mark.parametrize("where", ["inside", "behind", "given as a postprocessor", "by a preset"])
@both
async def test_reranking_is_told_of_in_pairs(events: Events, is_async: bool, where: str) -> None:
    preset = {"version": 1, "k": 3, "stages": [{"rerank": {"model": "none of this name"}}]}
    retriever = {
        "inside": lambda: searched(),
        "behind": lambda: searched(rerank=None) >> CrossEncoderRerank(SCORER),
        "given as a postprocessor": lambda: searched(rerank=CrossEncoderRerank(SCORER)),
        "by a preset": lambda: _preset(preset),
    }[where]()
    missing = RerankerNotAvailableError, MissingExtraError
    with pytest.raises(missing) if where == "by a preset" else nullcontext():
        await run(retriever, is_async)
    kinds = [type(event) for event in events(ReRankStartEvent, ReRankEndEvent)]
    assert kinds == [ReRankStartEvent, ReRankEndEvent]
    start, end = events(ReRankStartEvent)[0], events(ReRankEndEvent)[0]
    assert start.query == QUESTION
    assert start.model_name == ("none of this name" if where == "by a preset" else "by length")
    reranked = () if where == "by a preset" else start.nodes
    assert {node.node_id for node in end.nodes} == {node.node_id for node in reranked}


def _preset(data: dict[str, Any]) -> HybridRetriever:
    from voicevault_retrievers.pipeline.presets import Preset

    return HybridRetriever.from_nodes(nodes(), HashEmbedding(), preset=Preset.of(data))


@pytest.mark.parametrize("on_error", ["skip", "raise"])
@both
async def test_reranking_that_fails_ends_too(events: Events, is_async: bool, on_error: Any) -> None:
    def broken(query: str, passages: Sequence[str]) -> list[float]:
        raise OSError("no route to the model")

    retriever = searched(
        rerank=CallableScorer(broken, name="broken"), fusion=Fusion(on_error=on_error), node_postprocessors=[]
    )
    try:
        found = await run(retriever, is_async)
        assert (provenance(found[0]) or {})["degraded"] == ["rerank: OSError"]
    except OSError:
        assert on_error == "raise"
    kinds = [type(event) for event in events(ReRankStartEvent, ReRankEndEvent)]
    assert kinds == [ReRankStartEvent, ReRankEndEvent]
    stage = next(step for step in events(SearchStepEndEvent) if step.kind == "stage")
    assert stage.error == "OSError"


# Spans


def tree(spans: SimpleSpanHandler) -> dict[str, str | None]:
    """Each span's method by its parent's; where there are several of a name they have one parent."""
    every: list[SimpleSpan] = spans.completed_spans
    names = {span.id_: span.id_.partition("-")[0] for span in every}
    return {names[span.id_]: None if span.parent_id is None else names[span.parent_id] for span in every}


@pytest.mark.parametrize("child", [ListRetriever, AsyncList])
@both
async def test_childrens_spans_are_below_ours(spans: SimpleSpanHandler, child: Any, is_async: bool) -> None:
    await run(searched(child), is_async)
    above, below = ("aretrieve", "_aretrieve") if is_async else ("retrieve", "_retrieve")
    awaited = is_async and child is AsyncList
    public, own = ("aretrieve", "_aretrieve") if awaited else ("retrieve", "_retrieve")
    found = tree(spans)
    name = child.__name__
    assert found[f"HybridRetriever.{above}"] is None
    assert found[f"HybridRetriever.{below}"] == f"HybridRetriever.{above}"
    assert found[f"{name}.{public}"] == "channel child"
    assert {step: found[step] for step in TRACED_PARTS} == dict.fromkeys(TRACED_PARTS, f"HybridRetriever.{below}")
    assert Counter(span.id_.partition("-")[0] for span in spans.completed_spans) >= Counter(TRACED_PARTS)
    if f"{name}.{own}" in found:
        assert found[f"{name}.{own}"] == f"{name}.{public}"
    assert "HybridRetriever._sources" not in found
    assert sum(span.id_.startswith(f"{name}.{public}") for span in spans.completed_spans) == 3
    assert spans.open_spans == {}


@both
async def test_a_steps_events_are_in_its_span_which_lasts_as_long(
    events: Events, spans: SimpleSpanHandler, is_async: bool
) -> None:
    await run(searched(), is_async)
    ended = {span.id_: span for span in spans.completed_spans}
    for start, end in pairs(events):
        span = ended[start.span_id]
        assert span.id_.startswith(f"{start.kind} {start.name}-")
        assert span.start_time <= start.timestamp <= end.timestamp <= span.end_time


@pytest.mark.parametrize("begun", ["before its deadline", "after its deadline"])
@both
async def test_a_late_step_is_dropped_with_its_error(
    events: Events, spans: SimpleSpanHandler, monkeypatch: pytest.MonkeyPatch, begun: str, is_async: bool
) -> None:
    hanging, opened, over = HeldChannel(name="hanging", timeout=0.05), SpanRecorder.opened, threading.Event()

    def held(recorder: SpanRecorder, work: Work, run: Any) -> None:
        """The thread of the hanging call is held up between the start of its span and the note that it has started."""
        if work.name == "hanging" and begun == "after its deadline":
            hanging.began.set()
            over.wait(10)
        opened(recorder, work, run)

    late_when(hanging.began, monkeypatch)
    monkeypatch.setattr(SpanRecorder, "opened", held)
    try:
        await run(HybridRetriever(channels={"bm25": BM25Retriever.from_nodes(nodes()), "hanging": hanging}), is_async)
    finally:
        over.set()
        hanging.go.set()
    await asyncio.to_thread(until, lambda: len(events(SearchStepEndEvent)) == len(events(SearchStepStartEvent)))
    (late,) = (end for _, end in pairs(events) if end.name == "hanging")
    assert late.error == "SearchTimeoutError: hanging did not answer within its 0.05 s"
    await asyncio.to_thread(until, lambda: not spans.open_spans)
    assert [span.id_ for span in spans.dropped_spans] == [late.span_id]


@both
async def test_what_index_nodes_lead_to_is_below_ours(spans: SimpleSpanHandler, is_async: bool) -> None:
    index = IndexNode(id_="i", text="pump", index_id="target", obj=ListRetriever(scored(("pump", 1.0))))
    await run(BM25Retriever.from_nodes([index]), is_async)
    above = "aretrieve" if is_async else "retrieve"
    assert tree(spans)["ListRetriever.retrieve"] == f"BM25Retriever.{above}"


# Access rights


class Leaking(Stage):
    """Adds what nobody asked for."""

    name = "leaking"

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return Ranking((Hit(Chunk("secret", "pump b", metadata={"of": "b"})), *_unscored(ranking)))


class Listing(Leaking):
    """Gives no ranking."""

    name = "listing"

    def refine(self, query: Query, ranking: Ranking) -> Any:
        return [*super().refine(query, ranking)]


def _unscored(ranking: Ranking) -> list[Hit]:
    return [Hit(hit.chunk, None, hit.votes) for hit in ranking]


@both
async def test_what_is_not_permitted_shows_in_no_event_log_or_prompt(
    events: Events, spans: SimpleSpanHandler, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[str] = []

    def reading(query: str, passages: Sequence[str]) -> list[float]:
        read.extend(passages)
        return [0.0] * len(passages)

    secret = NodeWithScore(node=TextNode(id_="secret", text="pump b", metadata={"of": "b"}), score=1.0)
    retriever = HybridRetriever(
        channels={"careless": Careless("careless", "semantic"), "list": ListRetriever([secret])},
        require={"of": "a"},
        rerank=CallableScorer(reading, name="reading"),
        node_postprocessors=[Leaking(), RecencyPostprocessor(), skippable(Listing())],
        callback_manager=CallbackManager([debug := LlamaDebugHandler(print_trace_on_end=False)]),
    )
    found = await run(retriever, is_async)
    assert [node.node_id for node in found] == ["ours"]
    own = [event for event in events(BaseEvent) if not _of_a_child(event)]
    payloads = [event.payload for event in debug.get_events()]
    for shown in (own, read, found, caplog.records, payloads):
        assert "secret" not in repr(shown)
        assert "pump b" not in repr(shown)


@both
async def test_steps_show_only_what_access_rights_permit(
    events: Events, spans: SimpleSpanHandler, is_async: bool
) -> None:
    ours = BM25Retriever.from_nodes([TextNode(id_="ours", text="pump a", metadata={"of": "a"})])
    await run(HybridRetriever(channels={"plan": CarelessPlan(), "ours": ours}, require={"of": "a"}), is_async, "pump")
    assert [hit["id"] for end in events(SearchStepEndEvent) for hit in end.hits] == ["ours", "ours"]


def _of_a_child(event: BaseEvent) -> bool:
    """Of somebody else's retriever, which tells of what it finds before we see it."""
    return (event.span_id or "").startswith("ListRetriever")


def test_where_nobody_listens_nothing_is_made() -> None:
    assert told.recorder() is None

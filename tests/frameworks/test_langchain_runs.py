"""LangChain: the child runs of a search, as a tracer sees them, of one invoke and one ainvoke."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.context import collect_runs
from langchain_core.tracers.schemas import Run

from tests.frameworks.langchain_parts import TEXTS, AsyncChild, Child, by_length, documents
from tests.helpers import CarelessPlan, FailingChannel, HashEmbedder, ListChannel, late_after, late_when
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, PageDiversityFilter, VectorRetriever
from voicevault_retrievers.langchain.events import recorder
from voicevault_retrievers.rerank import CallableScorer

QUESTION = "where is the pump seal"
WORDINGS = [QUESTION, "the pump seal", "pump seal"]
SCORER = CallableScorer(by_length, name="by length")

both = pytest.mark.parametrize("is_async", [False, True])


class Tree(BaseTracer):
    """Keeps the finished root runs."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)


def bm25() -> BM25Retriever:
    return BM25Retriever.from_documents(documents())


def searched(child: type[Child] = AsyncChild, **options: Any) -> HybridRetriever:
    return HybridRetriever(
        channels={
            "bm25": bm25(),
            "dense": VectorRetriever.from_documents(documents(), HashEmbedder()),
            "child": child(found=documents(), seen=[]),
        },
        expansion=True,
        rerank=SCORER,
        stages=[PageDiversityFilter(max_chunks_per_page=1)],
        **options,
    )


async def run(retriever: Any, config: RunnableConfig, is_async: bool, asked: Any = QUESTION) -> list[Document]:
    found: list[Document] = await retriever.ainvoke(asked, config) if is_async else retriever.invoke(asked, config)
    return found


async def traced(retriever: Any, is_async: bool, asked: Any = QUESTION) -> Run:
    tree = Tree()
    await run(retriever, {"callbacks": [tree]}, is_async, asked)
    (root,) = tree.roots
    return root


def shape(run: Run) -> Any:
    """The name of a run, or with child runs a pair with their sorted shapes."""
    return (run.name, sorted(map(shape, run.child_runs), key=repr)) if run.child_runs else run.name


def every(run: Run) -> Iterator[Run]:
    yield run
    for child in run.child_runs:
        yield from every(child)


def named(root: Run) -> dict[str, Run]:
    return {run.name: run for run in every(root)}


FOREIGN = ("channel child", ["AsyncChild"])
PARTS = [
    "channel bm25",
    FOREIGN,
    FOREIGN,
    FOREIGN,
    "channel dense",
    "fusion fused",
    "rewriter expansion",
    "stage page_cap",
    "stage rerank",
]
SHAPE = ("HybridRetriever", sorted(PARTS, key=repr))


@pytest.mark.parametrize("kind", [Child, AsyncChild])
@both
async def test_each_part_is_a_child_run_and_a_foreign_retriever_is_below_its_channel(
    kind: type[Child], is_async: bool
) -> None:
    retriever, tree = searched(kind, tags=["own"], metadata={"team": "pumps"}), Tree()
    chain = RunnableLambda(lambda query: query, name="ask") | retriever
    config: RunnableConfig = {"callbacks": [tree], "tags": ["outer"], "metadata": {"tenant": "a"}}
    await run(chain, {**config, "configurable": {"user": "ada"}}, is_async)
    (root,) = tree.roots
    assert [below.name for below in root.child_runs] == ["ask", "HybridRetriever"]
    own = root.child_runs[1]
    assert {"outer", "own"} <= set(own.tags or [])
    assert (own.metadata["tenant"], own.metadata["team"]) == ("a", "pumps")
    assert repr(shape(own)) == repr(SHAPE).replace("AsyncChild", kind.__name__)
    for below in own.child_runs:
        assert below.run_type == ("retriever" if below.name.startswith("channel") else "chain")
        assert "outer" in (below.tags or [])
        assert below.metadata["tenant"] == "a"
    foreign = [one for below in own.child_runs for one in below.child_runs]
    assert sorted(below.inputs["query"] for below in foreign) == sorted(WORDINGS)
    assert {below.run_type for below in foreign} == {"retriever"}
    assert all({"outer", "channel:child"} <= set(below.tags or []) for below in foreign)
    seen = retriever.channels["child"].seen
    assert [config["configurable"]["user"] for config in seen] == ["ada"] * len(WORDINGS)


@both
async def test_a_run_lasts_as_long_as_its_part(is_async: bool) -> None:
    root = await traced(searched(), is_async)
    for above in every(root):
        for below in above.child_runs:
            assert above.start_time <= below.start_time <= below.end_time <= above.end_time  # type: ignore[operator]
    found, channels = named(root), [one for one in root.child_runs if one.run_type == "retriever"]
    steps = [
        [found["rewriter expansion"]],
        channels,
        *([found[f"{name}"]] for name in ("fusion fused", "stage rerank")),
    ]
    steps.append([found["stage page_cap"]])
    for before, after in pairwise(steps):
        ended = [one.end_time for one in before if one.end_time is not None]
        assert len(ended) == len(before)
        assert max(ended) <= min(one.start_time for one in after)


@both
async def test_runs_hold_queries_ids_ranks_and_scores_and_no_texts(is_async: bool) -> None:
    root = await traced(searched(), is_async)
    found = named(root)
    assert found["rewriter expansion"].inputs == {"queries": [QUESTION]}
    assert found["rewriter expansion"].outputs == {"wordings": WORDINGS}
    assert found["channel dense"].inputs == {"queries": WORDINGS, "k": 100}
    documents = (found["channel bm25"].outputs or {})["output"]
    assert [document.metadata["rank"] for document in documents] == [1, 2, 3]
    assert {document.id for document in documents} == {"seal", "flush", "hose"}
    assert all(isinstance(document.metadata["score"], float) for document in documents)
    reranked = (found["stage rerank"].outputs or {})["hits"]
    assert reranked[0] == {"id": "flush", "rank": 1, "score": float(len(TEXTS["flush"]))}
    capped = (found["stage page_cap"].outputs or {})["hits"]
    assert [hit["id"] for hit in capped] == [document.id for document in (root.outputs or {})["documents"]]
    for below in root.child_runs:
        assert not any(text in repr(below.outputs) for text in TEXTS.values())
        if below.run_type == "chain":
            json.dumps(below.outputs)


@both
async def test_texts_are_traced_on_request(is_async: bool) -> None:
    found = named(await traced(searched(traced_texts=True), is_async))
    (first, *_) = (found["channel bm25"].outputs or {})["output"]
    assert (first.page_content, first.metadata.keys()) == (TEXTS[first.id], {"rank", "score"})
    assert (found["fusion fused"].outputs or {})["hits"][0]["text"] in TEXTS.values()


class Ended(BaseCallbackHandler):
    """Says when the run of a channel has ended."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.told = threading.Event()

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> Any:
        self.names[run_id] = kwargs["name"]

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> Any:
        if self.names[run_id] == "channel bm25":
            self.told.set()


class AsyncEnded(Ended, AsyncCallbackHandler):
    async def on_chain_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        Ended.on_chain_start(self, *args, run_id=run_id, **kwargs)

    async def on_chain_end(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        Ended.on_chain_end(self, *args, run_id=run_id, **kwargs)


@pytest.mark.parametrize("kind", [Ended, AsyncEnded])
@both
async def test_a_run_ends_as_soon_as_its_part_has_ended(kind: type[Ended], is_async: bool) -> None:
    """The reranker waits for the end of the channel before it."""
    ended = kind()

    def waiting(query: str, passages: Sequence[str]) -> list[float]:
        return [float(ended.told.wait(10))] * len(passages)

    retriever = HybridRetriever(channels={"bm25": bm25()}, rerank=CallableScorer(waiting, name="waiting"))
    found = await run(retriever, {"callbacks": [ended]}, is_async)
    assert {document.metadata["voicevault"]["rerank"]["score"] for document in found} == {1.0}


@pytest.mark.parametrize("remote", [False, True])
async def test_async_handlers_are_told_on_the_event_loop(remote: bool) -> None:
    """A handler may be bound to it."""
    loop, told = asyncio.get_running_loop(), list[str]()

    class Bound(AsyncCallbackHandler):
        async def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            assert asyncio.get_running_loop() is loop
            told.append(kwargs["name"])

        async def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
            assert asyncio.get_running_loop() is loop
            told.append("end")

        raise_error = True

    channels: dict[str, Any] = {"bm25": bm25(), "dense": VectorRetriever.from_documents(documents(), HashEmbedder())}
    if remote:
        channels["child"] = AsyncChild(found=documents(), seen=[])
    await HybridRetriever(channels=channels, expansion=True).ainvoke(QUESTION, {"callbacks": [Bound()]})
    assert {"rewriter expansion", "channel bm25", "channel dense", "fusion fused"} <= set(told)
    assert told.count("end") == len(told) / 2


@both
async def test_a_handlers_own_error_ends_the_search(is_async: bool) -> None:
    class Guard(BaseCallbackHandler):
        raise_error = True

        def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            if kwargs["name"] == "channel bm25":
                raise PermissionError("no searches today")

    with pytest.raises(PermissionError, match="no searches today"):
        await run(searched(), {"callbacks": [Guard()]}, is_async)


# Failures


@both
async def test_a_failing_channels_run_ends_with_its_error(is_async: bool) -> None:
    channels = {
        "bm25": bm25(),
        "far": FailingChannel(SearchNotAvailableError("the server is down")),
        "foreign": FailingChannel(OSError(TEXTS["seal"])),
    }
    found = named(await traced(HybridRetriever(channels=channels), is_async))
    assert "SearchNotAvailableError: the server is down" in (found["channel far"].error or "")
    assert "OSError" in (found["channel foreign"].error or "")
    assert TEXTS["seal"] not in (found["channel foreign"].error or "")
    assert found["channel bm25"].error is found["fusion fused"].error is found["HybridRetriever"].error is None


class Hanging(LeafChannel):
    """Waits until it is released; an async search awaits it."""

    def __init__(self, *, awaited: bool) -> None:
        super().__init__("hanging", "semantic", timeout=0.05)
        self.release, self.began = threading.Event(), threading.Event()
        if awaited:
            self.afind = self._afind

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.began.set()
        self.release.wait(10)
        return [[] for _ in wordings]

    async def _afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.began.set()
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize("awaited", [False, True])
@both
async def test_a_late_channels_run_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, is_async: bool, awaited: bool
) -> None:
    hanging = Hanging(awaited=awaited)
    late_when(hanging.began, monkeypatch)
    retriever = HybridRetriever(channels={"bm25": bm25(), "hanging": hanging})
    found = named(await traced(retriever, is_async))
    late, fusion = found["channel hanging"], found["fusion fused"]
    hanging.release.set()
    assert "SearchTimeoutError: hanging did not answer within its 0.05 s" in (late.error or "")
    assert late.end_time is not None
    assert late.end_time <= fusion.start_time


@both
async def test_what_others_found_before_a_searchs_deadline_is_fused_and_capped(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Steps that only compute, after the deadline: they are given to the handlers, and made all the same."""
    hanging = Hanging(awaited=True)
    late_after("bm25", monkeypatch, hanging.began)
    retriever = HybridRetriever(
        channels={"bm25": bm25(), "hanging": hanging}, timeout=0.05, stages=[PageDiversityFilter(max_chunks_per_page=1)]
    )
    found = named(await traced(retriever, is_async))
    hanging.release.set()
    assert "SearchTimeoutError" in (found["channel hanging"].error or "")
    assert [found[name].error for name in ("fusion fused", "stage page_cap", "HybridRetriever")] == [None] * 3


@both
async def test_a_channel_that_is_not_asked_has_a_run_that_says_why(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    hanging = Hanging(awaited=False)
    retriever = HybridRetriever(channels={"bm25": bm25(), "hanging": hanging})
    late_when(hanging.began, monkeypatch)
    for _ in range(4):
        hanging.began.clear()
        await run(retriever, {}, is_async)
    refused = named(await traced(retriever, is_async))["channel hanging"]
    hanging.release.set()
    assert "hanging has 4 calls that never ended" in (refused.error or "")


class Wrong(LeafChannel):
    """Is set up wrongly, and says so when another channel is being asked."""

    asked = threading.Event()

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.asked.wait(10)
        raise ConfigError("no such option")


class Asking(Tree):
    """Lets the other channel fail when a channel is asked."""

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> Run:
        started: Run = super().on_chain_start(serialized, inputs, run_id=run_id, **kwargs)
        if kwargs["name"] == "channel hanging":
            Wrong.asked.set()
        return started


@both
async def test_the_run_of_a_call_that_nobody_waits_for_ends_with_the_search(is_async: bool) -> None:
    """A search that has no deadline for a hanging channel fails by a handler's error; the channel's run ends too."""

    class Guard(Asking):
        raise_error = True

        def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> Run:
            ended: Run = super().on_chain_error(error, run_id=run_id, **kwargs)
            if ended.name == "channel wrong":
                raise PermissionError("no further")
            return ended

    Wrong.asked.clear()
    hanging, tree = Hanging(awaited=False), Guard()
    hanging.timeout = None
    retriever = HybridRetriever(channels={"wrong": Wrong("wrong", "semantic"), "hanging": hanging})
    try:
        with pytest.raises(PermissionError, match="no further"):
            await run(retriever, {"callbacks": [tree]}, is_async)
        assert await asyncio.to_thread(hanging.began.wait, 10)
    finally:
        hanging.release.set()
    (root,) = tree.roots
    assert "the search that asked is over" in (named(root)["channel hanging"].error or "")
    assert all(one.end_time is not None for one in every(root))


# Batches, streams and nesting


@both
async def test_each_search_of_a_batch_is_a_tree(is_async: bool) -> None:
    tree, questions = Tree(), [QUESTION, "where is the lamp"]
    config: RunnableConfig = {"callbacks": [tree]}
    await (searched().abatch(questions, config) if is_async else asyncio.to_thread(searched().batch, questions, config))
    assert {root.inputs["query"] for root in tree.roots} == set(questions)
    for root in tree.roots:
        assert {below.name for below in root.child_runs} >= {"channel bm25", "fusion fused", "stage rerank"}
        assert {below.inputs["queries"][0] for below in root.child_runs if below.name == "channel bm25"} == {
            root.inputs["query"]
        }


async def test_runs_stream_as_events() -> None:
    events = [event async for event in searched().astream_events(QUESTION, version="v2")]
    own = next(event for event in events if event["name"] == "HybridRetriever")
    assert own["event"] == "on_retriever_start"
    told = [(event["event"], event["name"]) for event in events if own["run_id"] in event["parent_ids"][-1:]]
    assert told[:2] == [("on_chain_start", "rewriter expansion"), ("on_chain_end", "rewriter expansion")]
    assert told[-6:] == [
        (f"on_chain_{what}", name)
        for name in ("fusion fused", "stage rerank", "stage page_cap")
        for what in ("start", "end")
    ]
    assert ("on_retriever_start", "channel dense") in told
    ended = [event for event in events if event["event"] == "on_retriever_end"]
    assert all(isinstance(document, Document) for event in ended for document in event["data"]["output"])


@both
async def test_the_parts_of_a_nested_retriever_are_below_the_search_that_asks_them(is_async: bool) -> None:
    inner = HybridRetriever(channels={"bm25": bm25(), "child": AsyncChild(found=documents(), seen=[])})
    joined = HybridRetriever(channels={"inner": inner, "dense": ListChannel([("seal", 1.0)], name="dense")})
    root = await traced(joined, is_async)
    own = ["channel bm25", FOREIGN, "channel dense", "fusion fused", "fusion inner"]
    assert shape(root) == ("HybridRetriever", sorted(own, key=repr))


@both
async def test_a_retriever_in_a_foreign_component_has_its_tree_below_its_channel(is_async: bool) -> None:
    inner = HybridRetriever(channels={"bm25": bm25(), "dense": ListChannel([("seal", 1.0)], name="dense")})
    wrapped = RunnableLambda(inner.invoke, inner.ainvoke, name="wrapped")
    root = await traced(HybridRetriever(channels={"outer": wrapped, "bm25": bm25()}), is_async)
    below = ("HybridRetriever", ["channel bm25", "channel dense", "fusion fused"])
    own = [("channel outer", [("wrapped", [below])]), "channel bm25", "fusion fused"]
    assert shape(root) == ("HybridRetriever", sorted(own, key=repr))


@both
async def test_a_pipeline_in_a_foreign_component_is_below_its_channel(is_async: bool) -> None:
    """It is searched with no retriever around it."""

    def search(query: str) -> list[Document]:
        return [Document(hit.text, id=hit.id) for hit in bm25().pipeline.search(query).hits]

    root = await traced(HybridRetriever(channels={"outer": RunnableLambda(search), "bm25": bm25()}), is_async)
    own = [("channel outer", [("search", ["channel bm25"])]), "channel bm25", "fusion fused"]
    assert shape(root) == ("HybridRetriever", sorted(own, key=repr))


@both
async def test_a_composed_retriever_has_runs(is_async: bool) -> None:
    retriever = bm25() >> PageDiversityFilter(max_chunks_per_page=1)
    assert shape(await traced(retriever, is_async)) == ("BM25Retriever", ["channel bm25", "stage page_cap"])


# Access rights


@both
async def test_runs_show_only_what_access_rights_permit(is_async: bool) -> None:
    ours = BM25Retriever.from_documents([Document("pump a", id="ours", metadata={"of": "a"})])
    retriever = HybridRetriever(channels={"plan": CarelessPlan(), "ours": ours}, require={"of": "a"}, traced_texts=True)
    root = await traced(retriever, is_async, "pump")
    assert {"fusion fused", "channel ours"} <= {below.name for below in root.child_runs}
    assert "ours" in repr(root.child_runs)
    for run in every(root):
        assert "secret" not in repr(run.outputs)
        assert "pump b" not in repr(run.outputs)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tracer_of_the_context_sees_the_same_tree(is_async: bool) -> None:
    with collect_runs() as collected:
        await run(searched(), {}, is_async)
    (own,) = (one for one in collected.traced_runs if one.parent_run_id is None)
    assert shape(own) == shape(await traced(searched(), is_async))


def test_where_nobody_listens_nothing_is_recorded() -> None:
    assert recorder({}) is None

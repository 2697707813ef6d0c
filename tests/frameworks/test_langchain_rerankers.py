"""Rerankers for LangChain, and how a stage sees documents: their votes, scores and wider context."""

from __future__ import annotations

import copy
import logging
import sys
import threading
from collections.abc import Iterable
from datetime import date, datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda

from tests.frameworks.langchain_parts import Starts, by_length, documents, hybrid, ids
from tests.helpers import KnowingChannel, ListChannel, Says, no_model
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.explanation import provenance
from voicevault_retrievers.core.types import ChannelKind, Chunk, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError, RerankerError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.langchain.compressors import (
    CrossEncoderReranker,
    LLMReranker,
    RecencyReranker,
    StageCompressor,
    WeightedReranker,
    ranking_of,
)
from voicevault_retrievers.langchain.convert import document_of, hit_of
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank, LLMRerank, WeightedRerank

QUESTION = "pump seal"


class Chat(BaseChatModel):
    """Gives one answer, and keeps the prompts and how it was asked."""

    answer: str
    prompts: list[str] = []  # noqa: RUF012 - pydantic copies it
    ways: list[str] = []  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "chat"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._said(messages, "sync")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._said(messages, "async")

    def _said(self, messages: list[BaseMessage], way: str) -> ChatResult:
        self.prompts.append(str(messages[0].text))
        self.ways.append(way)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.answer))])


def rerankers() -> list[Any]:
    return [
        CrossEncoderReranker(scorer=CallableScorer(by_length, name="length"), blend=1.0),
        LLMReranker(llm=Chat(answer="[3, 1]")),
        WeightedReranker(top_n=3),
        RecencyReranker(reference_date="2024-07-01"),
    ]


def scores(found: Iterable[Document]) -> list[float | None]:
    return [document.metadata.get("relevance_score") for document in found]


@pytest.mark.parametrize("reranker", rerankers(), ids=lambda made: type(made).__name__)
async def test_sync_and_async_agree_and_leave_their_input_as_it_was(reranker: Any) -> None:
    given_documents = hybrid().invoke(QUESTION)
    before = copy.deepcopy(given_documents)
    found = reranker.compress_documents(given_documents, QUESTION)
    assert await reranker.model_copy().acompress_documents(given_documents, QUESTION) == found
    assert given_documents == before
    assert reranker.compress_documents([], QUESTION) == []
    (stage,) = found[0].metadata["voicevault"].keys() - before[0].metadata["voicevault"].keys()
    for rank, document in enumerate(found, 1):
        (old,) = [d for d in before if d.id == document.id]
        told = document.metadata["voicevault"]
        assert (told[stage]["rank"], told[stage]["score"]) == (rank, document.metadata.get("relevance_score"))
        assert told == {**old.metadata["voicevault"], stage: told[stage]}
        assert document.page_content == old.page_content
        assert document.metadata["tags"] is not old.metadata["tags"]


@pytest.mark.parametrize("reranker", rerankers(), ids=lambda made: type(made).__name__)
def test_they_work_in_langchains_own_retriever(reranker: Any) -> None:
    retrievers = pytest.importorskip("langchain_classic.retrievers")
    compressing = retrievers.ContextualCompressionRetriever(base_retriever=hybrid(), base_compressor=reranker)
    assert compressing.invoke(QUESTION) == reranker.compress_documents(hybrid().invoke(QUESTION), QUESTION)


# A language model


def test_a_model_gives_an_order_and_no_scores() -> None:
    given_documents = hybrid().invoke(QUESTION)
    found = LLMReranker(llm=Chat(answer="[3, 1]"), top_n=3).compress_documents(given_documents, QUESTION)
    assert ids(found) == [given_documents[at].id for at in (2, 0, 1)]
    assert scores(found) == [None] * 3
    assert [document.metadata["voicevault"]["llm_rerank"]["rank"] for document in found] == [1, 2, 3]


async def test_a_changed_top_n_is_what_the_model_is_asked_for() -> None:
    chat = Chat(answer="[1]")
    reranker = LLMReranker(llm=chat)
    assert len(reranker.compress_documents(documents(), QUESTION)) == 5
    reranker.top_n = 2
    assert len(await reranker.acompress_documents(documents(), QUESTION)) == 2
    assert ["best 5 passages" in chat.prompts[0], "best 2 passages" in chat.prompts[1]] == [True, True]
    assert chat.ways == ["sync", "async"]


async def test_windows_slide_from_the_last_documents_to_the_first() -> None:
    for is_async in (False, True):
        chat = Chat(answer="[3, 1]")
        reranker = LLMReranker(llm=chat, window=3, stride=2)
        asked = (documents(), QUESTION)
        found = await reranker.acompress_documents(*asked) if is_async else reranker.compress_documents(*asked)
        # flush seal (hose lamp door) -> (flush seal door) hose lamp -> door flush seal hose lamp
        assert ids(found) == ["door", "flush", "seal", "hose", "lamp"]
        assert chat.ways == [["sync", "async"][is_async]] * 2


async def test_documents_of_another_reranker_have_no_score_left_after_a_model_has_ordered_them() -> None:
    foreign = [Document(text, metadata={"relevance_score": score}) for text, score in (("a", 0.1), ("b", 0.9))]
    found = LLMReranker(llm=lambda prompt: "[1]", depth=1).compress_documents(foreign, QUESTION)
    assert scores(found) == [None, None]


SHORT = CallableScorer(lambda query, passages: [1.0], name="short")


@pytest.mark.parametrize(
    ("made", "said", "error"),
    [
        (partial(LLMReranker, llm=no_model), "llm_rerank: RuntimeError", RuntimeError),
        (partial(LLMReranker, llm=lambda prompt: "none"), "llm_rerank: RerankerError", RerankerError),
        (partial(CrossEncoderReranker, scorer=SHORT), "rerank: RerankerError", RerankerError),
    ],
    ids=["no model", "no order", "too few scores"],
)
async def test_where_the_model_fails_the_first_stay_and_say_so(
    made: Any, said: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    given_documents = hybrid().invoke(QUESTION)
    for count in (2, len(given_documents)):
        caplog.clear()
        found = made(top_n=count).compress_documents(given_documents, QUESTION)
        assert ids(found) == ids(given_documents)[:count]
        assert scores(found) == scores(given_documents)[:count]
        for document in found:
            (failure,) = document.metadata["voicevault"]["degraded"]
            assert failure.startswith(said)
        assert await made(top_n=count).acompress_documents(given_documents, QUESTION) == found
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    with pytest.raises(error):
        made(on_error="raise").compress_documents(given_documents, QUESTION)


async def test_a_model_that_hangs_is_given_up() -> None:
    go = threading.Event()
    reranker = LLMReranker(llm=lambda prompt: str(go.wait(30)), timeout=0.02, top_n=2)
    for found in (
        reranker.compress_documents(documents(), QUESTION),
        await reranker.acompress_documents(documents(), QUESTION),
    ):
        assert ids(found) == ids(documents())[:2]
        assert "SearchTimeoutError" in found[0].metadata["voicevault"]["degraded"][0]
    go.set()


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_models_run_is_below_the_compressors(is_async: bool) -> None:
    runs = Starts()
    reranker = LLMReranker(llm=Chat(answer="[1]"))
    if is_async:
        await reranker.acompress_documents(documents(), QUESTION, callbacks=[runs])
    else:
        reranker.compress_documents(documents(), QUESTION, callbacks=[runs])
    assert runs.below == [("", "LLMReranker"), ("LLMReranker", "model")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_models_run_is_below_the_compressors_in_langchains_own_retriever(is_async: bool) -> None:
    retrievers = pytest.importorskip("langchain_classic.retrievers")
    runs = Starts()
    reranker = LLMReranker(llm=Chat(answer="[1]"))
    compressing = retrievers.ContextualCompressionRetriever(base_retriever=hybrid(), base_compressor=reranker)
    chain = RunnableLambda(lambda query: query, name="ask") | compressing
    if is_async:
        await chain.ainvoke(QUESTION, {"callbacks": [runs]})
    else:
        chain.invoke(QUESTION, {"callbacks": [runs]})
    assert ("LLMReranker", "model") in runs.below


async def test_a_models_name_is_looked_up_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, threading.Thread]] = []

    def init_chat_model(name: str) -> Chat:
        asked.append((name, threading.current_thread()))
        return Chat(answer="[2]")

    monkeypatch.setitem(sys.modules, "langchain.chat_models", SimpleNamespace(init_chat_model=init_chat_model))
    reranker = LLMReranker(llm="some:model", top_n=1)
    assert asked == []
    assert ids(await reranker.acompress_documents(documents(), QUESTION)) == ["seal"]
    assert ids(reranker.compress_documents(documents(), QUESTION)) == ["seal"]
    ((name, thread),) = asked
    assert name == "some:model"
    assert thread is not threading.current_thread()


def test_a_name_that_is_none_raises() -> None:
    with pytest.raises((ConfigError, ImportError), match=r"no-such-provider:model|is not installed"):
        LLMReranker(llm="no-such-provider:model", top_n=1).compress_documents(documents(), QUESTION)


# Weighted signals and age


def test_weighted_signals_are_read_from_the_documents() -> None:
    retriever = hybrid()
    query = Query(QUESTION)
    expected = (retriever.pipeline.channel >> WeightedRerank()).search(query, 5)
    found = WeightedReranker().compress_documents(retriever.invoke(QUESTION, k=5), QUESTION)
    assert [(document.id, document.metadata["relevance_score"]) for document in found] == [
        (hit.id, hit.score) for hit in expected
    ]
    assert [document.metadata["voicevault"] for document in found] == [provenance(hit) for hit in expected]


async def test_a_dense_channel_is_asked_by_the_documents_own_ids() -> None:
    given_documents = [*documents(), documents()[2], Document("without an id")]
    reranker = WeightedReranker(
        weights={"semantic": 1.0}, dense=KnowingChannel([], {"flush": 0.25, "hose": 0.5}), top_n=3
    )
    found = reranker.compress_documents(given_documents, QUESTION)
    assert list(zip(ids(found), scores(found), strict=True)) == [("hose", 0.5), ("hose", 0.5), ("flush", 0.25)]
    assert await reranker.acompress_documents(given_documents, QUESTION) == found
    assert isinstance(reranker.stage, WeightedRerank)
    assert reranker.stage.dense is reranker.dense


def test_what_is_new_rises_and_a_date_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    dated = [
        Document("old", id="a", metadata={"relevance_score": 0.9, "day": "2020-01-01"}),
        Document("new", id="b", metadata={"relevance_score": 0.9, "day": datetime(2024, 7, 1, tzinfo=timezone.utc)}),
        Document("odd", id="c", metadata={"relevance_score": 0.1, "day": "soon"}),
    ]
    reranker = RecencyReranker(date_key="day", reference_date=date(2024, 7, 1), weight=0.5)
    found = reranker.compress_documents(dated, QUESTION)
    assert ids(found) == ["b", "a", "c"]
    assert scores(found) == [1.5, pytest.approx(1.0), 0.0]
    assert "degraded" not in found[0].metadata["voicevault"]
    assert ["RecencyReranker notes: recency: UnreadableDate" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("reference", [date(2024, 7, 1), datetime(2024, 7, 1, 3), "2024-07-01"])
def test_a_reference_date_is_kept_as_it_is(reference: Any) -> None:
    assert RecencyReranker(reference_date=reference).reference_date == reference
    assert type(RecencyReranker(reference_date=reference).reference_date) is type(reference)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (LLMReranker, {"llm": lambda prompt: "", "dept": 5}, "Did you mean 'depth'"),
        (LLMReranker, {"llm": 3}, "a language model is"),
        (LLMReranker, {"llm": "some:model", "depth": 0}, "depth"),
        (LLMReranker, {"llm": "some:model", "prompt": "{question}"}, "{query}"),
        (LLMReranker, {"llm": "some:model", "top_n": 0}, "top_n"),
        (LLMReranker, {"llm": "some:model", "window": 1}, "window"),
        (LLMReranker, {"llm": "some:model", "stride": 5}, "stride is less than window"),
        (LLMReranker, {}, "llm"),
        (WeightedReranker, {"weights": {"fussed": 1.0}}, "Did you mean 'fused'"),
        (WeightedReranker, {"dense": "dense"}, "dense"),
        (WeightedReranker, {"top_n": 0}, "top_n"),
        (RecencyReranker, {"half_life_days": 0}, "half_life_days"),
        (RecencyReranker, {"reference_date": "soon"}, "reference_date"),
        (RecencyReranker, {"half_life": 3}, "Did you mean 'half_life_days'"),
    ],
)
def test_a_wrong_option_is_refused(kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**options)


def test_a_pipeline_takes_the_stage_itself() -> None:
    chat = Chat(answer="[2]")
    assert isinstance(LLMReranker(llm=chat).stage, LLMRerank)
    scored = CrossEncoderReranker(scorer=CallableScorer(by_length, name="length")).stage
    assert isinstance(scored, CrossEncoderRerank)
    assert scored.needs(5) == 20
    found = hybrid(rerank=LLMReranker(llm=chat)).invoke(QUESTION, k=2)
    assert ids(found) == [ids(hybrid().invoke(QUESTION))[at] for at in (1, 0)]


# What a stage sees of documents


def test_votes_scores_and_context_come_back() -> None:
    words = ListChannel([("a", 8.0), ("b", 4.0)], name="words", kind="keyword")
    inner = fuse({"words": words, "vectors": ListChannel([("b", 0.5)], name="vectors")})
    nested = fuse({"inner": inner, "ranks": ListChannel([("a", None)], name="ranks")}, weights={"inner": 0.5})
    for channel in (words, inner, nested, nested >> WeightedRerank(), nested >> LLMRerank(Says("[2]"))):
        for hit in channel.search("q"):
            for told in (hit, Hit(hit.chunk, hit.score, hit.votes, "wider")):
                assert hit_of(document_of(told)) == told


kinds: st.SearchStrategy[ChannelKind] = st.sampled_from(["keyword", "semantic", "graph", "question", "hybrid"])
numbers = st.floats(-1e300, 1e300)
leaves = st.builds(
    Vote,
    st.sampled_from("abc"),
    st.integers(1, 9),
    st.none() | numbers,
    numbers,
    numbers,
    query=st.text(max_size=3),
    terms=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    kind=kinds,
)
votes = st.builds(
    Vote,
    st.sampled_from("abc"),
    st.integers(1, 9),
    st.none() | numbers,
    numbers,
    numbers,
    query=st.text(max_size=3),
    parts=st.lists(leaves, max_size=2, unique_by=lambda vote: vote.stage).map(tuple),
)


@given(
    st.lists(votes | leaves, max_size=3, unique_by=lambda vote: vote.stage),
    st.lists(st.builds(Vote, st.sampled_from("xyz"), st.integers(1, 9), st.none() | numbers), max_size=2,
             unique_by=lambda vote: vote.stage),
    st.none() | numbers,
    st.none() | st.text(max_size=3),
)  # fmt: skip
def test_what_the_provenance_carries_is_read_again(
    channels: list[Vote], stages: list[Vote], score: float | None, context: str | None
) -> None:
    hit = Hit(Chunk("id", "text", "parent", {"page": 1}, "kb"), score, (*channels, *stages), context)
    assert hit_of(document_of(hit)) == hit


MALFORMED = [
    "text", 7, ["list"], {"channels": ["bm25"]}, {"channels": {"bm25": None, "b": {}, "c": {"rank": 0}}},
    {"channels": {"b": {"rank": True}}, "text": 5, "kb": 3, "parent_id": 4, "degraded": "once", 3: {"rank": 1}},
    {"channels": {"bm25": {"rank": 1, "score": "high", "weight": None, "contribution": [], "query": 3, "kind": [],
                           "matched_terms": 7, "parts": "none"}}},
    {"channels": {"bm25": {"rank": 1, "score": 10**400, "kind": "stranger", "matched_terms": [1, "x"]}}},
]  # fmt: skip


@pytest.mark.parametrize("malformed", MALFORMED, ids=str)
def test_what_somebody_else_wrote_does_no_harm(malformed: Any) -> None:
    document = Document("own text", id="x", metadata={"voicevault": copy.deepcopy(malformed)})
    hit = hit_of(document)
    assert all(vote.score is None and vote.kind is None for vote in hit.votes)
    assert hit.text == "own text"
    for reranker in (WeightedReranker(), LLMReranker(llm=no_model)):
        (found,) = reranker.compress_documents([document], QUESTION)
        assert found.page_content == "own text"
    assert found.metadata["voicevault"]["degraded"] == ["llm_rerank: RuntimeError"]
    assert document.metadata == {"voicevault": malformed}
    (kept,) = Nothing().compress_documents([document], QUESTION)
    assert kept == document


@pytest.mark.parametrize(
    ("came", "seen"),
    [
        ([0.9, 0.5, 0.5], [0.9, 0.5, 0.5]),
        ([0.9, 0.5, None], [0.9, 0.5, None]),
        ([0.5, 0.9, 0.1], [None, None, None]),
        ([0.9, None, 0.5], [None, None, None]),
        ([float("nan"), None, None], [None, None, None]),
        (["high", None, None], [None, None, None]),
        ([2, 1, True], [2.0, 1.0, None]),
    ],
)
def test_scores_are_seen_where_they_fall(came: list[Any], seen: list[float | None]) -> None:
    scored = [Document("d", metadata={} if score is None else {"relevance_score": score}) for score in came]
    assert [hit.score for hit in ranking_of(scored)] == seen
    kept = Nothing().compress_documents(scored, QUESTION)
    assert repr(kept) == repr(scored)


class Nothing(StageCompressor):
    """Leaves a ranking as it is."""

    def _build(self) -> Stage:
        return Widening("")


class Widening(Stage):
    """Gives each hit a wider context, where it has one to give."""

    name = "widening"

    def __init__(self, more: str) -> None:
        super().__init__()
        self.more = more

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        if not self.more:
            return ranking
        return Ranking(tuple(Hit(hit.chunk, hit.score, hit.votes, hit.chunk.text + self.more) for hit in ranking))


class Widener(StageCompressor):
    more: str

    def _build(self) -> Stage:
        return Widening(self.more)


async def test_a_wider_context_becomes_the_documents_text() -> None:
    given_documents = hybrid().invoke(QUESTION, k=2)
    widened = Widener(more=" and more").compress_documents(given_documents, QUESTION)
    assert widened == await Widener(more=" and more").acompress_documents(given_documents, QUESTION)
    for old, new in zip(given_documents, widened, strict=True):
        assert new.page_content == f"{old.page_content} and more"
        own = {"text": old.page_content, "checksum": new.metadata["voicevault"]["checksum"]}
        assert new.metadata == {**old.metadata, "voicevault": {**old.metadata["voicevault"], **own}}
    again = Widener(more=" still").compress_documents(widened, QUESTION)
    assert [d.page_content for d in again] == [f"{old.page_content} still" for old in given_documents]
    unordered = [Document("a", metadata={"relevance_score": score}) for score in (0.1, 0.9)]
    assert scores(Widener(more="!").compress_documents(unordered, QUESTION)) == [0.1, 0.9]

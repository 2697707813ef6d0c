"""Active retrieval: sentences, marks, tokens, what is searched for, and what options and searches are taken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import AsyncSays, FailingChannel, HashEmbedder, ListChannel, Says, uncollected
from voicevault_retrievers import (
    BM25,
    RRF,
    Chunk,
    Hit,
    KnowledgeBase,
    Pipeline,
    Query,
    Ranking,
    Route,
    VectorChannel,
    fuse,
)
from voicevault_retrievers.answers.flare import Flare, Token, Written
from voicevault_retrievers.answers.flare.drafts import Draft, Drafted, sentences
from voicevault_retrievers.core.types import Vote
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.fusion.hybrid import ahybrid_search, bare, hybrid_search
from voicevault_retrievers.models.generation import tokens_of
from voicevault_retrievers.query import RuleExpansion, RuleRouter
from voicevault_retrievers.rerank import PageCap

GIVEN = ListChannel([("a", 2.0), ("b", 1.0)]).search("q")
FOUND = ListChannel([("b", 3.0), ("c", 2.0), ("d", 1.0)]).search("q")
MARKED = "It is sure. It holds [[90]] bar. End."


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ("It holds 90.5 bar [1]. It was Dr. J. P, e.g. so.", ["It holds 90.5 bar [1]. ", "It was Dr. J. P, e.g. so."]),
        ("It is so. [Source: a.pdf, p.3] [2] Next.", ["It is so. [Source: a.pdf, p.3] [2] ", "Next."]),
        ("Am 3. Mai war es. See Fig. 3 and no. 4. Done.", ["Am 3. Mai war es. ", "See Fig. 3 and no. 4. ", "Done."]),
        ("- one\n- two\n\n1. Three four.\n", ["- one\n", "- two\n\n", "1. Three four.\n"]),
        ("水泵。第二！ 三", ["水泵。", "第二！ ", "三"]),
        ('He said "Stop." Then he went.', ['He said "Stop." ', "Then he went."]),
    ],
)  # fmt: skip
def test_sentences_end_where_they_do(text: str, cut: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == cut


@given(st.text(alphabet='aB1 .!\n[]。"p', max_size=60))
def test_sentences_joined_are_the_text(text: str) -> None:
    assert "".join(text[start:end] for start, end in sentences(text)) == text


def drafted(parts: Sequence[str | Written], *, marks: bool = False, after: str = "") -> list[Drafted]:
    draft, found = Draft(0.4, marks=marks, after=after), []
    for part in [*parts, None]:
        if part is None:
            draft.end()
        else:
            draft.feed(Written(part) if isinstance(part, str) else part)
        while (sentence := draft.next()) is not None:
            found.append(sentence)
    return found


@given(st.text(alphabet="aB .[]\n<>", max_size=40), st.booleans())
def test_how_a_text_is_cut_into_parts_changes_nothing(text: str, marks: bool) -> None:
    assert drafted(list(text), marks=marks) == drafted([text], marks=marks)


@pytest.mark.parametrize(
    ("text", "clean", "doubted"),
    [
        ("It holds [[90 bar]].", "It holds 90 bar.", True),
        ("It holds [[90 bar [1]]].", "It holds 90 bar [1].", True),
        ("It holds 90 [1].", "It holds 90 [1].", False),
        ("It [[holds\nmore.", "It holds\nmore.", True),
        ("a[0] and [[]].", "a[0] and .", False),
        ("It is [[90", "It is 90", True),
        ("It is 90 [", "It is 90 [", False),
    ],
)
def test_marks_are_taken_out(text: str, clean: str, doubted: bool) -> None:
    found = drafted([text], marks=True)
    assert "".join(one.segment.text for one in found) == clean
    assert (min(one.segment.confidence or 0.0 for one in found) == 0.0) == doubted


def test_thoughts_and_what_is_repeated_are_left_out() -> None:
    (found,) = drafted(list("<think>Is it? 90.</think>\n\nIt is. It was"), after="It is. ")
    assert found.segment.text == "It was"
    (found,) = drafted(["It is."], after="It is. It was. ")
    assert found.segment.text == "It is."


def test_the_least_probable_word_counts_and_is_left_out_of_the_query() -> None:
    told = [("The", 0.9), (" pump", 0.8), (" hol", 0.3), ("ds", 0.9), (" 90", 0.5), (" bar", 0.9), (" [", 0.1),
            ("1", 0.1), ("].", 0.1), ("<eos>", 0.01)]  # fmt: skip
    tokens = tuple(Token(*each) for each in told)
    (found,) = drafted([Written("The pump holds 90 bar [1].", tokens)])
    assert found.segment.confidence == 0.3
    assert found.sure == "The pump 90 bar ."


def test_tokens_that_are_parts_of_a_character_are_joined() -> None:
    whole = "水".encode()
    listed = [
        {"token": "?", "logprob": -1.0, "bytes": [*whole[:2]]},
        {"token": "?", "logprob": 0.0, "bytes": [*whole[2:]]},
    ]
    found = tokens_of(listed)
    assert found is not None
    assert [token.text for token in found] == ["水"]
    assert found[0].probability == pytest.approx(0.36788, abs=1e-5)  # exp(-1)


@pytest.mark.parametrize(
    "listed", [5, "text", [1], [{}], [{"token": "a"}], [{"token": 1, "logprob": -1}], [{"token": "a", "logprob": 0.5}],
               [{"token": "a", "logprob": float("nan")}], [{"token": "a", "logprob": True}]]
)  # fmt: skip
def test_what_are_no_log_probabilities_is_an_error(listed: Any) -> None:
    with pytest.raises(RetrievalError):
        tokens_of(listed)
    problem = Written.of("text", listed).problem
    assert isinstance(problem, RetrievalError)


@pytest.mark.parametrize("make", [Says, AsyncSays])
async def test_a_text_model_marks_what_it_doubts(make: Any) -> None:
    for is_async in (False, True):
        model = make(MARKED, "It holds 70 bar. End.")
        flare = Flare(model, lambda text, top_k: FOUND)
        found = await flare.aanswer("q", GIVEN) if is_async else flare.answer("q", GIVEN)
        assert found.text == "It is sure. It holds 70 bar. End."
        assert [hit.id for hit in found.hits] == ["a", "b", "c", "d"]
        assert [hit.score for hit in found.hits] == [2.0, 1.0, None, None]
        assert found.hits[2].vote("flare") == Vote("flare", 2, 2.0, query="It holds bar.")
        assert (found.retrievals, found.errors) == (1, ())
        assert "[[like this]]" in model.asked[0]


def test_a_function_is_a_model_and_max_retrievals_0_never_searches() -> None:
    flare = Flare(lambda prompt: MARKED, lambda text, top_k: pytest.fail("searched"), max_retrievals=0)
    found = flare.answer("q", GIVEN)
    assert (found.text, found.hits, found.retrievals) == ("It is sure. It holds 90 bar. End.", GIVEN.hits, 0)


async def test_an_async_search_is_awaited_and_refused_where_nothing_awaits() -> None:
    async def search(text: str, top_k: int) -> Ranking:
        await asyncio.sleep(0)
        return FOUND.top(top_k)

    assert len((await Flare(Says(MARKED, "End."), search, top_k=2).aanswer("q", GIVEN)).hits) == 3
    found = Flare(Says(MARKED), search).answer("q", GIVEN)
    assert (found.text, found.hits) == ("It is sure. It holds 90 bar. End.", GIVEN.hits)
    assert "async" in found.errors[0].message


@pytest.mark.parametrize("given", [None, "text", [1], 5])
def test_a_search_that_gives_no_hits_is_noted(given: Any) -> None:
    found = Flare(Says(MARKED), lambda text, top_k: given).answer("q", GIVEN)
    assert (found.text, found.hits, found.retrievals) == ("It is sure. It holds 90 bar. End.", GIVEN.hits, 1)
    assert [failure.kind for failure in found.errors] == ["FLAREError"]


def test_a_sentence_without_a_sure_word_is_searched_for_by_the_question() -> None:
    queries: list[str] = []
    Flare(Says("[[Ninety]]."), lambda text, top_k: queries.append(text) or GIVEN).answer("how much", GIVEN)
    assert queries == ["how much"]


def test_there_are_at_most_five_retrievals_unless_another_number_is_given() -> None:
    asked: list[str] = []

    def search(text: str, top_k: int) -> list[Hit]:
        asked.append(text)
        return [Hit(Chunk(f"new {len(asked)}"))]

    found = Flare(lambda prompt: " ".join(f"[[Part {at}]]." for at in range(9)), search).answer("q", GIVEN)
    assert found.retrievals == len(asked) == 5
    assert [hit.id for hit in found.hits] == [*GIVEN.ids, *(f"new {at}" for at in range(1, 6))]


def test_an_answer_is_cut_after_max_segments() -> None:
    found = Flare(lambda prompt: "One. Two. Three.", lambda text, top_k: GIVEN, max_segments=2).answer("q")
    assert found.text == "One. Two. "
    assert "cut after 2 sentences" in found.errors[0].message


class Response:
    """An answer that is read as OpenAI's client reads one: the generator that ends it holds it."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._parts = self._read()

    def _read(self) -> Iterator[Written]:
        over = self.over
        try:
            yield Written("It is sure. ")
            yield Written("It is")
            yield Written(f" kept by {type(self).__name__}.")
        finally:
            over.set()

    def __iter__(self) -> Iterator[Written]:
        yield from self._parts

    def __next__(self) -> Written:
        return next(self._parts)


class Streams:
    def __init__(self) -> None:
        self.over: list[threading.Event] = []

    def write(self, prompt: str) -> Written:
        raise NotImplementedError

    def stream(self, prompt: str) -> Iterator[Written]:
        return (part for part in self._parts())

    def _parts(self) -> Iterator[Written]:
        response = Response()
        self.over.append(response.over)
        yield from response


def test_a_response_in_a_cycle_is_closed_with_the_stream_and_not_by_the_garbage_collector() -> None:
    writer = Streams()
    with uncollected():
        stream = Flare(writer, lambda text, top_k: FOUND).stream("q", GIVEN)
        assert next(stream) == "It is sure. "
        stream.close()
        assert [over.is_set() for over in writer.over] == [True, True]  # the first had no probabilities, and no marks


async def test_an_async_stream_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = []

    class Swallows(Streams):
        async def astream(self, prompt: str) -> AsyncIterator[Written]:
            yield Written("It is sure. It")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(prompt)
            await asyncio.Event().wait()

    stream = Flare(Swallows(), lambda text, top_k: FOUND).astream("q", GIVEN)
    assert await anext(stream) == "It is sure. "
    closed, _ = await asyncio.wait([asyncio.create_task(stream.aclose())], timeout=60)
    assert closed
    assert len(swallowed) == 2


@pytest.mark.parametrize("answer", ["", "  ", None, 5])
def test_a_model_that_writes_nothing_is_noted(answer: Any) -> None:
    found = Flare(lambda prompt: answer, lambda text, top_k: GIVEN).answer("q", GIVEN)
    assert (found.text, found.hits, found.retrievals) == ("", GIVEN.hits, 0)
    assert len(found.errors) == 1


@pytest.mark.parametrize(
    "options",
    [{"threshold": 1.5}, {"threshold": -1}, {"max_retrievals": -1}, {"top_k": 0}, {"max_segments": 0}, {"timeout": 0},
     {"signal": "token"}, {"formulate": "x"}, {"enabled": 1}, {"search": 5}, {"model": 5}],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Flare(**{"model": Says(), "search": ListChannel([]), **options})


def test_without_a_search_it_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"over\(search\)"):
        Flare(Says("A.")).answer("q")


def result_of(route: Route | None) -> Any:
    found = Pipeline(ListChannel([("a", 2.0), ("b", 1.0)])).search(Query("q", route=route))
    return replace(found, timings={})


async def test_a_result_is_extended_where_the_question_is_analytical() -> None:
    for is_async in (False, True):
        flare = Flare(Says(MARKED, "It holds 70 bar. End."), lambda text, top_k: FOUND)
        result = result_of(Route.ANALYTICAL)
        assert [flare.applies(result_of(route)) for route in (None, *Route)] == [False] * 4 + [True]
        assert not Flare(Says(), enabled=False).applies(result)
        extended = await flare.aextended(result) if is_async else flare.extended(result)
        assert extended.flare_retrievals == 1
        assert extended.ranking.ids == ("a", "b", "c", "d")
        assert [one.chunk_id for one in extended.context.citations] == ["a", "b", "c", "d"]
        assert (extended.errors, list(extended.timings)) == ((), ["flare"])
        assert (result.ranking.ids, result.flare_retrievals) == (("a", "b"), 0)


def test_a_failing_model_leaves_a_result_as_it_was_with_an_error() -> None:
    def fails(prompt: str) -> str:
        raise OSError("down")

    result = result_of(Route.ANALYTICAL)
    extended = Flare(fails, ListChannel([])).extended(result)
    assert (extended.hits, extended.flare_retrievals, extended.degraded) == (result.hits, 0, True)
    assert [(str(failure), str(failure.error)) for failure in extended.errors] == [("flare: OSError", "down")]


CHUNKS = [Chunk(f"c{at}", text, metadata={"n": at}) for at, text in enumerate(["oil pump", "oil gate", "pump", "sea"])]


def composed() -> Any:
    return {"bm25": BM25.from_chunks(CHUNKS), "dense": VectorChannel.from_chunks(CHUNKS, HashEmbedder())}


async def test_hybrid_search_is_dense_keywords_and_rrf_alone() -> None:
    plain = fuse(composed(), method=RRF()).search("oil pump", 3)
    found = hybrid_search(composed(), "oil pump", 3)
    assert (found.ids, [hit.score for hit in found]) == (plain.ids, [hit.score for hit in plain])
    assert found.hits[0].score == 2 / 61
    whole = RuleRouter() >> (RuleExpansion() >> fuse({**composed(), "graph": FailingChannel(OSError("down"))}))
    graph = whole.below.below.channels["graph"]
    graph.kind = "graph"
    assert hybrid_search(whole >> PageCap(1), "oil pump", 3) == found
    assert await ahybrid_search(whole >> PageCap(1), "oil pump", 3) == found


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_pipelines_bases_and_retrievers_of_both_frameworks_have_it_with_five_hits(
    framework: str, tmp_path: Path
) -> None:
    pytest.importorskip({"langchain": "langchain_core", "llama_index": "llama_index.core"}[framework])
    chunks = [Chunk(f"c{at}", f"oil pump {'gate ' * at}") for at in range(9)]
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as kb:
        kb.add(chunks)
        own = {"bm25": kb.bm25(), "dense": kb.dense()}
        expected = fuse(own, method=RRF(60)).search("oil pump", 5).ids
        pipeline = Pipeline(fuse(own) >> PageCap(1))
        retriever = import_module(f"voicevault_retrievers.{framework}").HybridRetriever(kb_names=[kb], k=9)
        assert len(expected) == 5
        for found in (pipeline, kb):
            assert found.hybrid_search("oil pump").ids == expected
            assert (await found.ahybrid_search("oil pump")).ids == expected
        for given in (retriever.hybrid_search("oil pump"), await retriever.ahybrid_search("oil pump")):
            assert tuple(getattr(one, "node_id", None) or one.id for one in given) == expected


def test_hybrid_search_keeps_the_filters_and_rights_of_what_it_is_made_of() -> None:
    narrowed = Pipeline(fuse(composed())).narrowed(require={"n": {"$gte": 2}})
    assert "c0" in hybrid_search(composed(), "oil pump", 4).ids
    assert "c2" in (found := hybrid_search(fuse({"own": narrowed}), "oil pump", 4).ids)
    assert set(found) <= {"c2", "c3"}
    query = Query("oil pump", require={"n": {"$gte": 1}})
    assert set(hybrid_search(fuse({"own": narrowed}), query, 4, where={"n": 2}).ids) == {"c2"}
    assert hybrid_search(composed(), "oil pump", 4, require={}).ids == ()


def test_hybrid_search_without_a_keyword_or_vector_channel_is_refused() -> None:
    graph = ListChannel([("a", 1.0)], kind="graph")
    with pytest.raises(ConfigError, match="there is none"):
        bare(fuse(graph=graph))


def test_one_hit_is_added_once() -> None:
    twice = [Hit(Chunk("c")), Hit(Chunk("c"))]
    found = Flare(Says(MARKED, "End."), lambda text, top_k: twice).answer("q", GIVEN)
    assert [hit.id for hit in found.hits] == ["a", "b", "c"]

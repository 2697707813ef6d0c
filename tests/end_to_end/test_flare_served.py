"""Active retrieval with a model that a server offers: through the core, LangChain and LlamaIndex, whole and streamed.

The server is real and speaks OpenAI's protocol, the log-probabilities and streams included; what stands in for a model
says what a test tells it to.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import uncollected
from tests.model_server import Handler, answers, hangs, listed, model_server, refused_url, tokens_in, writes
from voicevault_retrievers import BM25, Chunk, Hit, Ranking
from voicevault_retrievers.answers.flare import Flare, FlareAnswer
from voicevault_retrievers.answers.flare.writers import Writer

# The clients of the frameworks leave their sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """Sockets that are left are collected in these tests, and not in others."""
    yield
    gc.collect()


QUESTION = "Assess how the pump is kept"
TEXTS = {
    "primed": "The pump is primed with clean oil.",
    "pressure": "The pressure of the pump is held at 70 bar.",
    "stored": "The spare valve is stored in the cellar.",
    "painted": "The gate was painted in 1998.",
}
CHANNEL = BM25.from_chunks([Chunk(*each) for each in TEXTS.items()])
GIVEN = CHANNEL.search("primed with clean oil", 1)
PATIENT = 60.0
"""Seconds that no test takes."""

SURE = "The pump is primed with clean oil. It is kept."
DOUBTFUL = "The pump is primed with clean oil. The pressure is held at 90 bar. It is kept."
FIRST, SECOND, LAST = "The pump is primed with clean oil. ", "The pressure is held at 90 bar. ", "It is kept."
AGAIN = "The pressure is held at 70 bar. It is kept."


def doubtful(text: str = DOUBTFUL, **doubts: float) -> list[tuple[str, float]]:
    return tokens_in(text, **(doubts or {"90": 0.2}))


def by_core(url: str, timeout: float = PATIENT) -> Writer:
    from voicevault_retrievers import OpenAIModel

    return OpenAIModel("gpt", base_url=f"{url}/v1", api_key="key", timeout=timeout)


def by_langchain(url: str, timeout: float = PATIENT) -> Writer:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    from voicevault_retrievers.langchain.models import writer_of

    return writer_of(chat(model="gpt", base_url=f"{url}/v1", api_key="key", timeout=timeout, max_retries=0))


def by_llama_index(url: str, timeout: float = PATIENT) -> Writer:
    llm = pytest.importorskip("llama_index.llms.openai").OpenAI
    from voicevault_retrievers.llama_index.models import writer_of

    return writer_of(llm("gpt-4o", api_base=f"{url}/v1", api_key="key", timeout=timeout, max_retries=0))


@pytest.fixture(params=[by_core, by_langchain, by_llama_index])
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["answer", "aanswer", "stream", "astream"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def asked(flare: Flare, mode: str, given: Any = GIVEN) -> FlareAnswer:
    """An answer in one of four ways; a stream gives its text, and no other."""
    if mode == "answer":
        return flare.answer(QUESTION, given)
    if mode == "aanswer":
        return await flare.aanswer(QUESTION, given)
    stream: Any = flare.stream(QUESTION, given) if mode == "stream" else flare.astream(QUESTION, given)
    texts = list(stream) if mode == "stream" else [text async for text in stream]
    assert texts == [segment.text for segment in stream.answer.segments]
    assert "".join(texts) == stream.answer.text
    found: FlareAnswer = stream.answer
    return found


async def test_a_doubtful_sentence_is_searched_for_and_written_again(way: Any, mode: str) -> None:
    with model_server(writes(doubtful(), AGAIN)) as server:
        found = await asked(Flare(way(server.url), CHANNEL), mode)
    assert found.text == f"{FIRST}{AGAIN}"
    assert found.retrievals == 1
    assert found.errors == ()
    query = "The pressure is held at bar."
    assert [(segment.text, segment.query, segment.draft) for segment in found.segments] == [
        (FIRST, "", ""),
        ("The pressure is held at 70 bar. ", query, SECOND),
        (LAST, "", ""),
    ]
    added = [hit.id for hit in CHANNEL.search(query, 5) if hit.id != "primed"]
    assert found.segments[1].added == tuple(added)
    assert [hit.id for hit in found.hits] == ["primed", *added]
    assert found.hits[0] == GIVEN.hits[0]
    Ranking(found.hits)  # a valid one
    first, second = server.prompts
    assert TEXTS["pressure"] not in first
    assert TEXTS["pressure"] in second
    assert second.rstrip().endswith(FIRST.strip())
    assert [body["logprobs"] for _, _, body in server.requests] == [True, True]
    assert [bool(body.get("stream")) for _, _, body in server.requests] == [mode in ("stream", "astream")] * 2


async def test_where_all_is_sure_nothing_is_searched(way: Any, mode: str) -> None:
    with model_server(writes(SURE)) as server:
        found = await asked(Flare(way(server.url), lambda text, top_k: pytest.fail("searched")), mode)
    assert (found.text, found.hits, found.retrievals, found.errors) == (SURE, GIVEN.hits, 0, ())
    assert len(server.requests) == 1


async def test_there_are_at_most_so_many_retrievals(way: Any, mode: str) -> None:
    sentences = [f"Part {at} has number {at}0. " for at in range(1, 9)]
    drafts = [doubtful("".join(sentences[at:]), **{f"{n}0": 0.1 for n in range(1, 9)}) for at in (0, 0, 1, 2)]
    found_for = [[Hit(Chunk(f"c{at}", f"text {at}"))] for at in range(3)]
    queries: list[str] = []

    def search(text: str, top_k: int) -> list[Hit]:
        queries.append(text)
        return found_for[len(queries) - 1]

    with model_server(writes(*drafts)) as server:
        found = await asked(Flare(way(server.url), search, max_retrievals=3), mode)
    assert found.text.strip() == "".join(sentences).strip()
    assert found.retrievals == len(queries) == 3
    assert queries == [f"Part {at} has number ." for at in (1, 2, 3)]
    assert [hit.id for hit in found.hits] == ["primed", "c0", "c1", "c2"]
    assert len(server.requests) == 1 + 3


async def test_where_nothing_is_new_the_sentence_stands_and_the_model_is_not_asked_again(way: Any, mode: str) -> None:
    with model_server(writes(doubtful())) as server:
        found = await asked(Flare(way(server.url), lambda text, top_k: GIVEN), mode)
    assert (found.text, found.hits, found.retrievals, found.errors) == (DOUBTFUL, GIVEN.hits, 1, ())
    assert len(server.requests) == 1


FAILING = {
    "500": answers(b'{"error": {"message": "overloaded"}}', 500),
    "no JSON": answers(b"<html>"),
    "closed": lambda handler: handler.connection.close(),
}


@pytest.mark.parametrize("reply", FAILING.values(), ids=FAILING)
async def test_a_model_that_fails_leaves_hits_and_text_as_they_were(way: Any, mode: str, reply: Any) -> None:
    with model_server(writes(reply, reply, reply)) as server:
        found = await asked(Flare(way(server.url), CHANNEL), mode)
    assert (found.text, found.hits, found.retrievals) == ("", GIVEN.hits, 0)
    (failure,) = found.errors
    assert failure.stage == "flare"
    assert failure.degrades


@pytest.mark.parametrize("reply", FAILING.values(), ids=FAILING)
async def test_a_model_that_fails_at_the_second_writing_leaves_the_draft(way: Any, mode: str, reply: Any) -> None:
    with model_server(writes(doubtful(), reply)) as server:
        found = await asked(Flare(way(server.url), CHANNEL), mode)
    assert (found.text, found.hits, found.retrievals) == (DOUBTFUL, GIVEN.hits, 1)
    assert [failure.stage for failure in found.errors] == ["flare"]


async def test_where_nobody_listens_it_says_so(way: Any, mode: str) -> None:
    found = await asked(Flare(way(refused_url()), CHANNEL), mode)
    assert (found.text, found.hits, found.retrievals) == ("", GIVEN.hits, 0)
    assert len(found.errors) == 1


async def test_a_model_that_hangs_is_given_up(way: Any, mode: str) -> None:
    with model_server(writes(hangs)) as server:
        found = await asked(Flare(way(server.url, 30.0), CHANNEL, timeout=0.3), mode)
        assert not server.ended.is_set()
    assert (found.text, found.hits) == ("", GIVEN.hits)
    assert [failure.kind for failure in found.errors] == ["SearchTimeoutError"]


MALFORMED: dict[str, Any] = {
    "words": lambda tokens: [{**one, "logprob": "high"} for one in listed(tokens)],
    "probabilities": lambda tokens: [{**one, "logprob": 0.9} for one in listed(tokens)],
    "a text": lambda tokens: "yes",
    "bytes": lambda tokens: [{**one, "bytes": [-1]} for one in listed(tokens)],
    "no tokens": lambda tokens: [{"logprob": -1.0} for _ in tokens],
}


@pytest.mark.parametrize("mode", ["answer", "aanswer", "stream", "astream"])
@pytest.mark.parametrize("how", MALFORMED)
async def test_where_probabilities_cannot_be_read_the_text_stands_and_it_says_so(how: str, mode: str) -> None:
    with model_server(writes(doubtful(), listed=MALFORMED[how])) as server:
        found = await asked(Flare(by_core(server.url), CHANNEL), mode)
    assert (found.text, found.hits, found.retrievals) == (DOUBTFUL, GIVEN.hits, 0)
    assert [failure.kind for failure in found.errors] == ["RetrievalError"]


async def test_a_server_without_probabilities_is_asked_to_mark_what_is_doubtful(way: Any, mode: str) -> None:
    marked = "The pump is primed with clean oil. The pressure is held at [[90]] bar. It is kept."
    with model_server(writes("Not used.", marked, AGAIN, marked, AGAIN, listed=None)) as server:
        flare = Flare(way(server.url), CHANNEL)
        found = await asked(flare, mode)
        assert found == await asked(flare, mode)
    assert found.text == f"{FIRST}{AGAIN}"
    assert (found.retrievals, found.errors) == (1, ())
    assert ["[[like this]]" in prompt for prompt in server.prompts] == [False, True, True, True, True]


def breaks_off(handler: Handler) -> None:
    """A stream that ends within its second sentence."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    for token in tokens_in(f"{FIRST}The pressure"):
        handler.event(handler._part([token], listed))


@pytest.mark.parametrize("mode", ["stream", "astream"])
async def test_of_a_stream_that_breaks_off_what_was_complete_stands(mode: str) -> None:
    with model_server(writes(breaks_off)) as server:
        found = await asked(Flare(by_core(server.url), CHANNEL), mode)
    assert found.text == FIRST
    (failure,) = found.errors
    assert "ended its answer before it was complete" in failure.message


def holds_back(handler: Handler) -> None:
    """A stream whose first sentence is complete, and which then waits until the test is over."""
    breaks_off(handler)
    handler.server.ended.wait(60)


async def left_after_the_first_sentence(flare: Flare, is_async: bool) -> None:
    if is_async:
        astream = flare.astream(QUESTION, GIVEN)
        assert await anext(astream) == FIRST
        await astream.aclose()
    else:
        stream = flare.stream(QUESTION, GIVEN)
        assert next(stream) == FIRST
        stream.close()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_sentence_is_given_before_the_next_has_come(is_async: bool) -> None:
    with model_server(writes(holds_back)) as server:
        await left_after_the_first_sentence(Flare(by_core(server.url), CHANNEL), is_async)
        assert not server.ended.is_set()


def goes_on(handler: Handler) -> None:
    """A stream whose first sentence is complete, and which then goes on for as long as somebody listens."""
    breaks_off(handler)
    waits_on(handler)


def waits_on(handler: Handler) -> None:
    while not handler.server.ended.wait(0.005):
        handler.wfile.write(b": still here\n\n")


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_rest_of_a_stream_is_not_left_to_the_garbage_collector(way: Any, is_async: bool) -> None:
    with uncollected(), model_server(writes(goes_on)) as server:
        await left_after_the_first_sentence(Flare(way(server.url), CHANNEL), is_async)
        assert await asyncio.to_thread(server.gone.wait, PATIENT)


async def test_a_stream_that_was_given_up_is_let_go_when_its_next_part_has_come(way: Any) -> None:
    late = threading.Event()

    def hesitates(handler: Handler) -> None:
        breaks_off(handler)
        late.wait(PATIENT)
        handler.event(handler._part(tokens_in(" is"), None))
        waits_on(handler)

    with uncollected(), model_server(writes(hesitates)) as server:
        found = await asked(Flare(way(server.url), CHANNEL, timeout=0.3), "stream")
        assert [failure.kind for failure in found.errors] == ["SearchTimeoutError"]
        late.set()
        assert await asyncio.to_thread(server.gone.wait, PATIENT)


async def test_a_search_that_fails_is_noted_and_the_next_doubt_is_searched_for(way: Any, mode: str) -> None:
    tries: Iterator[Any] = iter([OSError("down"), CHANNEL.search("pressure", 5)])

    def search(text: str, top_k: int) -> Ranking:
        outcome = next(tries)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    twice = "The gate is 40 years old. The pressure is held at 90 bar. It is kept."
    with model_server(writes(doubtful(twice, **{"40": 0.1, "90": 0.1}), AGAIN)) as server:
        found = await asked(Flare(way(server.url), search), mode)
    assert found.text == f"The gate is 40 years old. {AGAIN}"
    assert found.retrievals == 2
    (failure,) = found.errors
    assert str(failure) == "flare: FLAREError: the search failed: OSError"


async def test_ollama_gives_probabilities_too(mode: str) -> None:
    with model_server(writes(doubtful(), AGAIN)) as server:
        found = await asked(Flare(server.ollama(), CHANNEL), mode)
    assert found.text == f"{FIRST}{AGAIN}"
    assert (found.retrievals, found.errors) == (1, ())


async def test_a_cancelled_answer_closes_its_connection() -> None:
    with model_server(writes(hangs)) as server:
        flare = Flare(by_core(server.url), CHANNEL)
        asking = asyncio.create_task(flare.aanswer(QUESTION, GIVEN))
        while not server.requests:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_the_model_may_be_asked_for_the_question_to_search_for(way: Any, mode: str) -> None:
    queries: list[str] = []

    def search(text: str, top_k: int) -> Ranking:
        queries.append(text)
        return CHANNEL.search(text, top_k)

    with model_server(writes(doubtful(), "At what pressure is the pump held?", AGAIN)) as server:
        found = await asked(Flare(way(server.url), search, formulate="question"), mode)
    assert queries == ["At what pressure is the pump held?"]
    assert (found.text, found.errors) == (f"{FIRST}{AGAIN}", ())

"""A preset over a base that was indexed without something of it: the rest answers, and the result says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder, Says
from voicevault_retrievers import Chunk, KnowledgeBase, Query
from voicevault_retrievers.core.types import Route
from voicevault_retrievers.errors import ConfigError, NotIndexedError
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure import ParentExpansion

CHUNKS = [
    Chunk("a", "Section 420 IPC: cheating and dishonestly inducing delivery.", "p1", {"source_file": "ipc.txt"}),
    Chunk("b", "Whoever cheats is punished under section 420 IPC.", "p1", {"source_file": "ipc.txt"}),
    Chunk("c", "Theft is punished under section 379 IPC.", "p2", {"source_file": "ipc.txt"}),
]
PARENTS = [Chunk("p1", "All of the chapter on cheating."), Chunk("p2", "All of the chapter on theft.")]
QUESTIONS = {
    Route.SIMPLE: "Section 420 IPC",
    Route.STANDARD: "Who is punished for cheating?",
    Route.COMPLEX: "Compare cheating with theft and their causes",
    Route.ANALYTICAL: "Analyse the law on cheating",
}


def made(root: Path, *without: str, chunks: list[Chunk] = CHUNKS) -> KnowledgeBase:
    kb = KnowledgeBase.create("law", root=root, embedder=None if "vectors" in without else HashEmbedder(96))
    if chunks and "parents" in without:
        kb.add(Chunk(chunk.id, chunk.text, None, chunk.metadata) for chunk in chunks)
    elif chunks:
        kb.add(chunks, parents=PARENTS)
    if "questions" not in without:
        question_index(kb).update(lambda chunk: [f"Who is punished by {chunk.id}?"])
    return kb


def legal(**changed: Any) -> Preset:
    data = preset_data("legal")
    del data["stages"][0]
    return Preset.of({**data, **changed})


def failed(result: Any) -> dict[str, str]:
    return {failure.stage: failure.kind for failure in result.errors}


def unanswered(route: Route) -> dict[str, str]:
    """The note of `legal` where no language model is given that would answer."""
    return {"flare": "no model"} if route is Route.ANALYTICAL else {}


async def test_a_base_that_has_all_is_not_degraded(tmp_path: Path) -> None:
    pipeline = legal().over(made(tmp_path))
    for route, question in QUESTIONS.items():
        result = pipeline.search(question)
        assert (result.route, result.degraded, failed(result)) == (route, False, unanswered(route))
        assert result.hits
        assert (await pipeline.asearch(question)).ranking == result.ranking


@pytest.mark.parametrize(("without", "stages"), [("questions", {"questions"}), ("vectors", {"dense", "questions"})])
async def test_a_channel_that_the_base_has_not_is_named_where_it_would_be_asked(
    tmp_path: Path, without: str, stages: set[str]
) -> None:
    pipeline = legal().over(made(tmp_path, without))
    for route, question in QUESTIONS.items():
        for result in (pipeline.search(question), await pipeline.asearch(question)):
            asked = {} if route is Route.SIMPLE else dict.fromkeys(stages, "NotIndexedError")
            assert (result.route, result.degraded, failed(result)) == (route, bool(asked), asked | unanswered(route))
            assert result.hits
            assert stages.isdisjoint(result.channels_used)


def test_a_base_without_parents_is_read_as_it_is_with_an_entry(tmp_path: Path) -> None:
    result = legal().over(made(tmp_path, "parents")).search(QUESTIONS[Route.STANDARD])
    assert (result.degraded, failed(result)) == (False, {"parents": "NotIndexedError"})
    assert result.hits[0].context is None


async def test_a_language_model_that_is_not_given_is_a_note_on_what_it_would_answer(tmp_path: Path) -> None:
    kb = made(tmp_path)
    for result in (
        legal().over(kb).search(QUESTIONS[Route.ANALYTICAL]),
        await legal().over(kb).asearch(QUESTIONS[Route.ANALYTICAL]),
    ):
        (note,) = result.errors
        assert (note.stage, note.kind, note.degrades, result.answer) == ("flare", "no model", False, None)
        assert "give llm=" in note.message
    assert legal(flare={"enabled": False}).over(kb).search(QUESTIONS[Route.ANALYTICAL]).errors == ()
    answered = legal().given(llm=Says("It is punished.")).over(kb).search(QUESTIONS[Route.ANALYTICAL])
    assert (answered.answer, failed(answered)) == ("It is punished.", {})


def test_a_base_in_which_nothing_is_referred_to_has_a_note_where_the_graph_is_asked(tmp_path: Path) -> None:
    bare = [Chunk("x", "Whoever cheats is punished.", "p1", {"source_file": "x"}), Chunk("y", "Theft, and its causes.")]
    pipeline = legal().over(made(tmp_path, chunks=bare))
    for route, question in QUESTIONS.items():
        asked = {} if route is Route.STANDARD else {"graph": "NotIndexedError"}
        result = pipeline.search(question)
        assert (result.degraded, failed(result)) == (False, asked | unanswered(route))
    kb = made(tmp_path / "some", chunks=[*bare, *CHUNKS])
    for require, noted in ((None, False), ({"source_file": "ipc.txt"}, False), ({"source_file": "x"}, True)):
        query = Query("Compare theft with section 999 IPC and their causes", require=require)
        assert ("graph" in failed(legal().over(kb).search(query))) is noted


def test_questions_without_vectors_are_those_of_their_base(tmp_path: Path) -> None:
    _, failure = legal().over(made(tmp_path, "vectors")).search("who").errors
    assert "the questions have no vectors: knowledge base 'law' was created without an embedder" in failure.message
    assert "quim_questions" not in failure.message


def test_an_empty_base_finds_nothing_and_says_so(tmp_path: Path) -> None:
    pipeline = legal().over(made(tmp_path, "questions", chunks=[]))
    for route, question in QUESTIONS.items():
        result = pipeline.search(question)
        assert (result.hits, result.confidence) == ((), "none")
        assert failed(result) == {
            "law": "empty",
            **({"route": "nothing"} if route is Route.SIMPLE else {"questions": "NotIndexedError"}),
            **unanswered(route),
        }


def test_a_funnel_is_where_a_prefix_keeps_enough_and_else_all_is_compared_with_a_note(tmp_path: Path) -> None:
    kb = made(tmp_path)
    result = legal().over(kb).search(QUESTIONS[Route.STANDARD])
    assert "Funnel" in repr(legal().over(kb).channel)
    assert not result.errors
    narrow = KnowledgeBase.create("narrow", root=tmp_path, embedder=HashEmbedder(16))
    narrow.add(CHUNKS, parents=PARENTS)
    plain = legal(channels={"dense": {}}, route=None).over(narrow).search(QUESTIONS[Route.STANDARD])
    noted = legal(channels={"dense": {"funnel": {"prefix": 64, "on_loss": "full"}}}, route=None).over(narrow)
    found = noted.search(QUESTIONS[Route.STANDARD])
    assert [hit.id for hit in found.hits] == [hit.id for hit in plain.hits]
    assert (found.degraded, [str(one) for one in found.errors if one.stage == "dense"]) == (
        False,
        ["dense: funnel: prefix is less than the 16 dimensions of the vectors, not 64: all dimensions were compared"],
    )
    with pytest.raises(ConfigError, match="prefix is less than the 16 dimensions"):
        legal(channels={"dense": {"funnel": {"prefix": 64}}}, route=None).over(narrow)


def test_what_has_no_funnel_is_searched_by_all_with_a_note(tmp_path: Path) -> None:
    class Plain:
        """As an engine whose vectors are found in one way."""

        kb = made(tmp_path)
        bm25, questions, graph, parents = kb.bm25, kb.questions, kb.graph, kb.parents

        def dense(self, *, timeout: float | None = None) -> Any:
            return self.kb.dense(timeout=timeout)

    result = legal().over(Plain()).search(QUESTIONS[Route.STANDARD])
    assert (result.degraded, failed(result)) == (False, {"dense": "funnel"})
    assert "dense" in result.channels_used


def test_a_search_raises_where_all_that_it_asks_is_missing_or_where_that_is_wanted(tmp_path: Path) -> None:
    kb = made(tmp_path, "questions")
    with pytest.raises(NotIndexedError, match="question_index"):
        legal(channels={"questions": {}}, route=None).over(kb).search("who")
    with pytest.raises(NotIndexedError, match="question_index"):
        legal(on_error="raise").over(kb).search(QUESTIONS[Route.STANDARD])


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_both_frameworks_answer_from_the_rest(tmp_path: Path, framework: str) -> None:
    retrievers = pytest.importorskip(f"voicevault_retrievers.{framework}")
    kb = made(tmp_path, "questions", "vectors")
    expected = legal().over(kb).search(QUESTIONS[Route.STANDARD])
    result = retrievers.HybridRetriever(kb_names=[kb], preset=legal()).search(QUESTIONS[Route.STANDARD])
    assert result.ranking == expected.ranking
    assert failed(result) == {"questions": "NotIndexedError", "dense": "NotIndexedError"}
    with pytest.raises(NotIndexedError, match="question_index"):
        retrievers.HybridRetriever(kb_names=[kb], channels={"questions": True}).search("who")  # it was asked for


def test_parents_fill_k_where_they_are(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("many", root=tmp_path, embedder=HashEmbedder(96))
    chunks = [
        Chunk(f"p{parent}-{at}", f"cheating {'pump ' * (30 - parent)} {at}", f"p{parent}")
        for parent in range(30)
        for at in range(12)
    ]
    kb.add(chunks, parents=[Chunk(f"p{parent}", f"Chapter {parent}.") for parent in range(30)])
    result = legal(route={"method": "rules", "standard": ["bm25", "dense"]}).over(kb).search("cheating pump")
    assert len(result.hits) == 20
    assert len({hit.chunk.parent_id for hit in result.hits}) == 20
    assert all(hit.text.startswith("Chapter") for hit in result.hits)


def test_a_header_stands_above_the_first_text_of_each_document_that_names_it() -> None:
    from voicevault_retrievers.lexical import BM25

    chunks = [
        Chunk(f"{name}{at}", f"bail {'bail ' * (9 - at)}", None, {"source_file": name, "header_id": "court"})
        for name in ("one.txt", "two.txt")
        for at in range(2)
    ]
    stage = ParentExpansion({"court": Chunk("court", "High Court")}, header_key="header_id")
    texts = {hit.id: hit.text for hit in (BM25.from_chunks(chunks) >> stage).search(Query("bail"), 4)}
    headed = {name for name, text in texts.items() if text.startswith("High Court\n\n")}
    assert headed == {"one.txt0", "two.txt0"}


def test_a_note_on_parents_tells_nothing_of_those_that_one_may_not_read(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("law", root=tmp_path, embedder=HashEmbedder(96))
    hidden = [Chunk("p1", "All of the chapter.", None, {"source_file": "hidden.txt"})]
    kb.add([Chunk("a", "cheating is punished", None, {"source_file": "ipc.txt"})])
    pipeline = legal(channels={"bm25": {}}, route=None).over(kb)
    before = pipeline.search(Query("cheating", require={"source_file": "ipc.txt"}))
    assert failed(before) == {"parents": "NotIndexedError"}
    kb.add([Chunk("h", "theft", "p1", {"source_file": "hidden.txt"})], parents=hidden)
    after = pipeline.search(Query("cheating", require={"source_file": "ipc.txt"}))
    assert after.errors == before.errors
    assert failed(pipeline.search("cheating")) == {}

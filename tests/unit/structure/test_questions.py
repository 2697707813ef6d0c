"""Questions that chunks answer: how they are made, kept in step with the chunks, and lead back to them."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import Awaited, HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    IncompatibleIndexError,
    IndexDamagedError,
    LockedError,
    RetrievalError,
)
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.store import KnowledgeBase, commit, export, export_format, files, remove, restore
from voicevault_retrievers.store.questions import question_channel, question_index
from voicevault_retrievers.structure.questions import (
    COLLECTION,
    DIGEST,
    SOURCE,
    QuestionChannel,
    QuestionIndex,
    QuestionUpdate,
    digest,
)
from voicevault_retrievers.text import CustomAnalyzer

CHUNKS = [
    Chunk("pump", "Reset the pump with the green key.", None, {"file": "a", "rights": "red"}),
    Chunk("valve", "The valve opens at 4 bar.", None, {"file": "a", "rights": "blue"}),
    Chunk("seal", "Seals are replaced yearly.", None, {"file": "b", "rights": "blue"}),
]
GIVEN = {
    "pump": ["How do I restart the machine?", "Which colour has the button?"],
    "valve": ["At which pressure is it released?"],
    "seal": ["How often do gaskets change?"],
}


@pytest.fixture(params=[1, 4096], ids=["sealed", "logged"])
def kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> KnowledgeBase:
    monkeypatch.setattr(commit, "SEAL_AT", request.param)
    made = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())
    made.add(CHUNKS)
    return made


class Asks:
    """Asks what it is told for each chunk, and keeps whom it asked for."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.asked: list[str] = []

    def __call__(self, chunk: Chunk) -> list[str]:
        self.asked.append(chunk.id)
        if chunk.id in self.failing:
            raise RetrievalError("no answer")
        return [*GIVEN.get(chunk.id, ()), f"What of {chunk.text.split()[0]}?"]


def held(kb: KnowledgeBase) -> dict[str, list[str]]:
    """The questions of each chunk, as a fresh reader finds them."""
    base = KnowledgeBase.open(kb.path / "quim_questions", embedder=HashEmbedder())
    assert base.verify() == []
    found: dict[str, list[str]] = {}
    for question in base:
        found.setdefault(question.metadata[SOURCE], []).append(question.text)
    return found


def test_a_question_leads_to_its_chunk_and_is_the_reason(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    assert index.update(GIVEN) == QuestionUpdate(asked=3, questions=4)
    assert held(kb) == GIVEN
    asked = "How do I restart the machine?"
    for by in ("bm25", "dense", "both", None):
        (first, *_) = index.channel(by=by).search(asked)  # type: ignore[arg-type]
        assert first.chunk == replace(CHUNKS[0], kb="kb")
        (vote,) = first.votes
        assert (vote.stage, vote.kind, vote.rank, vote.query) == ("questions", "question", 1, asked)
        assert vote.via == (GIVEN["pump"][0],)
        assert first.found_by == "question"
    assert kb.bm25().search("restart machine").ids == ()
    assert question_channel(kb, by="bm25").search("restart machine").ids == ("pump",)


def test_questions_are_an_index_of_their_own_that_names_their_chunks(kb: KnowledgeBase) -> None:
    question_index(kb).update(GIVEN)
    own = list(KnowledgeBase.open(kb.path / "quim_questions", embedder=HashEmbedder()))
    assert {(question.metadata["source_chunk_id"], question.text) for question in own} == {
        (chunk_id, text) for chunk_id, texts in GIVEN.items() for text in texts
    }
    assert kb.ids() == sorted(GIVEN)
    assert kb.bm25().search("gaskets").ids == ()


def test_each_chunk_counts_once_with_its_best_question(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update({"pump": ["pump pump pump", "pump", "pump key", "something else"], "valve": ["pump valve"]})
    below = KnowledgeBase.open(kb.path / "quim_questions", embedder=HashEmbedder())
    for by in ("bm25", "dense"):
        best = {question.metadata[SOURCE]: 0.0 for question in below}
        for hit in getattr(below, by)().search("pump key", 10):
            source = hit.chunk.metadata[SOURCE]
            best[source] = max(best[source], hit.score or 0.0)
        channel = index.channel(by=by)  # type: ignore[arg-type]
        ranking = channel.search("pump key")
        assert {hit.id: hit.score for hit in ranking} == best
        assert channel.scores(Query("pump key"), ["pump", "valve", "seal"]) == best
        assert channel.coverage(Query("pump key")) == (1.0 if by == "bm25" else None)
        assert channel.coverage(Query("pump xyzzy")) == (0.5 if by == "bm25" else None)
        assert channel.search("pump key", 1).ids == ranking.ids[:1]
    assert index.channel(by="both").scores(Query("pump"), ["pump"]) is None


def test_a_prefix_stands_before_the_ids_of_chunks(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update(GIVEN)
    bare, prefixed = index.channel(by="dense"), index.channel(by="dense", prefix="kb:")
    assert prefixed.search("gaskets").ids == tuple(f"kb:{one}" for one in bare.search("gaskets").ids)
    scores = bare.scores(Query("gaskets"), ["pump", "seal"]) or {}
    assert prefixed.scores(Query("gaskets"), ["kb:pump", "kb:seal", "pump", "other:seal"]) == {
        f"kb:{one}": score for one, score in scores.items()
    }


def test_more_questions_are_looked_at_while_chunks_are_too_few(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update({"pump": [f"pump {at}" for at in range(30)], "valve": ["pump valve of another plant, much longer"]})
    channel = index.channel(by="bm25", questions=1)
    assert channel.search("pump", 2).ids == ("pump", "valve")
    assert channel.search("pump", 1).ids == ("pump",)
    assert channel.search("pump", 0).hits == channel.search("", 5).hits == channel.search("unknown", 5).hits == ()


def test_only_what_is_new_or_has_another_text_is_asked_for(kb: KnowledgeBase) -> None:
    index, asks = question_index(kb), Asks()
    assert index.update(asks) == QuestionUpdate(asked=3, questions=7)
    assert index.update(asks) == QuestionUpdate(unchanged=3)
    assert sorted(asks.asked) == ["pump", "seal", "valve"]
    kb.add([replace(CHUNKS[0], text="Stop the pump."), Chunk("oil", "Oil is black.")])
    kb.delete(["seal"])
    asks.asked.clear()
    assert question_index(kb).update(asks) == QuestionUpdate(asked=2, unchanged=1, removed=1, questions=3 + 1)
    assert sorted(asks.asked) == ["oil", "pump"]
    assert set(held(kb)) == {"pump", "valve", "oil"}
    assert held(kb)["pump"][-1] == "What of Stop?"
    assert question_index(kb).update(asks, again=True).asked == 3


def test_fewer_questions_take_the_place_of_more(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update({"pump": [f"question {at}" for at in range(20)]})
    assert index.update({"pump": ["another"]}) == QuestionUpdate(asked=1, unchanged=2, questions=1)
    assert held(kb) == {"pump": ["another"]}
    assert index.update({"pump": ["another"]}) == QuestionUpdate(unchanged=3)
    assert index.update({"pump": []}).asked == 1
    assert held(kb) == {}


def test_a_chunk_of_which_nothing_can_be_asked_is_not_asked_for_again(kb: KnowledgeBase) -> None:
    index, asked = question_index(kb), list[str]()

    def nothing(chunk: Chunk) -> list[str]:
        asked.append(chunk.id)
        return []

    assert index.update(nothing) == QuestionUpdate(asked=3)
    kb.add([replace(CHUNKS[1], text="The valve is shut.")])
    assert question_index(kb).update(nothing) == QuestionUpdate(asked=1, unchanged=2)
    assert sorted(asked) == ["pump", "seal", "valve", "valve"]
    assert held(kb) == {}
    assert index.channel().search("valve").hits == ()


def test_a_failure_stops_no_other_chunk_and_is_taken_up_again(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    done = index.update(Asks("valve"))
    assert (done.asked, done.failed) == (2, {"valve": "RetrievalError: no answer"})
    asks = Asks()
    assert index.update(asks) == QuestionUpdate(asked=1, unchanged=2, questions=2)
    assert asks.asked == ["valve"]
    bad: Any = {"pump": "not a list", "valve": [3], "gone": ["x"]}
    failed = index.update(bad).failed
    assert set(failed) == {"pump", "valve", "gone"}
    assert "list of texts" in failed["pump"]
    assert held(kb)["pump"][0] == GIVEN["pump"][0]


def test_an_update_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())
    kb.add(Chunk(f"c{at:03}", f"text {at}") for at in range(50))
    asked: list[str] = []

    def stops(chunk: Chunk) -> list[str]:
        if len(asked) == 40:
            raise KeyboardInterrupt
        asked.append(chunk.id)
        return [f"What is {chunk.id}?"]

    with pytest.raises(KeyboardInterrupt):
        question_index(kb).update(stops, at_once=1)
    kept = set(held(kb))
    assert len(kept) == 32  # two batches of 16
    told: list[tuple[int, int]] = []
    rest: list[str] = []
    done = question_index(kb).update(lambda c: rest.append(c.id) or ["x"], progress=lambda a, b: told.append((a, b)))  # type: ignore[func-returns-value]
    assert (done.asked, done.unchanged) == (18, 32)
    assert kept.isdisjoint(rest)
    assert told == [(16, 18), (18, 18)]


def test_nobody_is_asked_while_another_writes_and_the_lock_is_given_back(kb: KnowledgeBase) -> None:
    question_index(kb).update({"pump": GIVEN["pump"]})
    first, second, asks = question_index(kb), question_index(kb), Asks()
    with KnowledgeBase.open(kb.path / "quim_questions", embedder=HashEmbedder()) as other:
        other.hold()
        with pytest.raises(LockedError):
            first.update(asks)
    assert asks.asked == []
    assert first.update(asks) == QuestionUpdate(asked=2, unchanged=1, questions=4)
    assert second.update(asks) == QuestionUpdate(unchanged=3)  # what the first has written is seen

    def fails(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        second.update(asks, again=True, progress=fails)
    assert first.update(asks).unchanged == 3


def test_other_metadata_moves_the_questions_and_asks_nobody(kb: KnowledgeBase) -> None:
    index, asks = question_index(kb), Asks()
    index.update(asks)
    asks.asked.clear()
    before = held(kb)
    kb.add([replace(CHUNKS[0], metadata={"file": "moved", "flag": True})])
    assert index.update(asks) == QuestionUpdate(moved=1, unchanged=2)
    assert (asks.asked, held(kb)) == ([], before)
    assert index.channel().search(Query("restart", where={"file": "moved"})).ids == ("pump",)
    kb.add([replace(CHUNKS[0], metadata={"file": "moved", "flag": 1})])  # equal to Python, and not to a filter
    assert index.update(asks).moved == 1


def test_what_is_no_more_or_is_not_permitted_is_not_returned_before_an_update_either(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update(GIVEN)
    channel = index.channel()
    everything = "restart machine pressure released gaskets change"
    assert set(channel.search(everything).ids) == {"pump", "valve", "seal"}
    kb.delete(["seal"])
    kb.add([replace(CHUNKS[0], metadata={"file": "a", "rights": "blue"}), replace(CHUNKS[1], text="It is shut.")])
    for one in (channel, index.channel(), question_channel(kb)):
        ranking = one.search(everything)
        assert ranking.ids == ("pump",)
        assert [(failure.kind, failure.degrades) for failure in ranking.errors] == [("outdated", False)]
        assert one.search(Query(everything, require={"rights": "red"})).hits == ()
        assert one.search(Query(everything, where={"rights": "red"})).hits == ()
    index.update(Asks())
    assert set(index.channel().search(Query(everything, require={"rights": "blue"})).ids) == {"pump", "valve"}


def test_filters_narrow_before_ranking(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update({chunk.id: ["what is it"] * 1 for chunk in CHUNKS})
    channel = index.channel(questions=1)
    assert channel.search(Query("what", where={"file": "b"}), 1).ids == ("seal",)
    assert channel.search(Query("what", require={"rights": "red"}), 3).ids == ("pump",)
    assert channel.search(Query("what", require={}), 3).ids == ()
    for key in (SOURCE, DIGEST):
        for where in ({key: "x"}, {"$not": {"$or": [{"file": "a"}, {key: {"$exists": False}}]}}):
            with pytest.raises(FilterNotSupportedError, match="means questions"):
                channel.search(Query("what", where=where))
            with pytest.raises(FilterNotSupportedError, match="means questions"):
                channel.search(Query("what", require=where))


def test_a_chunk_that_has_a_questions_key_is_reported(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path)
    kb.add([Chunk("a", "text", None, {SOURCE: "b"}), Chunk("b", "text"), Chunk("blank", "  ")])
    done = question_index(kb).update(lambda chunk: ["what?"])
    assert (done.asked, list(done.failed)) == (1, ["a"])
    assert "source_chunk_id" in done.failed["a"]


def test_variants_and_weights_of_other_channels_are_not_for_questions(kb: KnowledgeBase) -> None:
    index = question_index(kb)
    index.update(GIVEN)
    channel = index.channel(by="bm25")

    def found(*channels: str) -> tuple[str, ...]:
        return channel.search(Query("x", (Variant("gaskets", channels=frozenset(channels) or None),))).ids

    assert found() == found("questions") == found("question") == ("seal",)
    assert found("semantic") == found("keyword") == found("bm25") == ()
    weighed = Query("restart", weights={"bm25": 0, "dense": 0})
    assert index.channel().search(weighed).ids == index.channel().search("restart").ids


async def test_sync_and_async_agree_in_searches_and_updates(kb: KnowledgeBase) -> None:
    model, index = Awaited('["Restart what?", "Restart who?"]'), question_index(kb)
    assert await index.aupdate(model) == QuestionUpdate(asked=3, questions=6)
    assert len(model.asked) == 3
    assert index.update(lambda chunk: []) == QuestionUpdate(unchanged=3)
    kb.delete(["seal"])
    for query in (Query("restart"), Query("restart", require={"rights": "red"}), Query("")):
        for channel in (index.channel(), fuse(bm25=kb.bm25(), questions=index.channel(by="dense"))):
            assert channel.search(query) == await channel.asearch(query)


def test_chunks_may_be_in_a_mapping(kb: KnowledgeBase) -> None:
    chunks = {chunk.id: chunk for chunk in CHUNKS}
    index = QuestionIndex(question_index(kb).questions, chunks)
    index.update(GIVEN)
    channel = index.channel()
    assert channel.search("restart machine", 1).hits[0].chunk is CHUNKS[0]
    del chunks["pump"]
    assert "pump" not in channel.search("restart machine").ids
    assert "pump" not in channel.search(Query("restart machine", require={"file": "a"})).ids
    with pytest.raises(ConfigError, match="in a knowledge base or in a mapping"):
        QuestionIndex(index.questions, 3)  # type: ignore[arg-type]


def test_questions_are_analysed_as_the_chunks_are_and_go_with_them(tmp_path: Path) -> None:
    loud = CustomAnalyzer(lambda text: text.upper().split(), name="loud")
    kb = KnowledgeBase.create("kb", root=tmp_path, analyzer=loud)
    kb.add(CHUNKS)
    with pytest.raises(ConfigError, match=r"no questions about the chunks of knowledge base 'kb'.*update"):
        question_channel(kb)
    question_index(kb).update(GIVEN)
    assert question_channel(kb).search("RESTART").ids == ("pump",)
    assert kb.verify() == []
    kb.compact()
    assert question_channel(KnowledgeBase.open(kb.path, analyzer=loud)).search("restart").ids == ("pump",)
    kb.close()
    remove("kb", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [3, "text", None])
def test_what_is_no_questioner_is_refused(kb: KnowledgeBase, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="questions are made by a language model"):
        question_index(kb).update(wrong)
    with pytest.raises(ConfigError, match="at_once is a whole number"):
        question_index(kb).update(GIVEN, at_once=0)
    with pytest.raises(ConfigError, match="unknown way to find questions 'fuzzy'"):
        question_index(kb).channel(by="fuzzy")  # type: ignore[arg-type]


def test_an_id_may_hold_anything(tmp_path: Path) -> None:
    ids = ["?", "a?1", "a", "a?0", "commit", "泵?2", "x" * 1000]
    kb = KnowledgeBase.create("kb", root=tmp_path)
    kb.add(Chunk(one, f"text of {at}") for at, one in enumerate(ids))
    index = question_index(kb)
    words = ["pump", "valve", "seal", "oil", "gasket", "turbine", "rotor"]
    index.update({one: [word] * (at % 2) for at, (one, word) in enumerate(zip(ids, words, strict=True))})
    for at, (one, word) in enumerate(zip(ids, words, strict=True)):
        for query in (Query(word), Query(word, require={"x": {"$exists": False}})):
            assert index.channel().search(query).ids == ((one,) if at % 2 else ())
    assert index.update(Asks()) == QuestionUpdate(unchanged=len(ids))


def test_the_digest_and_the_recipe(kb: KnowledgeBase) -> None:
    assert digest("a") != digest("b")
    assert len(digest("\ud800")) == 32
    channel = question_index(kb).channel(by="bm25")
    assert isinstance(channel, QuestionChannel)
    assert repr(channel).startswith("QuestionChannel(BM25(")
    assert channel.describe().startswith("questions: chunks by questions\n  questions: ")


def test_a_repair_is_of_the_questions_too(kb: KnowledgeBase) -> None:
    question_index(kb).update({**GIVEN, "seal": []})
    kb.close()
    folder = kb.path / COLLECTION
    KnowledgeBase.open(folder, embedder=HashEmbedder()).compact()
    assert kb.verify() == []
    derived = next(path for path in sorted(folder.glob("seg-*/*")) if not files.original(path.name))
    derived.write_bytes(derived.read_bytes()[:-1] + b"?")
    assert [line.startswith("questions: ") and str(derived) in line for line in kb.verify()] == [True]
    repaired = KnowledgeBase.repair(kb.path, embedder=HashEmbedder())
    assert repaired.verify() == []
    assert held(repaired) == {one: GIVEN[one] for one in ("pump", "valve")}
    original = next(path for path in sorted(folder.glob("seg-*/chunks.jsonl")))
    original.write_bytes(b"?" + original.read_bytes()[1:])
    with pytest.raises(IndexDamagedError, match=r"the chunks are repaired: restore .*quim_questions"):
        KnowledgeBase.repair(kb.path, embedder=HashEmbedder())


def test_questions_go_where_their_base_is_exported_to(kb: KnowledgeBase, tmp_path: Path) -> None:
    question_index(kb).update({**GIVEN, "seal": []})
    file, again = tmp_path / "kb.jsonl", BytesIO()
    export(kb, file)
    other = restore(file, "other", root=tmp_path, embedder=HashEmbedder())
    export(other, again)
    assert again.getvalue().splitlines()[1:-1] == file.read_bytes().splitlines()[1:-1]
    assert other.verify() == []
    assert held(other) == {one: GIVEN[one] for one in ("pump", "valve")}
    asked = Asks()
    assert question_index(other).update(asked) == QuestionUpdate(unchanged=3)
    assert asked.asked == []
    text = "At which pressure is it released?"
    expected = [(hit.id, hit.score) for hit in question_channel(kb).search(text)]
    assert [(hit.id, hit.score) for hit in question_channel(other).search(text)] == expected


def test_questions_without_vectors_are_embedded_anew(kb: KnowledgeBase, tmp_path: Path) -> None:
    question_index(kb).update(GIVEN)
    file = BytesIO()
    export(kb, file, vectors=False)
    assert b'"vector"' not in file.getvalue()
    file.seek(0)
    other = restore(file, "other", root=tmp_path, embedder=HashEmbedder(8))
    assert KnowledgeBase.open(other.path / COLLECTION).manifest.embedder == other.manifest.embedder
    assert question_channel(other, by="dense").search("At which pressure is it released?").ids[0] == "valve"


def test_an_export_with_questions_is_of_a_version_of_its_own(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = BytesIO(), BytesIO()
    export(kb, plain)
    question_index(kb).update(GIVEN)
    export(kb, asked)
    versions = [json.loads(file.getvalue().splitlines()[0])["version"] for file in (plain, asked)]
    assert versions == [1, 2]
    for file in (plain, asked):
        file.seek(0)
    assert not (restore(plain, "plain", root=tmp_path).path / COLLECTION).exists()
    monkeypatch.setattr(export_format, "VERSION", 1)
    with pytest.raises(IncompatibleIndexError, match="version 2, newer than 1"):
        restore(asked, "asked", root=tmp_path)
    assert not (tmp_path / "asked").exists()


def test_questions_of_another_embedder_are_exported_without_vectors_alone(kb: KnowledgeBase) -> None:
    question_index(kb).update(GIVEN)
    remove(kb.path / COLLECTION)
    KnowledgeBase.create(kb.path / COLLECTION, embedder=HashEmbedder(8)).close()
    with pytest.raises(IncompatibleIndexError, match="export without vectors"):
        export(kb, BytesIO())
    export(kb, BytesIO(), vectors=False)

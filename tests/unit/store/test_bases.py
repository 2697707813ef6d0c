"""Knowledge bases that differ in analyzer or embedder, searched as one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import Counting, FailingChannel, HashEmbedder, ListChannel
from voicevault_retrievers import RRF, fuse
from voicevault_retrievers.core.explanation import explain, provenance
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Variant
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, NotIndexedError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.store import Bases, KnowledgeBase, embedding, merged_bases
from voicevault_retrievers.store.delete_base import remove
from voicevault_retrievers.store.merged_bases import MergedBases
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure import ParentExpansion
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

TEXTS = ["the pump hums", "a valve and a pump", "hot oil in the pump", "pump pump pump", "an idle turbine"]
LOUD = CustomAnalyzer(lambda text: text.upper().split(), name="loud")
Make = Callable[..., KnowledgeBase]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a base with some of the texts, each under the number that it has in `TEXTS`."""

    def made(name: str, *which: int, **options: Any) -> KnowledgeBase:
        with KnowledgeBase.create(name, root=tmp_path, **options) as kb:
            kb.add(Chunk(f"c{at}", TEXTS[at], metadata={"at": at}) for at in which)
        return kb

    return made


def _union(*bases: KnowledgeBase) -> list[Chunk]:
    return [c.prefixed(f"{kb.name}:") for kb in bases for c in kb]


def _scored(hits: Sequence[Hit]) -> list[tuple[str, float | None]]:
    return [(hit.id, hit.score) for hit in hits]


def _standing(lists: Sequence[Sequence[tuple[str, float]]]) -> list[tuple[str, float]]:
    """What the merged list should be, from the definition."""
    merged = []
    for scored in lists:
        mean = math.fsum(score for _, score in scored) / len(scored)
        deviation = math.sqrt(math.fsum((score - mean) ** 2 for _, score in scored) / len(scored))
        merged += [(chunk_id, (score - mean) / deviation) for chunk_id, score in scored]
    return sorted(merged, key=lambda entry: (-entry[1], entry[0]))


def test_of_other_embedders_keywords_are_one_index_and_similarities_are_standardised(make: Make) -> None:
    one = make("one", 0, 1, 2, embedder=HashEmbedder(16))
    two = make("two", 1, 3, 4, embedder=HashEmbedder(8))
    both = Bases([one, two])
    assert _scored(both.bm25().search("hot pump").hits) == _scored(
        BM25.from_chunks(_union(one, two)).search("hot pump").hits
    )
    lists = [
        [(f"{kb.name}:{hit.id}", hit.score or 0.0) for hit in kb.dense().search("pump valve", 100)] for kb in (one, two)
    ]
    found = both.dense().search("pump valve")
    assert [hit.id for hit in found] == [chunk_id for chunk_id, _ in _standing(lists)]
    assert [hit.score for hit in found] == pytest.approx([score for _, score in _standing(lists)])
    assert min(hit.score or 0.0 for hit in found) < 0
    for rank, hit in enumerate(found, 1):
        vote = hit.votes[0]
        assert (vote.stage, vote.rank, vote.score, vote.query) == ("dense", rank, hit.score, "pump valve")
        own = dict(lists[hit.chunk.kb == "two"])
        assert [(part.stage, part.score) for part in vote.parts] == [(hit.chunk.kb, own[hit.id])]
        assert (hit.found_by, vote.parts[0].rank) == ("semantic", list(own).index(hit.id) + 1)


def test_of_other_analyzers_each_group_is_an_index_and_vectors_are_one(make: Make) -> None:
    embedder = HashEmbedder(16)
    a = make("a", 0, 1, embedder=embedder, analyzer=Analyzer("en"))
    b = make("b", 2, 3, embedder=embedder, analyzer=LOUD)
    c = make("c", 1, 3, 4, embedder=embedder, analyzer=Analyzer("en"))
    every = Bases([a, b, c])
    groups = {"a+c": BM25.from_chunks(_union(a, c), Analyzer("en")), "b": BM25.from_chunks(_union(b), LOUD)}
    lists = [[(hit.id, hit.score or 0.0) for hit in group.search("pump", 100)] for group in groups.values()]
    found = every.bm25().search("pump")
    assert [hit.id for hit in found] == [chunk_id for chunk_id, _ in _standing(lists)]
    parts = {hit.id: hit.votes[0].parts[0] for hit in found}
    assert {(part.stage, chunk_id, part.score) for chunk_id, part in parts.items()} == {
        (label, *scored) for label, own in zip(groups, lists, strict=True) for scored in own
    }
    assert {(hit.chunk.kb, hit.found_by, hit.votes[0].terms) for hit in found} == {
        ("a", "keyword", ("pump",)), ("b", "keyword", ("PUMP",)), ("c", "keyword", ("pump",)),
    }  # fmt: skip
    assert _scored(every.dense().search("hot pump").hits) == _scored(
        VectorChannel.from_chunks(_union(a, b, c), embedder).search("hot pump").hits
    )


def test_neither_the_order_of_bases_nor_k_changes_a_bit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_bases, "DEPTH", 2)
    bases = [
        make("a", 0, 1, 2, 3, embedder=HashEmbedder(16)),
        make("b", 0, 1, 2, 3, embedder=HashEmbedder(8), analyzer=LOUD),
        make("c", 1, 3, 4, embedder=HashEmbedder(16), analyzer=Analyzer("en")),
    ]
    for name in ("bm25", "dense"):
        whole = getattr(Bases(bases), name)().search("pump valve", 50)
        assert len(whole) > 6
        for order in permutations(bases):
            channel = getattr(Bases(order), name)()
            assert all(repr(channel.search("pump valve", k).hits) == repr(whole.hits[:k]) for k in range(12))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], []),
        ([7.5], [0.0]),
        ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0]),
        ([3.0, 1.0], [1.0, -1.0]),
        ([1e308, 1e-308], [1.0, -1.0]),
        ([5e-324, 0.0, 0.0, 0.0], [5e-324, 0.0, 0.0, 0.0]),  # a deviation below the smallest float is taken as 1
        ([4.0, 4.0, 4.0, 4.0, 1.0], [0.0, 0.0, 0.0, 0.0, -3.0]),  # the fifth is below the depth
    ],
)
def test_what_stands_where(scores: list[float], expected: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_bases, "DEPTH", 4)
    other = ListChannel([("z1", 2.0), ("z2", 0.0)])
    own = ListChannel([(f"a{at}", score) for at, score in enumerate(scores)])
    found = MergedBases({"own": own, "other": other}, "dense", "semantic").search("x", 9)
    by_id = {hit.id: hit.score for hit in found}
    assert [by_id[f"a{at}"] for at in range(len(scores))] == expected
    assert (by_id["z1"], by_id["z2"]) == (1.0, -1.0)


async def test_a_group_that_fails_is_named_and_the_others_answer() -> None:
    error = RuntimeError("no model")
    groups = {"good": ListChannel([("a", 1.0)]), "bad": FailingChannel(error)}
    channel = fuse(dense=MergedBases(groups, "dense", "semantic"))
    found = channel.search("x")
    assert (found.ids, [str(failure) for failure in found.errors]) == (("a",), ["dense/bad: RuntimeError"])
    assert found.errors[0].error is error
    assert await channel.asearch("x") == found
    with pytest.raises(RuntimeError, match="no model"):
        Pipeline(channel, on_error="raise").search("x")
    with pytest.raises(RuntimeError, match="first"):
        MergedBases(
            {"b": FailingChannel(error), "a": FailingChannel(RuntimeError("first"))}, "dense", "semantic"
        ).search("x")


def test_an_embedder_that_cannot_be_loaded_is_not_skipped(make: Make, tmp_path: Path) -> None:
    one = make("one", 0, 1, embedder=HashEmbedder(16))
    make("two", 2, 3, embedder=HashEmbedder(8))
    with pytest.raises(ConfigError, match=r"'hash/8', which cannot be loaded by name"):
        Bases([one, "two"], root=tmp_path).dense()
    with pytest.raises(ConfigError, match=r"'hash/16', which cannot be loaded by name"):
        Bases(["two", "one"], root=tmp_path).dense()
    # One of them opened with it is enough, whichever is named first.
    again = make("again", 4, embedder=HashEmbedder(16))
    assert Bases(["one", again], root=tmp_path).dense().search("idle turbine").ids[0] == "again:c4"


def test_what_is_given_goes_to_the_bases_made_with_it(make: Make, tmp_path: Path) -> None:
    make("a", 0, 1, analyzer=LOUD, embedder=HashEmbedder(8))
    make("b", 2, 3)
    bases = Bases(["a", "b"], root=tmp_path, analyzer=LOUD, embedder=HashEmbedder(8))
    assert {hit.chunk.kb for hit in bases.bm25().search("pump")} == {"a", "b"}
    assert {hit.chunk.kb for hit in bases.dense().search("pump")} == {"a"}
    for given in ({"embedder": HashEmbedder(4)}, {"analyzer": Analyzer("fr")}):
        with pytest.raises(IncompatibleIndexError, match="given"):
            Bases(["a", "b"], root=tmp_path, **{"analyzer": LOUD, **given})  # type: ignore[arg-type]  # one of both


def test_a_base_without_an_embedder_is_searched_by_keywords_and_noted(make: Make) -> None:
    bases = Bases([make("bare", 0), make("full", 1, embedder=HashEmbedder())])
    assert {hit.chunk.kb for hit in bases.bm25().search("pump")} == {"bare", "full"}
    assert bases.dense().search("pump").ids == ("full:c1",)
    assert [(note.stage, note.kind, note.degrades) for note in bases.notes] == [("bare", "keywords only", False)]


@pytest.mark.parametrize("way", ["core", "langchain", "llama_index"])
@pytest.mark.parametrize("which", ["empty", "bare", "missing"])
async def test_a_base_with_nothing_in_it_finds_nothing_with_one_note(
    make: Make, tmp_path: Path, which: str, way: str
) -> None:
    pytest.importorskip({"core": "numpy", "langchain": "langchain_core", "llama_index": "llama_index.core"}[way])
    preset = Preset.of({"version": 1})
    options = {"embedder": HashEmbedder()} if which == "empty" else {}
    base = None if which == "missing" else make("nothing", **options)
    named = [base] if base else ["nothing"]
    if way == "core":
        searching: list[Any] = [preset.over(Bases(named, root=tmp_path)), *([preset.over(base)] if base else [])]
    else:
        retriever = import_module(f"voicevault_retrievers.{way}").HybridRetriever
        searching = [retriever(kb_names=[base or tmp_path / "nothing"], **given) for given in ({}, {"preset": preset})]
    if base and way == "langchain":
        searching.append(import_module("voicevault_retrievers.langchain").HybridIndex(kb=base))
    for one in searching:
        for found in (one.search("pump"), await one.asearch("pump")):
            assert (found.hits, found.confidence, found.degraded) == ((), "none", False)
            (note,) = found.errors
            assert (note.stage, note.kind) == ("nothing", "missing" if which == "missing" else "empty")


def test_an_empty_base_of_another_kind_changes_no_score(make: Make) -> None:
    full = make("full", 0, 1, 2, embedder=HashEmbedder(16))
    other = make("other", 3, embedder=HashEmbedder(8), analyzer=LOUD)
    query = Query("pump", require={"at": {"$lt": 3}})
    permitted = [getattr(Bases([full, other]), name)().search(query) for name in ("bm25", "dense")]
    other.delete(["c3"])
    emptied = [getattr(Bases([full, other]), name)().search("pump") for name in ("bm25", "dense")]
    assert [found.hits for found in permitted] == [found.hits for found in emptied]
    assert all(emptied)


def test_a_querys_own_vectors_serve_each_group(make: Make) -> None:
    wide, narrow = Counting(16), Counting(8)
    one, two = make("one", 0, 1, embedder=wide), make("two", 2, 3, embedder=narrow)
    dense = Bases([one, two]).dense()
    plain = dense.search("hot pump")
    vectors = {e.fingerprint: e.embed_documents(["hot pump"])[0] for e in (wide, narrow)}
    wide.asked.clear()
    narrow.asked.clear()
    assert dense.search(Query("hot pump", vectors=vectors)).hits == plain.hits
    assert (wide.asked, narrow.asked) == ([], [])
    bare = Query("hot pump", vectors=vectors["hash/8"])  # type: ignore[arg-type]  # a bare one serves where it fits
    assert Bases([one, two]).dense().search(bare).hits == plain.hits
    assert (wide.asked, narrow.asked) == (["hot pump"], [])
    alone = dense.search(Query("", vectors={"hash/8": vectors["hash/8"]}))
    assert {hit.chunk.kb for hit in alone} == {"two"}
    with pytest.raises(ConfigError, match=r"dimension 3, which fits no channel: \{'dense/one': 16, 'dense/two': 8\}"):
        Pipeline(dense).search(Query("x", vectors=[1, 0, 0]))  # type: ignore[arg-type]  # a bare vector


def test_exact_scores_are_those_of_the_list(make: Make) -> None:
    bases = Bases([make("a", 0, 1, 2, 4), make("b", 0, 1, 3, 4, analyzer=LOUD)])
    channel = bases.bm25()
    found = {hit.id: hit.score or 0.0 for hit in channel.search("pump")}
    scores = channel.scores(Query("pump"), [*found, "a:c4", "b:c4", "none"])
    assert scores is not None
    assert {chunk_id: score for chunk_id, score in scores.items() if chunk_id in found} == found
    assert scores.keys() == {*found, "a:c4", "b:c4"}
    assert all(scores[f"{kb}:c4"] < min(s for c, s in found.items() if c.startswith(kb)) for kb in "ab")
    assert channel.scores(Query("HUMS"), ["b:c0", "b:c1"]) is not None
    assert channel.scores(Query("nowhere"), ["a:c0"]) == {}
    assert MergedBases({"x": ListChannel([("a", 1.0)])}, "dense", "semantic").scores(Query("x"), ["a"]) is None


def test_in_a_fusion_a_hit_says_its_own_score_and_its_standing(make: Make) -> None:
    b = make("b", 2, 3, embedder=HashEmbedder(8), analyzer=LOUD)
    bases = Bases([make("a", 0, 1, embedder=HashEmbedder(16)), b])
    words = bases.bm25(formula="okapi", timeout=5, name="words")
    assert (words.name, words.kind, {leaf.timeout for leaf in words.leaves()}) == ("words", "keyword", {5})  # type: ignore[attr-defined]  # a leaf has one
    channel = fuse(bm25=words, dense=bases.dense(), method=RRF(60))
    query = Query("humming", variants=(Variant("hot pump", channels=frozenset({"bm25"})),))
    hit = next(hit for hit in channel.search(query) if hit.id == "b:c2")
    told, other = (provenance(hit)["channels"][name] for name in ("bm25", "dense"))
    own = told["parts"]["b"]
    assert (hit.found_by, told["query"], told["matched_terms"]) == ("hybrid", "hot pump", ["HOT", "PUMP"])
    assert own == {
        "rank": 1, "kind": "keyword", "score": b.bm25(formula="okapi").search("hot pump").hits[0].score,
        "query": "hot pump", "matched_terms": ["HOT", "PUMP"],
    }  # fmt: skip
    assert hit.score == hit.fused == 1 / (60 + told["rank"]) + 1 / (60 + other["rank"])
    assert "\n      b: rank 1, score " in explain(hit)
    assert "bm25: standardised\n" in channel.describe()


def test_a_note_tells_of_no_base_that_was_not_named(make: Make, tmp_path: Path) -> None:
    make("secret", 0)
    assert all("secret" not in str(note) for note in Bases([make("a", 1), "none"], root=tmp_path).notes)


@pytest.mark.parametrize("way", ["core", "langchain", "llama_index"])
@pytest.mark.parametrize("several", [False, True])
async def test_bases_without_vectors_alone_are_searched_by_keywords_and_how_to_have_some_is_noted(
    make: Make, way: str, several: bool
) -> None:
    pytest.importorskip({"core": "numpy", "langchain": "langchain_core", "llama_index": "llama_index.core"}[way])
    bases = [make("bare", 0, 1), make("other", 2)][: 1 + several]
    preset = Preset.of({"version": 1, "channels": {"bm25": {}, "dense": {}}})
    if way == "core":
        searching: list[Any] = [preset.over(Bases(bases)), *([] if several else [preset.over(bases[0])])]
    else:
        module = import_module(f"voicevault_retrievers.{way}")
        searching = [module.HybridRetriever(kb_names=bases, **given) for given in ({}, {"preset": preset})]
    for one in searching:
        found = one.search("pump")
        assert {hit.chunk.kb for hit in found.hits} == {base.name for base in bases}
        assert (found.degraded, found.channels_used, found.confidence) == (True, ("bm25",), "ok")
        (note,) = found.errors
        assert (note.stage, note.kind, note.degrades) == ("dense", "NotIndexedError", True)
        assert "`voicevault kb export bare -o bare.jsonl`, then `voicevault kb import bare.jsonl" in note.message
        assert ("'bare' and 'other'" in note.message) == several
        assert (await one.asearch("pump")).errors == found.errors


def test_a_preset_of_vectors_alone_over_a_base_without_any_is_an_error_that_says_how_to_have_some(make: Make) -> None:
    base = make("bare", 0)
    for over in (base, Bases([base])):
        with pytest.raises(NotIndexedError, match="voicevault kb export bare"):
            Preset.of({"version": 1, "channels": {"dense": {}}}).over(over).search("pump")


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_retrievers_search_bases_that_differ(make: Make, framework: str) -> None:
    pytest.importorskip({"langchain": "langchain_core", "llama_index": "llama_index.core"}[framework])
    bases = [
        make("a", 0, 1, embedder=HashEmbedder(16)),
        make("b", 2, 3, embedder=HashEmbedder(8), analyzer=LOUD),
        make("c", 4),
    ]
    retriever = import_module(f"voicevault_retrievers.{framework}").HybridRetriever(kb_names=bases)
    found = retriever.search("pump")
    assert {hit.chunk.kb for hit in found.hits} == {"a", "b"}
    assert (found.degraded, [note.kind for note in found.errors]) == (False, ["keywords only"])
    assert (await retriever.asearch("pump")).hits == found.hits


def test_bases_that_agree_are_fused_by_the_default(make: Make) -> None:
    """Several bases are one collection to it: nothing is to be noted, whatever there are."""
    bases = Bases([make("one", 0, 1, 2, embedder=HashEmbedder(16)), make("two", 3, 4, embedder=HashEmbedder(16))])
    ranking = fuse(bm25=bases.bm25(), dense=bases.dense()).search("hot pump")
    assert ranking.hits
    assert ranking.errors == ()


def test_reload_sees_what_was_removed_and_what_came_back(make: Make, tmp_path: Path) -> None:
    make("a", 0)
    made = make("b", 1)
    bases = Bases(["a", "b"], root=tmp_path)
    both = {hit.id for hit in bases.bm25().search("pump")}
    assert len(both) == 2
    remove(made.path)
    assert bases.reload()
    assert not bases.reload()
    assert {hit.id for hit in bases.bm25().search("pump")} < both
    make("b", 1)
    assert bases.reload()
    assert {hit.id for hit in bases.bm25().search("pump")} == both


@pytest.fixture
def alike(tmp_path: Path) -> Bases:
    """The same file in two bases: equal ids of chunks, parents, grandparents and headers, other texts."""
    for name in ("one", "two"):
        with KnowledgeBase.create(name, root=tmp_path) as kb:
            parents = [Chunk("p", f"all of {name}", "g"), Chunk("g", f"the book of {name}"), Chunk("h", f"head {name}")]
            kb.add([Chunk("c", f"the pump of {name}", "p", {"above": "p", "head": "h"})], parents=parents)
            question_index(kb).update({"c": ["which pump?"]})
    return Bases(["one", "two"], root=tmp_path)


def test_equal_parents_of_two_bases_are_two(alike: Bases) -> None:
    found = alike.parents(["one:p", "two:p", "two:none", "p"])
    assert {key: (one.id, one.parent_id, one.kb, one.text) for key, one in found.items()} == {
        "one:p": ("one:p", "one:g", "one", "all of one"),
        "two:p": ("two:p", "two:g", "two", "all of two"),
        "p": ("one:p", "one:g", "one", "all of one"),
    }


@pytest.mark.parametrize("channel", ["bm25", "questions"])
@pytest.mark.parametrize(("levels", "read"), [(1, "all of"), (2, "the book of")])
async def test_each_hit_gets_the_parent_of_its_own_base(alike: Bases, channel: str, levels: int, read: str) -> None:
    pipeline = Pipeline(getattr(alike, channel)() >> ParentExpansion(alike, levels=levels, header_key="head"))
    for result in (pipeline.search("which pump"), await pipeline.asearch("which pump")):
        assert {hit.id: hit.text for hit in result.hits} == {
            f"{name}:c": f"head {name}\n\n{read} {name}" for name in ("one", "two")
        }
        assert not result.degraded
        assert {citation.kb for citation in result.context.citations} == {"one", "two"}


def test_parents_that_metadata_name_are_those_of_the_same_base(alike: Bases) -> None:
    hits = [replace(hit, chunk=replace(hit.chunk, parent_id=None)) for hit in alike.bm25().search("pump")]
    ranking = ParentExpansion(alike, id_key="above").refine(Query("pump"), Ranking(tuple(hits)))
    assert {hit.id: hit.text for hit in ranking} == {"one:c": "all of one", "two:c": "all of two"}
    assert ranking.errors == ()


def test_a_base_alone_names_parents_as_it_keeps_them(alike: Bases, tmp_path: Path) -> None:
    alone = Bases(["two"], root=tmp_path)
    (hit,) = alone.bm25().search("pump")
    assert (hit.id, hit.chunk.parent_id) == ("c", "p")
    assert {key: one.text for key, one in alone.parents(["p", "two:p"]).items()} == {"p": "all of two"}


async def test_an_embedder_is_loaded_in_a_thread_of_its_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[threading.Thread] = []

    def loading(entry: Any, kb: str) -> HashEmbedder:
        loaded.append(threading.current_thread())
        return HashEmbedder()

    path = make("kb", 0, 1, 2, embedder=HashEmbedder()).path
    monkeypatch.setattr(embedding, "make", loading)
    kb = KnowledgeBase.open(path)
    found = await kb.ahybrid_search("pump", where={"at": {"$lt": 2}})
    assert [thread is threading.current_thread() for thread in loaded] == [False]
    assert found == kb.hybrid_search("pump", where={"at": {"$lt": 2}})
    assert len(found) == 2

"""The curation of a knowledge base: what is never found, whatever finds it, and what comes first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers import compose, fuse
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank import PageCap
from voicevault_retrievers.store import (
    Bases,
    Curation,
    CurationRule,
    KnowledgeBase,
    TenantIndex,
    export,
    question_index,
    remove,
    restore,
)
from voicevault_retrievers.store.curated import PINNED
from voicevault_retrievers.store.live_curation import FILE, LiveGuard
from voicevault_retrievers.store.repair import problems
from voicevault_retrievers.structure import ParentExpansion
from voicevault_retrievers.structure.graph import EmbeddedGraph, GraphChannel, GraphExpansion, build_graph
from voicevault_retrievers.structure.windows import Place, WindowExpansion

TEXTS = {
    "s1": ("law.md", "Section 1. This Act may be cited as the Water Act."),
    "s2": ("law.md", "Section 2. Whoever breaks section 3 pays as section 4 says."),
    "s3": ("old.md", "Section 3. Nobody fishes at night."),
    "s4": ("law.md", "Section 4. A fine of ten crowns."),
    "s5": ("draft.md", "Section 5. A fine of twenty crowns."),
}
FINES = "a fine of crowns in a section"
PARENT = Chunk("all", " ".join(text for _, text in TEXTS.values()))
CHUNKS = [
    Chunk(one, text, "all", {"source_file": file, "page_number": at, "window": PARENT.text})
    for at, (one, (file, text)) in enumerate(TEXTS.items())
]
BLOCKED = "blocked: [{documents: [old.md]}, {chunks: [s5]}]"
GONE = {"s3", "s5"}


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    made = KnowledgeBase.create("law", root=tmp_path, embedder=HashEmbedder())
    made.add(CHUNKS, parents=[PARENT])
    question_index(made).update({one: [f"What is in {one}, a fine?"] for one in TEXTS})
    return made


def curate(kb: KnowledgeBase, text: str) -> None:
    (kb.path / FILE).write_text(text, encoding="utf-8")


def searched(kb: KnowledgeBase, *channels: str) -> Pipeline:
    return Preset.plain(channels or ("bm25", "dense")).over(kb)


class Marks(Stage):
    """A stage of somebody else, which masks texts and leaves out some hits; keeps what it has seen."""

    name = "marks"

    def __init__(self, *left_out: str) -> None:
        super().__init__()
        self.left_out = left_out
        self.seen: list[tuple[str, ...]] = []

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        self.seen.append(ranking.ids)
        return Ranking(tuple(hit for hit in ranking if hit.id not in self.left_out), ranking.errors, arranged=True)


class Copy(LeafChannel):
    """The chunks in some other place, where they do not name their base."""

    def __init__(self) -> None:
        super().__init__("copy", "keyword")

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> list[list[Match]]:
        return [[Match(chunk, 1.0 / at) for at, chunk in enumerate(CHUNKS, 1)][:k] for _ in wordings]


CHANNELS: dict[str, Callable[[KnowledgeBase], Channel]] = {
    "bm25": lambda kb: kb.bm25(),
    "bm25 with operators": lambda kb: kb.bm25(operators=True),
    "dense": lambda kb: kb.dense(),
    "funnel": lambda kb: kb.dense(funnel={"prefix": 8}),
    "graph": lambda kb: kb.graph(),
    "questions": lambda kb: kb.questions(),
    "questions by words": lambda kb: kb.questions(by="bm25"),
    "fused": lambda kb: fuse(bm25=kb.bm25(), dense=kb.dense()),
    "several": lambda kb: Bases([kb]).bm25(),
    "view": lambda kb: kb.view().bm25(),
    "tenant": lambda kb: TenantIndex(kb.name, root=kb.path.parent).channel,
}
ASKED = {"graph": "What do section 2 and section 3 and section 5 say?"}


@pytest.mark.parametrize("name", CHANNELS)
async def test_no_channel_finds_what_is_blocked_and_each_fills_up_to_k(kb: KnowledgeBase, name: str) -> None:
    channel, asked = CHANNELS[name](kb), ASKED.get(name, FINES)
    before = channel.search(asked, 10)
    assert set(before.ids) & GONE
    curate(kb, BLOCKED)
    expected = [one for one in before.ids if one not in GONE]
    after = channel.search(asked, 10)
    assert list(after.ids) == expected
    if name not in ("fused", "graph", "questions"):  # whose scores depend on what else is found
        assert [hit.score for hit in after] == [hit.score for hit in before if hit.id not in GONE]
    for k in range(1, len(expected) + 1):
        assert len(channel.search(asked, k)) == k
    assert (await channel.asearch(asked, 10)).ids == after.ids
    curate(kb, f"blocked: [{{queries: ['{asked.upper()}!'], chunks: [s5]}}]")
    assert set(channel.search(asked, 10).ids) == {*before.ids} - {"s5"}
    assert set(channel.search(f"{asked} please", 10).ids) & {"s5"} or name == "graph"


def test_nothing_that_is_made_of_chunks_shows_what_is_blocked(kb: KnowledgeBase) -> None:
    outside, law = EmbeddedGraph(), kb.references()
    build_graph(kb, outside, reader=law.reader)
    copy = Copy()
    stages = [GraphExpansion(outside), ParentExpansion(kb, merge=False)]
    pipeline = Preset.plain(("bm25", "dense", "graph", "questions")).with_stages(stages).over(kb)
    beside = fuse({"own": pipeline.channel, "copy": copy, "graph": GraphChannel(outside, reader=law.reader)})
    whole = Pipeline(beside, curation=kb)
    windows = Pipeline(kb.bm25() >> WindowExpansion(lambda chunk: Place(chunk.id, "d")), curation=kb)
    asked = "What do section 2 and section 3 and section 5 say of a fine?"
    assert any(PARENT.text in hit.text for hit in pipeline.search(asked, 10).hits)
    assert {hit.id for hit in whole.search(asked, 10).hits} >= GONE
    assert windows.search(asked, 10).hits[0].text == PARENT.text
    assert pipeline.kg_direct_query("section 3") is not None
    curate(kb, BLOCKED)
    for one in (pipeline, whole, windows):
        result = one.search(asked, 10)
        assert {hit.id for hit in result.hits} == {"s1", "s2", "s4"}
        said = repr(result) + result.context.text
        assert "Nobody fishes" not in said.replace(PARENT.text, "")
        assert "twenty" not in "".join(hit.text for hit in result.hits) + result.context.text
        assert not result.degraded
    assert pipeline.kg_direct_query("section 3") is None
    assert not {*pipeline.hybrid_search(FINES, 10).ids} & GONE
    assert not {*kb.hybrid_search(FINES, 10).ids} & GONE


def test_a_stage_of_somebody_else_cannot_bring_back_what_is_blocked(kb: KnowledgeBase) -> None:
    curate(kb, BLOCKED)
    held = Copy().search(FINES)

    class Adds(Stage):
        name = "adds"

        def refine(self, query: Query, ranking: Ranking) -> Ranking:
            more = [hit for hit in held if hit.id not in ranking.ids]
            return Ranking((*ranking, *more), ranking.errors, arranged=True)

    pipeline = searched(kb, "bm25") >> Adds() >> Marks()
    for one in (pipeline, pipeline >> PageCap(1)):
        assert {hit.id for hit in one.search("Water", 5).hits} == {"s1", "s2", "s4"}


PINNED_TEXT = """
synonyms: ["penalty => fine"]
pinned:
  - queries: [the Penalties, of angling]
    chunks: [s1]
  - queries: [penalty, angling]
    documents: [law.md, draft.md, gone.md]
"""


def test_what_is_pinned_comes_first_in_order_and_says_so(kb: KnowledgeBase) -> None:
    pipeline = searched(kb, "bm25")
    assert pipeline.search("penalty", 5).hits == ()
    curate(kb, PINNED_TEXT)
    result = pipeline.search("Penalty", 5)
    assert [hit.id for hit in result.hits] == ["s1", "s4", "s5"]
    votes = [hit.vote(PINNED) for hit in result.hits]
    assert [vote and (vote.rank, vote.query) for vote in votes] == [
        (1, "the Penalties"),
        (2, "penalty"),
        (3, "penalty"),
    ]
    assert (result.hits[0].score, result.hits[0].found_by) == (None, None)
    channel = result.hits[1].vote("bm25")
    assert channel is not None
    assert (channel.query, channel.terms) == ("fine", ("fine",))
    (note,) = result.errors
    assert (note.stage, note.kind, note.degrades) == (PINNED, "missing", False)
    assert "gone.md" not in str(note)
    assert [hit.id for hit in pipeline.search("penalty", 2).hits] == ["s1", "s4"]
    assert [hit.id for hit in pipeline.search("ten penalties", 1).hits] == ["s4"]
    matches_nothing = pipeline.search("of angling", 9)
    assert [hit.id for hit in matches_nothing.hits] == ["s1", "s5"]  # the first of law.md is pinned itself


def test_pins_keep_to_rights_filters_and_blocks(kb: KnowledgeBase) -> None:
    curate(kb, PINNED_TEXT + "blocked: [{queries: [penalty], chunks: [s4]}]")
    pipeline = searched(kb)
    for narrowed in ({"page_number": {"$lte": 1}}, {"source_file": "law.md"}, {"$or": []}):
        for query in (Query("penalty", where=narrowed), Query("penalty", require=narrowed)):
            result = pipeline.search(query, 9)
            own = {"s1": 0, "s2": 1} if "$or" not in narrowed else {}
            assert {hit.id for hit in result.hits} == own.keys()
            assert [hit.id for hit in result.hits if hit.vote(PINNED)][:1] == list(own)[:1]
    assert pipeline.search(Query("penalty", require={}), 9).hits == ()


def test_stages_that_mask_see_pins_and_stages_that_rank_do_not(kb: KnowledgeBase) -> None:
    curate(kb, PINNED_TEXT)
    own, marks = PageCap(1, max_chunks_per_document=1), Marks("s5")
    pipeline = searched(kb, "bm25") >> own >> marks
    result = pipeline.search("penalty", 3)
    assert [hit.id for hit in result.hits] == ["s1", "s4"]
    assert set(marks.seen) == {("s1", "s4", "s5")}
    assert [note.message for note in result.errors if note.kind == "left out"] == [
        "1 of 3 pinned chunks were left out by a stage"
    ]
    parents = searched(kb, "bm25") >> ParentExpansion(kb)
    (read,) = parents.search("penalty", 3).hits  # one parent has all
    assert (read.id, read.text) == ("s1", PARENT.text)


def test_each_of_several_bases_curates_its_own(tmp_path: Path) -> None:
    bases = []
    for name in ("one", "two"):
        base = KnowledgeBase.create(name, root=tmp_path, embedder=HashEmbedder() if name == "one" else None)
        base.add(CHUNKS)
        bases.append(base)
    curate(bases[0], "blocked: [{documents: [old.md]}, {chunks: ['s5']}]\npinned: [{queries: [fine], chunks: [s1]}]")
    curate(bases[1], "pinned: [{queries: [fine], documents: [draft.md]}]\nsynonyms: ['fine, penalty']")
    for pipeline in (searched(Bases(bases)), searched(Bases(["one", "two"], root=tmp_path), "bm25")):  # type: ignore[arg-type]
        found = [hit.id for hit in pipeline.search("fine", 20).hits]
        assert found[:2] == ["one:s1", "two:s5"]
        assert not {"one:s3", "one:s5"} & set(found)
        assert "two:s3" in [hit.id for hit in pipeline.search("nobody fishes", 20).hits]


def test_a_changed_file_counts_at_once_and_a_broken_one_leaves_the_last(kb: KnowledgeBase) -> None:
    pipeline = searched(kb)
    assert (kb.curation, pipeline.search(FINES, 9).degraded) == (None, False)
    curate(kb, BLOCKED)
    assert kb.curation == Curation(blocked=(CurationRule((), ("old.md",)), CurationRule((), (), ("s5",))))
    curate(kb, "blocked: [{document: [old.md]}]")
    for ranking in (pipeline.search(FINES, 9).ranking, kb.bm25().search(FINES, 9), kb.questions().search(FINES, 9)):
        (failure,) = [one for one in ranking.errors if one.degrades]
        assert failure.stage == "curation"
        assert "blocked, entry 1" in failure.message
        assert str(kb.path) not in failure.message
        assert "Did you mean 'documents'" in failure.message
        assert not set(ranking.ids) & GONE
    with pytest.raises(ConfigError, match="blocked, entry 1"):
        Pipeline(kb.bm25(), curation=kb, on_error="raise").search(FINES)
    with pytest.raises(ConfigError, match="blocked, entry 1"):
        KnowledgeBase.open(kb.path, embedder=HashEmbedder())
    (problem,) = problems(kb.path)
    assert "blocked, entry 1" in problem
    tenant = TenantIndex(kb.name, root=kb.path.parent, embedder=HashEmbedder())
    (kb.path / FILE).unlink()
    assert {hit.id for hit in pipeline.search(FINES, 9).hits} >= GONE
    assert tenant.search(FINES, 9).ids
    curate(kb, BLOCKED)
    assert not set(tenant.search(FINES, 9).ids) & GONE
    curate(kb, "pinned: 7")
    assert [failure.stage for failure in tenant.search(FINES, 9).errors] == ["curation"]
    assert not set(tenant.search(FINES, 9).ids) & GONE


def test_what_was_opened_stays_curated_where_the_base_is_removed_or_replaced(kb: KnowledgeBase) -> None:
    curate(kb, BLOCKED)
    pipeline, folder = searched(kb, "bm25"), kb.path
    assert not {hit.id for hit in pipeline.search(FINES, 9).hits} & GONE
    kb.close()
    remove(kb.name, root=folder.parent)
    assert not folder.exists()
    assert not {hit.id for hit in pipeline.search(FINES, 9).hits} & GONE
    with KnowledgeBase.create(kb.name, root=folder.parent, embedder=HashEmbedder()) as other:
        other.add(CHUNKS)
    assert not {hit.id for hit in pipeline.search(FINES, 9).hits} & GONE
    curate(other, "blocked: [{chunks: [s4]}]")
    assert not {hit.id for hit in pipeline.search(FINES, 9).hits} & GONE
    assert kb.reload()
    found = {hit.id for hit in searched(kb, "bm25").search(FINES, 9).hits}
    assert found >= GONE
    assert "s4" not in found
    assert kb.curation == other.curation


def test_it_goes_with_the_base(kb: KnowledgeBase, tmp_path: Path) -> None:
    curate(kb, BLOCKED)
    kb.compact()
    kb.close()
    repaired = KnowledgeBase.repair(kb.path, embedder=HashEmbedder())
    assert repaired.curation == kb.curation
    assert repaired.verify() == []
    for questions in (True, False):
        if not questions:
            shutil.rmtree(kb.path / "quim_questions")
        export(kb, tmp_path / "law.jsonl")
        copy = restore(tmp_path / "law.jsonl", f"copy{questions}", root=tmp_path, embedder=HashEmbedder())
        assert copy.curation == kb.curation
        assert (copy.path / FILE).read_text() == BLOCKED
        assert not set(copy.bm25().search(FINES, 9).ids) & GONE
        assert (copy.path / "quim_questions").exists() is questions
        export(copy, tmp_path / "again.jsonl")
        again, first = ((tmp_path / name).read_text().splitlines() for name in ("again.jsonl", "law.jsonl"))
        assert again[1:-1] == first[1:-1]


def test_without_a_file_a_search_is_as_it_was(kb: KnowledgeBase) -> None:
    seen: list[Query] = []

    class Looks(Copy):
        def find(self, query: Query, wordings: Sequence[Variant], k: int) -> list[list[Match]]:
            seen.append(query)
            return super().find(query, wordings, k)

    own = compose({"bm25": kb.bm25(), "dense": kb.dense()})
    curated = searched(kb)
    for asked in (FINES, "nothing at all", "section 3"):
        plain, found = own.search(asked, 9), curated.search(asked, 9)
        assert (found.ranking, found.query, list(found.timings)) == (plain.ranking, plain.query, list(plain.timings))
    assert curated.describe() == own.describe()
    Pipeline(Looks(), curation=kb).search(FINES)
    assert [bool(query.blocked) for query in seen] == [False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "expected a mapping with synonyms, pinned, blocked"),
        ("pined: []", "unknown key 'pined'. Did you mean 'pinned'?"),
        ("pinned: {a: 1}", "pinned is a list"),
        ("blocked: [a.pdf]", "blocked, entry 1: expected a mapping"),
        ("blocked: [{documents: [a]}, {chunk: [b]}]", "blocked, entry 2: unknown key 'chunk'. Did you mean 'chunks'?"),
        ("blocked: [{queries: [a]}]", "blocked, entry 1: name documents, chunks or both"),
        ("blocked: [{documents: a.pdf}]", "blocked, entry 1: documents is a list"),
        ("blocked: [{chunks: [12]}]", "write it in quotes"),
        ("blocked: [{queries: [], chunks: [a]}]", "queries is empty"),
        ("pinned: [{documents: [a]}]", "pinned, entry 1: give the queries"),
        ("blocked: [{chunks: [a]}]\nblocked: [{chunks: [b]}]", "the key 'blocked' is there twice, near line 1"),
        ("synonyms: [car]", "synonyms, entry 1: a line of synonyms is"),
        ("synonyms: [1]", "synonyms, entry 1: a line of synonyms is a text"),
        ("blocked: [", "is not YAML"),
    ],
)
def test_a_wrong_file_names_the_entry_and_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        Curation.from_file(path)
    assert said in str(error.value)
    assert str(error.value).count(str(path)) == 1


def test_what_is_not_there_is_named_with_the_nearest(kb: KnowledgeBase) -> None:
    curate(kb, "pinned: [{queries: [a], documents: [laws.md, law.md]}]\nblocked: [{chunks: [s2, xyz]}]")
    assert kb.unresolved_curation() == [
        "pinned, entry 1: document 'laws.md' is not there. Did you mean 'law.md'?",
        "blocked, entry 1: chunk 'xyz' is not there.",
    ]
    with pytest.raises(ConfigError, match="cannot be read"):
        Curation.from_file(kb.path / "none.yaml")


def test_a_copy_of_a_base_asks_what_is_blocked_once_a_commit(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("plant", root=tmp_path)
    kb.add([Chunk("old", "pump", metadata={"source_file": "old.pdf"})])
    (kb.path / "curation.yaml").write_text("blocked: [{documents: [old.pdf]}]")
    guard = LiveGuard(kb)
    asked, _ = guard(Query("pump"))
    assert asked.blocked is not None
    assert guard.is_done(asked)
    blocked = guard.ids(asked.blocked)
    assert blocked == {"old"}
    assert guard.ids(asked.blocked) is blocked
    kb.add([Chunk("older", "pump", metadata={"source_file": "old.pdf"})])
    asked, _ = guard(Query("pump"))
    assert asked.blocked is not None
    assert guard.ids(asked.blocked) == {"old", "older"}

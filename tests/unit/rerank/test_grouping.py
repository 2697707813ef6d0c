"""k groups of hits, each with its best passages: of a slow, plain grouping of everything that was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Careless, ListChannel, examples
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.explanation import explain, provenance
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset, preset_to_data
from voicevault_retrievers.rerank import GroupBy, Grouped, PageCap
from voicevault_retrievers.rerank.grouping import FOLDED, LEAST, copies_of

WORDS = ("pump", "valve", "seal")


def chunks_of(sizes: Sequence[int], *, key: str = "source", kb: str = "") -> list[Chunk]:
    """Chunks of documents of these sizes; the first documents are the best for a pump."""
    return [
        Chunk(
            f"{kb}:{name}-{at:03d}" if kb else f"{name}-{at:03d}",
            f"{'pump ' * (9 - min(name, 8))}{WORDS[at % 3]}",
            None,
            {key: f"{name}.md"},
            kb,
        )
        for name, size in enumerate(sizes)
        for at in range(size)
    ]


def plainly(channel: Channel, query: Query, k: int, passages: int) -> list[list[str]]:
    """The groups of everything that a channel finds."""
    groups: dict[Any, list[str]] = {}
    for hit in channel.search(query, 10_000):
        groups.setdefault(hit.chunk.metadata.get("source", hit.id), []).append(hit.id)
    return [ids[:passages] for ids in list(groups.values())[:k]]


def ids_of(ranking: Ranking) -> list[list[str]]:
    return [[passage.id for passage in hit.passages] for hit in ranking]


@examples(0.3)
@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([None, {"source": {"$in": ["0.md", "2.md", "5.md"]}}]),
    st.sampled_from(["pump", "valve", "seal pump"]),
)
def test_the_groups_are_those_of_all_hits(
    sizes: list[int], k: int, passages: int, require: dict[str, Any] | None, text: str
) -> None:
    bm25 = BM25.from_chunks(chunks_of(sizes))
    query = Query(text, require=require)
    found = Grouped(bm25, GroupBy("source", passages)).search(query, k)
    expected = plainly(bm25, query, k, passages)
    assert [ids[0] for ids in ids_of(found)] == [ids[0] for ids in expected]
    for ids, all_of in zip(ids_of(found), expected, strict=True):
        assert ids == all_of[: len(ids)]
    if sum(sizes) <= LEAST:
        assert ids_of(found) == expected


def test_a_document_with_all_the_best_hits_hides_no_other() -> None:
    bm25, asked = BM25.from_chunks(chunks_of([400, 3, 2, 1])), list[Query]()

    class Counting(ListChannel):
        def plan(self, query: Query, k: int) -> Any:
            asked.append(query)
            return bm25.plan(query, k)

    found = Grouped(Counting([]), GroupBy("source", 2)).search("pump", 4)
    assert [hit.chunk.metadata["source"] for hit in found] == ["0.md", "1.md", "2.md", "3.md"]
    assert [len(hit.passages) for hit in found] == [2, 2, 2, 1]
    assert len(asked) == 2
    assert found.arranged


@pytest.mark.parametrize("size", [3, LEAST + 10])
@pytest.mark.parametrize(
    ("key", "first", "others"),
    [
        ("document", {"source": "crm"}, [{"source": "crm", "source_file": "b.pdf"}, {"source_file": "c.pdf"}]),
        ("document", {"source_file": "a.pdf", "source": "crm"}, [{"source": "crm"}, {"file_path": "crm.pdf"}]),
        (
            "document",
            {"file_path": "a.pdf"},
            [{"file_path": "a.pdf", "source": "web"}, {"dl_meta": {"origin": {"filename": "b"}}}],
        ),
        ("tag", {"tag": "x"}, [{"tag": ["x", "y"]}, {"tag": "z"}]),
        ("tag", {"tag": ["x", "y"]}, [{"tag": "x"}, {"tag": ["x"]}, {"tag": ["y", "x"]}]),
        ("tag", {"tag": 1}, [{"tag": True}, {"tag": "1"}, {"tag": 2}]),
        ("a.b", {"a": {"b": 1}}, [{"a": {"b": 2}}, {"a": 1}]),
    ],
)
def test_what_looks_like_a_group_that_was_found_is_found_however_large_that_is(
    size: int, key: str, first: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    chunks = [Chunk(f"a{at:03}", "pump pump pump", None, first) for at in range(size)]
    chunks += [Chunk(f"b{at}", "the pump and more words", None, other) for at, other in enumerate(others)]
    chunks += [
        Chunk(f"c{at:03}", "pump pump", None, {"file_name": first["source_file"]})
        for at in range(size)
        if "source_file" in first
    ]
    found = Grouped(BM25.from_chunks(chunks), GroupBy(key)).search("pump", 9)
    assert found.ids == ("a000", *(f"b{at}" for at in range(len(others))))
    assert found.errors == ()


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (1, 1.0, True),
        (1, np.int64(1), True),
        ("2026-01-02", date(2026, 1, 2), True),
        (np.arange(2), [0, 1], True),
        (1, True, False),
        (math.nan, math.nan, False),
    ],
)
def test_values_that_filters_take_for_equal_are_one_group_and_one_page(one: Any, other: Any, together: bool) -> None:
    """NaN is no value."""
    values = {"source": "a.pdf", "n": one, "page": one}, {"source": "a.pdf", "n": other, "page": other}
    bm25 = BM25.from_chunks([Chunk(f"c{at}", "pump", None, each) for at, each in enumerate(values)])
    assert len(Grouped(bm25, GroupBy("n")).search("pump", 9)) == 2 - together
    capped = PageCap(1).refine(Query("pump"), bm25.search("pump", 9))
    assert len(capped) == 2 - (together or one is True or other is True)


def test_documents_of_two_bases_with_one_name_are_two_and_found_by_searching_deeper() -> None:
    every = [*chunks_of([300], kb="a"), *chunks_of([1, 1], kb="b")]
    found = Grouped(BM25.from_chunks(every), GroupBy()).search("pump", 3)
    assert {(hit.chunk.kb, hit.chunk.metadata["source"]) for hit in found} == {
        ("a", "0.md"),
        ("b", "0.md"),
        ("b", "1.md"),
    }


def test_a_group_is_its_best_hit_and_a_model_reads_its_passages() -> None:
    pipeline = Pipeline(BM25.from_chunks(chunks_of([3, 2])), k=2, group_by=GroupBy("document", passages=2))
    result = pipeline.search("pump seal")
    first = result.hits[0]
    assert first.id == first.passages[0].id
    assert first.text == "\n\n".join(passage.chunk.text for passage in first.passages)
    assert first.score == first.passages[0].score
    said = provenance(first)["passages"]
    assert [(one["id"], one["score"]) for one in said] == [(one.id, one.score) for one in first.passages]
    for one, passage in zip(said, first.passages, strict=True):
        assert first.text[one["start"] :].startswith(passage.text)
    assert f"   with {first.passages[1].id}: score" in explain(first)
    cited = [citation.chunk_id for citation in result.context.citations]
    assert cited == [passage.id for hit in result.hits for passage in hit.passages]


async def test_async_and_batches_group_alike() -> None:
    channels = {"a": BM25.from_chunks(chunks_of([80, 5, 9])), "b": BM25.from_chunks(chunks_of([80, 5, 9]), name="b")}
    pipeline = Pipeline(fuse(channels), k=3, group_by="source")
    found = pipeline.search("valve").hits
    assert len(found) == 3
    assert (await pipeline.asearch("valve")).hits == found
    assert [result.hits for result in pipeline.search_many(["valve", "valve"])] == [found, found]


def test_stages_come_before_grouping_so_that_what_masks_sees_every_passage() -> None:
    class Masked(Stage):
        name = "masked"

        def refine(self, query: Query, ranking: Ranking) -> Ranking:
            hits = (replace(hit, chunk=replace(hit.chunk, text="***"), context=None) for hit in ranking)
            return replace(ranking, hits=tuple(hits))

    pipeline = Pipeline(BM25.from_chunks(chunks_of([5, 5])), k=2, group_by="source") >> Masked()
    result = pipeline.search("pump")
    assert {passage.text for hit in result.hits for passage in hit.passages} == {"***"}
    assert {hit.text for hit in result.hits} == {"***"}
    assert "pump" not in result.context.text


def test_passages_are_under_the_rights_of_the_search() -> None:
    found = Pipeline(Careless("careless", "keyword"), group_by="nothing").search(Query("pump", require={"of": "a"}))
    assert [[passage.id for passage in hit.passages] for hit in found.hits] == [["ours"]]
    assert found.degraded


def test_hits_without_the_key_are_groups_of_their_own_and_a_note_says_so() -> None:
    bm25 = BM25.from_chunks(chunks_of([2, 2]))
    found = Grouped(bm25, GroupBy("chapter.title")).search("pump", 10)
    assert [len(hit.passages) for hit in found] == [1] * 4
    (note,) = found.errors
    assert not note.degrades
    assert "the hits have no 'chapter.title', so each is a group of its own" in note.message
    half = BM25.from_chunks([*chunks_of([3]), Chunk("alone", "pump pump")])
    assert Grouped(half, GroupBy("source")).search("pump", 10).errors == ()


def test_where_other_groups_cannot_be_asked_for_those_found_stand() -> None:
    class Once(ListChannel):
        def plan(self, query: Query, k: int) -> Any:
            if query.where is not None:
                raise RuntimeError("no filters here")
            return super().plan(query, k)

    many = [(f"c{at}", 1.0 - at / 1000) for at in range(100)]
    found = Grouped(Once(many, metadata={name: {"source": "one"} for name, _ in many}), GroupBy("source")).search(
        "x", 2
    )
    assert len(found) == 1
    (failure,) = found.errors
    assert failure.degrades
    assert failure.instead == "the groups that were found before are kept"


def test_a_preset_says_it() -> None:
    preset = Preset.of({"version": 1, "channels": {"bm25": {}}, "group_by": {"key": "chapter", "passages": 2}})
    assert preset.group_by == GroupBy("chapter", 2)
    assert preset_to_data(preset)["group_by"] == {"key": "chapter", "passages": 2}
    assert Preset.of({"version": 1, "group_by": "document"}).group_by == GroupBy()
    built = preset.build({"bm25": BM25.from_chunks(chunks_of([2]))})
    assert built.group_by == preset.group_by
    assert ">> GroupBy(key='chapter', passages=2)" in built.describe()
    with pytest.raises(ConfigError, match="a pipeline that is a channel has no group_by"):
        built.narrowed()


@examples(0.3)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 8))
def test_equal_texts_are_one_hit_with_its_sources(texts: list[int], k: int) -> None:
    """Whatever stands how often: k distinct texts in the order of their best hits, each with every source found."""
    chunks = [
        Chunk(
            f"{at:02d}",
            f"{'pump ' * (9 - text)}\n\n seal{' ' * (at % 2)}",
            None,
            {"source_file": f"{at}.md"},
            f"kb{at % 2}",
        )
        for at, text in enumerate(texts)
    ]
    channel = BM25.from_chunks(chunks)
    every, found = channel.search(Query("seal pump"), 100), Grouped(channel, FOLDED).search(Query("seal pump"), k)
    same: dict[str, list[str]] = {}
    for hit in every:
        same.setdefault(" ".join(hit.chunk.text.split()), []).append(hit.id)
    assert [hit.id for hit in found] == [ids[0] for ids in same.values()][:k]
    for hit, ids in zip(found, same.values(), strict=False):
        assert [one.id for one in copies_of(hit)] == [one for one in ids[1:] if one in {c.id for c in copies_of(hit)}]
        assert hit.text == hit.chunk.text
        assert hit.passages == () or len(hit.passages) > 1
    if len(same) < k:  # everything was looked at
        assert {hit.id: [one.id for one in copies_of(hit)] for hit in found} == {
            ids[0]: ids[1:] for ids in same.values()
        }


def test_where_no_text_stands_twice_a_folding_search_is_the_search() -> None:
    channel = ListChannel([(chunk_id, 1.0 / at) for at, chunk_id in enumerate("abcdef", 1)])
    assert Grouped(channel, FOLDED).search(Query("pump"), 3) == channel.search(Query("pump"), 3)


@pytest.mark.parametrize(
    ("given", "said"), [(3, "not 3"), ({"key": "a", "passages": 0}, "passages"), ({"field": "a"}, "'field'")]
)
def test_what_is_no_grouping_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Preset.of({"version": 1, "group_by": given})

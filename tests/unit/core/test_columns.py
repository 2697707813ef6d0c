"""Filters on columns: what they cost, what they share, what a segment stores of them."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.columns import MANY, Columns, columns_of
from voicevault_retrievers.core.filters import compile_filter, parse
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.selection import FEW, Selection
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.store import KnowledgeBase, columns, commit, files, manifest
from voicevault_retrievers.store.manifest import SegmentEntry

N = 2000


class Counted(Sequence[Chunk]):
    """Chunks that count how often one is asked for."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.asked = 0

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, at: Any) -> Any:
        self.asked += 1
        return self.chunks[at]

    def __iter__(self) -> Iterator[Chunk]:
        for at in range(len(self)):
            yield self[at]


def metadata(at: int) -> dict[str, Any]:
    tags = ["even", f"t{at % 7}"] if at % 2 == 0 else [f"t{at % 7}"]
    title = f"Minutes of meeting number {at} of the works council"
    shared = {"half": at % 2, "tenth": f"v{at % 10}", "number": at, "tags": tags, "title": title}
    return shared | ({"rare": True} if at % 1000 == 0 else {})


def sample() -> list[Chunk]:
    return [Chunk(f"{at:05}", "fox", metadata=metadata(at)) for at in range(N)]


def rows_that(where: dict[str, Any]) -> list[int]:
    passes = compile_filter(where)
    return [at for at in range(N) if passes(metadata(at))]


FILTERS: list[dict[str, Any]] = [
    {}, {"half": 1}, {"tenth": "v3"}, {"rare": True}, {"rare": {"$exists": False}},
    {"number": {"$gte": 100, "$lt": 120}}, {"number": {"$ne": 7}}, {"number": {"$in": [3, 5.0, "5", 5000]}},
    {"number": {"$nin": [3, 5, "5"]}}, {"number": {"$nin": ["5"]}}, {"number": {"$nin": []}}, {"tags": "even"},
    {"tags": {"$all": ["even", "t3"]}}, {"tags": {"$nin": ["t1", "t2", "t3"]}}, {"title": {"$contains": "number 12"}},
    {"title": {"$itext": "WORKS"}}, {"nowhere": 1}, {"$or": [{"rare": True}, {"number": 5}]},
    {"tenth": "v0", "$not": {"tags": "t0"}},
]  # fmt: skip


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnowledgeBase:
    """A base with one segment."""
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as kb:
        kb.add(sample())
    return KnowledgeBase.open("kb", root=tmp_path, embedder=HashEmbedder())


def stored(kb: KnowledgeBase) -> files.BlockFile:
    entry = kb.manifest.segments[0]
    return files.open_folder(kb.path / entry.name, entry.files)[columns.NAME]


def test_in_memory_and_stored_as_by_hand(base: KnowledgeBase) -> None:
    in_memory = Rows(sample())
    for where in FILTERS:
        expected = rows_that(where)
        for rows in (in_memory, base.parts[0].rows):
            found = rows.selection(where)
            assert (list(range(N)) if found is None else found.ordinals.tolist()) == expected, where
            assert (found is None) == (len(expected) == N)


def test_a_column_is_made_once_when_its_key_is_named() -> None:
    chunks = Counted(sample())
    rows = Rows(chunks, [chunk.id for chunk in chunks.chunks])
    assert chunks.asked == 0
    rows.selection({"half": 1})
    assert chunks.asked == N
    rows.selection({"half": 0})
    assert chunks.asked == N


def test_threads_make_a_column_once() -> None:
    chunks = Counted(sample())
    made = Columns(chunks)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(made.__getitem__, ["half"] * 4))
    assert chunks.asked == N


def test_a_deletion_shares_the_columns(base: KnowledgeBase) -> None:
    before = base.parts[0].rows
    before.selection({"half": 1})
    with base:
        base.delete(["00001"])
    after = base.parts[0].rows
    assert after is not before
    assert after.columns is before.columns
    live, passing = after.selection(None), after.selection({"half": 1})
    assert live is not None
    assert passing is not None
    assert live.ordinals.tolist() == [at for at in range(N) if at != 1]
    assert passing.ordinals.tolist() == list(range(3, N, 2))


def test_a_stored_segment_is_filtered_without_its_chunks(base: KnowledgeBase) -> None:
    chunks = Counted(sample())
    made = Columns(chunks, columns.StoredColumns(stored(base), N))
    for where in FILTERS:
        if "title" not in where:
            made.select(parse(where))
    assert chunks.asked == 0


def test_text_that_differs_everywhere_is_not_stored_twice(base: KnowledgeBase) -> None:
    read = columns.StoredColumns(stored(base), N)
    assert read("title") is None
    assert read("number") is not None
    size = (base.path / base.manifest.segments[0].name / columns.NAME).stat().st_size
    assert size < sum(len(metadata(at)["title"]) for at in range(N))
    chunks = Counted(sample())
    assert Columns(chunks, read).select(parse({"title": {"$text": "number 77 "}})).ordinals.tolist() == [77]
    assert chunks.asked == N


def test_rare_keys_of_very_many_have_no_column_and_their_filters_hold(tmp_path: Path) -> None:
    chunks = [Chunk(f"{at:05}", metadata={f"key{at}": at, "page": at % 2}) for at in range(MANY + 100)]
    made = dict(columns_of(chunks))
    assert [key for key, column in made.items() if column is not None] == ["page"]
    with KnowledgeBase.create("kb", root=tmp_path) as kb:
        kb.add(chunks)
        kb.compact()
        for where, wanted in (({"key7": 7}, ["00007"]), ({"key7": {"$exists": True}, "page": 0}, [])):
            assert sorted(kb._snapshot.matching(where)) == wanted


def test_a_segment_without_stored_columns_opens(base: KnowledgeBase) -> None:
    """As a version before columns wrote it."""
    entry = base.manifest.segments[0]
    folder = base.path / entry.name
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    new = files.NewFolder(folder)
    for name in held.keys() - {columns.NAME, files.BLOCKS}:
        new.write(name, [held[name]])
    older = SegmentEntry(entry.name, entry.count, new.seal())
    manifest.write(base.path, replace(base.manifest, segments=(older,)))
    again = KnowledgeBase.open("kb", root=base.path.parent, embedder=HashEmbedder())
    assert again.verify() == []
    found = again.parts[0].rows.selection({"rare": True})
    assert found is not None
    assert found.ordinals.tolist() == [0, 1000]


def test_a_change_deep_in_the_columns_is_found_by_the_filter_that_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SMALL", 0)
    monkeypatch.setattr(files, "BLOCK", 1024)
    path = tmp_path / "seg" / columns.NAME
    new = files.NewFolder(path.parent)
    chunks = [Chunk(f"{at:05}", metadata={"first": at % 2, "last": at % 3}) for at in range(N)]
    new.write(columns.NAME, columns.pieces(chunks))
    entries = new.seal()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    made = Columns(sample(), columns.StoredColumns(files.open_folder(path.parent, entries)[columns.NAME], N))
    assert made.select(parse({"first": 1})).count == N // 2
    with pytest.raises(IndexDamagedError, match=columns.NAME):
        made.select(parse({"last": 1}))


@pytest.mark.parametrize(
    "where",
    [
        {"tenth": "v3"},
        {"number": {"$lt": N // FEW}},
        {"number": {"$gte": N // 2, "$lt": N // 2 + 5}},
        {"tenth": {"$exists": True}, "rare": True, "number": {"$lt": N // 2}},
        {"$or": [{"rare": True}, {"number": 5}]},
    ],
    ids=str,
)
def test_few_rows_are_found_without_a_mask_of_all(where: dict[str, Any]) -> None:
    found = Columns(sample()).select(parse(where))
    assert found.ordinals.tolist() == rows_that(where)
    assert "mask" not in vars(found)


def test_the_rows_of_one_value_are_not_copied() -> None:
    made = Columns(sample())
    assert np.shares_memory(made.select(parse({"tenth": "v3"})).ordinals, made["tenth"].ordinals)


@pytest.mark.parametrize("first", [[], [1], [1, 3, 150], list(range(0, 200, 2)), list(range(200))])
@pytest.mark.parametrize("second", [[], [3], [0, 3, 199], list(range(0, 200, 3))])
def test_selections_combine_as_sets(first: list[int], second: list[int]) -> None:
    for one in forms(first):
        for other in forms(second):
            assert (one & other).ordinals.tolist() == sorted({*first} & {*second})
            assert (one | other).ordinals.tolist() == sorted({*first} | {*second})
        assert (~one).ordinals.tolist() == sorted({*range(200)} - {*first})


def forms(ordinals: list[int]) -> list[Selection]:
    held = Selection(200, np.array(ordinals, dtype=np.uint32))
    return [held, Selection(200, held.mask)]


def test_rows_keep_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voicevault_retrievers.core.rows.KEPT_BYTES", 5 * N)
    rows = Rows(sample())
    first = rows.selection({"number": 1})
    assert rows.selection({"number": 1}) is first
    rows.selection({"number": 2})
    rows.selection({"number": 3})
    assert rows.selection({"number": 1}) is not first


def test_rows_in_memory_are_pickled_with_their_columns() -> None:
    rows = Rows(sample())
    rows.selection({"half": 1})
    again = pickle.loads(pickle.dumps(rows)).selection({"half": 1})
    assert again is not None
    assert again.ordinals.tolist() == rows_that({"half": 1})

"""What LanceDB does beyond the conformance suite: other processes, names, faults, and what its own index ranks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

lancedb = pytest.importorskip("lancedb")

from tests.helpers import HashEmbedder  # noqa: E402
from voicevault_retrievers.core.filters import compile_filter  # noqa: E402
from voicevault_retrievers.core.types import Chunk, Query  # noqa: E402
from voicevault_retrievers.engines import lancedb as module  # noqa: E402
from voicevault_retrievers.engines.addresses import connect  # noqa: E402
from voicevault_retrievers.engines.lancedb import LanceEngine  # noqa: E402
from voicevault_retrievers.errors import (  # noqa: E402
    ConfigError,
    IncompatibleIndexError,
    LockedError,
    SearchError,
    SearchNotAvailableError,
)
from voicevault_retrievers.fusion import fuse  # noqa: E402
from voicevault_retrievers.lexical import BM25  # noqa: E402
from voicevault_retrievers.lexical.formulas import Okapi  # noqa: E402
from voicevault_retrievers.lexical.statistics import Statistics  # noqa: E402
from voicevault_retrievers.store import KnowledgeBase  # noqa: E402
from voicevault_retrievers.store.lock import locked  # noqa: E402
from voicevault_retrievers.text import Analyzer  # noqa: E402

pytestmark = pytest.mark.server

WORDS = ("pump", "valve", "harbour", "station", "pressure", "key", "reset", "leak")
RIGHTS = {"team": {"$in": ["a", "c"]}}
GIVEN: dict[str, Any] = {"analyzer": Analyzer("en"), "embedder": HashEmbedder(16)}


def chunks(count: int, first: int = 0) -> list[Chunk]:
    """Chunks of words in different numbers, of three teams."""
    drawn = np.random.default_rng(first)
    return [
        Chunk(
            f"c{first + at:04}",
            " ".join(drawn.choice(WORDS, size=int(drawn.integers(2, 12)))),
            None,
            {"team": "abc"[at % 3], "page": at % 10},
        )
        for at in range(count)
    ]


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every collection has its indexes from the first chunk on."""
    monkeypatch.setattr(module.engine, "INDEXED_FROM", 1)


def base_of(root: Path, given: Sequence[Chunk]) -> KnowledgeBase:
    base = KnowledgeBase.create("base", root=root, **GIVEN)
    base.add(given)
    return base


def scored(channel: Any, query: Query, k: int = 20) -> dict[str, float]:
    ranking = channel.search(query, k)
    assert ranking.errors == ()
    return {hit.id: hit.score for hit in ranking}


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize("statistics", [None, "exact", "filtered"])
def test_under_rights_it_scores_as_a_base_of_what_is_permitted(tmp_path: Path, statistics: Statistics | None) -> None:
    every = chunks(120)
    engine = LanceEngine("plant", tmp_path / "lance", **GIVEN)
    engine.upsert(every)
    passes = compile_filter(RIGHTS)
    twin = base_of(tmp_path, [one for one in every if passes(one.metadata)])
    for where in (None, {"page": 3}, {"page": {"$gte": 7}}):
        found = scored(engine.bm25(statistics=statistics), Query("leaking valve", where=where, require=RIGHTS))
        expected = scored(twin.bm25(statistics=statistics), Query("leaking valve", where=where))
        assert found == pytest.approx(expected)


@pytest.mark.usefixtures("indexed")
def test_by_its_own_statistics_it_counts_all_and_finds_only_what_is_permitted(tmp_path: Path) -> None:
    every = chunks(120)
    engine, base = LanceEngine("plant", tmp_path / "lance", **GIVEN), base_of(tmp_path, every)
    engine.upsert(every)
    passes = compile_filter(RIGHTS)
    expected = {one: score for one, score in scored(base.bm25(), Query("leaking valve"), 200).items()}
    found = scored(engine.bm25(statistics="engine"), Query("leaking valve", require=RIGHTS), 200)
    permitted = {one.id for one in every if passes(one.metadata)}
    assert found == pytest.approx({one: score for one, score in expected.items() if one in permitted})


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize("where", [None, {"team": "b"}, {"page": {"$gt": 7}}, {"page": {"$gt": 99}}])
def test_what_its_index_ranks_best_has_the_scores_of_a_base(tmp_path: Path, where: dict[str, Any] | None) -> None:
    """Also of chunks that were written or replaced after the index was made, and under filters not told exactly."""
    every = chunks(400)
    engine, base = LanceEngine("plant", tmp_path / "lance", **GIVEN), base_of(tmp_path, every)
    engine.upsert(every)
    for part in (chunks(30, 400), [Chunk("c0001", "valve valve valve", None, {"team": "b", "page": 9})]):
        engine.upsert(part)
        base.add(part)
        for text in ("valve", "leaking harbour pump", "valve valve key"):
            query = Query(text, where=where)
            assert scored(engine.bm25(), query) == pytest.approx(scored(base.bm25(), query))


@pytest.mark.usefixtures("indexed")
def test_only_lucene_is_ranked_by_the_index(tmp_path: Path) -> None:
    engine, base = LanceEngine("plant", tmp_path / "lance", **GIVEN), base_of(tmp_path, chunks(50))
    engine.upsert(chunks(50))
    with pytest.raises(ConfigError, match="ranks by Lucene"):
        engine.bm25(formula="robertson", statistics="engine").search("valve", 3)
    found = scored(engine.bm25(formula="robertson"), Query("valve"))
    assert found == pytest.approx(scored(base.bm25(formula="robertson"), Query("valve")))


def test_indexes_come_when_they_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.engine, "INDEXED_FROM", 40)
    engine = LanceEngine("plant", tmp_path, index_from=300, **GIVEN)

    def names() -> set[str]:
        return {index.name for index in lancedb.connect(tmp_path).open_table("plant").list_indices()}

    engine.upsert(chunks(39))
    assert names() == set()
    engine.upsert(chunks(2, 39))
    assert names() == {"key", "facets", "terms", "words"}
    engine.upsert(chunks(300, 41))
    assert names() == {"key", "facets", "terms", "words", "near"}
    table = lancedb.connect(tmp_path).open_table("plant")
    assert {index.num_unindexed_rows for index in table.list_indices()} == {0}
    text = chunks(1)[0].text
    assert engine.dense().search(text, 1).ids == ("c0000",)


OTHER = """
import sys
from tests.engines.test_lancedb import GIVEN, chunks
from voicevault_retrievers import Chunk
from voicevault_retrievers.engines import writing
from voicevault_retrievers.engines.lancedb import LanceEngine
writing.BATCH = 20
first = int(sys.argv[2])
LanceEngine("plant", sys.argv[1], **GIVEN).upsert([Chunk(f"other{first}", "giraffe"), *chunks(100, first)])
"""


def other(folder: Path, first: int) -> subprocess.Popen[bytes]:
    """Another process that writes to the collection."""
    return subprocess.Popen([sys.executable, "-c", OTHER, str(folder), str(first)])


@pytest.mark.program
@pytest.mark.usefixtures("indexed")
def test_what_another_process_writes_is_found_by_the_next_search(tmp_path: Path) -> None:
    engine = LanceEngine("plant", tmp_path, **GIVEN)
    engine.upsert(chunks(50))
    assert engine.bm25().search("giraffe", 3).ids == ()
    assert other(tmp_path, 100).wait(120) == 0
    assert engine.bm25().search("giraffe", 3).ids == ("other100",)
    assert engine.bm25(statistics="exact").search("giraffe", 3).ids == ("other100",)
    assert engine.dense().search("giraffe", 1).ids == ("other100",)
    assert len(engine) == 151


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What LanceDB is asked to do, in order: to open a table, to count rows, to read them."""
    names: list[str] = []
    for name in ("_connection", "counted", "read"):
        below = getattr(LanceEngine, name)

        def told(self: LanceEngine, *of: Any, name: str = name, below: Any = below) -> Any:
            names.append(name)
            return below(self, *of)

        monkeypatch.setattr(LanceEngine, name, told)
    return names


@pytest.mark.program
def test_a_table_is_opened_once_for_a_version_and_each_term_counted_once(tmp_path: Path, asked: list[str]) -> None:
    engine = LanceEngine("plant", tmp_path, **GIVEN)
    engine.upsert(chunks(50))
    search = fuse({"bm25": engine.bm25(), "dense": engine.dense()}).search
    asked.clear()
    engine.get(["c0001"])
    found = search(Query("pump valve", where={"page": 1}), 5)
    assert (asked.count("_connection"), asked.count("counted")) == (1, 2)
    assert search(Query("pump valve", where={"page": 1}), 5) == found
    assert (asked.count("_connection"), asked.count("counted")) == (1, 2)
    engine.upsert(chunks(51))
    asked.clear()
    search(Query("pump", where={"page": 1}), 5)
    assert asked.count("counted") == 1


@pytest.mark.parametrize(
    ("rights", "counting"),
    [(None, ["counted"] * 3), ({"page": 1}, ["counted"] * 3), ({"page": {"$gt": 0.5}}, ["read"])],
    ids=["all", "rights of the database", "rights applied here"],
)
def test_terms_are_counted_among_the_rows_that_are_scored(
    tmp_path: Path, asked: list[str], rights: dict[str, Any] | None, counting: list[str]
) -> None:
    """Where more chunks count than are scored, `counting` is asked besides; the last reads the texts of the best."""
    engine = LanceEngine("plant", tmp_path, **GIVEN)
    engine.upsert(chunks(50))
    search = engine.bm25(statistics="exact").search
    search(Query("nothing", require=rights), 5)  # which reads the sums
    asked.clear()
    search(Query("pump valve", require=rights), 5)
    assert asked == ["read", "read"]
    search(Query("harbour station leak", require=rights, where={"page": {"$lt": 2}}), 5)
    assert asked[2:] == ["read", *counting, "read"]


def test_a_collection_that_is_made_anew_is_read_anew(tmp_path: Path) -> None:
    """Also where its table has as many versions as the one before."""
    engine = LanceEngine("plant", tmp_path, **GIVEN)
    for text in ("the pump", "the valve", "the seal"):
        other = LanceEngine("plant", tmp_path, **GIVEN)
        other.clear()
        other.upsert([Chunk("a", text)])
        assert engine.get(["a"])["a"].text == text
        assert engine.bm25().search(text.split()[1], 3).ids == ("a",)


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [other(tmp_path, first) for first in (1000, 2000)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    engine = LanceEngine("plant", tmp_path, **GIVEN)
    expected = [f"c{first + at:04}" for first in (1000, 2000) for at in range(100)]
    assert sorted(entry.id for entry in engine.stored()) == sorted([*expected, "other1000", "other2000"])


NAMES = ["a/b", "../up", "..", ".", "hex.61", "a", "A b'c\"", "größe 😀", "a\0b", "nul", "a%2Fb", "\ud800"]


def test_a_collection_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "lance"
    for name in NAMES:
        LanceEngine(name, folder, **GIVEN).upsert([Chunk("c", f"pump {name!r}")])
    for name in NAMES:
        assert [chunk.text for chunk in LanceEngine(name, folder)] == [f"pump {name!r}"]
    assert [path.name for path in tmp_path.iterdir()] == ["lance"]
    with pytest.raises(ConfigError, match="too long"):
        LanceEngine("ü" * 100, folder)


def test_a_folder_that_is_not_there_is_not_made_by_a_search(tmp_path: Path) -> None:
    engine = LanceEngine("plant", tmp_path / "none", **GIVEN)
    assert engine.bm25().search("pump", 3).ids == ()
    assert (len(engine), engine.recipe) == (0, None)
    assert not (tmp_path / "none").exists()


def test_a_file_in_place_of_the_folder_is_not_available(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SearchNotAvailableError):
        LanceEngine("plant", tmp_path / "file", **GIVEN).upsert(chunks(1))


def test_a_writer_waits_for_another_and_then_says_so(tmp_path: Path) -> None:
    engine = LanceEngine("plant", tmp_path, timeout=0.05, **GIVEN)
    engine.upsert(chunks(5))
    with locked(tmp_path / ".voicevault.lock", 0), pytest.raises(LockedError):
        engine.upsert(chunks(6))
    assert engine.bm25().search("pump valve", 3).ids
    assert engine.upsert(chunks(6)).added == 1


def test_a_table_that_is_damaged_or_removed_fails_once(tmp_path: Path) -> None:
    engine = LanceEngine("plant", tmp_path, **GIVEN)
    engine.upsert(chunks(5))
    shutil.rmtree(tmp_path / "plant.lance" / "data")
    with pytest.raises(SearchError):
        LanceEngine("plant", tmp_path).get(["c0001"])
    shutil.rmtree(tmp_path / "plant.lance")
    with pytest.raises(SearchError, match="removed"):
        engine.get(["c0001"])
    assert engine.get(["c0001"]) == {}


def test_a_table_of_another_program_is_refused(tmp_path: Path) -> None:
    lancedb.connect(tmp_path).create_table("theirs", [{"id": 1, "vector": [1.0, 2.0]}])
    for use in (lambda engine: engine.bm25().search("pump", 3).errors, lambda engine: engine.upsert(chunks(1))):
        with pytest.raises(IncompatibleIndexError):
            use(LanceEngine("theirs", tmp_path, **GIVEN))


def test_its_address(tmp_path: Path) -> None:
    engine = connect(f"lancedb://{tmp_path}/a%2Fb", **GIVEN)
    assert repr(engine) == f"LanceEngine('a/b', {str(tmp_path)!r})"
    assert connect("lancedb:///folder/x").name == "x"
    for wrong in (
        "lancedb://host/folder/x",
        "lancedb:///x",
        "lancedb:///folder/",
        "lancedb:///f/x?a=b",
        "lancedb:///f#x",
    ):
        with pytest.raises(ConfigError, match="lancedb:///FOLDER/COLLECTION"):
            connect(wrong)


@pytest.mark.parametrize("require", [None, RIGHTS])
def test_a_formula_that_needs_all_terms_scores_as_a_base_does(tmp_path: Path, require: Any) -> None:
    made = [*chunks(30), *(Chunk(f"x{at}", "pump", metadata={"team": "a"}) for at in range(40))]
    engine = connect(f"lancedb://{tmp_path}/c", **GIVEN)
    engine.upsert(made)
    okapi, query = Okapi(), Query("pump valve", require=require)
    passing = [chunk for chunk in made if compile_filter(require)(chunk.metadata)]
    expected = BM25.from_chunks(passing, Analyzer("en"), formula=okapi).search(Query("pump valve"), 100)
    found = engine.bm25(formula=okapi, statistics="exact").search(query, 100)
    assert {hit.id: pytest.approx(hit.score) for hit in found} == {hit.id: hit.score for hit in expected}
    assert len(expected) > 20

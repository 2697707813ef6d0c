"""Elasticsearch and OpenSearch: what is asked, in how many requests, and what becomes of errors."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.engines import SYSTEMS, free_port
from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, Chunk, KnowledgeBase
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.copy import copy
from voicevault_retrievers.engines.encoding import encoded
from voicevault_retrievers.engines.engine import Record
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    IncompatibleIndexError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical.formulas import BM25Plus, Lucene
from voicevault_retrievers.testing.corpora import MIXED, mixed
from voicevault_retrievers.testing.writing import ODD
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.languages import installed

elastic_server = pytest.importorskip("tests.engines.elastic_server")
bodies = pytest.importorskip("voicevault_retrievers.engines.elastic.bodies")
engines = pytest.importorskip("voicevault_retrievers.engines.elastic.engine")

WORDS = "pump valve harbour pilot buoy tide crane ledger master lamp oil gauge".split()
CHUNKS = [
    Chunk(
        f"c{at:03}", " ".join(WORDS[at * step % 12] for step in (1, 5, 7, at % 11 + 1)), metadata={"side": "ab"[at % 2]}
    )
    for at in range(60)
]


@pytest.fixture(params=["elasticsearch", "opensearch"])
def fake(request: pytest.FixtureRequest) -> Iterator[Any]:
    SYSTEMS[request.param].skip()
    with elastic_server.fake_elastic({"elasticsearch": "Elasticsearch"}.get(request.param, "OpenSearch")) as server:
        yield server


@pytest.fixture
def opened(fake: Any) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def opening(name: str = "port", *, login: str = "", **options: Any) -> Any:
        made.append(connect(f"{fake.scheme}://{login}127.0.0.1:{fake.port}/{name}", **options))
        return made[-1]

    yield opening
    for engine in made:
        engine.close()


@pytest.fixture
def engine(opened: Callable[..., Any], fake: Any) -> Any:
    filled = opened(embedder=HashEmbedder(), analyzer=Analyzer("en"))
    filled.upsert(CHUNKS)
    filled.bm25().search("pump", 1)
    fake.asked.clear()
    return filled


# Requests.


def test_a_search_is_one_request_and_so_is_a_hybrid_one(engine: Any, fake: Any) -> None:
    channels = [(engine.bm25(), 1), (engine.dense(), 1), (engine.fused(), 1), (engine.bm25(statistics="exact"), 2)]
    for channel, requests in channels:
        fake.asked.clear()
        assert len(channel.search("pump harbour", 60)) > 9
        assert fake.calls() == ["_msearch"] * requests
    fake.asked.clear()
    assert len(engine.bm25().search(Query("pump", require={"side": "a"}), 3)) == 3
    assert fake.calls() == ["_msearch"] * 2  # counted, and searched
    fake.asked.clear()
    assert engine.bm25().search("nosuchword", 3).ids == ()
    assert fake.calls() == ["_msearch"]


def test_after_another_client_has_written_a_search_is_one_request(
    engine: Any, fake: Any, opened: Callable[..., Any]
) -> None:
    other = opened(embedder=HashEmbedder(), analyzer=Analyzer("en"))
    other.upsert([Chunk("new", "a lighthouse")])
    fake.asked.clear()
    assert engine.bm25().search("lighthouse", 3).ids == ("new",)
    assert fake.calls() == ["_msearch"]


def test_words_of_a_new_language_are_found_at_once(fake: Any, opened: Callable[..., Any]) -> None:
    first, other = (opened(analyzer=Analyzer("auto")) for _ in range(2))
    first.upsert([Chunk("en", "the pump of the harbour is leaking again today")])
    assert first.bm25().search("pumps", 3).ids == ("en",)
    other.upsert([Chunk("de", "die Pumpen im Hafen sind heute wieder undicht")])
    fake.asked.clear()
    assert first.bm25().search("undichte Pumpen", 1).ids == ("de",)
    assert fake.calls() == ["_msearch"] * 2
    fake.asked.clear()
    assert first.bm25().search("undichte Pumpen", 1).ids == ("de",)
    assert fake.calls() == ["_msearch"]


def test_filters_are_in_both_searches(engine: Any, fake: Any) -> None:
    found = engine.fused(k=9).search(Query("pump harbour", where={"side": "a"}, require={"side": {"$ne": "x"}}), 5)
    assert {hit.chunk.metadata["side"] for hit in found} == {"a"}
    legs = fake.asked[-1][2][1::2][:2]
    filters = [str(leg) for leg in legs]
    assert all(filters[0].count(one) == filters[1].count(one) > 0 for one in ("facets", "must_not"))


# Scores.


def test_exact_scores_do_not_know_the_rounded_lengths(opened: Callable[..., Any]) -> None:
    chunks = [Chunk(f"l{size}", " ".join(["pump"] + ["valve"] * size)) for size in range(40, 120, 3)]
    engine = opened(analyzer=Analyzer("en"))
    engine.upsert(chunks)
    own = BM25.from_chunks(chunks, Analyzer("en")).search("pump", 99)
    exact = engine.bm25(statistics="exact").search("pump", 99)
    assert [(hit.id, hit.score) for hit in exact] == [(hit.id, pytest.approx(hit.score, rel=1e-12)) for hit in own]
    rounded = engine.bm25().search("pump", 99)
    assert sorted(rounded.ids) == sorted(own.ids)
    assert len({hit.score for hit in rounded}) < len(own)
    assert [hit.score for hit in rounded] == pytest.approx([hit.score for hit in own], rel=0.1)


def test_only_the_best_are_read_for_exact_scores(engine: Any, fake: Any) -> None:
    engine.bm25(statistics="exact").search("pump", 2)
    body = fake.asked[-1][2][1]
    assert body["size"] == 18
    assert body["sort"] == [{"_score": "desc"}, {"key": "asc"}]


def test_the_index_has_the_terms_of_the_analyzer(fake: Any, opened: Callable[..., Any]) -> None:
    terms = ["pump", "a b", "x-y/z", "\u00e9t\u00e9", "\u6c34\u6cf5", "\U0001f600", "v" * 900, "\u00e9" * 450]
    engine = opened()
    engine.run(engine._ready(create=True))
    chunks = [Chunk(f"t{at}", term) for at, term in enumerate(terms)]
    records = [Record(one, None, {one.text: at + 1}, engine.digest(one)) for at, one in enumerate(chunks)]
    engine.run(engine._write(records, []))
    (index,) = fake.indexes.values()
    held = {document.stored["key"][1:]: dict(document.terms) for document in index.documents.values()}
    assert held == {f"t{at}": {encoded(term): at + 1} for at, term in enumerate(terms)}


@pytest.mark.parametrize("language", [None, "auto", *sorted(installed())])
def test_the_server_splits_the_terms_of_each_language_again(language: str | None) -> None:
    analyzer = Analyzer(language)
    for text in [
        *MIXED,
        *(chunk.text for chunk in mixed(8)),
        *(chunk.indexed_text for chunk in ODD),
        "gro\u00dfe-x/y.z",
    ]:
        check_terms(analyzer(text))


@settings(max_examples=200, deadline=None)
@given(terms=st.lists(st.one_of(st.text(min_size=1), st.text("wh0az-\u00e9\x01", min_size=1, max_size=4)), max_size=30))
def test_any_terms_are_words(terms: list[str]) -> None:
    check_terms(terms)


def check_terms(terms: list[str]) -> None:
    """The words of a chunk's document are its terms, each of the letters a to z and shorter than the tokenizer cuts."""
    document = bodies.chunk_document(Record(Chunk("a", "pump"), None, Counter(terms), "d"))
    words = document["terms"].split(" ") if document["terms"] else []
    assert Counter(words) == Counter(map(encoded, terms))
    assert len(set(words)) == len(set(terms))
    for word in (*words, *document["words"].split()):
        assert set(word) <= set("abcdefghijklmnopqrstuvwxyz")
        assert len(word) <= bodies.LONGEST_WORD


def test_another_formula_is_scored_exactly_or_refused(engine: Any) -> None:
    own = BM25.from_chunks(CHUNKS, Analyzer("en"), formula=BM25Plus()).search("pump oil", 9)
    assert engine.bm25(formula=BM25Plus()).search("pump oil", 9).ids == own.ids
    with pytest.raises(ConfigError, match='search with "exact"'):
        engine.bm25(formula=Lucene(0.9), statistics="engine").search("pump")


def test_more_than_a_search_gives_is_read_in_several(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.dense(exclude_nonpositive=False).search("pump", 60), engine.bm25().search("pump", 60)
    exact = engine.bm25(statistics="exact").search("pump", 60)
    for name in ("DEEPEST", "PAGE"):
        monkeypatch.setattr(engines, name, 7)
    near = engine.dense(exclude_nonpositive=False).search("pump", 60)
    assert [hit.score for hit in near] == pytest.approx([hit.score for hit in expected[0]], abs=1e-6)
    assert len(near) == 60
    assert engine.bm25().search("pump", 60).ids == expected[1].ids
    assert engine.bm25(statistics="exact").search("pump", 60).ids == exact.ids


def test_rights_that_the_server_cannot_evaluate_are_counted_here(engine: Any) -> None:
    query = Query("pump harbour", require={"side": {"$text": "a"}})
    permitted = [chunk for chunk in CHUNKS if chunk.metadata["side"] == "a"]
    own = BM25.from_chunks(permitted, Analyzer("en")).search("pump harbour", 9)
    found = engine.bm25().search(query, 9)
    assert [(hit.id, hit.score) for hit in found] == [(hit.id, pytest.approx(hit.score)) for hit in own]
    with pytest.raises(FilterNotSupportedError, match="fuse bm25"):
        engine.fused().search(query)


@pytest.mark.parametrize("statistics", [None, "exact"])
def test_the_server_fuses_as_this_package_does(engine: Any, fake: Any, statistics: Any) -> None:
    apart = fuse({"bm25": engine.bm25(statistics=statistics), "dense": engine.dense()}, method=RRF(9), depth=60)
    for text in ("pump of the harbour", "pilot ledger", "gauge crane"):
        expected = apart.search(text, 8)
        here = engine.fused(k=9, depth=60, statistics=statistics).search(text, 8)
        assert here.ids == expected.ids
        assert [hit.score for hit in here] == pytest.approx([hit.score for hit in expected])
        assert "keywords" in here.hits[0].votes[0].via[0]
        there = engine.fused(k=9, depth=60, native=True, statistics=statistics).search(text, 8)
        assert [hit.score for hit in there] == pytest.approx([hit.score for hit in expected], abs=1e-2)
        assert len(there) == 8
    body = fake.asked[-1][2][1]
    assert "rrf" in str(body)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("statistics", [None, "exact"])
def test_a_query_without_a_known_word_is_fused_by_vectors_alone(engine: Any, native: bool, statistics: Any) -> None:
    for text in ("the", "nosuchword"):
        found = engine.fused(k=9, native=native, statistics=statistics).search(text, 5)
        assert found.errors == ()
        assert [hit.score for hit in found][:1] == pytest.approx([1 / 10][: len(found)])


# Writing.


def test_a_write_that_fails_in_part_is_told(opened: Callable[..., Any], fake: Any) -> None:
    engine = opened()
    fake.failing[bodies.document_id("cb")] = 400, "document_parsing_exception"
    chunks = [Chunk("a", "pump"), Chunk("b", "valve"), Chunk("c", "crane")]
    with pytest.raises(SearchError, match=r"1 of 3 documents were not written.*document_parsing_exception"):
        engine.upsert(chunks)
    fake.failing[bodies.document_id("cb")] = 429, "es_rejected_execution_exception"
    with pytest.raises(SearchNotAvailableError, match="1 of 1 documents were not written"):
        engine.upsert(chunks)
    fake.failing.clear()
    assert engine.upsert(chunks).added == 1
    assert len(engine) == 3


def test_what_was_analysed_for_another_index_is_not_written(opened: Callable[..., Any]) -> None:
    engine, chunk = opened(), Chunk("a", "pump")
    engine.run(engine._ready(create=True))
    record = Record(chunk, None, {"pump": 1}, engine.digest(chunk))
    opened().clear()
    other = opened(analyzer=Analyzer("de"))
    other.upsert([Chunk("b", "Pumpe")])
    assert engine.reload()  # as another thread does meanwhile
    with pytest.raises(SearchError, match="replaced meanwhile"):
        engine.run(engine._write([record], []))
    assert other.get(["a"]) == {}


def test_large_documents_are_sent_in_several_requests(
    opened: Callable[..., Any], fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voicevault_retrievers.engines.elastic.collection.BYTES", 3000)
    engine = opened()
    engine.upsert([Chunk(f"c{at}", "pump " * 200) for at in range(4)])
    assert fake.calls().count("_bulk") == 4
    assert len(engine) == 4


def test_vectors_come_back_as_they_were_written(engine: Any) -> None:
    own = HashEmbedder().embed_documents([CHUNKS[7].text])[0]
    assert np.array_equal(engine.vectors(["c007"])["c007"], own.astype(np.float32))


def test_names_that_an_index_cannot_have(opened: Callable[..., Any], fake: Any) -> None:
    for name in ("Port", "_port", "gro\u00dfe", "hex.00"):
        engine = opened()
        engine = type(engine)(name, fake.url)
        engine.upsert([Chunk("a", "pump")])
        assert engine.bm25().search("pump").ids == ("a",)
        engine.close()
    assert all(index.startswith("hex.") for index in fake.indexes)
    assert len(fake.indexes) == 4
    with pytest.raises(ConfigError, match="too long"):
        type(engine)("n" * 300, fake.url)


# Connections.


def test_logins_are_sent(opened: Callable[..., Any], fake: Any) -> None:
    assert len(opened(login="me:pass%2Fword@")) == 0
    assert fake.headers[-1]["authorization"] == "Basic " + base64.b64encode(b"me:pass/word").decode()
    if fake.product == "Elasticsearch":
        assert len(opened(login="a%2Bkey@")) == 0
        assert fake.headers[-1]["authorization"] == "ApiKey a+key"
    else:
        with pytest.raises(ConfigError, match="users and passwords"):
            len(opened(login="key@"))
    assert "pass" not in repr(opened(login="me:pass%2Fword@"))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, SearchNotAvailableError, "refuses the user"),
        (403, SearchNotAvailableError, "refuses the user"),
        (429, SearchNotAvailableError, "cannot answer now"),
        (503, SearchNotAvailableError, "cannot answer now"),
        (504, SearchTimeoutError, "did not answer within"),
        (500, SearchError, "told_exception: it is 500"),
        (404, SearchError, "told_exception: it is 404"),
    ],
)
def test_statuses_are_errors_of_this_package(
    engine: Any, fake: Any, status: int, kind: type[SearchError], said: str, asynchronous: bool
) -> None:
    fake.status = status

    async def asked() -> int:
        try:
            return int(await engine.acount())
        finally:
            await engine.aclose()

    with pytest.raises(kind, match=said) as raised:
        asyncio.run(asked()) if asynchronous else len(engine)
    assert type(raised.value) is kind


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_answer_and_no_server(fake: Any, asynchronous: bool, opened: Callable[..., Any]) -> None:
    def count(engine: Any) -> int:
        async def asked() -> int:
            try:
                return int(await engine.acount())
            finally:
                await engine.aclose()

        return asyncio.run(asked()) if asynchronous else len(engine)

    fake.silent.set()
    with pytest.raises(SearchTimeoutError, match=r"did not answer within 0.2 s"):
        count(opened(timeout=0.2))
    fake.silent.clear()
    fake.raw = b"<html>"
    with pytest.raises(SearchError, match="cannot be read"):
        count(opened())
    fake.raw = None
    away = connect(f"{fake.scheme}://127.0.0.1:{free_port()}/port")
    with pytest.raises(
        SearchNotAvailableError, match=r"cannot be reached: .*(refused|Cannot connect|Connect call failed)"
    ):
        count(away)
    away.close()
    assert count(opened(timeout=None)) == 0


def test_another_product_is_refused_by_elasticsearchs_client() -> None:
    SYSTEMS["elasticsearch"].skip()
    with elastic_server.fake_elastic("OpenSearch") as fake:
        engine = connect(f"elasticsearch://127.0.0.1:{fake.port}/port")
        with pytest.raises(SearchError, match="cannot be read: UnsupportedProductError"):
            engine.upsert([Chunk("a", "pump")])
        engine.close()


def test_a_part_of_the_shards_is_no_answer(engine: Any, fake: Any) -> None:
    fake.failed_shards = 1
    with pytest.raises(SearchError, match="searched a part only"):
        engine.bm25().search("pump")


def test_an_index_of_another_program_is_refused(opened: Callable[..., Any], fake: Any, engine: Any) -> None:
    next(iter(fake.indexes.values())).mappings["_meta"] = {}
    with pytest.raises(IncompatibleIndexError, match="was not made by this package"):
        len(opened())


@pytest.mark.parametrize("address", ["SCHEME://host", "SCHEME:///port", "SCHEME://host/a?b=c", "SCHEME://h:x/port"])
@pytest.mark.parametrize("scheme", ["elasticsearch", "opensearchs"])
def test_addresses(scheme: str, address: str) -> None:
    with pytest.raises(ConfigError, match="the address of a collection is"):
        connect(address.replace("SCHEME", scheme))
    there = connect(f"{scheme}://host/prefix/port")
    assert repr(there).endswith(f"('port', 'http{'s' * (scheme[-1] == 's')}://host:9200/prefix')")
    with pytest.raises(ConfigError, match="given apart"):
        type(there)("port", "http://me:word@host:9200")


def test_a_knowledge_base_is_copied(opened: Callable[..., Any], tmp_path: Any) -> None:
    with KnowledgeBase.create("port", root=tmp_path, embedder=HashEmbedder()) as base:
        base.add(CHUNKS)
        engine = opened(embedder=HashEmbedder(), analyzer=base.analyzer)
        done = copy(base, engine)
    assert (done.written, done.verified) == (60, True)

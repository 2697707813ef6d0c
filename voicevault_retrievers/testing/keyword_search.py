"""Tests of keyword search: scores are those of a knowledge base with the same chunks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.formulas import ATIRE, BM25L, BM25Plus, Formula, Lucene, Okapi, Robertson
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.testing.clients import CollectionClient, Collections
from voicevault_retrievers.testing.corpora import MIXED, QUERIES, WORDS, WordEmbedder, chunks_of, mixed
from voicevault_retrievers.testing.expect import alike, equal, falling, held, kendall, near, scores_of, that
from voicevault_retrievers.testing.suite import AUTO, EXACT, FLOAT, Filled, Suite, fill, turned

ALL = 1000
HIDDEN = {
    "de": (["ich habe die Pumpe im Hafen geprüft, und sie war nicht undicht"], ["ich", "die", "war", "hat"]),
    "fr": (["la pompe du port a été vérifiée hier, et elle ne fuit pas dans les eaux"], ["la", "du", "les", "pas"]),
    "zh": (["浮标的电池每年检查两次"], ["的", "pump"]),
}
"""Chunks hidden by access rights, with words that are stopwords of their language but not of English."""


class KeywordSuite(Suite):
    """Tests of BM25 against a knowledge base."""

    formulas: ClassVar[Sequence[Formula]] = (
        *(Lucene(), Lucene(0.9, 0.4), Okapi(), Robertson()),
        *(ATIRE(), BM25L(), BM25Plus()),
    )
    """The formulas of which scores and explanations are tested, Lucene() among them."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        super().pytest_generate_tests(metafunc)
        if "formula" in metafunc.fixturenames:
            metafunc.parametrize("formula", self.formulas, ids=repr)

    @pytest.fixture(scope="class")
    @classmethod
    def words(cls, shared: Collections) -> Filled:
        return fill(shared, mixed(70))

    @pytest.fixture(scope="class")
    @classmethod
    def languages(cls, shared: Collections) -> dict[str, Filled]:
        return {language: fill(shared, chunks_of(language, 80)) for language in WORDS}

    def same_scores(
        self,
        client: CollectionClient,
        base: KnowledgeBase,
        query: str | Query,
        record: Callable[[str, object], None],
        **options: Any,
    ) -> None:
        """Fail unless a query has the same results as in the base, with equal scores where the engine promises them."""
        what = f"bm25 of {query!r} {options or ''}"
        for k in (10, ALL):
            found, expected = client.bm25(query, k, **options), base.bm25(**options).search(query, k)
            falling(found, what)
            alike(found, expected, f"{what}, k={k}", EXACT)
            if "statistics" in options:
                continue
            by_engine = client.bm25(query, k, statistics=None, **options)
            falling(by_engine, f"{what}, by default")
            if not client.engine.capabilities.engine_statistics:
                alike(by_engine, expected, f"{what}, by default, k={k}", EXACT)
            elif k == ALL:
                equal(sorted(by_engine.ids), sorted(expected.ids), f"{what}: ids that share a term")
                tau = kendall(by_engine.ids, expected.ids)
                record("kendall_tau", tau)
                that(tau >= self.tau, f"{what}: Kendall's tau {tau:.3f}, at least {self.tau}")
            else:
                that(len(by_engine) == len(expected), f"{what}: {len(by_engine)} found, expected {len(expected)}")
        words = {hit.id: hit.votes[0].terms for hit in base.bm25(**options).search(query, ALL)}
        if isinstance(query, str):
            equal({hit.id: hit.votes[0].terms for hit in found}, words, f"{what}: matched words")
        held({hit.id: hit.chunk for hit in found}, [hit.chunk for hit in expected], client.name)

    @pytest.mark.parametrize("language", WORDS)
    def test_scores_are_those_of_a_knowledge_base(
        self,
        languages: dict[str, Filled],
        way: asyncio.AbstractEventLoop | None,
        language: str,
        record_property: Callable[[str, object], None],
    ) -> None:
        client, base, _ = turned(languages[language], way)
        for query in (*QUERIES[language], *QUERIES["en"]):
            self.same_scores(client, base, query, record_property)

    def test_scores_of_several_languages_together(
        self, words: Filled, way: asyncio.AbstractEventLoop | None, record_property: Callable[[str, object], None]
    ) -> None:
        client, base, _ = turned(words, way)
        several = Query("leaking valves", variants=(Variant("undichte Ventile", 0.5), Variant("水泵", 0.9)))
        asked: list[str | Query] = [*MIXED, " ".join(MIXED), several]
        for query in asked:
            self.same_scores(client, base, query, record_property)

    def test_an_explanation_has_the_parts_of_a_knowledge_bases(self, words: Filled, formula: Formula) -> None:
        client, base, _ = turned(words, None)
        seen = {"even": True}
        asked: list[tuple[str | Query, str]] = [
            ("pump", "exact"),
            ("the station pump pump", "exact"),
            (" ".join(MIXED), "exact"),
            (Query("pump station", require=seen), "exact"),
            (Query("pump station", where={"page": {"$lt": 4}}, require=seen), "filtered"),
        ]
        for query, statistics in asked:
            options: dict[str, Any] = {"formula": formula, "statistics": statistics}
            try:
                ours, theirs = client.engine.bm25(**options), base.bm25(**options)
                found = ours.search(query, 2)
            except ConfigError as error:
                that(formula != Lucene(), f"the default formula was refused: {error}")
                return
            for hit in found:
                parts, expected = ours.explain(query, hit.id), theirs.explain(query, hit.id)
                what = f"parts of {hit.id!r} for {query!r} by {formula!r}"
                known = [(part.term, part.count, part.frequency, part.document_frequency) for part in expected]
                equal([(part.term, part.count, part.frequency, part.document_frequency) for part in parts], known, what)
                for one, other in zip(parts, expected, strict=True):
                    for name in ("idf", "norm", "contribution"):
                        told, right = getattr(one, name), getattr(other, name)
                        that(near(told, right, EXACT), f"{name} of {one.term!r} in {what}: {told}, expected {right}")
                score = math.fsum(part.contribution for part in parts)
                that(near(score, hit.score or 0.0, EXACT), f"{what} add up to {score}, expected {hit.score}")
        for lost in ("nobody", next(chunk.id for chunk in base if not chunk.metadata["even"])):
            equal(client.engine.bm25().explain(Query("pump", require=seen), lost), [], f"parts of {lost!r}")
        equal(client.engine.bm25().explain("nosuchword", base.ids()[0]), [], "parts where no word matches")

    def test_scores_after_changes(
        self, collections: Collections, record_property: Callable[[str, object], None]
    ) -> None:
        client, base, chunks = fill(collections, mixed(30))
        steps: list[Callable[[CollectionClient | KnowledgeBase], object]] = [
            lambda held: held.delete([chunk.id for chunk in chunks[::4]]),
            lambda held: put(held, [replace(c, text=f"{c.text} pump 水泵 Pumpe") for c in chunks[1::4]]),
            lambda held: put(held, mixed(20, seed=7)),
            lambda held: (held.delete(where={"page": {"$in": [1, 2]}}), put(held, chunks[::8])),
            lambda held: (put(held, [Chunk("tail", "pump " * 50)]), held.delete(where={"language": "de"})),
        ]
        for at, step in enumerate(steps):
            step(client)
            step(base)
            equal(client.ids(), sorted(base.ids()), f"ids after change {at}")
            for query in ("pump", *MIXED):
                self.same_scores(client, base, query, record_property)

    def test_a_word_is_a_stopword_of_the_languages_that_are_here(
        self, collections: Collections, record_property: Callable[[str, object], None]
    ) -> None:
        texts = [
            "the die was cast and the pump is here",
            "a war was fought for the pump",
            "the pump and the die are in plan c with la and de",
        ]
        german = [Chunk(f"g{at}", f"die Pumpe war nicht hier und der Hafen {at}", None, {"l": "de"}) for at in range(3)]
        english = [Chunk(f"e{at}", text, None, {"l": "en"}) for at, text in enumerate(texts)]
        client, base, _ = fill(collections, [*english, *german])
        words = ["die", "war", "die pump", "war pump", "C++ c", "la pump", "de pump"]
        for require in (None, {"l": "en"}, {"l": "de"}):
            for word in words:
                self.same_scores(client, base, Query(word, require=require), record_property)
        client.delete(where={"l": "de"})
        base.delete(where={"l": "de"})
        for word in words:
            self.same_scores(client, base, word, record_property)

    @pytest.mark.parametrize("language", HIDDEN)
    def test_the_language_of_hidden_chunks_changes_nothing(self, collections: Collections, language: str) -> None:
        texts, words = HIDDEN[language]
        seen = {"seen": True}
        english = [
            Chunk(f"e{at}", f"the pump of the harbour was checked {at}, {word.lower()} {word.upper()}", None, seen)
            for at, word in enumerate(words)
        ]
        hidden = [Chunk(f"h{at}", text, None, {"seen": False}) for at, text in enumerate(texts)]
        both, alone = collections(embedder=WordEmbedder(), analyzer=AUTO), fill(collections, english)
        both.upsert([*english, *hidden])
        for word in (*words, *(word.upper() for word in words), *(f"{word} pump" for word in words)):
            query = Query(word, require=seen)
            found = both.bm25(query, 9)
            for name, expected in (
                ("the same chunks, all seen", alone.client.bm25(query, 9)),
                ("no filter", alone.client.bm25(word, 9)),
                ("a knowledge base of them", alone.base.bm25().search(word, 9)),
            ):
                alike(found, expected, f"bm25 of {word!r} over a hidden chunk, beside {name}", EXACT)
            scores = both.engine.bm25().scan(query).scores([chunk.id for chunk in (*english, *hidden)])
            equal(scores, alone.client.engine.bm25().scan(query).scores([c.id for c in english]), f"scores of {word!r}")
        both.delete(where=seen)
        both.upsert(english)
        query = Query(words[0].upper(), require=seen)
        alike(both.bm25(query, 9), alone.client.bm25(query, 9), "bm25 after chunks were put in again", EXACT)

    def test_a_formula_scores_alike_or_is_refused(
        self,
        words: Filled,
        way: asyncio.AbstractEventLoop | None,
        formula: Formula,
        record_property: Callable[[str, object], None],
    ) -> None:
        client, base, _ = turned(words, way)
        try:
            client.bm25("pump", 5, formula=formula)
        except ConfigError as error:
            that(formula != Lucene(), f"the default formula was refused: {error}")
            return
        for query in ("the station pump", " ".join(MIXED)):
            self.same_scores(client, base, query, record_property, formula=formula)
            self.same_scores(client, base, query, record_property, formula=formula, exclude_nonpositive=True)

    def test_statistics_of_what_passes(
        self, words: Filled, way: asyncio.AbstractEventLoop | None, record_property: Callable[[str, object], None]
    ) -> None:
        client, base, _ = turned(words, way)
        for where in ({"page": {"$lt": 3}}, {"language": "zh"}, {"at": -1}):
            for query in ("leaking valves", "水泵 压力"):
                asked = Query(query, where=where)
                self.same_scores(client, base, asked, record_property, statistics="filtered")

    def test_word_scores_of_given_chunks(self, words: Filled) -> None:
        client, base, chunks = words
        ids = [*(chunk.id for chunk in chunks[::3]), "nobody"]
        asked = [Query("leaking valves"), Query("水泵 压力"), Query("pump", where={"page": 1})]
        exact = client.engine.bm25(statistics="exact")
        for query in (*asked, Query("Ventile", require={"even": True})):
            found, expected = exact.scan(query).scores(ids), base.bm25().scan(query).scores(ids)
            equal(sorted(found), sorted(expected), f"ids with a score for {query!r}")
            zero = {one for one, score in expected.items() if score == 0}
            equal({one for one, score in found.items() if score == 0}, zero, f"ids scored 0 for {query!r}")
            listed = {hit.id: hit.score for hit in client.bm25(query, ALL)}
            wrong = {
                one: (found[one], listed[one])
                for one in found
                if one in listed and not near(found[one], listed[one] or 0, EXACT)
            }
            that(not wrong, f"(scores, search) of {query!r} differ: {wrong}")

    def test_the_engines_own_statistics(self, words: Filled, way: asyncio.AbstractEventLoop | None) -> None:
        client, base, chunks = turned(words, way)
        if not client.engine.capabilities.engine_statistics:
            with pytest.raises(ConfigError, match='statistics="engine"'):
                client.bm25("pump", 5, statistics="engine")
            return
        permitted = {chunk.id for chunk in chunks if chunk.metadata["even"]}
        asked = [*(chunk.id for chunk in chunks), "nobody"]
        for text in ("leaking valves", "水泵 压力", *MIXED):
            query = Query(text, require={"even": True})
            found = client.bm25(query, ALL, statistics="engine")
            falling(found, f"bm25 of {query!r} by the engine's statistics")
            equal(set(found.ids), set(base.bm25().search(query, ALL).ids), f"found by the words {query!r}")
            that(set(found.ids) <= permitted, f"{query!r} found what is not permitted")
            told = client.engine.bm25(statistics="engine").scan(query).scores(asked)
            listed = dict.fromkeys(permitted, 0.0) | scores_of(found)
            equal(sorted(told), sorted(listed), f"ids with a score for {query!r} by the engine's statistics")
            wrong = {one: (told[one], listed[one]) for one in listed if not near(told[one], listed[one], FLOAT)}
            that(not wrong, f"(scores, search) of {query!r} by the engine's statistics differ: {wrong}")
            default, exact = client.bm25(query, ALL, statistics=None), client.bm25(query, ALL)
            alike(default, exact, f"bm25 of {query!r} by default, under rights", EXACT)

    def test_k(self, words: Filled, way: asyncio.AbstractEventLoop | None) -> None:
        client = turned(words, way).client
        full = client.bm25("pump valves", ALL)
        that(len(full) > 20, "too few to compare")
        for k in (0, 1, 2, 7, len(full) - 1, len(full), 10 * ALL):
            equal(client.bm25("pump valves", k).ids, full.ids[:k], f"ids at k={k}")
        with pytest.raises(ConfigError):
            client.bm25("pump", -1)

    @pytest.mark.parametrize(
        "query", ["", "   ", "\t\n", "zzzunknown", "the", "?!", "😀", "\0", "a\0b", "'\"\\ %_ $", "\ud800"], ids=ascii
    )
    def test_a_query_without_a_known_word_finds_nothing(
        self, words: Filled, way: asyncio.AbstractEventLoop | None, query: str
    ) -> None:
        client, base, _ = turned(words, way)
        found = client.bm25(query, 9)
        expected = base.bm25().search(query, 9)
        equal((found.ids, found.errors), (expected.ids, ()), f"bm25 of {query!r}")

    def test_ties_of_words_are_in_order_of_ids_at_the_boundary_too(self, collections: Collections) -> None:
        names = [f"t{at:02}" for at in range(40)]
        shuffled = sorted(names, key=lambda name: name[::-1])
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert([Chunk(name, "pump valves") for name in shuffled])
        client.upsert([Chunk("a", "harbour harbour station"), Chunk("z", "pump pump pump")])
        found = client.bm25("pump", 10)
        equal(found.ids[0], "z", "the best")
        ties(found.ids[1:], names, self.ties_at_k, "bm25")
        equal(client.bm25("pump", 41).ids, ("z", *names), "all ids")

    def test_words_in_any_spelling(
        self, collections: Collections, record_property: Callable[[str, object], None]
    ) -> None:
        texts = [
            "Ｐｕｍｐ",
            "pump",
            "PUMP",
            "Größe",
            "GRÖSSE",
            "gro\u0308\u00dfe",
            "İstanbul",
            "istanbul",
            "ﬁne",
            "e\u0301te\u0301",
            "été",
        ]
        texts += [
            "C++",
            "foo_bar",
            "ERR_2043",
            "3.14",
            "it's",
            "שלום",
            "مرحبا",
            "नमस्ते",
            "สวัสดี",
            "東京",
            "とうきょう",
            "서울",
            "𝔭ump",
        ]
        client, base, _ = fill(collections, [Chunk(f"u{at:02}", text) for at, text in enumerate(texts)])
        for text in (*texts, "größe", "pumps", "fooBar", "err 2043"):
            self.same_scores(client, base, text, record_property)


def put(held: CollectionClient | KnowledgeBase, chunks: Sequence[Chunk]) -> object:
    """Add chunks to a collection or a knowledge base."""
    return held.upsert(chunks) if isinstance(held, CollectionClient) else held.add(chunks)


def ties(found: tuple[str, ...], names: list[str], lowest: bool, what: str) -> None:
    """Fail unless ids of equal scores ascend, and, where `lowest`, are the lowest of all."""
    expected = tuple(names[: len(found)]) if lowest else tuple(sorted(found))
    equal(found, expected, f"{what}: ids of one score")
    that(set(found) <= set(names) and len(set(found)) == len(found), f"{what}: {found}")

"""Tests of a collection's recipe: it is stored, and other recipes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.testing.clients import CollectionClient, Collections
from voicevault_retrievers.testing.corpora import WordEmbedder, chunks_of, vectors_of
from voicevault_retrievers.testing.expect import equal, held, refused, that
from voicevault_retrievers.testing.suite import AUTO, Suite, applies_where
from voicevault_retrievers.text import Analyzer


def is_empty(client: CollectionClient, what: str) -> None:
    """Fail unless every read of a collection returns nothing."""
    equal(client.count(), 0, f"{what}: count")
    equal(client.get(["a"]), {}, f"{what}: get")
    equal(client.parents(["a"]), {}, f"{what}: parents")
    equal(client.delete(["a"]), 0, f"{what}: delete")
    equal(client.delete(where={"page": 1}), 0, f"{what}: delete where")
    equal(list(client.engine.stored()), [], f"{what}: stored")
    equal(list(client.engine), [], f"{what}: iteration")
    equal(client.engine.vectors(["a"]), {}, f"{what}: vectors")
    searched = {"bm25": client.bm25("pump", 5), "dense": client.dense("pump", 5)}
    if client.engine.capabilities.server_fusion:
        searched["fused"] = client.search(client.engine.fused(), "pump", 5)
    for name, found in searched.items():
        notes = [(failure.kind, failure.degrades) for failure in found.errors]
        equal((found.ids, notes), ((), [("NoCollection", False)]), f"{what}: {name}")
    equal(client.hybrid("pump", 5).ids, (), f"{what}: hybrid_search")
    equal(dict(client.engine.bm25().scan(Query("pump")).scores(["a"])), {}, f"{what}: scores")


class Recipes(Suite):
    """Tests of a collection's analyzer, embedder and options."""

    def test_missing_collection_is_empty_and_is_not_made_by_asking(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        is_empty(client, "a missing collection")
        other = collections.again(client, embedder=WordEmbedder(7), analyzer=Analyzer("de"))
        equal(other.upsert(chunks_of("de", 3)).added, 3, "chunks added with another recipe")

    def test_recipe_is_kept_and_need_not_be_given_again(self, collections: Collections) -> None:
        first = collections(embedder=WordEmbedder(), analyzer=Analyzer("de"))
        chunks = chunks_of("de", 20)
        first.upsert(chunks)
        found = first.bm25("undichte Ventile", 5)
        again = collections.again(first, embedder=WordEmbedder())
        equal(again.engine.analyzer, Analyzer("de"), "analyzer of a collection opened without one")
        equal(again.bm25("undichte Ventile", 5).ids, found.ids, "ids found by a client that was given no analyzer")
        held(again.get([chunk.id for chunk in chunks]), chunks, again.name)

    def test_words_are_searched_without_the_embedder_and_vectors_ask_for_it(self, collections: Collections) -> None:
        first = collections(embedder=WordEmbedder(), analyzer=AUTO)
        first.upsert(chunks_of("en", 20))
        again = collections.again(first)
        that(again.bm25("valves", 5).ids, "bm25 without the embedder found nothing")
        with pytest.raises(ConfigError, match="embedder="):
            again.dense("valves", 5)

    @pytest.mark.parametrize(
        "other", [{"analyzer": Analyzer("en")}, {"embedder": WordEmbedder(24, "another")}], ids=repr
    )
    def test_another_analyzer_or_embedder_is_refused(self, collections: Collections, other: dict[str, Any]) -> None:
        given: dict[str, Any] = {"embedder": WordEmbedder(), "analyzer": AUTO}
        first = collections(**given)
        chunks = chunks_of("en", 5)
        first.upsert(chunks)
        wrong = collections.again(first, **{**given, **other})
        uses: dict[str, Callable[[], object]] = {
            "upsert": lambda: wrong.upsert(chunks_of("en", 9)),
            "bm25": lambda: wrong.bm25("pump", 5),
            "count": wrong.count,
            "delete": lambda: wrong.delete(["en-00000"]),
        }
        for name, use in uses.items():
            with pytest.raises(IncompatibleIndexError):
                refused(use(), f"{name} with {other}")
        held(collections.again(wrong, **given).get([chunk.id for chunk in chunks]), chunks, first.name)

    def test_embedder_is_refused_where_there_are_no_vectors(self, collections: Collections) -> None:
        first = collections(analyzer=AUTO)
        first.upsert(chunks_of("en", 5))
        with pytest.raises(IncompatibleIndexError):
            collections.again(first, embedder=WordEmbedder()).count()

    @applies_where(lambda suite: suite.other_options)
    def test_other_options_are_refused(self, collections: Collections) -> None:
        first = collections(analyzer=AUTO, embedder=WordEmbedder())
        first.upsert(chunks_of("en", 5))
        for name, value in self.other_options.items():
            first = collections.again(first, analyzer=AUTO, embedder=WordEmbedder(), **{name: value})
            with pytest.raises(ConfigError, match=name):
                first.count()

    @applies_where(lambda suite: suite.other_options)
    def test_options_are_kept(self, collections: Collections) -> None:
        for name, value in self.other_options.items():
            made = collections(analyzer=AUTO, embedder=WordEmbedder(), **{name: value})
            made.upsert(chunks_of("en", 30))
            again = collections.again(made, analyzer=AUTO, embedder=WordEmbedder(), **{name: value})
            equal(again.count(), 30, f"count of a collection made with {name}={value!r}")
            that(again.bm25("valves", 5).ids and again.dense("valves", 5).ids, f"{name}={value!r}: nothing was found")

    def test_collection_for_keywords_only(self, collections: Collections) -> None:
        client = collections(analyzer=AUTO)
        chunks = chunks_of("en", 30)
        client.upsert(chunks)
        that(client.bm25("leaking valves", 5).ids, "bm25 found nothing")
        equal(
            client.hybrid("leaking valves", 5).ids, client.bm25("leaking valves", 5).ids, "hybrid_search by words alone"
        )
        equal(client.engine.vectors([chunks[0].id]), {}, "vectors")
        with pytest.raises(ConfigError, match="embedder"):
            client.dense("leaking valves", 5)
        with pytest.raises(ConfigError, match="embedder"):
            client.upsert(chunks, vectors_of(WordEmbedder(), chunks))

    def test_clear_removes_chunks_and_recipe(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert(chunks_of("en", 20))
        client.clear()
        is_empty(client, "a cleared collection")
        client.clear()
        other = collections.again(client, embedder=WordEmbedder(9), analyzer=Analyzer("en"))
        other.upsert(chunks_of("en", 4))
        equal(other.count(), 4, "count of the collection made anew")

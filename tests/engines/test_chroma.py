"""A real, embedded Chroma as a vector index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import ExactVectors, VectorChannel
from voicevault_retrievers.engines.chroma import ChromaVectors
from voicevault_retrievers.errors import IncompatibleIndexError

chromadb = pytest.importorskip("chromadb")

EMBEDDER = HashEmbedder(dimension=16)
METADATA: list[dict[str, Any]] = [
    {"file": "a.pdf", "page": 1, "tags": ["x", "y"]},
    {"file": "a.pdf", "page": 2.0, "done": True},
    {"file": "b.pdf", "page": 3, "tags": []},
    {"file": "b.pdf", "page": "3", "nested": {"deep": [1, 2]}},
    {},
    {"file": None, "page": True},
]
CHUNKS = [
    Chunk(f"c{n}", text, parent_id="p" if n % 2 else None, metadata=METADATA[n % len(METADATA)])
    for n, text in enumerate(
        [
            "a pump",
            "the pump valve",
            "valve of a turbine",
            "turbine blade",
            "blade pitch pump",
            "oil",
            "oil of the pump",
        ]
    )
]
FILTERS: list[dict[str, Any]] = [
    {"file": "a.pdf"},
    {"page": {"$gte": 2}},
    {"page": {"$lt": 2.5}},
    {"page": {"$lte": 1.5}},
    {"page": {"$gt": 1.5}},
    {"page": {"$gte": 0.5}},
    {"page": 1.5},
    {"page": 3},
    {"page": True},
    {"tags": "x"},
    {"tags": {"$contains": "y"}},
    {"file": {"$ne": "a.pdf"}},
    {"$not": {"file": "a.pdf"}},
    {"$or": [{"file": "b.pdf"}, {"done": True}]},
    {"$and": [{"file": "a.pdf"}, {"page": {"$lt": 2}}]},
    {"file": {"$in": ["b.pdf", "c.pdf"]}},
    {"file": {"$exists": False}},
    {"nowhere": 1},
]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> ChromaVectors:
    index = ChromaVectors.open(tmp_path_factory.mktemp("chroma"), "pumps")
    index.add(CHUNKS, EMBEDDER)
    return index


def test_chunks_come_back_whole(vectors: ChromaVectors) -> None:
    found = vectors.nearest(EMBEDDER.embed_queries(["pump"])[0], len(CHUNKS))
    assert sorted((entry.chunk for entry in found), key=lambda chunk: chunk.id) == [
        Chunk(c.id, c.text, c.parent_id, {k: v for k, v in c.metadata.items() if v is not None or k == "file"})
        for c in CHUNKS
    ]


@pytest.mark.parametrize("where", FILTERS, ids=str)
@pytest.mark.parametrize("k", [1, 3, 10])
def test_filters_mean_what_they_mean_everywhere(vectors: ChromaVectors, where: dict[str, Any], k: int) -> None:
    exact = ExactVectors.build(CHUNKS, EMBEDDER)
    query = EMBEDDER.embed_queries(["pump of a turbine"])[0]
    ours = exact.nearest(query, k, where=where)
    theirs = vectors.nearest(query, k, where=where)
    assert [round(entry.score, 5) for entry in theirs] == [round(entry.score, 5) for entry in ours]
    assert {entry.chunk.id for entry in vectors.nearest(query, 10, where=where)} == {
        entry.chunk.id for entry in exact.nearest(query, 10, where=where)
    }


def test_own_keys_are_the_users(tmp_path: Path) -> None:
    index = ChromaVectors.open(tmp_path, "pumps")
    chunk = Chunk("own", "a pump", metadata={"_voicevault": "mine", "_voicevault_others": 1})
    index.add([chunk], EMBEDDER)
    vector = EMBEDDER.embed_queries(["pump"])[0]
    for key, value in chunk.metadata.items():
        assert [entry.chunk for entry in index.nearest(vector, 1, where={key: value})] == [chunk]


def test_score_is_one_minus_distance_and_zero_is_left_out(tmp_path: Path) -> None:
    table = {"same": [1.0, 0.0], "across": [0.0, 1.0], "against": [-1.0, 0.0], "near": [0.6, 0.8]}

    class Fixed(HashEmbedder):
        def embed_documents(self, texts: Any) -> Any:
            return np.array([table[text] for text in texts], dtype=np.float32)

        embed_queries = embed_documents

    embedder = Fixed(dimension=2)
    index = ChromaVectors.open(tmp_path, "fixed")
    index.add([Chunk(name, name) for name in table], embedder)
    ranking = VectorChannel(index, embedder).search("same", 10)
    assert ranking.ids == ("same", "near")
    assert [hit.score for hit in ranking] == pytest.approx([1.0, 0.6], abs=1e-6)


def test_an_upsert_replaces_and_a_delete_removes(tmp_path: Path) -> None:
    index = ChromaVectors.open(tmp_path, "changing")
    index.add([Chunk("a", "pump"), Chunk("b", "valve")], EMBEDDER)
    index.add([Chunk("a", "turbine")], EMBEDDER)
    index.delete(["b"])
    found = index.nearest(EMBEDDER.embed_queries(["turbine"])[0], 5)
    assert [(entry.chunk.id, entry.chunk.text) for entry in found] == [("a", "turbine")]


def test_another_space_is_refused(tmp_path: Path) -> None:
    client = chromadb.PersistentClient(path=str(tmp_path))
    collection = client.create_collection("euclid", embedding_function=None)
    with pytest.raises(IncompatibleIndexError, match="cosine"):
        ChromaVectors(collection)


def test_the_collection_has_no_embedding_function_and_query_text_stays_here(
    vectors: ChromaVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    query = vectors.collection.query
    monkeypatch.setattr(vectors.collection, "query", lambda **options: asked.append(options) or query(**options))
    VectorChannel(vectors, EMBEDDER).search("a secret question", 3)
    assert asked
    assert all("query_texts" not in options and "a secret question" not in str(options) for options in asked)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="pumpvale ", max_size=12))
def test_similarities_are_the_cosines(vectors: ChromaVectors, text: str) -> None:
    vector = EMBEDDER.embed_queries([text])[0]
    ids = [chunk.id for chunk in CHUNKS]
    exact = ExactVectors.build(CHUNKS, EMBEDDER).similarities(vector, ids)
    assert vectors.similarities(vector, [*ids, "unknown"]) == pytest.approx(exact, abs=1e-6)

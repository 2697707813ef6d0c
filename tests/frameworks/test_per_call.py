"""Options of one call: `invoke` and `ainvoke`, `retrieve` and `aretrieve`, and the core give the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, Query, VectorChannel, compose
from voicevault_retrievers.types import Chunk

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from voicevault_retrievers import langchain, llama_index

CHUNKS = [Chunk(f"c{at}", f"the pump {'of the mill ' * at}", metadata={"page": at}) for at in range(8)]
CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "k": {"k": 2},
    "where": {"where": {"page": {"$gte": 3}}},
    "weights": {"weights": {"dense": 0.0, "bm25": 2.0}},
    "all": {"k": 3, "where": {"page": {"$lt": 6}}, "weights": {"dense": 3.0}},
}


@pytest.mark.parametrize("said", CALLS.values(), ids=CALLS)
async def test_k_where_and_weights_of_a_call_are_the_same_in_every_way_to_ask(said: dict[str, Any]) -> None:
    channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": VectorChannel.from_chunks(CHUNKS, HashEmbedder())}
    query = Query("pump mill", where=said.get("where"), weights=said.get("weights"))
    expected = [(hit.id, hit.score) for hit in compose(channels, k=5).search(query, said.get("k")).hits]
    first = langchain.HybridRetriever(channels=channels, k=5)
    for documents in (first.invoke(query.text, **said), await first.ainvoke(query.text, **said)):
        assert [(document.id, document.metadata["relevance_score"]) for document in documents] == expected
    second = llama_index.HybridRetriever(channels=channels, k=5)
    asked = second.with_options(**said)
    for nodes in (asked.retrieve(query.text), await asked.aretrieve(query.text)):
        assert [(node.node_id, node.score) for node in nodes] == expected
    assert (first.k, len(first.invoke(query.text)), len(second.retrieve(query.text))) == (5, 5, 5)

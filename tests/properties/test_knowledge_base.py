"""After any adds, replacements, deletes, seals, merges, reopenings and repairs, a base searches as a fresh one."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import HashEmbedder
from voicevault_retrievers.channel import Channel
from voicevault_retrievers.dense.exact import VectorChannel
from voicevault_retrievers.lexical import tiers
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.store import KnowledgeBase, commit
from voicevault_retrievers.types import Chunk, Query

WORDS = ("fox", "foxes", "dog", "cat", "Prüfung", "東京都", "the")
QUERIES = ("fox", "dog cat fox", Query("dog fox", where={"page": 1}), "東京", "the")

texts = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
ids = st.sampled_from("abcdefgh")
metadata = st.fixed_dictionaries({"page": st.integers(1, 2)})
chunks = st.lists(st.builds(Chunk, ids, texts, metadata=metadata), max_size=4, unique_by=lambda chunk: chunk.id)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), chunks),
        st.tuples(st.just("delete"), st.lists(ids, max_size=3)),
        st.tuples(st.sampled_from(["open", "repair"]), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(operations, st.sampled_from(("lucene", "okapi")), st.sampled_from((2, 8)))
def test_a_knowledge_base_is_what_it_holds(
    steps: list[tuple[str, list[Chunk] | list[str] | None]], formula: str, tier: int
) -> None:
    held: dict[str, Chunk] = {}
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "SEAL_AT", 3)
        patch.setattr(tiers, "TIER", tier)
        kb = KnowledgeBase.create("kb", root=root, embedder=HashEmbedder())
        reader = KnowledgeBase.open("kb", root=root, embedder=HashEmbedder())
        for kind, argument in steps:
            if argument is None:
                kb.close()
                again = KnowledgeBase.open if kind == "open" else KnowledgeBase.repair
                kb = again("kb", root=root, embedder=HashEmbedder())
            elif kind == "add":
                _add(kb, held, argument)  # type: ignore[arg-type]  # by its kind
            else:
                gone = set(argument) & set(held)
                assert kb.delete(argument) == len(gone)  # type: ignore[arg-type]  # by its kind
                held = {chunk_id: chunk for chunk_id, chunk in held.items() if chunk_id not in gone}
            reader.reload()
            for opened in (kb, reader):
                _check(opened, held, formula)
        kb.close()
        assert kb.verify() == []
        assert {path.name for path in kb.path.iterdir()} - {"lock"} == kb.manifest.names | {"manifest.json"}


def _add(kb: KnowledgeBase, held: dict[str, Chunk], new: list[Chunk]) -> None:
    kept = {chunk.id: Chunk(chunk.id, chunk.text, metadata=chunk.metadata, kb="kb") for chunk in new}
    same = sum(held.get(chunk_id) == chunk for chunk_id, chunk in kept.items())
    known = sum(chunk.id in held for chunk in new)
    changes = kb.add(new)
    assert (changes.added, changes.replaced, changes.unchanged) == (len(new) - known, known - same, same)
    held |= kept


def _check(kb: KnowledgeBase, held: dict[str, Chunk], formula: str) -> None:
    assert list(kb) == [held[chunk_id] for chunk_id in sorted(held)]
    assert (len(kb), kb.get(list("abcdefgh"))) == (len(held), held)
    fresh = BM25.from_chunks(held.values(), formula=formula)
    _alike(kb.bm25(formula=formula), fresh)
    _alike(kb.dense(), VectorChannel.from_chunks(held.values(), HashEmbedder()))


def _alike(one: Channel, other: Channel) -> None:
    for query in QUERIES:
        assert [(h.chunk, h.score) for h in one.search(query, 5)] == [
            (h.chunk, h.score) for h in other.search(query, 5)
        ]

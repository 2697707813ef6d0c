"""After any adds, replacements, deletes, seals, merges, reopenings and repairs, a base is what it should hold."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import HashEmbedder, examples
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.store import Changes, KnowledgeBase, Source, commit

WORDS = ("fox", "foxes", "dog", "cat", "Prüfung", "東京都", "the")
QUERIES = ("fox", "dog cat fox", Query("dog fox", where={"page": 1}), "東京", "the")
FILES = ("a.md", "b.md")
WHERE = ({"page": 1}, {"source_file": "a.md", "page": 2}, {"source_file": {"$exists": False}})

texts = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
ids = st.sampled_from("abcdefgh")
parent_ids = st.sampled_from("pqr")
metadata = st.fixed_dictionaries({"page": st.integers(1, 2)}, optional={"source_file": st.sampled_from(FILES)})
chunk = st.builds(Chunk, ids, texts, st.none() | parent_ids, metadata)
chunks = st.lists(chunk, max_size=4, unique_by=lambda chunk: chunk.id)
parents = st.lists(st.builds(Chunk, parent_ids, texts), max_size=2, unique_by=lambda chunk: chunk.id)
sources = st.lists(st.builds(Source, st.sampled_from(FILES), texts), max_size=1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(chunks, parents, sources)),
        st.tuples(st.just("replace"), st.tuples(chunks, parents, sources)),
        st.tuples(st.just("delete"), st.lists(ids, max_size=3)),
        st.tuples(st.just("where"), st.sampled_from(WHERE)),
        st.tuples(st.just("source"), st.sampled_from(FILES)),
        st.tuples(st.sampled_from(["open", "repair", "compact"]), st.none()),
    ),
    max_size=14,
)


@dataclass
class Model:
    """What a knowledge base should hold."""

    chunks: dict[str, Chunk] = field(default_factory=dict)
    parents: dict[str, Chunk] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    def put(self, new: list[Chunk], parents: list[Chunk], sources: list[Source], *, alone: bool) -> Changes:
        kept = {chunk.id: Chunk(chunk.id, chunk.text, chunk.parent_id, chunk.metadata, "kb") for chunk in new}
        names = {source.name for source in sources}
        gone = {i for i, c in self.chunks.items() if alone or c.metadata.get("source_file") in names} - kept.keys()
        known = self.chunks.keys() & kept.keys()
        same = sum(self.chunks[chunk_id] == kept[chunk_id] for chunk_id in known)
        before = dict(self.chunks)
        self.chunks = {i: c for i, c in self.chunks.items() if i not in gone} | kept
        came = {parent.id: Chunk(parent.id, parent.text, kb="kb") for parent in parents}
        self.parents |= came
        self.sources |= {source.name: source for source in sources}
        if alone:
            used = {c.parent_id for c in kept.values()} | came.keys()
            self.parents = {i: p for i, p in self.parents.items() if i in used}
            self.sources = {source.name: source for source in sources}
        else:
            self._tidy(before, came.keys(), names)
        return Changes(len(kept) - len(known), len(known) - same, same, len(gone))

    def drop(self, gone: set[str], source: str | None = None) -> None:
        before = dict(self.chunks)
        self.chunks = {i: c for i, c in self.chunks.items() if i not in gone}
        self.sources.pop(source or "", None)
        self._tidy(before, (), ())

    def _tidy(self, before: dict[str, Chunk], parents: Any, sources: Any) -> None:
        """Parents and sources go whose last chunk was taken."""
        taken = [c for i, c in before.items() if self.chunks.get(i) != c]
        held = {c.parent_id for c in self.chunks.values()}
        orphans = {c.parent_id for c in taken} - held - set(parents)
        self.parents = {i: p for i, p in self.parents.items() if i not in orphans}
        named = {c.metadata.get("source_file") for c in self.chunks.values()}
        lost = {c.metadata.get("source_file") for c in taken} - named - set(sources)
        self.sources = {name: source for name, source in self.sources.items() if name not in lost}


@examples(0.8)
@given(operations, st.sampled_from(("lucene", "okapi")), st.sampled_from((2, 8)), st.sampled_from((0, 1000)))
def test_a_knowledge_base_is_what_it_holds(steps: list[tuple[str, Any]], formula: str, tier: int, at_once: int) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "SEAL_AT", 3)
        patch.setattr(commit, "MERGE_AT_ONCE", at_once)
        patch.setattr(merge_policy, "TIER", tier)
        kb = KnowledgeBase.create("kb", root=root, embedder=HashEmbedder())
        reader = KnowledgeBase.open("kb", root=root, embedder=HashEmbedder())
        for kind, argument in steps:
            kb = _done(kb, model, kind, argument)
            reader.reload()
            for opened in (kb, reader):
                _check(opened, model, formula)
        kb.close()
        assert kb.verify() == []
        assert {path.name for path in kb.path.iterdir()} - {"lock"} == kb.manifest.names | {"manifest.json"}


def _done(kb: KnowledgeBase, model: Model, kind: str, argument: Any) -> KnowledgeBase:
    """The base after a step, which the model takes too."""
    if kind in ("add", "replace"):
        new, above, files = argument
        expected = model.put(new, above, files, alone=kind == "replace")
        assert getattr(kb, kind)(new, parents=above, sources=files) == expected
    elif kind == "compact":
        kb.compact()
    elif argument is None:
        kb.close()
        again = KnowledgeBase.open if kind == "open" else KnowledgeBase.repair
        return again(kb.path, embedder=HashEmbedder())
    else:
        passes = compile_filter({"source_file": argument} if kind == "source" else argument if kind == "where" else {})
        gone = {i for i, c in model.chunks.items() if passes(c.metadata) and (kind != "delete" or i in argument)}
        assert kb.delete(**{"ids" if kind == "delete" else kind: argument}) == len(gone)
        model.drop(gone, argument if kind == "source" else None)
    return kb


def _check(kb: KnowledgeBase, model: Model, formula: str) -> None:
    held = model.chunks
    assert list(kb) == [held[chunk_id] for chunk_id in sorted(held)]
    assert (len(kb), kb.get(list("abcdefgh"))) == (len(held), held)
    assert (kb.parents(list("pqr")), dict(kb.sources)) == (model.parents, model.sources)
    fresh = BM25.from_chunks(held.values(), formula=formula)
    _alike(kb.bm25(formula=formula), fresh)
    _alike(kb.dense(), VectorChannel.from_chunks(held.values(), HashEmbedder()))


def _alike(one: Channel, other: Channel) -> None:
    for query in QUERIES:
        assert [(h.chunk, h.score) for h in one.search(query, 5)] == [
            (h.chunk, h.score) for h in other.search(query, 5)
        ]

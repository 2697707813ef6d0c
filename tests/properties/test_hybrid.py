"""The default hybrid search against a slow, plain implementation: the same hits, scores and votes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import HashEmbedder, examples
from voicevault_retrievers import BM25, RRF, Chunk, Query, VectorChannel, fuse
from voicevault_retrievers.lexical.formulas import Lucene

WORDS = st.sampled_from("pump valve seal oil hot reset turbine blade".split())
TEXTS = st.lists(WORDS, min_size=1, max_size=9).map(" ".join)
IDS = st.lists(st.integers(0, 99), min_size=1, max_size=40, unique=True)
WHERE = {"page": {"$lte": 2}}
EMBEDDER = HashEmbedder()
CLOSE = 1e-12

Scores = dict[str, float]


@st.composite
def collections(draw: st.DrawFn) -> tuple[list[Chunk], list[str]]:
    """Chunks, and the ids of those that are deleted."""
    ids = draw(IDS)
    chunks = [Chunk(f"c{at:02}", draw(TEXTS), metadata={"page": draw(st.integers(1, 3))}) for at in ids]
    return chunks, draw(st.lists(st.sampled_from([chunk.id for chunk in chunks]), max_size=5, unique=True))


def keyword_scores(chunks: Sequence[Chunk], text: str) -> Scores:
    """BM25 of every chunk that has a term, as Lucene counts it."""
    documents = {chunk.id: Counter(chunk.text.split()) for chunk in chunks}
    mean = sum(map(Counter.total, documents.values())) / max(1, len(documents))
    formula, found = Lucene(), Scores()
    for term, count in Counter(text.split()).items():
        having = {one: terms[term] for one, terms in documents.items() if terms[term]}
        idf = math.log(1 + (len(documents) - len(having) + 0.5) / (len(having) + 0.5))
        for one, f in having.items():
            norm = 1 - formula.b + formula.b * documents[one].total() / mean
            found[one] = found.get(one, 0.0) + count * idf * f / (f + formula.k1 * norm)
    return found


def cosines(chunks: Sequence[Chunk], text: str) -> Scores:
    """The inner product of every chunk's vector with the query's."""
    asked = EMBEDDER.embed_queries([text])[0].tolist()
    rows = EMBEDDER.embed_documents([chunk.text for chunk in chunks]).tolist() if chunks else []
    return {
        chunk.id: math.fsum(a * b for a, b in zip(row, asked, strict=True))
        for chunk, row in zip(chunks, rows, strict=True)
    }


def listed(scores: Scores, depth: int) -> list[str]:
    """The ids of the best that score above 0."""
    return sorted((one for one in scores if scores[one] > 0), key=lambda one: (-scores[one], one))[:depth]


def adaptive(words: Scores, near: Scores, lists: tuple[list[str], list[str]], known: float) -> Mapping[str, Scores]:
    """What each channel adds to each chunk of either list, by the rules of docs/explanation/fusion.md."""

    def kept(factor: float) -> float:
        return 0.05 + 0.95 * min(max(factor, 0.0), 1.0)

    union = dict.fromkeys(lists[0] + lists[1])
    understood = min(known / 0.8, 1.0)
    parts: dict[str, Scores] = {"words": {}, "near": {}}
    if lists[0]:
        top = [words[one] for one in lists[0][:10]]
        share = kept(1 - top[-1] / top[0] if len(top) == 10 else 1.0) * kept(understood**2)
        parts["words"] = {one: share * words.get(one, 0.0) / top[0] for one in union}
    if lists[1]:
        lowest = min(near[one] for one in union)
        room = max(1.0, *(near[one] for one in union)) - lowest or 1.0
        confirmed = 1.0
        if lists[0]:
            shares = sorted((min(words.get(one, 0.0) / words[lists[0][0]], 1.0) for one in lists[1][:10]), reverse=True)
            known_by = sum(shares[:3]) / len(shares[:3])
            confirmed = 1 - understood**2 * (1 - known_by**2)
        share = 3.0 * kept((near[lists[1][0]] - lowest) / room) * kept(confirmed)
        parts["near"] = {one: share * (0.05 + (near[one] - lowest) / room) for one in union}
    return parts


def by_rank(lists: tuple[list[str], list[str]]) -> Mapping[str, Scores]:
    """What each channel adds by reciprocal rank."""
    return {
        name: {one: 1 / (60 + rank) for rank, one in enumerate(found, 1)}
        for name, found in zip(("words", "near"), lists, strict=True)
    }


def channels(chunks: Sequence[Chunk], gone: Sequence[str]) -> dict[str, Any]:
    """The package's, over several segments of which some chunks have been deleted."""
    half = len(chunks) // 2
    words = BM25.from_chunks(chunks[:half], str.split)
    words.add(chunks[half:])
    near = VectorChannel.from_chunks(chunks[:half], EMBEDDER)
    index: Any = near.index
    index.adding(chunks[half:], EMBEDDER)()
    words.delete(gone)
    index.delete(gone)
    return {"words": words, "near": near}


@pytest.mark.parametrize("exact", [True, False], ids=["default", "rrf"])
@given(collections(), st.lists(st.one_of(WORDS, st.just("xyzzy")), min_size=1, max_size=5), st.integers(1, 45))
@examples(1.0)
def test_a_hybrid_search_is_what_its_rules_say(
    exact: bool, collection: tuple[list[Chunk], list[str]], asked: list[str], depth: int
) -> None:
    chunks, gone = collection
    text = " ".join(asked)
    live = [chunk for chunk in chunks if chunk.id not in gone]
    own = channels(chunks, gone)
    for where in (None, WHERE):
        passing = {chunk.id for chunk in live if where is None or chunk.metadata["page"] <= 2}
        words = {one: score for one, score in keyword_scores(live, text).items() if one in passing}
        near = {one: score for one, score in cosines(live, text).items() if one in passing}
        lists = listed(words, depth), listed(near, depth)
        terms = {term for chunk in live for term in chunk.text.split()}
        known = sum(term in terms for term in asked) / len(asked)
        parts = adaptive(words, near, lists, known) if exact else by_rank(lists)
        expected = {one: sum(part.get(one, 0.0) for part in parts.values()) for one in lists[0] + lists[1]}
        method = None if exact else RRF()
        found = fuse(own, method=method, depth=depth).search(Query(text, where=where), depth)
        assert [hit.score for hit in found] == pytest.approx(
            sorted(expected.values(), reverse=True)[:depth], rel=CLOSE, abs=CLOSE
        )
        for hit in found:
            assert hit.score == pytest.approx(expected[hit.id], rel=CLOSE, abs=CLOSE)
            ranks = {vote.stage: vote.rank for vote in hit.votes if vote.rank is not None}
            told = zip(("words", "near"), lists, strict=True)
            assert ranks == {name: own_list.index(hit.id) + 1 for name, own_list in told if hit.id in own_list}
            for vote in hit.votes:
                assert vote.contribution == pytest.approx(parts[vote.stage][hit.id], rel=CLOSE, abs=CLOSE)
                assert vote.score == pytest.approx(
                    {"words": words, "near": near}[vote.stage].get(hit.id, 0.0), abs=CLOSE
                )

"""After any adds, deletes and merges, an index scores as one built anew, to the bit, in numpy as in numba."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import examples
from voicevault_retrievers._support.compiled import installed
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.lexical import LexicalIndex, merge_policy
from voicevault_retrievers.lexical.formulas import FORMULAS, Formula
from voicevault_retrievers.text.analyzed_texts import Analyzed

QUERIES = (["a"], ["a", "b", "a"], ["b", "c", "z"], [("a", "b"), "d"], ["z"], [])
WHERE = {"page": {"$lt": 2}}
BACKENDS = ("numpy", "numba") if installed() else ("numpy",)

ids = st.integers(0, 40).map(lambda number: f"{number:02}")
# A chunk has one of two forms of a term, as it is in one language: "a" and "b" are never together.
texts = st.tuples(st.sampled_from(["", "a", "b", "a a", "b b b"]), st.lists(st.sampled_from("cdef"), max_size=4)).map(
    lambda parts: " ".join([parts[0], *parts[1]]).strip()
)
chunks = st.lists(
    st.builds(Chunk, ids, texts, metadata=st.fixed_dictionaries({"page": st.integers(1, 3)})),
    max_size=12,
    unique_by=lambda chunk: chunk.id,
)
operations = st.lists(
    st.one_of(st.tuples(st.just("add"), chunks), st.tuples(st.just("delete"), st.lists(ids, max_size=12))), max_size=8
)
formulas = st.sampled_from([kind(*constants) for kind in FORMULAS.values() for constants in ((), (0.9, 0.4), (0.0,))])


def analyse(some: list[str]) -> Analyzed:
    return Analyzed.of(text.split() for text in some)


def built(held: dict[str, Chunk], backend: str) -> LexicalIndex:
    rows = Rows.of(held.values())
    return LexicalIndex.build(rows, analyse([chunk.text for chunk in rows.chunks]), backend=backend)


def answers(index: LexicalIndex, formula: Formula) -> list[object]:
    """All that can be asked of an index; scores as they are."""
    some = ["00", "07", "11", "40"]
    found: list[object] = [len(index), [index.get(chunk_id) for chunk_id in some]]
    for terms in QUERIES:
        for options in ({}, {"where": WHERE}, {"require": WHERE}, {"where": WHERE, "filtered": True}):
            hits = index.search(terms, 5, formula, **options)  # type: ignore[arg-type]  # of one shape each
            found.append([(hit.chunk, hit.score, tuple(hit.frequencies), hit.terms) for hit in hits])
            found.append(index.scores(terms, some, formula, **options))  # type: ignore[arg-type]
            for hit in hits:
                parts = index.explain(terms, hit.chunk.id, formula, **options)  # type: ignore[arg-type]
                assert math.fsum(part.contribution for part in parts) == pytest.approx(hit.score, abs=1e-9)
                found.append(parts)
    many = index.search_many(QUERIES, 5, formula)
    assert [list(hits) for hits in many] == [index.search(terms, 5, formula) for terms in QUERIES]
    return found


@pytest.mark.parametrize("known_texts", [True, False])
@examples(0.6)
@given(steps=operations, formula=formulas, backend=st.sampled_from(BACKENDS), tier=st.sampled_from([2, 8]))
def test_a_history_scores_as_what_it_leaves(
    known_texts: bool, steps: list[tuple[str, list[Chunk] | list[str]]], formula: Formula, backend: str, tier: int
) -> None:
    held: dict[str, Chunk] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_policy, "SEAL_AT", 5)
        patch.setattr(merge_policy, "TIER", tier)
        index = built({}, backend)
        before = (index, answers(index, formula))
        for kind, argument in steps:
            if kind == "add":
                new: list[Chunk] = [chunk for chunk in argument if isinstance(chunk, Chunk) and chunk.id not in held]
                held |= {chunk.id: chunk for chunk in new}
                index = index.added(new, analyse([chunk.text for chunk in new]))
            else:
                gone = {chunk_id for chunk_id in argument if isinstance(chunk_id, str)}
                held = {chunk_id: chunk for chunk_id, chunk in held.items() if chunk_id not in gone}
                index = index.removed(sorted(gone), analyse if known_texts else None)
            assert answers(index, formula) == answers(built(held, "numpy"), formula)
            assert answers(before[0], formula) == before[1]  # a snapshot stays what it was
            before = (index, answers(index, formula))


def test_adding_what_is_there_is_refused() -> None:
    index = built({"00": Chunk("00", "a")}, "numpy")
    with pytest.raises(ValueError, match="'00' is in the index: remove it first"):
        index.added([Chunk("00", "b")], analyse(["b"]))

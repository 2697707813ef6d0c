"""int8 codes in a knowledge base: kept where they pay, equal results, checked as all files are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.dense import int8
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.store import KnowledgeBase

WORDS = np.array(["fox", "dog", "cat", "bird", "tree", "river", "stone", "cloud"])
QUERIES = ("fox tree", "a stone in the river", Query("dog", where={"page": 3}))


def sample(count: int) -> list[Chunk]:
    rng = np.random.default_rng(7)
    return [Chunk(f"{i:05}", " ".join(rng.choice(WORDS, 5)), metadata={"page": i % 50}) for i in range(count)]


def answers(kb: KnowledgeBase) -> list[object]:
    return [kb.dense().search(query, 10) for query in QUERIES]


def test_codes_change_no_result_and_say_what_they_are_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "PAYS_FROM", 1000)
    monkeypatch.setattr(int8, "LIMIT", 1.0)
    bases = {}
    for vectors in ("exact", "int8"):
        kb = KnowledgeBase.create("kb", root=tmp_path / vectors, embedder=HashEmbedder(32), vectors=vectors)
        kb.add(sample(5000))
        kb.delete(["00007"])
        kb.close()
        bases[vectors] = kb
    plain, coded = bases.values()
    assert answers(coded) == answers(KnowledgeBase.open(coded.path, embedder=HashEmbedder(32))) == answers(plain)
    assert coded.parts[0].codes is not None
    assert plain.parts[0].codes is None
    assert (plain.stats().int8, plain.stats().vectors, coded.stats().vectors) == ((), "exact", "int8")
    assert "seg-000001: of 5,000 rows" in coded.stats().int8[0]
    coded.compact()
    assert coded.parts[0].codes is not None
    assert answers(coded) == answers(plain)
    assert coded.verify() == []
    path = coded.path / coded.manifest.segments[0].name / "codes.npy"
    coded.close()
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(IndexDamagedError, match=r"codes\.npy .*can be made again"):
        KnowledgeBase.open(coded.path).verify() and KnowledgeBase.open(coded.path)
    assert answers(KnowledgeBase.repair(coded.path, embedder=HashEmbedder(32))) == answers(plain)


def test_vectors_whose_codes_do_not_pay_stay_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder(32), vectors="int8") as kb:
        kb.add(sample(5000))
        assert (kb.parts[0].codes, kb.stats().int8) == (None, ())  # too few to pay
        monkeypatch.setattr(int8, "PAYS_FROM", 1000)
        monkeypatch.setattr(int8, "LIMIT", 0.0)
        kb.delete(["00001"])
        kb.compact()
        assert kb.parts[0].codes is None
    assert kb.verify() == []

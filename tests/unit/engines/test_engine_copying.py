"""Copies into engines, verified; and why the lists of two bases differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines import copy as copying
from voicevault_retrievers.engines.copy import copy
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.engines.parity import parity
from voicevault_retrievers.engines.questions import engine_questions
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.questions import question_index

WORDS = ("pump", "valve", "turbine", "seal", "pipe")


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    made = KnowledgeBase.create("plant", root=tmp_path, embedder=HashEmbedder())
    chunks = [Chunk(f"c{at:02}", f"the {WORDS[at % 5]} number {at}", f"p{at // 10}", {"n": at}) for at in range(25)]
    made.add(
        chunks,
        parents=[Chunk(f"p{at}", f"parent {at}", "top") for at in range(3)]
        + [Chunk("top", "all"), Chunk("h", "a header")],
    )
    return made


class Flaky(EmbeddedEngine):
    """Its server goes away once `left` writes were made, and comes back for those after."""

    left = 1_000

    def _write(self, records: Any, parents: Any) -> Steps[None]:
        type(self).left -= 1
        if type(self).left == 0:
            raise SearchNotAvailableError("away")
        yield from super()._write(records, parents)


@pytest.fixture
def target(tmp_path: Path, kb: KnowledgeBase) -> Flaky:
    Flaky.left = 1_000
    return Flaky("copy", root=tmp_path, embedder=HashEmbedder(), analyzer=kb.analyzer)


def test_a_copy_holds_all_and_is_verified(kb: KnowledgeBase, target: Flaky) -> None:
    told: list[tuple[int, int]] = []
    done = copy(kb, target, batch=10, progress=lambda *at: told.append(at))
    assert (done.written, done.unchanged, done.parents, done.extra, done.verified) == (25, 0, 5, 0, True)
    assert told == [(10, 25), (20, 25), (25, 25)]
    assert {one: (c.text, c.parent_id, c.metadata) for one, c in target.get(kb.ids()).items()} == {
        c.id: (c.text, c.parent_id, c.metadata) for c in kb
    }
    assert target.parents(["p0", "top", "h"]).keys() == {"p0", "top", "h"}
    rows = target.vectors(["c03"])["c03"]
    assert np.array_equal(rows, kb.view().index.vectors(["c03"])["c03"])
    again = copy(kb, target)
    assert (again.written, again.unchanged, again.verified) == (0, 25, True)
    back = EmbeddedEngine("back", root=kb.path.parent, embedder=HashEmbedder(), analyzer=kb.analyzer)
    assert copy(target, back).verified
    assert back.get(["c07"])["c07"].text == "the turbine number 7"


def test_what_was_broken_off_goes_on(kb: KnowledgeBase, target: Flaky) -> None:
    Flaky.left = 2
    with pytest.raises(SearchNotAvailableError):
        copy(kb, target, batch=10, patience=0)
    assert len(target) == 10
    done = copy(kb, target, batch=10)
    assert (done.written, done.unchanged, done.verified) == (15, 10, True)


def test_a_server_that_is_away_is_waited_for(kb: KnowledgeBase, target: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(copying.time, "sleep", waits.append)
    Flaky.left = 2
    assert copy(kb, target, batch=10).verified
    assert waits == [0.2]


def test_what_the_source_lacks_is_told_and_pruned(kb: KnowledgeBase, target: Flaky) -> None:
    target.upsert([Chunk("x", "more")])
    done = copy(kb, target)
    assert (done.extra, done.verified, done.target.chunks) == (1, False, 26)
    done = copy(kb, target, prune=True)
    assert (done.extra, done.pruned, done.verified) == (1, True, True)
    assert target.get(["x"]) == {}


def test_another_embedder_embeds_anew(kb: KnowledgeBase, tmp_path: Path) -> None:
    other = HashEmbedder(dimension=8)
    target = EmbeddedEngine("other", root=tmp_path, embedder=other, analyzer=kb.analyzer)
    assert copy(kb, target).verified
    assert np.allclose(target.vectors(["c03"])["c03"], other.embed_documents(["the seal number 3"])[0])


def test_a_copy_is_searched_as_its_source(kb: KnowledgeBase, target: Flaky) -> None:
    copy(kb, target)
    found = parity(kb, target, ["pump", "seal number 3", "nothing of the sort"], k=5)
    assert [(one.channel, one.queries, one.overlap, one.same, one.score_error) for one in found] == [
        ("bm25", 3, 1.0, 3, 0.0),
        ("dense", 3, 1.0, 3, 0.0),
    ]
    with pytest.raises(ConfigError, match="no queries"):
        parity(kb, target, [])


def test_causes_are_named(kb: KnowledgeBase, target: Flaky) -> None:
    copy(kb, target)
    target.delete(["c00"])
    target.upsert([Chunk("c05", "the pump number 5", metadata={"n": -1})])
    target.upsert([Chunk("c10", "a pump, and very many other words that make it long and its score low indeed")])
    (found,) = parity(kb, target, ["pump"], k=3, channels=["bm25"])
    assert set(found.causes) <= {"absent", "text", "scores", "tie"}
    assert found.causes["absent"] == 1
    assert found.causes["text"] == 1


class Blind(EmbeddedEngine):
    """Its search for neighbours misses the nearest."""

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        found = yield from super()._nearest(vector, k + 1, where, require)
        return found[1:]


def test_approximate_search_is_told_from_other_scores(kb: KnowledgeBase) -> None:
    blind = Blind("copy", root=kb.path.parent, embedder=HashEmbedder(), analyzer=kb.analyzer)
    copy(kb, blind)
    (found,) = parity(kb, blind, ["the pump number 5"], k=3, channels=["dense"])
    assert found.causes == {"approximate": 1, "instead": 1}
    assert found.overlap == pytest.approx(2 / 3)


def test_questions_are_copied_too(kb: KnowledgeBase, target: Flaky) -> None:
    assert copy(kb, target).questions is None
    question_index(kb).update({"c03": ["where does it leak?"], "c04": ["who laid it?"], "c05": []})
    done = copy(kb, target)
    assert done.verified
    assert done.questions is not None
    assert (done.questions.written, done.questions.verified) == (2, True)
    (hit, *_) = target.questions(by="bm25").search("leak")
    assert (hit.id, hit.votes[0].via) == ("c03", ("where does it leak?",))
    assert engine_questions(target).update({"c05": []}).unchanged == len(kb)
    back = EmbeddedEngine("back", root=kb.path.parent, embedder=HashEmbedder(), analyzer=kb.analyzer)
    done = copy(target, back)
    assert done.verified
    assert done.questions is not None
    assert done.questions.written == 2
    bare = KnowledgeBase.create("bare", root=kb.path.parent, embedder=HashEmbedder())
    bare.add(list(kb))
    assert copy(bare, back, prune=True).questions is None
    assert len(back.asked) == 0


def test_questions_of_an_engine(kb: KnowledgeBase, target: Flaky) -> None:
    copy(kb, target)
    asked = {"c03": ["where does it leak?"], "c04": ["who laid it?"]}
    done = engine_questions(target).update(asked)
    assert (done.asked, done.questions) == (2, 2)
    (hit, *_) = target.questions(by="bm25").search("leak")
    assert (hit.id, hit.votes[0].via) == ("c03", ("where does it leak?",))
    target.upsert([Chunk("c03", "another text now")])
    assert target.questions(by="bm25").search("leak").ids == ()


def test_a_collection_for_keywords_has_questions_by_words(tmp_path: Path) -> None:
    bare = EmbeddedEngine("bare", root=tmp_path)
    bare.upsert([Chunk("a", "a seal")])
    engine_questions(bare).update({"a": ["what leaks?"]})
    found = bare.questions().search("leaks")
    assert (found.ids, found.errors) == (("a",), ())


def test_what_differs_on_either_side_has_a_cause(kb: KnowledgeBase, target: Flaky) -> None:
    copy(kb, target)
    target.delete([f"c{at:02}" for at in range(0, 25, 5)])
    (one,), (other,) = (parity(*pair, ["pump"], k=3, channels=["bm25"]) for pair in ((kb, target), (target, kb)))
    assert one.causes == other.causes
    assert one.causes["absent"] > 0


def test_pages_have_a_size_and_filters_are_checked_first(target: Flaky) -> None:
    with pytest.raises(ConfigError, match="size"):
        list(target.stored(0))
    with pytest.raises(ConfigError, match="a filter is a mapping"):
        target.delete(where="x")  # type: ignore[arg-type]  # what is tested

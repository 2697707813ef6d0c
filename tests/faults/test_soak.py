"""Readers beside a writer see each commit whole; `make soak` does the same for minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.soak import GROUP, NAME, READERS, soak, state, state_of
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase


@pytest.mark.program
def test_eight_readers_see_every_commit_whole() -> None:
    done = soak(commits=40)
    assert done.commits == 40
    assert done.segments > 5
    assert done.reads >= done.checks >= 2 * READERS  # each checks at its first read and at its last


@pytest.mark.parametrize(
    "harm",
    [
        lambda base: base.delete([base.ids()[0]]),
        lambda base: base.add(state(43).chunks[-1:]),
        lambda base: base.add(state(43).chunks[:-GROUP]),
        lambda base: base.add((), parents=[Chunk("parent", "generation 21")]),
    ],
)
def test_half_a_commit_is_told_from_a_whole_one(tmp_path: Path, harm: Callable[[KnowledgeBase], object]) -> None:
    with KnowledgeBase.create(NAME, root=tmp_path, embedder=HashEmbedder()) as base:
        base.add(state(41).chunks, parents=state(41).parents)
        assert state_of(base) == 41
        harm(base)
        with pytest.raises(ValueError, match="torn"):
            state_of(base)

"""Parents from files to a context: `update`, the command, and what a builder does where one does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.parts import ran
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.store import KnowledgeBase, update
from voicevault_retrievers.store.indexing import outdated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "documents"
    made.mkdir()
    (made / "a.txt").write_text(" ".join(f"Pump {n} is hot." for n in range(1000)))
    return made


@pytest.mark.program
def test_files_are_read_with_parents_and_read_again_without(tmp_path: Path, folder: Path) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path)
    assert update(kb, folder, parents=8000).read == 1
    parent_ids = {str(chunk.parent_id) for chunk in kb}
    assert kb.parents(parent_ids).keys() == parent_ids
    assert update(kb, folder, parents=8000).unchanged == 1
    assert not outdated(kb, folder, parents=8000)
    assert outdated(kb, folder)
    assert outdated(kb, folder, parents=8000, children=1000)
    assert update(kb, folder).read == 1
    assert {chunk.parent_id for chunk in kb} == {None}
    assert kb.parents(parent_ids) == {}


@pytest.mark.weights
def test_the_command_has_both_lengths(tmp_path: Path, folder: Path) -> None:
    command = ["index", folder, "--kb", "k", "--root", tmp_path, "--children", 500]
    assert "--children are of --parents" in ran(*command, code=2).output
    ran(*command, "--parents", 2000)
    kb = KnowledgeBase.open("k", root=tmp_path)
    assert {chunk.metadata["chunk_type"] for chunk in kb} == {"child"}
    assert all(len(chunk.text) <= 500 for chunk in kb)
    assert all(len(parent.text) <= 2000 for parent in kb.parents(str(chunk.parent_id) for chunk in kb).values())


def test_a_builder_gives_the_chunks_own_text_where_its_context_does_not_fit() -> None:
    hits = [Hit(Chunk("a", "Own a. More.", metadata={"source_file": "a"}), context="x" * 99), Hit(Chunk("b", "own b"))]
    roomy, tight = ContextBuilder(max_chars=60).build(hits), ContextBuilder(max_chars=20).build(hits)
    assert [citation.text for citation in roomy.citations] == ["Own a. More.", "own b"]
    assert roomy.over_budget == ()
    assert [citation.text for citation in tight.citations] == ["Own a."]
    assert tight.over_budget == ("a", "b")

"""Stages, rewriters and presets go to other processes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from voicevault_retrievers import BM25, Chunk, load_preset
from voicevault_retrievers.pipeline.presets import Preset, preset_names
from voicevault_retrievers.query import RuleRouter
from voicevault_retrievers.rerank import RecencyRerank
from voicevault_retrievers.structure import ParentExpansion

PARTS: dict[str, Any] = {
    "recency": RecencyRerank(),
    "rules": RuleRouter(),
    "parents": ParentExpansion({"p": Chunk("p", "a parent")}),
    "graph": Preset.of({"version": 1, "channels": {"bm25": {}}, "stages": [{"graph_expansion": {"hops": 2}}]}),
    **{name: load_preset(name) for name in preset_names()},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_comes_back_from_a_pickle(name: str) -> None:
    assert repr(pickle.loads(pickle.dumps(PARTS[name]))) == repr(PARTS[name])


def test_a_stage_works_as_before() -> None:
    chunks = [Chunk("c", "pump", parent_id="p", metadata={"date": "2024-01-01"})]
    channel = BM25.from_chunks(chunks) >> PARTS["parents"] >> PARTS["recency"]
    again = pickle.loads(pickle.dumps(channel))
    assert [hit.text for hit in again.search("pump")] == ["a parent"]

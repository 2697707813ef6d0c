"""What a retriever does is written as a preset, of which one that finds the same is read, in both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")
pytest.importorskip("yaml")

from tests.frameworks import langchain_parts, llama_index_parts
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import AccessError, ConfigError
from voicevault_retrievers.fusion import RRF, Convex
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.presets import load_preset, save_preset
from voicevault_retrievers.query import AcronymExpansion, RuleExpansion, RuleRouter
from voicevault_retrievers.rerank import NearDuplicates, RecencyRerank
from voicevault_retrievers.store import KnowledgeBase

QUESTIONS = ("pump", "seal of hot water", "Section 420 IPC", "compare the pump and the hose")


class Face(NamedTuple):
    """How one framework makes and asks a retriever; `stages` are behind it, `cap` is its page cap."""

    hybrid: Any
    documents: Callable[..., Any]
    embedding: str
    stages: str
    cap: Any


FACES = {
    "langchain": Face(
        langchain.HybridRetriever, langchain_parts.hybrid, "embeddings", "stages", langchain.PageDiversityFilter
    ),
    "llama_index": Face(
        llama_index.HybridRetriever,
        llama_index_parts.hybrid,
        "embed_model",
        "node_postprocessors",
        llama_index.PageDiversityPostprocessor,
    ),
}
OPTIONS: dict[str, Callable[[Face], dict[str, Any]]] = {
    "nothing": lambda face: {},
    "a fusion": lambda face: {"fusion": Fusion(Convex(0.3), weights={"bm25": 2.0}, depth={"dense": 3})},
    "a name": lambda face: {"fusion": "borda", "k": 2},
    "expansions": lambda face: {"expansion": [RuleExpansion(4), AcronymExpansion()]},
    "a route": lambda face: {"expansion": Expand(True, route={"simple": ["bm25"]})},
    "a router": lambda face: {"expansion": Expand(route=RuleRouter()), "timeout": 9.0},
    "a page cap": lambda face: {"rerank": Rerank(max_chunks_per_page=1)},
    "stages": lambda face: {
        face.stages: [
            NearDuplicates(0.9),
            RecencyRerank(0.2, reference_date="2026-01-31"),
            face.cap(max_chunks_per_page=1),
        ]
    },
    "a preset": lambda face: {"preset": "voicevault", "rerank": False, "fusion": RRF(9), "expansion": False},
}
both = pytest.mark.parametrize("face", FACES.values(), ids=FACES)


def found(retriever: Any, question: str) -> list[tuple[str, float | None, tuple[str, ...]]]:
    result = retriever.search(question)
    return [(hit.id, hit.score, tuple(map(repr, hit.votes))) for hit in result.hits]


@both
@pytest.mark.parametrize("case", OPTIONS)
def test_a_retriever_of_its_written_preset_finds_the_same(face: Face, case: str, tmp_path: Path) -> None:
    retriever = face.documents(**OPTIONS[case](face))
    save_preset(retriever.to_preset(), tmp_path / "own.yaml")
    again = face.hybrid(channels=retriever.channels, preset=tmp_path / "own.yaml")
    for question in QUESTIONS:
        assert found(again, question) == found(retriever, question)
    assert repr(again.to_preset()) == repr(load_preset(tmp_path / "own.yaml"))


@both
def test_what_is_over_a_base_is_written_with_its_channels(face: Face, tmp_path: Path) -> None:
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as base:
        base.add([Chunk("a", "the pump"), Chunk("b", "a seal of the pump")])
    options = {face.embedding: HashEmbedder(), "fusion": RRF(3), "k": 1}
    retriever = face.hybrid(kb_names=[tmp_path / "kb"], **options)
    save_preset(retriever.to_preset(), tmp_path / "own.yaml")
    again = face.hybrid(kb_names=[tmp_path / "kb"], preset=tmp_path / "own.yaml", **{face.embedding: HashEmbedder()})
    assert found(again, "pump") == found(retriever, "pump")
    assert len(found(again, "pump")) == 1


@both
def test_what_has_access_rights_is_written_as_asking_for_them(face: Face, tmp_path: Path) -> None:
    with KnowledgeBase.create("kb", root=tmp_path) as base:
        base.add([Chunk("a", "pump", None, {"public": True}), Chunk("b", "pump", None, {"public": False})])
    rights = {"public": True}
    retriever = face.hybrid(kb_names=[tmp_path / "kb"], require=rights)
    save_preset(retriever.to_preset(), tmp_path / "own.yaml")
    again = face.hybrid(kb_names=[tmp_path / "kb"], preset=tmp_path / "own.yaml")
    with pytest.raises(AccessError):
        again.search("pump")
    allowed = face.hybrid(kb_names=[tmp_path / "kb"], preset=tmp_path / "own.yaml", require=rights)
    assert [one[0] for one in found(allowed, "pump")] == [one[0] for one in found(retriever, "pump")] == ["a"]


@both
def test_a_formula_is_written(face: Face, tmp_path: Path) -> None:
    retriever = face.documents(formula="okapi")
    assert retriever.to_preset().channels["bm25"]
    save_preset(retriever.to_preset(), tmp_path / "own.yaml")
    assert "formula: okapi" in (tmp_path / "own.yaml").read_text()


@both
def test_a_channel_of_ones_own_is_named(face: Face, tmp_path: Path) -> None:
    other = face.documents()
    retriever = face.hybrid(channels={"web": other})
    with pytest.raises(ConfigError, match="'web' is none of these"):
        save_preset(retriever.to_preset(), tmp_path / "own.yaml")

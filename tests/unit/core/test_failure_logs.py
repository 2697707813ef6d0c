"""What a search logs: a warning for each cause that it went on without something, and nothing where all went well."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from integrations.own_engine.memory_engine import MemoryEngine
from tests.helpers import FailingChannel, HashEmbedder, Says
from tests.unit.cli.parts import ran
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.stages import skippable
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Result
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Expand, Fusion
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import HyDE, ModelExpansion, ModelRouter, Together
from voicevault_retrievers.rerank import CrossEncoderRerank, LLMRerank
from voicevault_retrievers.rerank.scorers import CallableScorer
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.structure import ParentExpansion

QUESTION = "Analyse how the pump and the valve are cleaned"
QUOTED = "what a document says"
Way = Callable[..., Awaitable[Result]]


class LostError(Exception):
    """Of somebody else."""


class Down(Says):
    """A language model that cannot be asked."""

    def __init__(self) -> None:
        super().__init__("")

    def complete(self, prompt: str) -> Any:
        super().complete(prompt)
        raise LostError(QUOTED)


def lost(query: str, passages: Sequence[str]) -> list[float]:
    raise LostError(QUOTED)


@pytest.fixture
def base(tmp_path: Path) -> KnowledgeBase:
    """Forty chunks, each with its parent: several batches of a cross-encoder."""
    with KnowledgeBase.create("plant", root=tmp_path, embedder=HashEmbedder()) as kb:
        texts = {f"c{at:02d}": f"the pump and the valve {at} are cleaned" for at in range(40)}
        parents = [Chunk(f"p-{name}", text * 50) for name, text in texts.items()]
        kb.add([Chunk(name, text, f"p-{name}") for name, text in texts.items()], parents=parents)
    return KnowledgeBase.open("plant", root=tmp_path, embedder=HashEmbedder())


async def by_core(base: KnowledgeBase, is_async: bool, **options: Any) -> Result:
    bases = Bases([base])
    pipeline = compose({"bm25": bases.bm25(), "dense": bases.dense()}, fusion=RRF(), **options)
    return await pipeline.asearch(QUESTION) if is_async else pipeline.search(QUESTION)


async def by_langchain(base: KnowledgeBase, is_async: bool, **options: Any) -> Result:
    return await searched(retriever("langchain", base, **options), is_async)


async def by_llama_index(base: KnowledgeBase, is_async: bool, **options: Any) -> Result:
    return await searched(retriever("llama_index", base, **options), is_async)


def retriever(framework: str, base: KnowledgeBase, **options: Any) -> Any:
    pytest.importorskip({"langchain": "langchain_core", "llama_index": "llama_index.core"}[framework])
    module = import_module(f"voicevault_retrievers.{framework}")
    return module.HybridRetriever(kb_names=[base], **({"fusion": RRF()} | options))


async def searched(retriever: Any, is_async: bool) -> Result:
    result: Result = await retriever.asearch(QUESTION) if is_async else retriever.search(QUESTION)
    return result


async def retrieved(retriever: Any, is_async: bool) -> Sequence[Any]:
    """The documents or nodes."""
    call = "invoke" if hasattr(retriever, "invoke") else "retrieve"
    if is_async:
        return list(await getattr(retriever, f"a{call}")(QUESTION))
    return list(getattr(retriever, call)(QUESTION))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


CAUSES: dict[str, tuple[Callable[[], dict[str, Any]], str, str]] = {
    "cross-encoder": (
        lambda: {"rerank": CrossEncoderRerank(CallableScorer(lost, name="lost"), top_k=5, certainty=0.9)},
        "rerank: LostError",
        "the fused order is kept",
    ),
    "language model as reranker": (
        lambda: {"rerank": LLMRerank(Down(), window=10)},
        "llm_rerank: LostError",
        "the fused order is kept",
    ),
    "language model without an answer": (
        lambda: {"rerank": LLMRerank(Says("I cannot tell."))},
        "llm_rerank: RerankerError: the language model's answer has no JSON list",
        "the fused order is kept",
    ),
    "expansion": (
        lambda: {"expansion": ModelExpansion(Down(), 5)},
        "expansion: LostError",
        "the query is searched as it was",
    ),
    "routing": (
        lambda: {"expansion": Expand(route=ModelRouter(Down()))},
        "route: LostError",
        "the query is asked on route standard",
    ),
    "FLARE": (
        lambda: {"expansion": Expand(route=True, flare=Flare(Down().complete))},
        "flare: LostError",
        "the hits and the answer stay as they were",
    ),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", [by_core, by_langchain, by_llama_index])
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_model_that_fails_is_logged_once_with_what_was_done_instead(
    base: KnowledgeBase, cause: str, way: Way, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, told, instead = CAUSES[cause]
    result = await way(base, is_async, **make())
    assert len(result.hits) == 5
    (error,) = [str(one) for one in result.errors]
    assert error.startswith(told)
    assert result.degraded
    assert warnings(caplog) == [f"a search goes on without {error}; {instead}"]
    assert QUOTED not in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", [by_core, by_langchain, by_llama_index])
async def test_two_causes_are_two_warnings(
    base: KnowledgeBase, way: Way, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"expansion": Together([HyDE(Down()), ModelExpansion(Down(), 4)]), "rerank": LLMRerank(Down())}
    result = await way(base, is_async, **options)
    logged = [record.getMessage().partition(";")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert logged == [f"a search goes on without {error}" for error in result.errors]
    assert sorted(one.stage for one in result.errors) == ["expansion", "hyde", "llm_rerank"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_what_a_retriever_goes_on_without_is_logged_once(
    base: KnowledgeBase, framework: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(await retrieved(retriever(framework, base, rerank=LLMRerank(Down())), is_async)) == 5
    assert warnings(caplog) == ["a search goes on without llm_rerank: LostError; the fused order is kept"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", ["core", "langchain", "llama_index"])
async def test_a_search_in_which_all_went_well_logs_no_warning(
    base: KnowledgeBase, way: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the preset casefile: the texts of ten hits are more than fit."""
    caplog.set_level(logging.INFO, "voicevault_retrievers")
    stages = (LLMRerank(Says("[3, 1, 2]"), top_n=3), ParentExpansion(base, max_chars=200))
    preset = replace(Preset.of({"version": 1, "k": 10, "fusion": {"method": "rrf"}}), stages=stages)
    if way == "core":
        result = await searched(preset.over(base), is_async)
    else:
        made = retriever(way, base, preset=preset, fusion=None)
        assert len(await retrieved(made, is_async)) == 10
        result = await searched(made, is_async)
    assert [(one.kind, one.degrades) for one in result.errors] == [("over budget", False)]
    assert warnings(caplog) == []
    assert "a search notes: parents: over budget: " in caplog.text


@pytest.mark.parametrize("kb", ["bare", "empty", "none"])
def test_a_note_of_a_result_is_no_warning(
    base: KnowledgeBase, kb: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A base without parents, an empty one and one that is not there: the result says so, and nothing failed."""
    caplog.set_level(logging.INFO, "voicevault_retrievers")
    if kb != "none":
        KnowledgeBase.create(kb, root=tmp_path).add([Chunk("a", "the pump")] if kb == "bare" else [])
    preset = Preset.of({"version": 1, "channels": {"bm25": {}}, "stages": ["parents"]})
    result = preset.over(Bases([kb], root=tmp_path)).search(QUESTION)
    (note,) = result.errors
    assert not result.degraded
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [("INFO", f"a search notes: {note}")]


async def test_one_failing_embedder_is_one_warning_whatever_asks_it(
    base: KnowledgeBase, caplog: pytest.LogCaptureFixture
) -> None:
    """A search with four wordings, and three searches of FLARE's."""
    doubtful = "The [[pump]] is dry. The [[valve]] is shut. The [[seal]] leaks."
    channels = {"bm25": Bases([base]).bm25(), "far": FailingChannel(LostError(QUOTED))}
    pipeline = compose(
        channels, fusion=RRF(), expansion=Expand(ModelExpansion(Says("a pump\na valve\na seal"), 4), route=True)
    )
    pipeline = pipeline.flaring(Flare(Says(doubtful).complete, signal="marks"))
    for is_async in (False, True):
        result = await searched(pipeline, is_async)
        assert result.flare_retrievals > 0
        assert {one.stage for one in result.errors} == {"far", "flare/far"}
        (said,) = [record.getMessage() for record in caplog.records]
        assert said == "a search goes on without far: LostError; the other channels are searched"
        caplog.clear()


class Masking(Stage):
    name = "masking"

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        raise LostError(QUOTED)


async def test_a_part_of_somebody_elses_that_may_be_skipped_is_logged_by_its_errors_class(
    base: KnowledgeBase, caplog: pytest.LogCaptureFixture
) -> None:
    fused = fuse({"bm25": base.bm25(), "dense": base.dense()}, method=RRF())
    assert Pipeline(fused >> skippable(Masking())).search(QUESTION).degraded
    assert [record.getMessage() for record in caplog.records] == [
        "a search goes on without masking: LostError; the fused order is kept"
    ]


async def test_what_a_claim_search_goes_on_without_is_logged(
    base: KnowledgeBase, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(fuse({"bm25": base.bm25(), "far": FailingChannel(LostError(QUOTED))}))
    for found in (pipeline.hybrid_search(QUESTION), await pipeline.ahybrid_search(QUESTION)):
        assert [str(one) for one in found.errors] == ["far: LostError"]
    assert [record.getMessage() for record in caplog.records] == [
        "a search goes on without far: LostError; the other channels are searched"
    ] * 2


def test_an_error_that_is_raised_is_not_logged_too(base: KnowledgeBase, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = compose({"bm25": base.bm25()}, rerank=LLMRerank(Down()), fusion=Fusion(on_error="raise"))
    with pytest.raises(LostError):
        pipeline.search(QUESTION)
    assert not caplog.records


def test_the_command_logs_a_model_that_fails_and_no_search_that_went_well(
    base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(KnowledgeBase, "embedder", property(lambda _: HashEmbedder()))
    (tmp_path / "model.yaml").write_text(
        "version: 1\nfusion: {method: rrf}\nstages: [llm_rerank: {ollama: none, base_url: 'http://127.0.0.1:9'}]\n"
    )
    (tmp_path / "words.yaml").write_text("version: 1\nchannels: {bm25: {}}\nstages: [parents: {max_chars: 900}]\n")
    for preset, count in (("words", 0), ("model", 1)):
        caplog.clear()
        shown = ran("search", "pump", "--kb", "plant", "--preset", tmp_path / f"{preset}.yaml", "--root", tmp_path)
        logged = [record.getMessage() for record in caplog.records]
        assert len(logged) == count, logged
        assert ("degraded llm_rerank: SearchNotAvailableError" in shown.stdout) == bool(count)
        assert all(one.endswith("; the fused order is kept") for one in logged)


def test_what_probably_loses_documents_is_a_warning_though_the_search_is_not_degraded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other = (BM25.from_chunks([Chunk("1", text)]) for text in ("the pump", "a pump"))
    nowhere = MemoryEngine("nosuch", shelves={}).bm25()
    for channel, kind in ((fuse(one=one, other=other), "DifferentTexts"), (nowhere, "NoCollection")):
        caplog.clear()
        result = Pipeline(channel).search("pump")
        assert not result.degraded
        (said,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert kind in said.getMessage()

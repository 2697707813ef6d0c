"""Errors of set-up are raised wherever a part is asked; outages are marked and skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import FailingChannel, HashEmbedder, ListChannel, Says
from tests.model_server import answers, model_server, writes
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.dense import OnnxEmbedder, VectorChannel
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    IncompatibleIndexError,
    MissingExtraError,
    ModelNotAvailableError,
    NotIndexedError,
    RerankerError,
    RerankerNotAvailableError,
    RetrievalError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
    StorageError,
    is_setup_error,
)
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.models.weights import PROFILES
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import HyDE
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.scorers import CallableScorer, SentenceTransformerScorer
from voicevault_retrievers.store.merged_bases import MergedBases

GOOD = ListChannel([("a", 2.0), ("b", 1.0)])


class AnsweredError(Exception):
    """As the clients of HTTP APIs raise it: with the status, or with the response that has it."""

    def __init__(self, status: int, *, response: bool = False) -> None:
        super().__init__(f"status {status}")
        if response:
            self.response = type("Response", (), {"status_code": status})()
        else:
            self.status_code = status


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


SETUP = [
    ConfigError("an option"),
    IncompatibleIndexError("another embedder"),
    MissingExtraError("an extra"),
    ModelNotAvailableError("no model"),
    RerankerNotAvailableError("no model"),
    ModuleNotFoundError("a package"),
    AssertionError(),
    AnsweredError(404),
    AnsweredError(404, response=True),
    caused_by(RerankerError("failed"), MissingExtraError("an extra")),
    ValueError("shapes (1,8) and (4,) not aligned: 8 (dim 1) != 4 (dim 0)"),
    ValueError("Number of columns in X and Y must be the same. X has shape (1, 4) and Y has shape (2, 8)."),
    Exception("Collection expecting embedding with dimension of 8, got 4"),
    Exception("different vector dimensions 8 and 4"),
    Exception("Wrong input: Vector dimension error: expected dim: 8, got 4"),
    Exception("query vector blob size (16) does not match index's expected size (32)."),
]
OUTAGES = [
    SearchError("failed"),
    SearchNotAvailableError("down"),
    SearchTimeoutError("late"),
    FilterNotSupportedError("no filters"),
    RerankerError("failed"),
    RetrievalError("failed"),
    NotIndexedError("an index for keywords only"),
    StorageError("a disk"),
    TimeoutError("late"),
    ConnectionError("refused"),
    OSError("a socket of dimension 4 does not match 8"),
    RuntimeError("boom"),
    RuntimeError("cannot read the 3 dimensions of chapter 4"),
    MemoryError("out of memory"),
    AnsweredError(429),
    AnsweredError(500),
    AnsweredError(503, response=True),
    caused_by(SearchNotAvailableError("down"), AnsweredError(404)),
    caused_by(RerankerNotAvailableError("no model"), SearchNotAvailableError("the hub is down")),
]


class FailingStage(Stage):
    """Stands for one of this package's, which are skipped where they fail."""

    name = "stage"
    own = True

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        raise self.error


class FailingRewriter(Rewriter):
    """As `FailingStage`."""

    name = "rewriter"
    own = True

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def rewrite(self, query: Query) -> Query:
        raise self.error


def scorer_of(error: Exception) -> CallableScorer:
    def score(query: str, passages: Any) -> list[float]:
        raise error

    return CallableScorer(score, name="failing")


PLACES: dict[str, Callable[[Exception], Channel]] = {
    "a channel": lambda error: fuse(good=GOOD, bad=FailingChannel(error)),
    "a channel of a fusion in a fusion": lambda error: fuse(
        good=GOOD, inner=fuse(good=ListChannel([("c", 1.0)]), bad=FailingChannel(error))
    ),
    "a group of bases": lambda error: MergedBases({"good": GOOD, "bad": FailingChannel(error)}, "dense", "semantic"),
    "a stage": lambda error: GOOD >> FailingStage(error),
    "a rewriter": lambda error: FailingRewriter(error) >> GOOD,
    "a cross-encoder": lambda error: GOOD >> CrossEncoderRerank(scorer_of(error)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", SETUP, ids=repr)
async def test_an_error_of_set_up_is_raised(place: str, error: Exception) -> None:
    assert is_setup_error(error)
    pipeline = Pipeline(PLACES[place](error), on_error="skip")
    with pytest.raises(type(error)) as raised:
        pipeline.search("q")
    assert raised.value is error
    with pytest.raises(type(error)) as raised:
        await pipeline.asearch("q")
    assert raised.value is error


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", OUTAGES, ids=repr)
async def test_an_outage_is_marked_and_skipped(place: str, error: Exception) -> None:
    assert not is_setup_error(error)
    pipeline = Pipeline(PLACES[place](error), on_error="skip")
    for result in (pipeline.search("q"), await pipeline.asearch("q")):
        assert {hit.id for hit in result.hits} >= {"a", "b"}
        assert result.degraded
        assert type(error).__name__ in result.skipped[0]


def test_a_language_model_that_its_server_does_not_know_is_raised() -> None:
    refusal = b'{"error": "model not found"}'
    with model_server(answers(refusal, 404)) as server:
        for model in (server.ollama(), server.openai()):
            with pytest.raises(ModelNotAvailableError, match=r"status 404, .*model not found"):
                (HyDE(model) >> GOOD).search("q")
            with pytest.raises(ModelNotAvailableError, match="status 404"):
                asyncio.run((HyDE(model) >> GOOD).asearch("q"))
    with model_server(answers(b"down", 503)) as server:
        found = (HyDE(server.ollama()) >> GOOD).search("q")
        assert [(failure.kind, failure.degrades) for failure in found.errors] == [("RetrievalError", True)]
    with model_server(writes("a pump")) as server:
        assert (HyDE(server.ollama()) >> GOOD).search("q").errors == ()


def test_an_embedder_whose_model_does_not_exist_is_raised(tmp_path: Path) -> None:
    index = VectorChannel.from_chunks([Chunk("a", "pump")], HashEmbedder()).index
    missing, broken = OnnxEmbedder("no-such-model"), tmp_path / "model"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"not a graph")
    (broken / "tokenizer.json").write_text("{}")
    for embedder, error in ((missing, ConfigError), (OnnxEmbedder(str(broken)), ModelNotAvailableError)):
        with pytest.raises(error):
            fuse(good=GOOD, dense=VectorChannel(index, embedder)).search("pump")


def test_a_model_that_exists_and_cannot_be_fetched_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: Any, **__: Any) -> str:
        raise OSError("no route to the hub")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    found = (GOOD >> CrossEncoderRerank(SentenceTransformerScorer(PROFILES["multilingual"]))).search("q")
    assert [(failure.kind, failure.degrades) for failure in found.errors] == [("RerankerNotAvailableError", True)]
    with pytest.raises(RerankerNotAvailableError):
        (GOOD >> CrossEncoderRerank(SentenceTransformerScorer("my/own"))).search("q")


def test_a_missing_extra_is_raised() -> None:
    class Needy(FailingStage):
        def refine(self, query: Query, ranking: Ranking) -> Ranking:
            require("no_such_module", extra="some")
            return ranking

    with pytest.raises(MissingExtraError, match=r"\[some\]"):
        (GOOD >> Needy(RuntimeError())).search("q")


def test_queries_that_are_wrong_do_not_stop_a_batch() -> None:
    pipeline = Pipeline(fuse(good=GOOD))
    wrong, right = pipeline.run([Query("q", weights={"good": 0.0}), "q"])
    assert [failure.kind for failure in wrong.errors] == ["ConfigError"]
    assert right.hits


def test_a_model_that_says_nothing_is_an_outage() -> None:
    found = (HyDE(Says("  ")) >> GOOD).search("q")
    assert found.errors

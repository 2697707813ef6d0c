"""Models with the same files and options share one loaded graph."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from voicevault_retrievers.errors import ModelNotAvailableError
from voicevault_retrievers.models.graph_model import KEPT, GraphModel, GraphSession
from voicevault_retrievers.models.weights import Backend, Weights, find, installed

LOADED: list[Path] = []


class Counted(GraphModel):
    backend = "onnx"
    extra = "onnx"

    def _session(self, weights: Weights, tokenizer: Any) -> GraphSession:
        LOADED.append(weights.folder)
        if weights.model.read_bytes() == b"damaged":
            raise ValueError("no graph")
        return GraphSession(frozenset({"input_ids"}), lambda feed: feed["input_ids"], 1, "f32", "it is counted")


class Other(Counted):
    def _session(self, weights: Weights, tokenizer: Any) -> GraphSession:
        return super()._session(weights, tokenizer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LOADED.clear()
    return made(tmp_path / "model")


def made(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"graph")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0})).save(str(folder / "tokenizer.json"))
    return folder


def model(folder: Path, max_tokens: int = 8, batch_size: int = 1, kind: type[Counted] = Counted) -> Counted:
    return kind(str(folder), max_tokens, batch_size)


def test_models_that_compute_alike_share_a_graph_and_others_do_not(folder: Path) -> None:
    one = model(folder)
    assert one.precision_used is None
    assert one.load() is model(folder).load()
    assert len(LOADED) == 1
    others = [model(folder, 9), model(folder, 8, 2), model(folder, kind=Other)]
    assert len({id(each.load()[0]) for each in [one, *others]}) == 1 + len(others) == len(LOADED)


def test_threads_that_ask_at_once_wait_for_one_load(folder: Path) -> None:
    models = [model(folder) for _ in range(8)]
    together = Barrier(len(models))

    def load(one: Counted) -> int:
        together.wait()
        return id(one.load()[0])

    with ThreadPoolExecutor(len(models)) as pool:
        assert len(set(pool.map(load, models))) == len(LOADED) == 1


def test_a_file_that_has_changed_is_loaded_anew(folder: Path) -> None:
    before = model(folder)
    session, _ = before.load()
    (folder / "model.onnx").write_bytes(b"another graph")
    assert model(folder).load()[0] is not session
    assert before.load()[0] is session
    assert len(LOADED) == 2


def test_a_load_that_failed_is_tried_again(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"damaged")
    for _ in range(2):
        with pytest.raises(ModelNotAvailableError, match="no graph"):
            model(folder).load()
    (folder / "model.onnx").write_bytes(b"graph")
    model(folder).load()
    assert len(LOADED) == 3


def test_a_few_graphs_stay_when_nobody_uses_them(folder: Path, tmp_path: Path) -> None:
    model(folder).load()
    model(folder).load()
    assert len(LOADED) == 1
    used = model(made(tmp_path / "used"))
    used.load()
    for number in range(KEPT):
        model(made(tmp_path / f"other{number}")).load()
    gc.collect()
    LOADED.clear()
    model(folder).load()
    model(tmp_path / "used").load()
    assert [*LOADED] == [folder]


FORKED = """
import os, signal
from voicevault_retrievers.dense.embedders import OnnxEmbedder, OpenVinoEmbedder
from voicevault_retrievers.errors import ModelNotAvailableError
Embedder = {{"onnx": OnnxEmbedder, "openvino": OpenVinoEmbedder}}[{backend!r}]
embedder = Embedder()
expected = embedder.embed_queries(["a pump"])
if (child := os.fork()) == 0:
    signal.alarm(120)
    assert abs(Embedder().embed_queries(["a pump"]) - expected).max() < 1e-4
    try:
        Embedder(max_tokens=100).embed_queries(["a pump"])
        print("another was loaded", flush=True)
    except ModelNotAvailableError as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.program
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(("backend", "said"), [("onnx", "another was loaded"), ("openvino", "take backend='onnx'")])
def test_a_forked_child_has_the_parents_model_and_loads_another_where_it_can(backend: Backend, said: str) -> None:
    if not (installed(backend) and find("all-MiniLM-L6-v2", backend)):
        pytest.skip(f"{backend} or the weights are not installed")
    program = [sys.executable, "-W", "ignore", "-c", FORKED.format(backend=backend)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout

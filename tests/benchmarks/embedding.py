"""Documents a second of one embedder, all-MiniLM-L6-v2, through every backend and the frameworks, and its vectors.

    python -m tests.benchmarks.embedding DATA

Documents are real ones, drawn once and read as they are (at most 256 tokens). sentence-transformers and what stands on
it read the model's own floats, as does "float weights"; our other backends the packed int8 weights, which all but
"OpenVINO int8" make floats. Systems take turns, a figure is the median of the runs. Cosines are to the vectors of
sentence-transformers, as is the change in nDCG@10 of dense search over all of scifact. LlamaIndex's class is measured
where llama-index-embeddings-huggingface is installed. Writes results/embedding.json.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.benchmarks.float_graph import MODEL, write_folder
from tests.benchmarks.quality import embedded, load
from tests.benchmarks.results import Row, write
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense import OnnxEmbedder, OpenVinoEmbedder, SentenceTransformerEmbedder, load_embedder
from voicevault_retrievers.evaluation import ndcg
from voicevault_retrievers.models.weights import locate

Embed: TypeAlias = Callable[[Sequence[str]], ArrayLike]
Matrix: TypeAlias = NDArray[np.float32]

COLLECTIONS = ("scifact", "mmlongbench-pages")
SEARCHED = "scifact"
DRAWN = 250
RUNS = 3
PEER = "sentence-transformers, SentenceTransformer.encode"
LLAMA_INDEX = "llama-index-embeddings-huggingface"
PACKAGES = (
    "voicevault-retrievers", "onnxruntime", "openvino", "tokenizers", "sentence-transformers", "torch",
    "langchain-community",
)  # fmt: skip


def ours() -> dict[str, Embedder]:
    """Our embedders of the packed weights, by backend and precision; bf16 where the CPU computes it."""
    import openvino

    found: dict[str, Embedder] = {
        "ours, sentence-transformers": SentenceTransformerEmbedder(MODEL),
        "ours, onnxruntime": OnnxEmbedder(MODEL),
        "ours, OpenVINO f32": OpenVinoEmbedder(MODEL, precision="f32"),
        "ours, OpenVINO bf16": OpenVinoEmbedder(MODEL, precision="bf16"),
        "ours, OpenVINO int8": OpenVinoEmbedder(MODEL, precision="int8"),
    }
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        del found["ours, OpenVINO bf16"]
    return found


def with_float_weights(folder: Path) -> dict[str, Embedder]:
    """Our embedders of the model's own floats, which peers read too: what is left is the noise of the backend."""
    return {
        "ours, onnxruntime, float weights": OnnxEmbedder(str(folder)),
        "ours, OpenVINO f32, float weights": OpenVinoEmbedder(str(folder), precision="f32"),
        "ours, OpenVINO by default, float weights": OpenVinoEmbedder(str(folder)),
    }


def systems() -> dict[str, Embed]:
    """What is timed: each gives a row per text, in their order."""
    folder = str(locate(MODEL, "sentence-transformers").folder)
    return {
        PEER: _sentence_transformers(folder),
        "LangChain, HuggingFaceEmbeddings": _langchain(folder),
        **_llama_index(folder),
        **{name: embedder.embed_documents for name, embedder in ours().items()},
        "ours, load_embedder()": load_embedder().embed_documents,
    }


def _sentence_transformers(folder: str) -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, local_files_only=True)
    return lambda texts: np.asarray(model.encode(list(texts)))


def _langchain(folder: str) -> Embed:
    from langchain_community.embeddings import HuggingFaceEmbeddings

    model = HuggingFaceEmbeddings(model_name=folder)
    return lambda texts: model.embed_documents(list(texts))


def _llama_index(folder: str) -> dict[str, Embed]:
    if find_spec("llama_index.embeddings.huggingface") is None:
        return {}
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    model = HuggingFaceEmbedding(folder)
    return {"LlamaIndex, HuggingFaceEmbedding": lambda texts: model.get_text_embedding_batch(list(texts))}


def timed(every: Mapping[str, Embed], texts: Sequence[str]) -> dict[str, list[float]]:
    """The seconds of each system for all texts, in each run; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(RUNS):
        for name, embed in every.items():
            began = time.perf_counter()
            embed(texts)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def speed(case: str, texts: Sequence[str], every: Mapping[str, Embed]) -> list[Row]:
    """Documents a second, and how many times the peer's in the same turn."""
    seconds = timed(every, texts)
    rows: list[Row] = []
    for system, times in seconds.items():
        ratios = [theirs / own for theirs, own in zip(seconds[PEER], times, strict=True)]
        rows.append(Row(system, case, "documents a second", len(texts) / median(times)))
        rows.append(Row(system, case, "times sentence-transformers", median(ratios)))
    return rows


def nearness(system: str, case: str, found: Matrix, exact: Matrix) -> list[Row]:
    """The lowest and the mean cosine of rows to those of fp32; all have length 1."""
    cosines = (found.astype(np.float64) * exact).sum(axis=1)
    return [
        Row(system, case, "lowest cosine to fp32", float(cosines.min())),
        Row(system, case, "mean cosine to fp32", float(cosines.mean())),
    ]


def compared(name: str, texts: Sequence[str], floats: Mapping[str, Embedder]) -> list[Row]:
    """The cosines of every embedder's vectors of the drawn texts."""
    exact = SentenceTransformerEmbedder(MODEL).embed_documents(texts)
    every = {**ours(), **floats}
    return [
        row
        for system, embedder in every.items()
        for row in nearness(system, f"{name}, {len(texts)} documents", embedder.embed_documents(texts), exact)
    ]


def searched(folder: Path) -> list[Row]:
    """nDCG@10 of dense search over a whole collection, its change from fp32, and the cosines of its documents."""
    chunks, questions = load(folder)
    texts, asked = [chunk.text for chunk in chunks], [question.text for question in questions]
    fp32 = SentenceTransformerEmbedder(MODEL)
    exact = embedded(texts, fp32)

    def quality(documents: Matrix, queries: Matrix) -> float:
        best = np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :10]
        found = zip(best, questions, strict=True)
        return float(np.mean([ndcg([chunks[at].id for at in row], one.grades, 10) for row, one in found]))

    case = f"{folder.name}, {len(texts):,} documents"
    reference = quality(exact, embedded(asked, fp32, queries=True))
    rows = [Row(PEER, case, "nDCG@10", reference)]
    for system, embedder in ours().items():
        if not isinstance(embedder, SentenceTransformerEmbedder):
            documents = embedder.embed_documents(texts)
            value = quality(documents, embedder.embed_queries(asked))
            rows.append(Row(system, case, "nDCG@10", value))
            rows.append(Row(system, case, "change in nDCG@10", value - reference))
            rows += nearness(system, case, documents, exact)
    return rows


def main(data: Path) -> None:
    """Measure each collection that is there, and write the rows."""
    rows: list[Row] = []
    every = systems()
    for embed in every.values():
        embed(["warm up"])
    with tempfile.TemporaryDirectory() as kept:
        floats = with_float_weights(write_folder(Path(kept)))
        for name in COLLECTIONS:
            if (data / name).is_dir():
                texts = [chunk.text for chunk in Random(0).sample(load(data / name)[0], DRAWN)]
                _show(rows, speed(name, texts, every))
                _show(rows, compared(name, texts, floats))
    if (data / SEARCHED).is_dir():
        _show(rows, searched(data / SEARCHED))
    write("embedding", rows, [*PACKAGES, *([LLAMA_INDEX] if find_spec("llama_index.embeddings.huggingface") else [])])


def _show(rows: list[Row], more: Sequence[Row]) -> None:
    rows += more
    sys.stdout.write("".join(f"{row}\n" for row in more))
    sys.stdout.flush()


if __name__ == "__main__":
    given: Any = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    if any((given / name).is_dir() for name in COLLECTIONS):
        main(given)
    else:
        sys.stdout.write(f"skipped: no {' or '.join(COLLECTIONS)} in BEIR layout in {given}\n")

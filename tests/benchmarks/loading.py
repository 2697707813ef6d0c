"""Seconds and memory from a fresh process to the first score or vector of each backend; writes results/loading.json.

python -m tests.benchmarks.loading

The models are ms-marco-MiniLM-L-12-v2 and all-MiniLM-L6-v2. Time and memory begin after the interpreter's start, and
hold the imports; memory is what is resident more than then. "20 more" is the call after the first, of 20 passages of a
few hundred characters. The cross-encoder's floats for sentence-transformers are those of `float_weights`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.float_weights import write_folder
from tests.benchmarks.results import Row, write
from voicevault_retrievers.models.weights import locate

RUNS = 3
MANUAL = Path(__file__).parents[2] / "notebooks" / "data" / "documents" / "maintenance-guide.md"
PACKAGES = ("voicevault-retrievers", "numpy", "onnxruntime", "openvino", "sentence-transformers", "torch")

PROGRAM = """
import json, sys, time, psutil
texts, folder = json.loads(sys.stdin.read()), sys.argv[1]
process = psutil.Process()
before, began = process.memory_info().rss, time.perf_counter()
{load}
figures = {{}}
def took(name):
    figures[f"{{name}}, s"] = time.perf_counter() - began
    figures[f"{{name}}, MiB more"] = (process.memory_info().rss - before) / 2**20
{use}
print(json.dumps(figures))
"""
IMPORTED = 'took("import")'
USED = """
run(texts[:1])
took("first")
began = time.perf_counter()
run(texts[1:21])
took("20 more")
"""
QUESTION = "How often is the filter changed?"

CROSS_ENCODERS = {
    "ours, onnxruntime": ("from voicevault_retrievers.rerank import OnnxScorer", "OnnxScorer().score"),
    "ours, OpenVINO": ("from voicevault_retrievers.rerank import OpenVinoScorer", "OpenVinoScorer().score"),
    "ours, OpenVINO f32": (
        "from voicevault_retrievers.rerank import OpenVinoScorer",
        "OpenVinoScorer(precision='f32').score",
    ),
    "ours, sentence-transformers": (
        "from voicevault_retrievers.rerank import SentenceTransformerScorer",
        "SentenceTransformerScorer(folder).score",
    ),
    "sentence-transformers, CrossEncoder": (
        "from sentence_transformers import CrossEncoder",
        "(lambda model: lambda query, texts: model.predict([(query, text) for text in texts]))"
        "(CrossEncoder(folder, local_files_only=True))",
    ),
}
EMBEDDERS = {
    "ours, onnxruntime": ("from voicevault_retrievers.dense import OnnxEmbedder", "OnnxEmbedder()"),
    "ours, OpenVINO": ("from voicevault_retrievers.dense import OpenVinoEmbedder", "OpenVinoEmbedder()"),
    "ours, OpenVINO f32": (
        "from voicevault_retrievers.dense import OpenVinoEmbedder",
        "OpenVinoEmbedder(precision='f32')",
    ),
    "ours, OpenVINO int8": (
        "from voicevault_retrievers.dense import OpenVinoEmbedder",
        "OpenVinoEmbedder(precision='int8')",
    ),
    "ours, sentence-transformers": (
        "from voicevault_retrievers.dense import SentenceTransformerEmbedder",
        "SentenceTransformerEmbedder()",
    ),
}
"""What to import, and what it makes: of cross-encoders a function of a query and texts."""


def programs() -> Iterator[tuple[str, str]]:
    """The programs by what they load."""
    yield "import voicevault_retrievers", PROGRAM.format(load="import voicevault_retrievers", use=IMPORTED)
    for name, (imports, score) in CROSS_ENCODERS.items():
        load = f"{imports}\nscore = {score}\nrun = lambda given: score({QUESTION!r}, given)"
        yield f"cross-encoder: {name}", PROGRAM.format(load=load, use=USED)
    for name, (imports, embedder) in EMBEDDERS.items():
        load = f"{imports}\nrun = {embedder}.embed_documents"
        yield f"embedder: {name}", PROGRAM.format(load=load, use=USED)
    folder = str(locate("all-MiniLM-L6-v2", "sentence-transformers").folder)
    load = "from sentence_transformers import SentenceTransformer"
    load += f"\nrun = SentenceTransformer({folder!r}, local_files_only=True).encode"
    yield "embedder: sentence-transformers, SentenceTransformer", PROGRAM.format(load=load, use=USED)


def passages() -> list[str]:
    """21 passages of a manual."""
    text = " ".join(MANUAL.read_text(encoding="utf-8").split())
    return [text[at * 300 : at * 300 + 600] for at in range(21)]


def figures(program: str, folder: Path, texts: str) -> dict[str, float]:
    """What a fresh process measured."""
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, input=texts, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run fresh processes, in turns."""
    every = dict(programs())
    found: dict[tuple[str, str], list[float]] = {}
    texts = json.dumps(passages())
    with tempfile.TemporaryDirectory() as kept:
        folder = write_folder(Path(kept))
        for _ in range(RUNS):
            for system, program in every.items():
                for metric, value in figures(program, folder, texts).items():
                    found.setdefault((system, metric), []).append(value)
    rows = [Row(system, "fresh process", metric, median(values)) for (system, metric), values in found.items()]
    sys.stdout.write("".join(f"{row}\n" for row in rows))
    write("loading", rows, PACKAGES)


if __name__ == "__main__":
    main()

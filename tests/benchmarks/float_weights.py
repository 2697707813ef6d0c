"""The packed cross-encoder as a sentence-transformers folder: its int8 weights, made floats, under torch's names.

What peers would read from a hub cannot be had everywhere; this is the nearest to it, and figures say so.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.models.weights import locate

MODEL = "ms-marco-MiniLM-L-12-v2"
CONFIG = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 384, "num_labels": 1,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": 512,
    "vocab_size": 30522, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0,
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
}  # fmt: skip
Floats = NDArray[np.float32]


def write_folder(folder: Path) -> Path:
    """Write config.json, model.safetensors and the tokenizer into a folder; needs onnx and safetensors."""
    from safetensors.numpy import save_file

    weights = locate(MODEL, "onnx")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(weights.model), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    read = json.loads(weights.tokenizer.read_text("utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps({**read, "padding": None, "truncation": None}))
    vocabulary = sorted(read["model"]["vocab"].items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("\n".join(word for word, _ in vocabulary), "utf-8")
    return folder


def tensors(graph: Path) -> dict[str, Floats]:
    """The weights of the graph by torch's names; quantised ones times their scales."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(graph))
    held = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    found = {name: value for name, value in held.items() if name.startswith(("bert.", "classifier."))}
    found = {name: value for name, value in found.items() if value.dtype == np.float32 and not name.endswith("_scale")}
    for node in model.graph.node:
        if node.op_type == "MatMulInteger":
            name = node.name.removesuffix("_quant").removesuffix("/MatMul").removesuffix("/Gemm_MatMul")
            rows = _floats(held, node.input[1].removesuffix("_quantized"))
            found[f"{name.strip('/').replace('/', '.')}.weight"] = np.ascontiguousarray(rows.T)
    for name in held:
        if name.startswith("bert.embeddings.") and name.endswith("_quantized"):
            found[name.removesuffix("_quantized")] = _floats(held, name.removesuffix("_quantized"))
    return found


def _floats(held: dict[str, NDArray[np.generic]], name: str) -> Floats:
    whole = held[f"{name}_quantized"].astype(np.float32) - held[f"{name}_zero_point"].astype(np.float32)
    rows: Floats = whole * held[f"{name}_scale"].astype(np.float32)
    return rows

"""Runs a transformer from an ONNX graph and a tokenizer file: onnxruntime and tokenizers, no torch."""

from __future__ import annotations

from typing import Any, cast

from voicevault_retrievers.dense.dequantise import quantises_as_it_runs
from voicevault_retrievers.dense.graph_model import Feed, Floats, GraphModel, Session
from voicevault_retrievers.dense.weights import Weights
from voicevault_retrievers.extras import require


class OnnxModel(GraphModel):
    """A graph through onnxruntime on the CPU.

    A graph that quantises its activations as it runs takes one scale from the whole batch, padding included: texts
    run together would change each other's output (bge-small: cosine down to .988 against the text alone, as much
    between texts of equal length). Such a graph runs one text at a time, so a text's output depends on nothing else;
    `batch_size` is for the others, where batches differ by no more than float noise.
    """

    backend = "onnx"
    extra = "onnx"

    def _session(self, weights: Weights, tokenizer: Any) -> Session:
        runtime = require("onnxruntime", extra=self.extra)
        session = runtime.InferenceSession(str(weights.model), providers=["CPUExecutionProvider"])

        def compute(feed: Feed) -> Floats:
            return cast(Floats, session.run(None, feed)[0])

        inputs = frozenset(item.name for item in session.get_inputs())
        return Session(inputs, compute, 1 if quantises_as_it_runs(weights.model) else self.batch_size)

"""Runs a transformer from an ONNX graph and a tokenizer file, with onnxruntime and tokenizers, without torch."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cache
from typing import Any, cast

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.models.dequantise import quantises_as_it_runs
from voicevault_retrievers.models.graph_model import Feed, Floats, GraphModel, GraphSession
from voicevault_retrievers.models.weights import Weights

ONE_PRODUCT = (
    b'\x08\x08:V\n\x18\n\x01a\n\x01b\x12\x01y"\rMatMulInteger\x12\x01g*\r\x08\x02\x08\x01\x10\x03*\x02\x7f\x7fB\x01b'
    b"Z\x13\n\x01a\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n\x02\x08\x02b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08"
    b"\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""An ONNX graph: y = a b by MatMulInteger, with a of unsigned bytes (1, 2) and b the signed bytes (127, 127)."""


class OnnxModel(GraphModel):
    """A graph on onnxruntime on the CPU.

    Products with weights of 8 bits are summed exactly on every processor. x86 without VNNI adds pairs of 8-bit products
    in 16 bits, which saturate: a logit of ms-marco-MiniLM-L-12-v2 changes by .33. There, products are computed in 16
    bits, which is an eighth slower and gives the same sums.

    A graph that quantises its activations at run time uses one scale for the whole batch, padding included, so texts in
    a batch would change each other's output (bge-small: cosine down to .988 against the text alone, even between texts
    of equal length). Such a graph runs one text at a time, so a text's output depends on nothing else. `batch_size`
    applies to other graphs, whose outputs vary with the batch by no more than float noise.

    Threads that wait for others do not spin, which takes the time of other searches: on two cores, eight clients embed
    1.2 to 1.5 times as many queries so, and one client needs a fifth less CPU time for a query in no more time.
    """

    backend = "onnx"
    extra = "onnx"

    def _computes(self) -> tuple[Hashable, ...]:
        return *super()._computes(), os.getpid()  # a forked child lacks the threads of a session

    def _session(self, weights: Weights, tokenizer: Any) -> GraphSession:
        runtime = require("onnxruntime", extra=self.extra)
        quantised = quantises_as_it_runs(weights.model)
        options, widened = runtime.SessionOptions(), quantised and saturates(runtime)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if widened:
            options.add_session_config_entry("session.x64quantprecision", "1")
        session = runtime.InferenceSession(str(weights.model), options, providers=["CPUExecutionProvider"])

        def compute(feed: Feed) -> Floats:
            return cast(Floats, session.run(None, feed)[0])

        inputs = frozenset(item.name for item in session.get_inputs())
        if not quantised:
            return GraphSession(inputs, compute, self.batch_size, "f32", "as the graph is")
        reason = "in products of 16 bits, as those of 8 saturate on this processor"
        return GraphSession(
            inputs, compute, 1, "int8", reason if widened else "in products of 8 bits, which are exact here"
        )


@cache
def saturates(runtime: Any) -> bool:
    """Whether onnxruntime's 8-bit products saturate on this processor: 255 * 127 * 2 exceeds 16 bits."""
    session = runtime.InferenceSession(ONE_PRODUCT, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"a": np.full((1, 2), 255, dtype=np.uint8)})
    return int(found.item()) != 255 * 127 * 2

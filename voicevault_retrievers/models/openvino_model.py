"""Runs a transformer from an ONNX graph and a tokenizer file, with OpenVINO and tokenizers, without torch."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import OTHERWISE, used_by_parent
from voicevault_retrievers.errors import ConfigError, ModelNotAvailableError, unknown
from voicevault_retrievers.models.dequantise import dequantised, quantises_as_it_runs
from voicevault_retrievers.models.graph_model import (
    Feed,
    Floats,
    GraphModel,
    GraphSession,
    Ints,
    cls_pooled,
    feed_of,
    mean_pooled,
)
from voicevault_retrievers.models.weights import Weights

Precision: TypeAlias = Literal["auto", "f32", "bf16", "int8"]

ASKED = "it was asked for"

INT8_GROUP = 128
"""The number of activations that share a scale at int8, a divisor of known models' widths; half the error of 384."""

COSINE = 0.999
"""The least cosine between pooled vectors of bf16 and f32."""

SPREAD = 0.01
"""The greatest difference between scores of bf16 and f32, relative to the range of the scores."""

CHECKED = (
    ("how many people live in Berlin?", "Berlin has a population of 3.5 million within its city limits."),
    ("how many people live in Berlin?", "Add two eggs, flour and a pinch of salt, then stir until smooth."),
    ("is aspirin safe", "Low doses of aspirin are prescribed after a heart attack. " * 6),
    ("invoice due date", "The quarterly report was filed late; revenue grew by 12 % to 3.4 million euros. " * 4),
)


class OpenVinoModel(GraphModel):
    """A graph on OpenVINO on the CPU, with weights converted to floats on reading; nothing is written to disk.

    `precision` "auto" is bf16 where the CPU computes it natively and four built-in pairs agree with f32 (pooled vectors
    by a cosine of at least .999, scores within 1 % of their range), else f32. "int8" keeps the integers of a quantised
    graph and rounds activations to 8 bits, in groups of 128 of one text; a CPU without VNNI or AMX computes it in
    floats. Texts in a batch change each other's output by no more than the noise of the precision.
    """

    backend = "openvino"
    extra = "openvino,offline"

    def __init__(self, name: str, max_tokens: int, batch_size: int, precision: Precision = "auto") -> None:
        super().__init__(name, max_tokens, batch_size)
        if precision not in get_args(Precision):
            raise unknown("precision", precision, get_args(Precision))
        self.precision = precision

    @property
    def kind(self) -> str:
        """The same as for onnxruntime where both compute the graph in floats."""
        if self.precision == "int8":
            return "openvino-int8"
        return "openvino" if quantises_as_it_runs(self.weights.model) else super().kind

    def _computes(self) -> tuple[Hashable, ...]:
        return *super()._computes(), self.precision

    def _session(self, weights: Weights, tokenizer: Any) -> GraphSession:
        # The plugin gives the loading thread a signal stack, and the thread that drops the last session frees it, after
        # which a signal in the loading thread would end the process. So the graph is loaded in a thread that ends at
        # once.
        with ThreadPoolExecutor(1) as loading:
            return loading.submit(self._opened, weights, tokenizer).result()

    def _opened(self, weights: Weights, tokenizer: Any) -> GraphSession:
        if used_by_parent("openvino"):
            raise ModelNotAvailableError(
                f"{self.name} would hang in OpenVINO, as this process was forked from one that used it: {OTHERWISE}, "
                "or take backend='onnx'"
            )
        core = require("openvino", extra=self.extra).Core()
        graph = self._read(core, weights)
        native = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if self.precision == "auto":
            return self._chosen(core, graph, tokenizer, native)
        if self.precision == "bf16" and not native:
            raise ConfigError(f"this CPU does not compute bf16; {self.name} runs here at precision 'auto' or 'f32'")
        if self.precision == "int8":
            return self._compiled(core, graph, "int8", "bf16" if native else "f32", ASKED, INT8_GROUP)
        return self._compiled(core, graph, self.precision, self.precision, ASKED)

    def _read(self, core: Any, weights: Weights) -> Any:
        source: str | bytes = str(weights.model)
        if quantises_as_it_runs(weights.model):
            model = require("onnx", extra=self.extra).load(source)
            source = dequantised(model).SerializeToString()
        graph = core.read_model(source)
        if self.precision != "int8":
            # Weights that stay integers would be converted in every run, which takes 5 to 10 % of its time.
            passes = require("openvino.passes", extra=self.extra)
            manager = passes.Manager()
            manager.register_pass(passes.ConstantFolding())
            manager.run_passes(graph)
        elif not any(_is_integer_matrix(node) for node in graph.get_ops()):
            raise ConfigError(f"the weights of {self.name} are floats; precision 'int8' needs a quantised model.onnx")
        return graph

    def _chosen(self, core: Any, graph: Any, tokenizer: Any, native: bool) -> GraphSession:
        exact = self._compiled(core, graph, "f32", "f32", "this processor has no bf16")
        if not native:
            return exact
        rounded = self._compiled(core, graph, "bf16", "bf16", "this processor computes it, and it agrees with f32")
        feed = feed_of(tokenizer.encode_batch(list(CHECKED)))
        if agree(self._computed(rounded, feed), self._computed(exact, feed), feed["attention_mask"]):
            return rounded
        return exact._replace(reason="bf16 is too far from it")

    def _compiled(self, core: Any, graph: Any, precision: str, hint: str, reason: str, group: int = 0) -> GraphSession:
        options = {
            "INFERENCE_PRECISION_HINT": hint,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core.compile_model(graph, "CPU", options)

        def compute(feed: Feed) -> Floats:
            # A request serves one thread at a time; a new request takes 20 microseconds.
            return cast(Floats, compiled.create_infer_request().infer(feed)[0])

        inputs = frozenset(port.any_name for port in compiled.inputs)
        return GraphSession(inputs, compute, self.batch_size, precision, reason)


def agree(found: Floats, exact: Floats, mask: Ints) -> bool:
    """Whether outputs agree with exact ones: pooled states (n, tokens, d) by cosine, scores relative to their range."""
    if exact.ndim != 3:
        return bool(np.abs(found - exact).max() <= SPREAD * np.ptp(exact))
    return all(_cosines(pool(found, mask), pool(exact, mask)).min() >= COSINE for pool in (mean_pooled, cls_pooled))


def _cosines(a: Floats, b: Floats) -> Floats:
    return cast(Floats, (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)))


def _is_integer_matrix(node: Any) -> bool:
    if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() not in ("i8", "u8"):
        return False
    return len(node.get_output_shape(0)) == 2

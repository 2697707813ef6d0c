"""Detects graphs that quantise their activations at run time, and rewrites them to compute in floats."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ModelNotAvailableError

FLOAT = 1
"""ONNX's code for 32-bit floats."""

# Any stands for nodes and models of the optional package onnx.


def quantises_as_it_runs(graph: Path) -> bool:
    """Whether an ONNX graph computes scales from its activations (operators DynamicQuantize...)."""
    with graph.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"DynamicQuantize") >= 0


class Product(NamedTuple):
    """A quantised matrix product: its nodes, float input, weights with zero point and scale, and output."""

    nodes: tuple[Any, ...]
    given: str
    weights: str
    zero: str | None
    scale: str
    output: str


def dequantised(model: Any) -> Any:
    """A copy of an ONNX model with float matrix products in place of quantised ones.

    A quantised product is DynamicQuantizeLinear, MatMulInteger, Cast and Mul by both scales. It becomes MatMul by
    (weights - zero point) * scale, per matrix or per column. The subtraction stays in the graph, and the weights stay
    integers, so the copy is no larger. A model without quantised operators is returned as it is. Raises
    ModelNotAvailableError, naming the node, where a quantised operator is not part of such a product.
    """
    if not any(_quantised(node) for node in model.graph.node):
        return model
    found = list(_products(model.graph))
    spent = {id(node) for product in found for node in product.nodes}
    results = {product.output: product for product in found}
    nodes: list[Any] = []
    for node in model.graph.node:
        product = results.get(node.output[0]) if node.output else None
        nodes.extend(_floats(product) if product else [node])
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(_needed(nodes, spent, {output.name for output in model.graph.output}))
    for node in copy.graph.node:
        if _quantised(node):
            raise _unknown(node, "it is not part of a product by known weights")
    return copy


def _quantised(node: Any) -> bool:
    kind = str(node.op_type)
    return kind.startswith("DynamicQuantize") or kind.endswith(("Integer", "IntegerToFloat"))


def _products(graph: Any) -> Iterator[Product]:
    constants = {tensor.name for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    users: dict[str, list[Any]] = {output.name: [None] for output in graph.output}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            yield _product(node, constants, makers, users)


def _product(node: Any, constants: set[str], makers: dict[str, Any], users: dict[str, list[Any]]) -> Product:
    given, weights, _, zero = (*node.input, "", "")[:4]
    quantise = makers.get(given)
    cast = _next(node, "Cast", users)
    scaled = _next(cast, "Mul", users)
    scales = makers.get(_other(scaled, cast.output[0]))
    if quantise is None or quantise.op_type != "DynamicQuantizeLinear":
        raise _unknown(node, "its first input is not from DynamicQuantizeLinear")
    if weights not in constants:
        raise _unknown(node, "its weights are not constant")
    if scales is None or scales.op_type != "Mul" or quantise.output[1] not in scales.input:
        raise _unknown(scaled, "it does not multiply by the scales of both factors")
    scale = _other(scales, quantise.output[1])
    nodes = (quantise, node, cast, scales, scaled)
    return Product(nodes, quantise.input[0], weights, zero or None, scale, scaled.output[0])


def _next(node: Any, kind: str, users: dict[str, list[Any]]) -> Any:
    after = users.get(node.output[0], [])
    if len(after) != 1 or after[0] is None or after[0].op_type != kind:
        raise _unknown(node, f"a {kind} alone was expected after it")
    return after[0]


def _other(node: Any, name: str) -> str:
    return str(node.input[1] if node.input[0] == name else node.input[0])


def _floats(product: Product) -> list[Any]:
    make = require("onnx.helper", extra="openvino").make_node
    integers, zero, difference, weights = (
        f"{product.output}/{part}" for part in ("integers", "zero", "difference", "weights")
    )
    nodes = [make("Cast", [product.weights], [integers], to=FLOAT)]
    if product.zero:
        nodes += [make("Cast", [product.zero], [zero], to=FLOAT), make("Sub", [integers, zero], [difference])]
    nodes += [
        make("Mul", [difference if product.zero else integers, product.scale], [weights]),
        make("MatMul", [product.given, weights], [product.output]),
    ]
    return nodes


def _needed(nodes: list[Any], spent: set[int], outputs: set[str]) -> list[Any]:
    used, kept = set(outputs), []
    for node in reversed(nodes):
        if id(node) not in spent or not used.isdisjoint(node.output):
            used.update(node.input)
            kept.append(node)
    return kept[::-1]


def _unknown(node: Any, reason: str) -> ModelNotAvailableError:
    return ModelNotAvailableError(
        f"the graph cannot be brought to floats: {node.op_type} {node.name or node.output[0]!r} is not understood "
        f"({reason}). Give a model.onnx of floats, or use onnxruntime."
    )

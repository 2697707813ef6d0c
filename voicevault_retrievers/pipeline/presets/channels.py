"""The channels of a preset: the options of their constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from voicevault_retrievers._support.checks import flag, number, seconds_or_none, whole
from voicevault_retrievers.dense.funnel import OnLoss
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.lexical.reading import fuzzy_of
from voicevault_retrievers.lexical.statistics import statistics_of
from voicevault_retrievers.pipeline.presets.sections import choice, made, section
from voicevault_retrievers.store.graphs import SnapshotGraph, graph_channel
from voicevault_retrievers.structure.addresses import graph_store
from voicevault_retrievers.structure.graph import GraphStore
from voicevault_retrievers.structure.graph.channel import checked_store


def _bm25(options: Mapping[str, Any]) -> dict[str, Any]:
    constants = {key: options[key] for key in ("k1", "b", "epsilon", "delta") if key in options}
    formula = choice("BM25 formula", options.get("formula", "lucene"), FORMULAS)
    flags = ("exclude_nonpositive", "operators", "plain_words")
    others = {key: options[key] for key in ("statistics", "timeout", *flags) if key in options}
    for name in flags:
        flag(name, options.get(name, False))
    if "fuzzy" in options:
        others["fuzzy"] = fuzzy_of(options["fuzzy"])
    statistics_of(options.get("statistics"), engine=True)
    seconds_or_none("timeout", options.get("timeout"))
    return {"formula": made(formula, constants), **others}


def _dense(options: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"timeout": seconds_or_none("timeout", options.get("timeout"))}
    if options.get("funnel") is None:
        return given
    funnel = section("funnel", options["funnel"], "prefix", "candidates", "least", "on_loss")
    for name in ("prefix", "candidates"):
        whole(name, funnel.get(name, 1))
    number("least", funnel.get("least", 0))
    choice("on_loss", funnel.get("on_loss", "raise"), {name: name for name in get_args(OnLoss)})
    return {**given, "funnel": dict(funnel)}


def _questions(options: Mapping[str, Any]) -> dict[str, Any]:
    choice("by", options.get("by", "both"), {"bm25": 0, "both": 0, "dense": 0})
    whole("questions", options.get("questions", 1))
    seconds_or_none("timeout", options.get("timeout"))
    return {key: options[key] for key in ("by", "questions", "timeout") if key in options}


def _graph(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: options[key] for key in ("hops", "decay", "fan_out", "timeout") if key in options}
    graph_channel(SnapshotGraph(()), **given)  # raises for wrong options
    return given if options.get("store") is None else {**given, "store": opened_graph(options)}


def opened_graph(options: Mapping[str, Any]) -> GraphStore:
    """The graph store at the address in the options, with their timeout if they have one."""
    store = options["store"]
    if not isinstance(store, str):
        return checked_store(store)
    return graph_store(store, **({} if options.get("timeout") is None else {"timeout": options["timeout"]}))


CHANNELS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "bm25": _bm25,
    "dense": _dense,
    "graph": _graph,
    "questions": _questions,
}
CHANNEL_OPTIONS = {
    "bm25": (
        "formula",
        "k1",
        "b",
        "epsilon",
        "delta",
        "statistics",
        "exclude_nonpositive",
        "operators",
        "fuzzy",
        "plain_words",
    ),
    "dense": ("model", "backend", "funnel"),
    "graph": ("store", "hops", "decay", "fan_out"),
    "questions": ("by", "questions"),
}

"""The channels of a preset: the options of their constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from voicevault_retrievers.checks import flag, seconds_or_none
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.presets.sections import choice, made


def _bm25(options: Mapping[str, Any]) -> dict[str, Any]:
    constants = {key: options[key] for key in ("k1", "b", "epsilon", "delta") if key in options}
    formula = choice("BM25 formula", options.get("formula", "lucene"), FORMULAS)
    others = {
        key: options[key] for key in ("statistics", "exclude_nonpositive", "operators", "timeout") if key in options
    }
    flag("exclude_nonpositive", options.get("exclude_nonpositive", False))
    flag("operators", options.get("operators", False))
    choice("statistics", options.get("statistics", "collection"), {"collection": 0, "filtered": 0})
    seconds_or_none("timeout", options.get("timeout"))
    return {"formula": made(formula, constants), **others}


def _dense(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"timeout": seconds_or_none("timeout", options.get("timeout"))}


CHANNELS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"bm25": _bm25, "dense": _dense}
CHANNEL_OPTIONS = {
    "bm25": ("formula", "k1", "b", "epsilon", "delta", "statistics", "exclude_nonpositive", "operators"),
    "dense": ("model", "backend"),
}

"""The fusion methods by name, as used in presets and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from typing import Any

from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.adaptive_sum import AdaptiveSum
from voicevault_retrievers.fusion.borda import Borda
from voicevault_retrievers.fusion.combmnz import CombMNZ
from voicevault_retrievers.fusion.convex import Convex
from voicevault_retrievers.fusion.distribution import DistributionBased
from voicevault_retrievers.fusion.isr import ISR
from voicevault_retrievers.fusion.method import Method
from voicevault_retrievers.fusion.rrf import RRF, EngineRRF
from voicevault_retrievers.fusion.sum import WeightedSum

METHODS: Mapping[str, Callable[..., Method]] = {
    "adaptive_sum": AdaptiveSum,
    "borda": Borda,
    "combmnz": CombMNZ,
    "convex": Convex,
    "distribution": DistributionBased,
    "isr": ISR,
    "rrf": RRF,
    "weighted_sum": WeightedSum,
    "engine": EngineRRF,
}

_LLAMA_INDEX = {
    "dist_based_score": "'distribution'",
    "reciprocal_rerank": "'rrf'",
    "relative_score": "'weighted_sum'",
    "simple": "not available, as scores of different channels cannot be compared",
}
"""The fusion modes of LlamaIndex, with the methods here."""


def options_of(name: Any) -> tuple[str, ...]:
    """The options of a named fusion method; ConfigError for an unknown name."""
    if not isinstance(name, str) or name not in METHODS:
        if isinstance(name, str) and name in _LLAMA_INDEX:
            raise ConfigError(f"unknown fusion method {str.__str__(name)!r}; here it is {_LLAMA_INDEX[name]}")
        raise unknown("fusion method", name, METHODS)
    return _parameters(name)


@cache
def _parameters(name: str) -> tuple[str, ...]:
    return tuple(signature(METHODS[name]).parameters)


def method_named(name: Any, options: Mapping[str, Any]) -> Method:
    """A fusion method by name, with options; ConfigError for an unknown name or option, or a wrong value."""
    known = options_of(name)
    for option in options:
        if option not in known:
            raise unknown(f"option of fusion method {name!r}", option, known)
    return METHODS[name](**options)


def method_of(method: Method | str | None) -> Method | None:
    """A fusion method by name, with its defaults. Methods and None pass unchanged; ConfigError for anything else."""
    if isinstance(method, str):
        return method_named(method, {})
    if method is not None and not isinstance(method, Method):
        raise ConfigError(f"a fusion method is one such as RRF(k=60), or its name, not {method!r}")
    return method

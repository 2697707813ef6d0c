"""The settings of a pipeline that tuning can choose, as changes of a preset's plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from voicevault_retrievers.core.channel import Rewriter, Stage
from voicevault_retrievers.fusion import RRF, Method
from voicevault_retrievers.fusion.methods import METHODS
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import CrossEncoderRerank, PageCap

Data: TypeAlias = Mapping[str, Any]
"""A preset's data as in its YAML file."""

TRIED = ("adaptive_sum", "convex", "rrf")
"""The fusion methods that are tried, by their names in presets."""
STEPS = 10
"""The number of steps from 0 to 1 in which a channel's share of all weights is tried."""
FACTORS_OF_K = (1 / 2, 2, 1 / 4)
FACTORS_OF_DEPTH = (2, 1 / 2)
CAPS = (1, 2, 3, None)


class EvaluatedPreset(Protocol):
    """A preset: a frozen dataclass with these fields that makes a pipeline over a knowledge base."""

    @property
    def depths(self) -> Mapping[str, int]: ...

    @property
    def expansion(self) -> Rewriter | None: ...

    @property
    def method(self) -> Method: ...

    @property
    def weights(self) -> Mapping[str, float]: ...

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    def over(self, base: Any) -> Pipeline:
        """The pipeline over a knowledge base."""
        ...


@dataclass(frozen=True)
class Settings:
    """One setting of a pipeline: a preset's data, and `make`, which builds the preset from it."""

    data: Data
    make: Callable[[Data], EvaluatedPreset]

    @cached_property
    def recipe(self) -> EvaluatedPreset:
        return self.make(self.data)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every channel."""
        return {name: self.recipe.weights.get(name, 1.0) for name in self.recipe.depths}

    @property
    def reranks(self) -> bool:
        return any(isinstance(stage, CrossEncoderRerank) for stage in self.recipe.stages)

    @property
    def cap(self) -> int | None:
        """The page cap: the most chunks of one page; None without one."""
        return next((stage.max_chunks_per_page for stage in self.recipe.stages if isinstance(stage, PageCap)), None)

    @cached_property
    def said(self) -> dict[str, str]:
        """Each setting in words; equal words mean equal rankings."""
        return {
            "rerank": "yes" if self.reranks else "no",
            "method": repr(self.recipe.method),
            "weights": ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items()),
            "depth": ", ".join(f"{name} {depth}" for name, depth in self.recipe.depths.items()),
            "page_cap": "none" if self.cap is None else str(self.cap),
        }

    def _fused(self, **options: Any) -> Settings:
        """These settings with other options of the fusion."""
        return self._with(fusion={**(self.data.get("fusion") or {}), **options})

    def _with(self, **sections: Any) -> Settings:
        return replace(self, data={**self.data, **sections})

    # Each of these methods returns alternatives, the nearest first.

    def rerankings(self) -> list[Settings]:
        """The settings without the reranker, where there is one."""
        others = [stage for stage in self.data.get("stages") or () if _name(stage) != "rerank"]
        return [self._with(stages=others)] if self.reranks else []

    def methods(self) -> list[Settings]:
        """The settings with other fusion methods, with default options and the same weights."""
        own = type(self.recipe.method)
        kept = {key: value for key, value in (self.data.get("fusion") or {}).items() if key in ("depth", "weights")}
        others = [name for name in TRIED if not isinstance(METHODS[name](), own)]
        return [self._with(fusion={**kept, "method": name}) for name in others]

    def ks(self) -> list[Settings]:
        """The settings with other values of RRF's k."""
        method = self.recipe.method
        return [self._fused(k=_plain(method.k * factor)) for factor in FACTORS_OF_K] if type(method) is RRF else []

    def weightings(self, name: str) -> list[Settings]:
        """The settings with other shares of one channel in the same sum of weights; others keep their proportions."""
        weights = self.weights
        total = sum(weights.values())
        rest, now = total - weights[name], weights[name] / total
        if not rest or (self.data.get("fusion") or {}).get("method") == "engine":
            return []
        shares = sorted((step / STEPS for step in range(STEPS + 1)), key=lambda share: abs(share - now))
        return [
            self._fused(weights={**_scaled(weights, total * (1 - share) / rest), name: _plain(total * share)})
            for share in shares
            if abs(share - now) > 1e-9
        ]

    def depths(self) -> list[Settings]:
        """The settings with all channels asked for more hits, or fewer."""
        return [self._with(channels=self._channels(factor)) for factor in FACTORS_OF_DEPTH]

    def _channels(self, factor: float) -> dict[str, Any]:
        given = self.data.get("channels") or {}
        return {
            name: {**(given.get(name) or {}), "depth": max(1, round(depth * factor))}
            for name, depth in self.recipe.depths.items()
        }

    def caps(self) -> list[Settings]:
        """The settings with other page caps, or none; where there is no cap, one after the other stages."""
        stages = list(self.data.get("stages") or ())
        stages += [] if "page_cap" in map(_name, stages) else ["page_cap"]
        others = sorted((cap for cap in CAPS if cap != self.cap), key=lambda cap: abs((cap or 4) - (self.cap or 4)))
        capped = [[_capped(stage, cap) for stage in stages] for cap in others]
        return [self._with(stages=[stage for stage in each if stage is not None]) for each in capped]


def _scaled(weights: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: _plain(weight * factor) for name, weight in weights.items()}


def _plain(value: float) -> float:
    """The value rounded to six digits, as an int where it is whole."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _name(stage: Any) -> str:
    return stage if isinstance(stage, str) else str(next(iter(stage)))


def _capped(stage: Any, cap: int | None) -> Any:
    """A preset's stage, with this cap where it is the page cap; None where the cap would have no effect."""
    if _name(stage) != "page_cap":
        return stage
    options = {} if isinstance(stage, str) else stage["page_cap"] or {}
    kept = cap or options.get("max_chunks_per_document")
    return {"page_cap": {**options, "max_chunks_per_page": cap}} if kept else None

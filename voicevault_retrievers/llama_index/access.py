"""What narrows every search of a retriever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llama_index.core.vector_stores.types import MetadataFilters

from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.filters import Filter, both, scope
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.filters import filter_of

Where = Filter | MetadataFilters | None


@dataclass(frozen=True)
class Narrowing:
    """Filters to be added to those of a query, and weights over its own."""

    where: Filter | None = None
    require: Filter | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    def further(self, where: Where, require: Where, weights: Mapping[str, float] | None) -> Narrowing:
        """Narrowed once more."""
        return Narrowing(
            both(self.where, filter_of(where)),
            scope(self.require, None if require is None else filter_of(require) or {}),
            {**self.weights, **weights_of(weights)},
        )

    def of(self, query: Query) -> Query:
        """The narrowed query."""
        return replace(
            query,
            where=both(self.where, query.where),
            require=scope(self.require, query.require),
            weights={**(query.weights or {}), **self.weights} or None,
        )


def weights_of(weights: Mapping[str, float] | None) -> dict[str, float]:
    """Weights as they are kept; ConfigError where they go by no names."""
    if not isinstance(weights, Mapping | None):
        raise ConfigError(f"weights is a mapping of channel names to numbers, not {weights!r}")
    return dict(weights or {})


class Weighing(Rewriter):
    """Weights of a channel's own, by the names of what it fuses; those of the query go over them."""

    name = "weights"

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = weights

    def rewrite(self, query: Query) -> Query:
        return replace(query, weights={**self.weights, **(query.weights or {})})

    def __repr__(self) -> str:
        return f"Weighing({dict(self.weights)})"

"""What narrows every search of a retriever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llama_index.core.vector_stores.types import MetadataFilters

from voicevault_retrievers.filters import Filter, both, scope
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.types import Query

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
            {**self.weights, **(weights or {})},
        )

    def of(self, query: Query) -> Query:
        """The narrowed query."""
        return replace(
            query,
            where=both(self.where, query.where),
            require=scope(self.require, query.require),
            weights={**(query.weights or {}), **self.weights} or None,
        )

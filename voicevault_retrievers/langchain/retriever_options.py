"""What a search passes to a retriever or store: `k`, and the query's filter and rights where it takes them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import RunnableConfigurableFields
from langchain_core.vectorstores import VectorStoreRetriever

from voicevault_retrievers.core.channel import MAX_DEPTH
from voicevault_retrievers.core.filters import both, scope
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.langchain.base import PipelineRetriever


def rights_and_filter(key: str, own: Mapping[str, Any], query: Query) -> dict[str, Any]:
    """The options by which a component of this package applies a query's rights and, under `key`, its filter.

    `own` are the options that its owner has set, to which these are added.
    """
    where, require = both(own.get(key), query.where), scope(own.get("require"), query.require)
    return {name: value for name, value in ((key, where), ("require", require)) if value is not None}


def bound_options(part: Any) -> dict[str, Any] | None:
    """The filters bound to a retriever of this package in `bind`, `with_config` or the like; None for another one."""
    bound: dict[str, Any] = {}
    while not isinstance(part, PipelineRetriever):
        if isinstance(part, RunnableBindingBase):
            bound["where"] = both(part.kwargs.get("where"), bound.get("where"))
            bound["require"] = scope(part.kwargs.get("require"), bound.get("require"))
            part = part.bound
        elif isinstance(part, RunnableConfigurableFields):
            part = part.default
        else:
            return None
    return bound


def asks_for_k(retriever: Any) -> bool:
    """Whether a search passes `k` to a retriever: its search takes `k`, and its owner has not set one."""
    if isinstance(retriever, VectorStoreRetriever):
        return retriever.search_type != "mmr" and "k" not in retriever.search_kwargs
    return takes_k(retriever)


def own_k(retriever: Any) -> int:
    """The number of documents that the owner of a vector store's retriever has set; MAX_DEPTH where it is not known."""
    k = retriever.search_kwargs.get("k") if isinstance(retriever, VectorStoreRetriever) else None
    return MAX_DEPTH if k is None else int(k)


def takes_k(retriever: Any) -> bool:
    """Whether the search of a retriever takes `k`."""
    search = getattr(type(retriever), "_get_relevant_documents", None)
    return isinstance(retriever, VectorStoreRetriever) or (
        search is not None and "k" in inspect.signature(search).parameters
    )

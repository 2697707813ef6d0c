"""Errors for options that a call does not have, which say what to write for the words of LangChain and LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, iscoroutinefunction, signature
from types import MappingProxyType
from typing import Any, TypeVar, cast

from voicevault_retrievers.errors import ConfigError, unknown

F = TypeVar("F", bound=Callable[..., Any])

_NONE: Mapping[str, str] = MappingProxyType({})
_SAME = {
    **dict.fromkeys(("k", "similarity_top_k", "top_k", "top_n"), ("k", "top_n", "top_k")),
    **dict.fromkeys(("filter", "filters", "where"), ("where", "filter")),
    **dict.fromkeys(("embed_model", "embedding", "embeddings"), ("embeddings", "embed_model", "embedding")),
    **dict.fromkeys(("docs", "documents", "nodes"), ("documents", "nodes")),
    **dict.fromkeys(("compressors", "node_postprocessors", "stages"), ("stages", "node_postprocessors")),
    **dict.fromkeys(("c", "rrf_k"), ("fusion=RRF(k=60)", "method=RRF(k=60)")),
    **dict.fromkeys(("score_threshold", "similarity_cutoff"), ("score_threshold", "similarity_cutoff")),
    "mode": ("method", "fusion=RRF(k=60)", "response_mode"),
    "model": ("scorer", "llm"),
    "weights": ("fusion=Fusion(weights={'bm25': 0.5, 'dense': 0.5})",),
}
"""Words of either framework, with the options of this package for the same; the first that a call has is meant."""

_BEYOND = {
    **dict.fromkeys(("k", "similarity_top_k", "top_k", "top_n"), "`k` of a search, `top_n` of a reranker"),
    **dict.fromkeys(("filter", "filters", "where"), "`where` of a retriever, `filter` of a vector store"),
    **dict.fromkeys(
        ("embed_model", "embedding", "embeddings"),
        "`embeddings` in LangChain, `embed_model` in LlamaIndex, of a retriever that embeds",
    ),
    **dict.fromkeys(
        ("docs", "documents", "nodes"), "`from_documents` of a LangChain retriever, `from_nodes` of a LlamaIndex one"
    ),
    **dict.fromkeys(("compressors", "node_postprocessors", "stages"), "`retriever >> stage`"),
    **dict.fromkeys(("c", "rrf_k"), "`fusion=RRF(k=60)` of a HybridRetriever"),
    **dict.fromkeys(
        ("score_threshold", "similarity_cutoff"),
        "a RelevanceFilter (LangChain) or RelevancePostprocessor (LlamaIndex) behind a calibrated reranker, as a fused "
        "score has no fixed range; or an option of the vector store that is a channel",
    ),
    **dict.fromkeys(
        ("bm25", "dense", "exclude_nonpositive", "formula", "fuzzy", "operators", "plain_words", "statistics"),
        "set where a channel is made, as in `channels={'bm25': base.bm25(statistics=...)}`, or in a preset",
    ),
    "model": "`scorer` of a CrossEncoderReranker, `model` of a LlamaIndex CrossEncoderRerank",
    "llm": "`expansion=QueryExpander(llm=...)` of a HybridRetriever, or a reranker that reads by a language model",
    "retrievers": "`channels` of a HybridRetriever, each retriever by a name",
    "search_kwargs": "`k` and `where` of the search",
    "weights": "`fusion=Fusion(weights={'bm25': 0.5, 'dense': 0.5})` of a HybridRetriever",
}
"""The same for calls that have none of these options."""


def meant(name: object, known: Collection[str], elsewhere: Mapping[str, str] = _NONE) -> str | None:
    """What to write for a word of a framework, where a call has the options `known`; None for any other word.

    `elsewhere` says it for a kind of call, by the word.
    """
    word = str(name)
    own = (f"`{said}`" for said in _SAME.get(word, ()) if said.partition("=")[0] in known)
    return elsewhere.get(word) or next(own, None) or _BEYOND.get(word)


def refused(owner: str, name: str, known: Collection[str], elsewhere: Mapping[str, str] = _NONE) -> ConfigError:
    """The error for an option that `owner` does not have; see `meant`."""
    if said := meant(name, known, elsewhere):
        return ConfigError(f"{owner} has no option {name!r}; here it is {said}")
    return unknown(f"option of {owner}", name, known)


def check_options(owner: str, options: Iterable[str], *functions: Callable[..., Any]) -> None:
    """Raise ConfigError for the first of `options` that none of the functions has as a parameter."""
    known = set().union(*map(parameters_of, functions))
    for name in options:
        if name not in known:
            raise refused(owner, name, known)


def checks_options(function: F) -> F:
    """The function or class, which raises ConfigError instead of TypeError for an option that it does not have."""
    if isinstance(function, type):
        function.__init__ = checks_options(function.__init__)  # type: ignore[misc]  # the class's own, wrapped
        return function
    known = parameters_of(function)

    def check(parts: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if not options.keys() <= known:
            owner = type(parts[0]).__name__ if function.__name__ == "__init__" else function.__name__
            check_options(owner, options, function)

    if iscoroutinefunction(function):

        @wraps(function)
        async def acalled(*parts: Any, **options: Any) -> Any:
            check(parts, options)
            return await function(*parts, **options)

        return cast("F", acalled)

    @wraps(function)
    def called(*parts: Any, **options: Any) -> Any:
        check(parts, options)
        return function(*parts, **options)

    return cast("F", called)


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """The parameters that can be passed by name."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return {name for name, one in signature(function).parameters.items() if one.kind in kinds} - {"self", "cls"}

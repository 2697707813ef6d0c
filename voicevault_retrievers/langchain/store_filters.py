"""What LangChain's vector stores are given of a portable filter, each in its language (see `engines.languages`).

| store | given |
|---|---|
| InMemoryVectorStore, FAISS | the whole filter, as a function; FAISS applies it to all of its vectors |
| Chroma | equality, `$ne $in $nin`; order of numbers |
| QdrantVectorStore | the same, and `{"$exists": false}` |
| PGVector | `$eq $in $ne $nin $exists`, order of numbers and strings; nothing under `$not` but `$exists` |
| any other, and subclasses of these | nothing |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.vectorstores import VectorStore

from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.engines.languages import KEY, Bound, Chroma, Clause, Language, Qdrant, Scalar, said
from voicevault_retrievers.langchain.stores import kinds_of


class PGVectorFilters(Language):
    """Its comparisons of unlike types are unknown, which no NOT turns round, and its `$nin` compares texts."""

    def equal(self, key: str, operand: Scalar) -> Clause:
        return {key: {"$eq": operand}}

    def other(self, key: str, operand: Scalar) -> Clause:
        unsafe = isinstance(operand, bool) or str(operand).startswith("[")  # that may be the text of a list
        return Bound.EVERYTHING if unsafe else {key: {"$nin": [operand]}}

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        return {key: {operator: operand}}

    def exists(self, key: str, wanted: bool) -> Clause:
        held = {key: {"$exists": wanted}}
        return held if wanted else self.some([held, {key: {"$eq": None}}])


def pushed(store: VectorStore, where: Filter | None) -> dict[str, Any]:
    """What a store's search is given, by keyword, so that it passes at least what the filter passes."""
    options = _OPTIONS.get(kinds_of(store)[0])
    return options(store, where) if options is not None and where else {}


def _in_language(language: Language) -> Callable[[Any, Filter], dict[str, Any]]:
    def options(store: Any, where: Filter) -> dict[str, Any]:
        clause = said(where, language)
        return {} if clause is None else {"filter": clause}

    return options


def _qdrant(store: Any, where: Filter) -> dict[str, Any]:
    if not KEY.fullmatch(store.metadata_payload_key):
        return {}
    language = Qdrant(f"{store.metadata_payload_key}.", _QDRANT_ADDS)
    clause = said(where, language)
    return {} if clause is None else {"filter": language.every([clause])}


def _in_memory(store: Any, where: Filter) -> dict[str, Any]:
    passes = compile_filter(where)
    return {"filter": lambda document: passes(document.metadata)}


def _faiss(store: Any, where: Filter) -> dict[str, Any]:
    return {"filter": compile_filter(where), "fetch_k": max(1, store.index.ntotal)}


_QDRANT_ADDS = ("_id", "_collection_name")
"""The metadata that LangChain's Qdrant store writes into what it found, and Qdrant itself does not know."""

_OPTIONS: dict[str, Callable[[Any, Filter], dict[str, Any]]] = {
    "langchain_chroma.Chroma": _in_language(Chroma()),
    "langchain_community.FAISS": _faiss,
    "langchain_core.InMemoryVectorStore": _in_memory,
    "langchain_postgres.PGVector": _in_language(PGVectorFilters()),
    "langchain_qdrant.QdrantVectorStore": _qdrant,
}
"""By package and class, exactly: a subclass may search with a filter of its own, which this one would replace."""

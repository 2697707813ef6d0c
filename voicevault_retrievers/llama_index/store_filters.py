"""Translation of portable filters into the languages of LlamaIndex's vector stores (see `engines.filters`).

| store | given |
|---|---|
| HybridVectorStore | the whole filter |
| SimpleVectorStore | the ids of the nodes whose metadata passes |
| ChromaVectorStore | equality, `$ne $in $nin`; order of numbers |
| QdrantVectorStore | the same, and `{"$exists": false}` |
| PGVectorStore | equality, `$ne $in $nin $exists`; order of numbers for keys that it has indexed as numbers |
| any other, and subclasses of these | nothing |

A PGVectorStore with an HNSW index is given nothing: it filters after the search, and so returns too few nodes. Metadata
keys that LlamaIndex writes into a store itself, over the node's own, are not filtered by the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from voicevault_retrievers.core.filters import Condition, Filter, Node, Not, compile_filter, parse
from voicevault_retrievers.engines import filters
from voicevault_retrievers.engines.chroma import OTHERS_KEY
from voicevault_retrievers.engines.filters import Bound, Clause, Language, Qdrant, Scalar, translate

CHROMA = "llama_index.vector_stores.chroma.base.ChromaVectorStore"
POSTGRES = "llama_index.vector_stores.postgres.base.PGVectorStore"
QDRANT = "llama_index.vector_stores.qdrant.base.QdrantVectorStore"
SIMPLE = "llama_index.core.vector_stores.simple.SimpleVectorStore"

RESERVED = ("_node_content", "_node_type", "document_id", "doc_id", "ref_doc_id", OTHERS_KEY)
"""The metadata keys that LlamaIndex overwrites in a store."""

_HNSW_REACH = 1000
"""The highest `hnsw.ef_search` of pgvector."""

_NUMBERS = frozenset({"int", "integer", "numeric", "float", "double precision"})


@dataclass(frozen=True)
class Pushed:
    """Arguments of a store's query: fields of a VectorStoreQuery, and keyword arguments beside it."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def pushed(store: BasePydanticVectorStore, where: Filter | None, ids: Collection[str] | None = None) -> Pushed:
    """The arguments with which a store passes at least the nodes that pass a filter and have one of `ids`, if given."""
    say = _SAYING.get(kind_of(store))
    return say(store, where, ids) if say is not None else Pushed()


def reach_of(store: BasePydanticVectorStore) -> int | None:
    """The most nodes that a store can return; pgvector's HNSW index has a limit. None for no limit."""
    return _HNSW_REACH if _hnsw(store) else None


def effort(store: BasePydanticVectorStore, k: int) -> dict[str, Any]:
    """The arguments with which a store's query returns k nodes, where there are as many."""
    set_to = _hnsw(store).get("hnsw_ef_search", 0)
    return {"hnsw_ef_search": min(max(k, set_to), _HNSW_REACH)} if _hnsw(store) else {}


def _hnsw(store: Any) -> Mapping[str, Any]:
    return (store.hnsw_kwargs or {}) if kind_of(store) == POSTGRES else {}


def kind_of(store: BasePydanticVectorStore) -> str:
    """A store's exact class, by module and name: a subclass may behave differently."""
    return f"{type(store).__module__}.{type(store).__name__}"


class ChromaFilters(filters.Chroma):
    """Chroma's filter language. LlamaIndex writes None as an empty string, and `flattened` drops non-scalar values."""

    def unequal(self, key: str, operand: Scalar) -> Clause:
        return Bound.EVERYTHING if operand == "" else super().unequal(key, operand)


class PostgresFilters(Language):
    """LlamaIndex's filters of PostgreSQL. It writes them into SQL unescaped, so strings with SQL marks are not used.

    The clauses compare JSON texts, because comparing numbers raises an error for a value that is no number. A list is
    recognised by its bracket. `numbers` are the keys that were declared to hold numbers alone.
    """

    def __init__(self, numbers: Collection[str] = ()) -> None:
        super().__init__(RESERVED)
        self.numbers = numbers

    def equal(self, key: str, operand: Scalar) -> Clause:
        texts = _texts(operand)
        if not texts:
            return Bound.EVERYTHING
        # A list is matched by the text of its member, as long as JSON can write that in one way only.
        member = [_clause(key, FilterOperator.TEXT_MATCH, texts[0])] if texts[0].isascii() else []
        in_list = self.every([_clause(key, FilterOperator.TEXT_MATCH, "["), *member])
        return self.some([_clause(key, FilterOperator.IN, texts), in_list])

    def unequal(self, key: str, operand: Scalar) -> Clause:
        other = self.other(key, operand)
        if other is Bound.EVERYTHING or not isinstance(operand, str) or _is_json(operand):
            return Bound.EVERYTHING  # JSON values of other types have the same text
        return self.some([other, self.exists(key, False)])

    def other(self, key: str, operand: Scalar) -> Clause:
        texts = _texts(operand)
        unsafe = not texts or texts[0].startswith("[")  # a text with "[" may be that of a list
        return Bound.EVERYTHING if unsafe else _clause(key, FilterOperator.NIN, texts)

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        if isinstance(operand, str) or key not in self.numbers:
            return Bound.EVERYTHING
        return _clause(key, _ORDERED[operator], operand)

    def exists(self, key: str, wanted: bool) -> Clause:
        return _clause(key, FilterOperator.TEXT_MATCH, "") if wanted else _clause(key, FilterOperator.IS_EMPTY, None)

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return MetadataFilters(filters=list(clauses), condition=FilterCondition.AND)

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return MetadataFilters(filters=list(clauses), condition=FilterCondition.OR)


_ORDERED = {
    "$gt": FilterOperator.GT,
    "$gte": FilterOperator.GTE,
    "$lt": FilterOperator.LT,
    "$lte": FilterOperator.LTE,
}


def flattened(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that a flat store can hold, with a mark where some are missing: such nodes pass all clauses."""
    flat = {key: value for key, value in metadata.items() if _is_flat(value)}
    return flat if len(flat) == len(metadata) else {**flat, OTHERS_KEY: True}


def _is_flat(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, int | float) and abs(value) < 2**63)


def _clause(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


def _texts(operand: Scalar) -> list[str]:
    """The texts that JSON's `->>` writes for a value; none where these are unknown or unsafe in SQL."""
    if isinstance(operand, bool):
        return ["true" if operand else "false"]
    if isinstance(operand, str):
        return [] if set(operand) & set("'\"\\:") else [operand]
    if operand == 0:
        return ["0", "0.0", "-0.0"]
    if float(operand).is_integer():
        return [str(int(operand)), f"{int(operand)}.0"]
    return [] if "e" in repr(operand) else [repr(operand)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _keys(node: Node) -> Iterator[str]:
    if isinstance(node, Condition):
        yield node.key
    else:
        for part in (node.part,) if isinstance(node, Not) else node.parts:
            yield from _keys(part)


def _own(store: Any, where: Filter | None, ids: Collection[str] | None) -> Pushed:
    return Pushed({"filters": where, "node_ids": None if ids is None else list(ids)})


def _simple(store: Any, where: Filter | None, ids: Collection[str] | None) -> Pushed:
    known = store.data.metadata_dict or {}
    chosen = list(store.data.embedding_dict if ids is None else ids)
    if where and not set(_keys(parse(where))) & set(RESERVED):
        passes = compile_filter(where)
        return Pushed({"node_ids": [name for name in chosen if name not in known or passes(known[name])]})
    return Pushed() if ids is None else Pushed({"node_ids": chosen})


def _chroma(store: Any, where: Filter | None, ids: Collection[str] | None) -> Pushed:
    language = ChromaFilters(RESERVED)
    clause, _ = translate(where, language)
    return Pushed() if clause is None else Pushed(options={"where": language.some([clause, {OTHERS_KEY: True}])})


def _qdrant(store: Any, where: Filter | None, ids: Collection[str] | None) -> Pushed:
    language = Qdrant(reserved=RESERVED)
    clause, _ = translate(where, language)
    clauses = [] if clause is None else [clause]
    if ids is not None:
        clauses.append(language.models.HasIdCondition(has_id=list(ids)))
    return Pushed(options={"qdrant_filters": language.every(clauses)}) if clauses else Pushed()


def _postgres(store: Any, where: Filter | None, ids: Collection[str] | None) -> Pushed:
    if _hnsw(store):
        return Pushed()
    numbers = {key for key, kind in store.indexed_metadata_keys or () if kind in _NUMBERS}
    language = PostgresFilters(numbers)
    clause, _ = translate(where, language)
    return Pushed() if clause is None else Pushed({"filters": language.every([clause])})


_SAYING: dict[str, Callable[[Any, Filter | None, Collection[str] | None], Pushed]] = {
    SIMPLE: _simple,
    CHROMA: _chroma,
    POSTGRES: _postgres,
    QDRANT: _qdrant,
    "voicevault_retrievers.llama_index.vector_store.HybridVectorStore": _own,
}

"""Parent expansion for LangChain documents, with parents from any store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langchain_core.stores import BaseStore

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.compressors import StageCompressor
from voicevault_retrievers.langchain.context import token_counter
from voicevault_retrievers.langchain.validation import OwnFilter
from voicevault_retrievers.structure import ParentExpansion, ParentStore, parent_store
from voicevault_retrievers.structure.redis import parent_of


class ParentExpander(StageCompressor):
    """Replaces each document's text by its parent's text. A parent appears once, for the best of its children.

    The document keeps its id and score; its own text moves to `metadata["voicevault"]["text"]`. Its metadata are the
    parent's, with its own under keys that the parent lacks, so that a citation names the text that is read. A document
    keeps its own text where the parent is missing, is not permitted by `require`, or does not fit into `max_chars` and
    `max_tokens`; where the store fails, all documents do. A document whose own text does not fit either has an empty
    text, and `over_budget` in `metadata["voicevault"]`. With `merge`, overlapping texts become one, and so do own texts
    that adjoin on one page, where `start_index` gives the character at which each begins (a splitter's
    `add_start_index`). See `structure.ParentExpansion`.

    `store` is a knowledge base, a mapping, a `BaseStore` (the docstore of a ParentDocumentRetriever, or a store of
    bytes), or any object with `fetch(ids)`. Values of a mapping or a `BaseStore` are Documents, or JSON with `text` and
    `metadata`, under the key `key_prefix` + parent id; other values count as missing. The parent id is
    `metadata["parent_id"]`, else the metadata under `id_key`. The metadata under `header_key` may name a header, such
    as a judgment's title, which is put above the first of its texts. `count_tokens` is a function from a text to a
    number, a language model, or None for an estimate. `timeout` is in seconds; None waits.
    """

    store: Any
    key_prefix: str = ""
    id_key: str | None = "doc_id"
    max_chars: int | None = None
    max_tokens: int | None = None
    count_tokens: Any = None
    require: OwnFilter = None
    timeout: float | None = None
    header_key: str | None = None
    merge: bool = True

    def _build(self) -> ParentExpansion:
        return ParentExpansion(
            _store_of(self.store, self.key_prefix),
            max_chars=self.max_chars,
            max_tokens=self.max_tokens,
            count_tokens=token_counter(self.count_tokens),
            id_key=self.id_key,
            require=self.require,
            timeout=self.timeout,
            header_key=self.header_key,
            merge=self.merge,
        )

    def _options(self) -> list[Any]:
        return [*super()._options(), self.require]


@dataclass(frozen=True)
class _Values:
    """A parent store over values whose keys are `prefix` and the parent's id."""

    mget: Callable[[list[str]], Sequence[Any]]
    prefix: str

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        return _parents(ids, self.mget(self._keys(ids)))

    def _keys(self, ids: Sequence[str]) -> list[str]:
        return [self.prefix + parent_id for parent_id in ids]


@dataclass(frozen=True)
class _AsyncValues(_Values):
    amget: Callable[[list[str]], Awaitable[Sequence[Any]]]

    async def afetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        return _parents(ids, await self.amget(self._keys(ids)))


def _store_of(store: Any, prefix: str) -> ParentStore:
    if isinstance(store, Mapping):
        return _Values(lambda keys: [store.get(key) for key in keys], prefix)
    if isinstance(store, BaseStore):
        # BaseStore's default amget runs mget in asyncio's executor, where a hung call keeps the process from exiting.
        own = type(store).amget is not BaseStore.amget
        return _AsyncValues(store.mget, prefix, store.amget) if own else _Values(store.mget, prefix)
    if prefix:
        raise ConfigError(f"key_prefix is for a mapping or a BaseStore, not for a {type(store).__name__}")
    return parent_store(store)


def _parents(ids: Sequence[str], values: Sequence[Any]) -> dict[str, Chunk]:
    found = ((parent_id, _parent(parent_id, value)) for parent_id, value in zip(ids, values, strict=True))
    return {parent_id: parent for parent_id, parent in found if parent is not None}


def _parent(parent_id: str, value: Any) -> Chunk | None:
    """The parent chunk of a stored value; None where the value is not a parent."""
    if isinstance(value, Chunk):
        return value
    if isinstance(value, Document):
        return Chunk(parent_id, value.page_content, metadata=value.metadata)
    return parent_of(parent_id, value)

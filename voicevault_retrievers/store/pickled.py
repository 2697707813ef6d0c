"""What a `bm25.pkl` holds: a rank-bm25 index and, where they are beside it, its chunks' ids, texts and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from voicevault_retrievers.errors import IncompatibleIndexError
from voicevault_retrievers.store.unpickling import DOCUMENTS, MAX_BYTES, RANKERS, Made, load

MAX_ROOM = MAX_BYTES
"""Characters of all texts and metadata, a value counting as `_VALUE`. A pickle can hold once what it names often."""

MAX_DEPTH = 16
"""Lists and dicts inside each other, in metadata."""

_NAMED = (
    ("ids", ("chunk_ids", "ids", "doc_ids", "document_ids")),
    ("chunks", ("chunks", "documents", "docs", "texts", "corpus")),
    ("metadata", ("metadatas", "metadata")),
)
_TEXT = ("text", "page_content", "content", "document")
_ID = ("id", "chunk_id", "doc_id")
_VALUE = 32
_SCALARS = (str, int, float)

Metadata: TypeAlias = Mapping[str, Any]
Columns: TypeAlias = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class PickledIndex:
    """Documents in the order of the index; what the pickle does not say of them is None.

    `strings` are their ids or their texts: a list beside the index with no name to tell which.
    """

    path: Path
    count: int
    ids: tuple[str, ...] | None = None
    texts: tuple[str, ...] | None = None
    metadata: tuple[Metadata, ...] | None = None
    strings: tuple[str, ...] | None = None


def read_bm25(path: Path | str) -> PickledIndex:
    """Read a pickle of a rank-bm25 index, alone or in a dict, list or tuple; nothing that is in it is run.

    Beside the index are its chunks or their ids, in its order: a list of strings, of dicts with a text (and an id and
    metadata), or of LangChain Documents. In a dict they go by name (`chunk_ids`, `chunks`, `metadatas` and the like);
    anything else is passed over. Raises IncompatibleIndexError where there is not one index, where its own counts or
    those of what is beside it differ, and as `unpickling.load` does.
    """
    path = Path(path)
    value = load(path)
    count = _count(_ranker(value, path), path)
    found: Columns = {}
    reader = _Reader(path)
    for name, items in _named(value) if isinstance(value, dict) else _unnamed(value):
        if len(items) != count:
            _refuse(path, f"holds an index of {count} documents and {len(items)} {name}")
        columns = reader.columns(name, items)
        twice = next((column for column in columns if column in found and found[column] != columns[column]), None)
        if twice:
            _refuse(path, f"holds two lists of {twice} that differ")
        found |= columns
    return PickledIndex(path, count, **found)


def _refuse(path: Path, what: str) -> NoReturn:
    raise IncompatibleIndexError(f"{path} {what}: make it again, or index the documents again")


def _ranker(value: Any, path: Path) -> Made:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    found = [each for each in inside if isinstance(each, Made) and each.name in RANKERS]
    if len(found) != 1:
        _refuse(path, f"holds a {type(value).__name__} with {len(found)} rank-bm25 indexes, expected 1")
    return found[0]


def _count(ranker: Made, path: Path) -> int:
    size, lengths, counts = (ranker.state.get(name) for name in ("corpus_size", "doc_len", "doc_freqs"))
    if not isinstance(size, int) or not isinstance(lengths, list) or not isinstance(counts, list):
        _refuse(path, "holds a rank-bm25 index without its corpus_size, doc_len and doc_freqs")
    if not 0 < size == len(lengths) == len(counts):
        _refuse(path, f"holds an index of {size} documents with {len(lengths)} lengths and {len(counts)} term counts")
    return size


def _named(value: dict[Any, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    for part, names in _NAMED:
        lists = [value[name] for name in names if isinstance(value.get(name), list | tuple)]
        if part == "chunks":  # beside their tokens, under one of the names too
            lists = [items for items in lists if _kind(items)]
        if lists:
            yield (_kind(lists[0]) or part) if part == "chunks" else part, lists[0]


def _unnamed(value: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    for items in value if isinstance(value, list | tuple) else ():
        kind = _kind(items)
        if kind:
            yield "strings" if kind == "texts" else kind, items


def _kind(items: Any) -> str | None:
    if not isinstance(items, list | tuple) or not items:
        return None
    if all(isinstance(item, str) for item in items):
        return "texts"
    return "chunks" if all(_fields(item) is not None for item in items) else None


def _fields(item: Any) -> dict[Any, Any] | None:
    """The fields of a dict or a Document, whose class may be a pydantic model; None for anything else."""
    if isinstance(item, Made) and item.name in DOCUMENTS:
        inner = item.state.get("__dict__")
        state = inner if isinstance(inner, dict) else item.state
        return {name: state.get(name) for name in ("page_content", "metadata", "id")}
    return item if isinstance(item, dict) else None


class _Reader:
    """Makes texts and metadata of what a pickle holds, in copies that share nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.room = MAX_ROOM

    def columns(self, part: str, items: Sequence[Any]) -> Columns:
        if part == "chunks":
            return self._chunks([_fields(item) or {} for item in items])
        if part == "metadata":
            return {part: tuple(map(self._metadata, items))}
        if _kind(items) != "texts":
            _refuse(self.path, f"holds {part} that are not strings")
        return {part: tuple(map(self._text, items))}

    def _chunks(self, items: Sequence[dict[Any, Any]]) -> Columns:
        texts = [self._first(_TEXT, item) for item in items]
        ids = [self._first(_ID, item, item.get("metadata")) for item in items]
        for column, what in ((texts, "a text"), (ids, "an id")):
            known = len(column) - column.count(None)
            if known < len(column) and (known or column is texts):
                _refuse(self.path, f"holds {len(column)} chunks, {known} of which have {what}")
        columns: Columns = {"texts": tuple(texts)} if None in ids else {"texts": tuple(texts), "ids": tuple(ids)}
        metadata = tuple(self._metadata(_said(item)) for item in items)
        return {**columns, "metadata": metadata} if any(metadata) else columns

    def _first(self, names: tuple[str, ...], *holders: Any) -> str | None:
        values = (holder.get(name) for holder in holders if isinstance(holder, dict) for name in names)
        return next((self._text(value) for value in values if isinstance(value, str)), None)

    def _text(self, text: str) -> str:
        """Without lone surrogates, which no store takes."""
        self._spend(len(text))
        return text.encode("utf-8", "replace").decode()

    def _metadata(self, value: Any) -> Metadata:
        if not isinstance(value, dict):
            _refuse(self.path, f"holds metadata that is a {type(value).__name__}, expected a dict")
        return {self._text(str(name)): self._plain(each, 1) for name, each in value.items()}

    def _plain(self, value: Any, depth: int) -> Any:
        self._spend(_VALUE)
        if depth > MAX_DEPTH:
            _refuse(self.path, f"holds metadata deeper than {MAX_DEPTH} lists and dicts")
        if isinstance(value, dict):
            return {self._text(str(name)): self._plain(each, depth + 1) for name, each in value.items()}
        if isinstance(value, list | tuple | set):
            return [self._plain(each, depth + 1) for each in value]
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, _SCALARS):
            return value
        return _refuse(self.path, f"holds metadata with a {getattr(value, 'name', type(value).__name__)}")

    def _spend(self, room: int) -> None:
        self.room -= room
        if self.room < 0:
            _refuse(self.path, f"holds more than {MAX_ROOM} characters of text and metadata")


def _said(item: dict[Any, Any]) -> dict[Any, Any]:
    """The metadata of a chunk, and what else it says in words and numbers beside its text and id."""
    beside = {name: value for name, value in item.items() if name not in (*_TEXT, *_ID) and isinstance(value, _SCALARS)}
    inner = item.get("metadata")
    return {**beside, **inner} if isinstance(inner, dict) else beside

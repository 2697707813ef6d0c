"""The content of a `bm25.pkl`: a rank-bm25 index and, where stored beside it, its chunks' ids, texts and metadata."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from voicevault_retrievers.errors import IncompatibleIndexError
from voicevault_retrievers.store.safe_unpickling import DOCUMENTS, MAX_BYTES, RANKERS, UnpickledObject, load

MAX_ROOM = MAX_BYTES
"""The most characters of texts and metadata, a value counting `_VALUE`: a pickle can repeat one object often."""

MAX_DEPTH = 16
"""The deepest nesting of lists and dicts in metadata."""

_NAMED = (
    ("ids", ("chunk_ids", "ids", "doc_ids", "document_ids")),
    ("chunks", ("chunks", "documents", "docs", "texts", "corpus")),
    ("metadata", ("metadatas", "metadata")),
)
_TEXT = ("text", "page_content", "content", "document")
_ID = ("id", "chunk_id", "doc_id")
_VALUE = 32
_HALF, _NONE = 0.5, 0.05
"""The least shares of the index's terms: in an unnamed list to be its texts, and in named texts to be accepted."""
_COMPARED, _LONGEST, _SHORT = 200, 1 << 16, 4
_WORD = re.compile(r"\w+")
_SHOWN = {"records": "chunks", "numbers": "whole numbers"}
_NAME = '; name them in a dict: {"bm25": ..., "chunk_ids": ..., "texts": ..., "metadatas": ...}'
_SCALARS = (str, int, float)

Metadata: TypeAlias = Mapping[str, Any]
Strings: TypeAlias = tuple[str, ...]
Columns: TypeAlias = dict[str, tuple[Any, ...]]
Fields: TypeAlias = dict[Any, Any]


@dataclass(frozen=True)
class PickledIndex:
    """The documents of a pickled index, in its order; a field that the pickle lacks is None.

    `frequencies` are the index's own term frequencies of each document. `unnamed` are lists of strings beside the index
    without a name that says which are ids and which are texts. `spare` are ids to use where none of the lists are ids:
    a list of numbers, or ids in the metadata.
    """

    path: Path
    count: int
    frequencies: Sequence[Any]
    ids: Strings | None = None
    texts: Strings | None = None
    metadata: tuple[Metadata, ...] | None = None
    unnamed: tuple[Strings, ...] = ()
    spare: tuple[Strings, ...] = ()

    def told_apart(self, known: Collection[str] = ()) -> PickledIndex:
        """This index with the ids and texts chosen among its unnamed lists.

        Ids are a list that has an id of the collection `known`. The texts tokenise to the index's term frequencies.
        Raises IncompatibleIndexError where more than one list qualifies.
        """
        joining = [strings for strings in self.unnamed if any(map(known.__contains__, strings))]
        texts = self.texts or self._texts([strings for strings in self.unnamed if strings not in joining])
        others = [strings for strings in joining or self.unnamed if strings not in (texts, self.ids)]
        unique = [strings for strings in others if len(set(strings)) == self.count]
        found = unique or others or ([] if self.ids else list(self.spare))
        if len(found) > 1 or (self.ids and unique):
            _refuse(self.path, "holds two lists of ids that differ, or texts that the index was not made of" + _NAME)
        return replace(self, ids=self.ids or next(iter(found), None), texts=texts, unnamed=(), spare=())

    def _texts(self, lists: Sequence[Strings]) -> Strings | None:
        """The list most similar to the index's frequencies; None where no list has half of the index's terms."""
        said = {strings: overlap(strings, self.frequencies) for strings in lists}
        best = sorted((likeness, strings) for strings, (recall, likeness) in said.items() if recall >= _HALF)
        if len(best) > 1 and best[-1][0] == best[-2][0]:
            _refuse(self.path, "holds two lists that may be the texts of its index" + _NAME)
        return best[-1][1] if best else None


def read_bm25(path: Path | str) -> PickledIndex:
    """Read a pickle of a rank-bm25 index, alone or in a dict, list or tuple, without executing any of its code.

    Beside the index are its chunks or their ids, in its order: a list of strings, of numeric ids, of metadata, or of
    chunks: dicts, LangChain Documents or objects of a user's class, such as a dataclass, with a text (and an id and
    metadata). In a dict, or the fields of an object, they are found by name (`chunk_ids`, `chunks`, `metadatas` and the
    like); anything else is ignored. In a list or tuple they are in any order, see `PickledIndex.told_apart`. Raises
    IncompatibleIndexError unless there is exactly one index, where the counts differ, where texts have none of its
    terms, and as `safe_unpickling.load` does.
    """
    path = Path(path)
    value = load(path)
    if isinstance(value, UnpickledObject) and value.name not in RANKERS:
        value = value.state
    ranker = _ranker(value, path)
    count = _count(ranker, path)
    reader = _Reader(path, ranker.state["doc_freqs"])
    found: Columns = {}
    for name, items in _named(value) if isinstance(value, dict) else _unnamed(value):
        if len(items) != count:
            _refuse(path, f"holds an index of {count} documents and {len(items)} {_SHOWN.get(name, name)}")
        for column, values in reader.columns(name, items).items():
            if column in ("unnamed", "spare"):
                found[column] = tuple(dict.fromkeys((*found.get(column, ()), *values)))
            elif found.setdefault(column, values) != values:
                _refuse(path, f"holds two lists of {column} that differ")
    return PickledIndex(path, count, reader.frequencies, **found)


def overlap(texts: Sequence[str], frequencies: Sequence[Any]) -> tuple[float, float]:
    """The share of the index's terms that the texts have, and their Dice similarity, both from 0 to 1.

    The index's tokeniser is unknown, and may have stemmed: a term is found where a word begins like it, or, in scripts
    without spaces, anywhere. Some hundred documents are compared, by their first terms. An index whose terms are not
    strings gives 0.
    """
    common = terms = words = 0
    for at in range(0, len(texts), max(1, len(texts) // _COMPARED)):
        text = texts[at][:_LONGEST].casefold()
        found = _WORD.findall(text)
        spaced = " ".join(["", *found])
        counts = _counts(frequencies[at])
        own = sum(min(n, _occurs(term.casefold(), text, spaced)) for term, n in counts.items())
        common += own
        terms += sum(counts.values())
        words += max(len(found), own)
    return (common / terms, 2 * common / (terms + words)) if terms else (0.0, 0.0)


def _counts(frequencies: Any) -> dict[str, int]:
    """The first terms of a document, with their frequencies."""
    items = islice(frequencies.items(), _COMPARED) if isinstance(frequencies, dict) else ()
    return {term: n for term, n in items if isinstance(term, str) and type(n) is int and n > 0}


def _occurs(term: str, text: str, words: str) -> int:
    stem = term[:-1] if len(term) > _SHORT else term
    return words.count(f" {stem}") if term.isascii() and term.isalnum() else text.count(stem)


def _refuse(path: Path, what: str) -> NoReturn:
    raise IncompatibleIndexError(f"{path} {what}: make it again, or index the documents again")


def _ranker(value: Any, path: Path) -> UnpickledObject:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    found = [each for each in inside if isinstance(each, UnpickledObject) and each.name in RANKERS]
    if len(found) != 1:
        _refuse(path, f"holds a {type(value).__name__} with {len(found)} rank-bm25 indexes, expected 1")
    return found[0]


def _count(ranker: UnpickledObject, path: Path) -> int:
    size, lengths, counts = (ranker.state.get(name) for name in ("corpus_size", "doc_len", "doc_freqs"))
    if not isinstance(size, int) or not isinstance(lengths, list) or not isinstance(counts, list):
        _refuse(path, "holds a rank-bm25 index without its corpus_size, doc_len and doc_freqs")
    if not 0 < size == len(lengths) == len(counts):
        _refuse(path, f"holds an index of {size} documents with {len(lengths)} lengths and {len(counts)} term counts")
    return size


def _named(value: dict[Any, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    for part, names in _NAMED:
        lists = [value[name] for name in names if isinstance(value.get(name), list | tuple)]
        if part == "chunks":  # token lists may also be under one of these names
            lists = [items for items in lists if _kind(items) in ("strings", "records")]
        if lists:
            yield "texts" if part == "chunks" and _kind(lists[0]) == "strings" else part, lists[0]


def _unnamed(value: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    for items in value if isinstance(value, list | tuple) else ():
        kind = _kind(items)
        if kind and (kind != "numbers" or len(set(items)) == len(items)):
            yield kind, items


def _kind(items: Any) -> str | None:
    """Whether a list holds strings, whole numbers or records; None for anything else."""
    if not isinstance(items, list | tuple) or not items:
        return None
    if all(isinstance(item, str) for item in items):
        return "strings"
    if all(type(item) is int for item in items):
        return "numbers"
    return "records" if all(_fields(item) is not None for item in items) else None


def _fields(item: Any) -> Fields | None:
    """The fields of a dict or an object, also of a pydantic model; None for anything else."""
    if not isinstance(item, UnpickledObject) or item.name in RANKERS:
        return item if isinstance(item, dict) else None
    inner = item.state.get("__dict__")
    state = inner if isinstance(inner, dict) else item.state
    return {name: state.get(name) for name in ("page_content", "metadata", "id")} if item.name in DOCUMENTS else state


class _Reader:
    """Reads texts and metadata from the content of a pickle, as independent copies."""

    def __init__(self, path: Path, frequencies: Sequence[Any]) -> None:
        self.path = path
        self.frequencies = frequencies
        self.room = MAX_ROOM

    def columns(self, part: str, items: Sequence[Any]) -> Columns:
        if part in ("chunks", "records"):
            return self._records([_fields(item) or {} for item in items], named=part == "chunks")
        if part == "metadata":
            return {part: tuple(map(self._metadata, items))}
        if _kind(items) not in ("strings", "numbers") or (part == "texts" and _kind(items) == "numbers"):
            _refuse(self.path, f"holds {part} that are neither strings nor whole numbers")
        column = tuple(self._text(str(item)) for item in items)
        if part in ("strings", "numbers"):
            return {"unnamed" if part == "strings" else "spare": (column,)}
        return {part: self._checked(column) if part == "texts" else column}

    def _records(self, items: Sequence[Fields], named: bool) -> Columns:
        """Texts, ids and metadata of chunks; where they have no text, metadata and the ids in it."""
        names = self._text_names(items, named)
        texts = [self._value(item, name) for item, name in zip(items, names, strict=True)]
        if texts.count(None) == len(texts):
            ids = self._ids(items)
            return {"metadata": tuple(map(self._metadata, items)), "spare": (ids,) if ids else ()}
        if None in texts:
            known = len(texts) - texts.count(None)
            _refuse(self.path, f"holds {len(texts)} chunks, {known} of which have a text")
        ids = self._ids(items)
        metadata = tuple(self._metadata(_said(item, name)) for item, name in zip(items, names, strict=True))
        columns: Columns = {"texts": self._checked(texts)} | ({"ids": ids} if ids else {})
        return {**columns, "metadata": metadata} if any(metadata) else columns

    def _text_names(self, items: Sequence[Fields], named: bool) -> list[str | None]:
        """The name of each record's text field: a known name, or else the field that has the index's terms."""
        names = [_first(_TEXT, item) for item in items]
        if names.count(None) < len(names):
            texts = [str(item.get(name)) for item, name in zip(items, names, strict=True)]
            return names if named or not self._strange(texts) else [None] * len(items)
        fields = [name for name in items[0] if all(isinstance(item.get(name), str) for item in items)]
        said = {name: overlap([item[name] for item in items], self.frequencies) for name in fields}
        likely = [name for name, (recall, _) in said.items() if recall >= _HALF]
        return [max(likely, key=lambda name: said[name][1], default=None)] * len(items)

    def _ids(self, items: Sequence[Fields]) -> Strings | None:
        """The ids of chunks, or else those in their metadata, where all have one and all differ."""
        own = [self._value(item, _first(_ID, item)) for item in items]
        if known := len(own) - own.count(None):
            if known < len(own):
                _refuse(self.path, f"holds {len(own)} chunks, {known} of which have an id")
            return tuple(own)
        inner = [_fields(item.get("metadata")) or {} for item in items]
        said = [self._value(item, _first(_ID, item)) for item in inner]
        return None if None in said or len(set(said)) < len(said) else tuple(said)

    def _checked(self, texts: Iterable[str]) -> Strings:
        """The texts; raises IncompatibleIndexError where they do not belong to the index."""
        given = tuple(texts)
        if self._strange(given):
            _refuse(self.path, "holds texts that have next to none of the terms of its index" + _NAME)
        return given

    def _strange(self, texts: Sequence[str]) -> bool:
        """Whether the texts have almost none of the terms of an index whose terms are strings."""
        return any(map(_counts, self.frequencies)) and overlap(texts, self.frequencies)[0] < _NONE

    def _value(self, item: Fields, name: str | None) -> Any:
        return None if name is None else self._text(str(item[name]))

    def _text(self, text: str) -> str:
        """The text without lone surrogates, which no store accepts."""
        self._spend(len(text))
        return text.encode("utf-8", "replace").decode()

    def _metadata(self, value: Any) -> Metadata:
        fields = _fields(value)
        if fields is None:
            _refuse(self.path, f"holds metadata that is a {type(value).__name__}, expected a dict")
        return {self._text(str(name)): self._plain(each, 1) for name, each in fields.items()}

    def _plain(self, value: Any, depth: int) -> Any:
        self._spend(_VALUE)
        if depth > MAX_DEPTH:
            _refuse(self.path, f"holds metadata deeper than {MAX_DEPTH} lists and dicts")
        fields = _fields(value)
        if fields is not None:
            return {self._text(str(name)): self._plain(each, depth + 1) for name, each in fields.items()}
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


def _first(names: Iterable[str], item: Fields) -> str | None:
    """The first of these names whose value is a string (or, for ids, a whole number)."""
    kinds = (str, int) if names is _ID else (str,)
    return next((name for name in names if type(item.get(name)) in kinds), None)


def _said(item: Fields, text: str | None) -> Fields:
    """The metadata of a chunk, and its other fields of strings and numbers, except text and id."""
    used = (text, _first(_ID, item))
    beside = {name: value for name, value in item.items() if name not in used and isinstance(value, _SCALARS)}
    return beside | (_fields(item.get("metadata")) or {})

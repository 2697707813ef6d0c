"""Metadata as columns: the distinct values of each key and the rows of each value, so that a filter reads no chunk.

A condition is tested once per distinct value, with the predicate that would test each chunk, so both agree. Where an
order (numbers, strings) or membership (lists) decides which values pass, they are looked up instead of tested.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce
from itertools import chain
from operator import and_, or_
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.filters import LISTS, Condition, Every, Node, Not, Some, is_comparable, plain
from voicevault_retrievers.core.selection import FEW, Mask, Ordinals, Selection
from voicevault_retrievers.core.types import Chunk

PARENT = "\x00parent"
"""The key of the column of parent ids."""

MANY, RARE = 256, 64
"""Above MANY keys, a key that fewer than RARE chunks have gets no column: such columns cost more than they save."""

Span: TypeAlias = tuple[int, int]
"""A half-open range of codes: from the first up to but not including the second."""

_RANGES = ("$gt", "$gte", "$lt", "$lte")
_EQUAL = ("$eq", "$in")
_UNEQUAL = ("$ne", "$nin")


@dataclass(frozen=True, eq=False)
class Column:
    """The values of `size` rows under one key.

    `values` are the distinct values: numbers ascending, strings ascending, lists, then all others (booleans, NaN, types
    that JSON lacks); `bounds` are the ends of the first three groups. A value's position is its code. `ordinals` holds
    the rows grouped by code, ascending within a code; `ends[code]` is the end of a code's rows. A row without a value,
    or with None, is not in `ordinals`. Values that no filter tells apart may share a code.
    """

    size: int
    values: Sequence[Any]
    bounds: Sequence[int]
    ends: NDArray[np.uint32]
    ordinals: Ordinals

    @classmethod
    def build(cls, size: int, places: Iterable[int], found: Sequence[Any]) -> Column:
        """The column in which the row `places[i]` has the value `found[i]`; the places ascend."""
        keys = _keys(found)
        distinct = dict(zip(keys, found, strict=True))
        groups: list[list[Any]] = [[], [], [], []]
        for key, value in distinct.items():
            groups[_group(value)].append(key)
        groups[0].sort()
        groups[1].sort()
        known = {key: code for code, key in enumerate(chain(*groups))}
        codes = np.fromiter(map(known.__getitem__, keys), np.min_scalar_type(len(known)), len(keys))
        numbers, strings, lists = (len(group) for group in groups[:3])
        return cls(
            size,
            [distinct[key] for key in known],
            (numbers, numbers + strings, numbers + strings + lists),
            np.cumsum(np.bincount(codes, minlength=len(known)), dtype=np.uint32),
            np.asarray(places, dtype=np.uint32)[np.argsort(codes, kind="stable")],
        )

    def select(self, *conditions: Condition) -> Selection:
        """The rows that meet all given conditions on this key."""
        spans = reduce(_common, map(self.spans, conditions))
        return Selection(self.size, ~self.present) if spans == [self._missing] else Coded(self, spans)

    def reject(self, condition: Condition) -> Selection:
        """The rows that do not meet a condition, without those of which no filter can tell."""
        others = ~self.select(condition)
        unclear = [] if condition.operator == "$exists" else self._incomparable
        return others & ~Coded(self, unclear) if unclear else others

    def spans(self, condition: Condition) -> list[Span]:
        """The ranges of codes that meet a condition, ascending; `_missing` where rows without a value meet it."""
        end, listed = len(self.values), self.bounds[2]
        if condition.operator == "$exists":
            return [(0, end) if condition.operand else self._missing]
        spans = (*self._plain(condition), *self._listed(condition), *self._tested(condition, listed, end))
        return [span for span in spans if span[0] < span[1]]

    @property
    def _missing(self) -> Span:
        return len(self.values), len(self.values) + 1

    def pieces(self, spans: Iterable[Span]) -> list[Ordinals]:
        """The rows of each range of codes."""
        return [self.ordinals[self._start(low) : self._start(high)] for low, high in spans]

    @cached_property
    def present(self) -> Mask:
        """The rows that have a value."""
        return Selection.union(self.size, [self.ordinals]).mask

    @cached_property
    def codes(self) -> NDArray[Any]:
        """The code of each row; one above the last for a row without a value."""
        end = len(self.values)
        codes = np.full(self.size, end, dtype=np.min_scalar_type(end))
        codes[self.ordinals] = np.repeat(np.arange(end, dtype=codes.dtype), np.diff(self.ends, prepend=np.uint32(0)))
        return codes

    def _start(self, code: int) -> int:
        return int(self.ends[code - 1]) if code else 0

    def _tested(self, condition: Condition, start: int, stop: int) -> list[Span]:
        holds = np.fromiter(map(condition.holds, self.values[start:stop]), np.bool_, stop - start)
        return _spans(np.flatnonzero(holds) + start)

    def _plain(self, condition: Condition) -> Iterable[Span]:
        """The ranges of numbers and strings that meet a condition."""
        operator, choices = condition.operator, _choices(condition)
        alike = {self._alike(choice) for choice in choices}
        if None in alike or operator not in (*_RANGES, *_EQUAL, *_UNEQUAL):
            return self._tested(condition, 0, self.bounds[1])
        if operator in _RANGES:
            return [self._range(operator, choices[0])]
        equal = sorted({self._equal(choice) for choice in choices})
        if operator in _EQUAL:
            return equal
        return _between(sorted(span for span in alike if span) if choices else [(0, self.bounds[1])], equal)

    def _alike(self, operand: Any) -> Span | None:
        """The range of values comparable with an operand; None where each value has to be tested."""
        if type(operand) is int or (type(operand) is float and operand == operand):
            return 0, self.bounds[0]
        if type(operand) is str:
            return self.bounds[0], self.bounds[1]
        return (0, 0) if isinstance(operand, bool | dict | NoneType | list | tuple) else None

    def _equal(self, operand: Any) -> Span:
        low, high = self._alike(operand) or (0, 0)
        return bisect_left(self.values, operand, low, high), bisect_right(self.values, operand, low, high)

    def _range(self, operator: str, operand: Any) -> Span:
        low, high = self._alike(operand) or (0, 0)
        cut = bisect_left if operator in ("$gte", "$lt") else bisect_right
        at = cut(self.values, operand, low, high)
        return (low, at) if operator in ("$lt", "$lte") else (at, high)

    def _listed(self, condition: Condition) -> Iterable[Span]:
        """The ranges of lists that meet a condition."""
        _, start, stop = self.bounds
        operator, choices = condition.operator, _choices(condition)
        if start == stop or operator in _RANGES:
            return []
        if operator == "$all":
            found = reduce(and_, ([self._having([choice]) for choice in choices]), Selection.everything(stop - start))
        elif operator in (*_EQUAL, *_UNEQUAL, "$any", "$contains"):
            found = self._having(choices)
        else:
            return self._tested(condition, start, stop)
        if operator in _UNEQUAL:
            found = ~(found | self._lists(self._items._incomparable))
        return _spans(found.ordinals.astype(np.intp) + start)

    @cached_property
    def _incomparable(self) -> list[Span]:
        """The ranges of lists and other values that no filter can compare."""
        _, start, stop = self.bounds
        listed = [] if start == stop else (self._lists(self._items._incomparable).ordinals + start).tolist()
        others = [at for at, value in enumerate(self.values[stop:], stop) if not is_comparable(value)]
        return _spans(np.array([*listed, *others], np.intp))

    def _having(self, choices: Sequence[Any]) -> Selection:
        """The lists that have any of some members, by ordinal from the first list."""
        return self._lists(self._items.spans(Condition("", "$in", choices)))

    def _lists(self, spans: Iterable[Span]) -> Selection:
        """The lists with members in ranges of `_items`, by ordinal from the first list."""
        return Selection.union(self._items.size, self._items.pieces(spans))

    @cached_property
    def _items(self) -> Column:
        """The members of the lists, as a column whose rows are the lists. A list inside a list equals nothing."""
        _, start, stop = self.bounds
        places, items = array("I"), []
        for place, value in enumerate(self.values[start:stop]):
            for item in map(plain, {_key(item): item for item in value}.values()):
                if item is not None and not isinstance(item, LISTS):
                    places.append(place)
                    items.append(item)
        return Column.build(stop - start, places, items)


class Coded(Selection):
    """The rows of a column whose codes are in some ranges: counted without listing them, listed on access."""

    def __init__(self, column: Column, spans: Sequence[Span]) -> None:
        self.size = column.size
        self._column = column
        self._spans = spans

    @cached_property
    def count(self) -> int:
        return sum(map(len, self._column.pieces(self._spans)))

    @cached_property
    def ordinals(self) -> Ordinals:
        pieces = self._column.pieces(self._spans)
        if len(pieces) == 1 and self._spans[0][1] - self._spans[0][0] == 1:
            return pieces[0]
        return Selection.union(self.size, pieces).ordinals if self.count * FEW < self.size else super().ordinals

    @cached_property
    def mask(self) -> Mask:
        """A boolean mask of the rows; where most rows pass, it is made from those that do not."""
        most = self.count * 2 > self.size
        mask = self._column.present.copy() if most else np.zeros(self.size, dtype=np.bool_)
        spans = _between([(0, len(self._column.values))], self._spans) if most else self._spans
        for piece in self._column.pieces(spans):
            mask[piece] = not most
        return mask

    def has(self, ordinals: Ordinals) -> Mask:
        if "mask" in vars(self):
            return self.mask[ordinals]
        passing = np.zeros(len(self._column.values) + 1, dtype=np.bool_)
        for low, high in self._spans:
            passing[low:high] = True
        has: Mask = passing[self._column.codes[ordinals]]
        return has


class Columns:
    """The columns of chunks, each made when a filter first names its key. Safe to share between threads.

    `stored` returns a column that already exists, or None.
    """

    def __init__(self, chunks: Sequence[Chunk], stored: Callable[[str], Column | None] | None = None) -> None:
        self._chunks = chunks
        self._stored = stored
        self._known: dict[str, Column] = {}
        self._lock = Mutex()

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, key: str) -> Column:
        if key not in self._known:
            with self._lock:
                if key not in self._known:
                    self._known[key] = self._make(key)
        return self._known[key]

    def select(self, node: Node, negated: bool = False) -> Selection:
        """The rows that pass a filter, or that surely do not, where `negated`."""
        if isinstance(node, Not):
            return self.select(node.part, not negated)
        if isinstance(node, Condition):
            return self[node.key].reject(node) if negated else self[node.key].select(node)
        if isinstance(node, Some) is not negated:
            parts = [self.select(part, negated) for part in node.parts]
            return reduce(or_, parts, Selection.union(len(self), []))
        parts = sorted(self._parts(node, negated), key=len)
        return reduce(and_, parts) if parts else Selection.everything(len(self))

    def _parts(self, node: Every | Some, negated: bool) -> Iterator[Selection]:
        """The selection of each part; all conditions on one key, such as the two ends of a range, are one part."""
        conditions: defaultdict[str, list[Condition]] = defaultdict(list)
        for part in node.parts:
            if isinstance(part, Condition) and not negated:
                conditions[part.key].append(part)
            else:
                yield self.select(part, negated)
        for key, own in conditions.items():
            yield self[key].select(*own)

    def _make(self, key: str) -> Column:
        column = self._stored(key) if self._stored else None
        if column is not None:
            return column
        places, values = array("I"), []
        for at, chunk in enumerate(self._chunks):
            value = chunk.parent_id if key == PARENT else chunk.metadata.get(key)
            if value is not None:
                places.append(at)
                values.append(value)
        return Column.build(len(self), places, values)


def columns_of(chunks: Sequence[Chunk]) -> Iterator[tuple[str, Column | None]]:
    """Yield every key for which a chunk has a value, `PARENT` included, with its column.

    Above `MANY` keys, a key that fewer than `RARE` chunks have gets None.
    """
    found: defaultdict[str, tuple[array[int], list[Any]]] = defaultdict(lambda: (array("I"), []))
    for at, chunk in enumerate(chunks):
        for key, value in (*chunk.metadata.items(), (PARENT, chunk.parent_id)):
            if value is not None:
                places, values = found[key]
                places.append(at)
                values.append(value)
    for key, (places, values) in found.items():
        rare = len(found) > MANY and len(places) < RARE
        yield key, None if rare else Column.build(len(chunks), places, values)


def _choices(condition: Condition) -> Sequence[Any]:
    """The operands that are looked up one by one."""
    several = condition.operator in ("$in", "$nin", "$any", "$all")
    return condition.operand if several else (condition.operand,)


def _spans(codes: NDArray[np.intp]) -> list[Span]:
    """Ascending codes as ranges."""
    if not len(codes):
        return []
    breaks = np.flatnonzero(np.diff(codes) != 1)
    starts, stops = codes[np.r_[0, breaks + 1]], codes[np.r_[breaks, len(codes) - 1]] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _common(first: list[Span], second: list[Span]) -> list[Span]:
    """The intersection of two ascending lists of ranges."""
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        i, j = (i + 1, j) if first[i][1] <= second[j][1] else (i, j + 1)
    return found


def _between(spans: Iterable[Span], holes: Iterable[Span]) -> Iterator[Span]:
    """The ranges without the holes. Both ascend, and no hole crosses a range's end."""
    for low, high in spans:
        for start, stop in holes:
            if low <= start < stop <= high:
                yield low, start
                low = stop
        yield low, high


def _group(value: Any) -> int:
    """The group of a value in `Column.values`: 0 numbers, 1 strings, 2 lists, 3 all others."""
    if type(value) is int or (type(value) is float and value == value):
        return 0
    return 1 if type(value) is str else 2 if isinstance(value, LISTS) else 3


def _keys(found: Sequence[Any]) -> Sequence[Hashable]:
    """Equal keys for values that no filter tells apart, unlike True and 1. Numbers and strings are their own keys."""
    kinds = set(map(type, found))
    return found if kinds <= {int, float, str} or kinds <= {bool, str} else [_key(value) for value in found]


def _key(value: Any) -> Hashable:
    if isinstance(value, LISTS):
        plain = set(map(type, value)) <= {int, float, str}
        return type(value), tuple(value if plain else map(_item_key, value))
    return _item_key(value)


def _item_key(value: Any) -> Hashable:
    kind = type(value)
    if kind in (int, float, str):
        return value  # type: ignore[no-any-return]  # `kind` narrows the type, which mypy does not see
    if kind in (list, dict):
        return kind
    if isinstance(value, datetime):  # two in the hour that a clock repeats are equal, and stand for different times
        return kind, value.isoformat()
    try:
        hash(value)
    except TypeError:
        return None, id(value)
    return kind, value

"""A filter on columns passes what its predicate passes, in memory, stored, and after deletions."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from voicevault_retrievers.core.columns import Columns
from voicevault_retrievers.core.filters import Filter, compile_filter, parse
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import columns, files
from voicevault_retrievers.store.columns import StoredColumns

KEYS = st.sampled_from("abc")
BIG = 2**53
DAY = datetime.date(2024, 5, 17)

json_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([BIG, BIG + 1, float(BIG), 10**400, -0.0, 0.5, 1.0, 2.0, -1e300]),
    st.sampled_from(["", "a", "A", "ab", "b", "ß", "ss", "1", "True", "\ud800"]),
)
operands = st.one_of(
    json_scalars,
    st.sampled_from([float("nan"), float("inf"), np.float32(0.5), np.int64(2), np.bool_(True), np.str_("a")]),
    st.sampled_from([Fraction(1, 2), Decimal("0.5"), Decimal(2), DAY, datetime.datetime(2024, 5, 17)]),
)
scalars = operands | st.sampled_from([b"a", UUID(int=1)])
json_values = st.recursive(
    json_scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=4
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(scalars, max_size=3),
        st.sets(scalars, max_size=2),
        st.dictionaries(KEYS, inner, max_size=2),
    ),
    max_leaves=4,
)


def conditions(operands: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    single = st.sampled_from("$eq $ne $gt $gte $lt $lte $contains $text $itext".split())
    several = st.sampled_from("$in $nin $any $all".split())
    tests = st.one_of(
        st.tuples(single, operands),
        st.tuples(several, st.lists(operands, max_size=3)),
        st.tuples(st.sampled_from(["$exists", "$empty"]), st.booleans()),
    )
    field = st.lists(tests, min_size=1, max_size=2).map(dict)
    return st.dictionaries(KEYS, field | field.map(lambda inner: {"$not": inner}), max_size=2)


def filters(operands: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    return st.recursive(
        conditions(operands),
        lambda inner: st.one_of(
            st.builds(lambda key, parts: {key: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, max_size=3)),
            inner.map(lambda part: {"$not": part}),
        ),
        max_leaves=4,
    )


def rows_of(metadatas: Sequence[dict[str, Any]]) -> list[Chunk]:
    return [Chunk(f"{at:03}", metadata=metadata) for at, metadata in enumerate(metadatas)]


def by_hand(where: Filter, metadatas: Sequence[dict[str, Any]]) -> list[bool]:
    passes = compile_filter(where)
    return [passes(metadata) for metadata in metadatas]


many = st.lists(st.dictionaries(KEYS, values, max_size=3), max_size=12)
many_json = st.lists(st.dictionaries(KEYS, json_values, max_size=3), max_size=12)


@given(many, filters(operands))
@example([{"a": [1, 1.0, True]}, {"a": [True]}, {"a": (1, True)}, {"a": 1}], {"a": {"$in": [1, True]}})
@example([{"a": float("nan")}, {"a": 0.5}], {"a": {"$nin": [float("nan")]}})
@example([{"a": np.float32(0.1)}, {"a": 0.1}], {"a": 0.1})
@example([{"a": BIG + 1}, {"a": BIG}], {"a": {"$gt": float(BIG)}})
def test_columns_pass_what_the_predicate_passes(metadatas: list[dict[str, Any]], where: Filter) -> None:
    found = Columns(rows_of(metadatas)).select(parse(where))
    expected = by_hand(where, metadatas)
    assert found.mask.tolist() == expected
    assert found.ordinals.tolist() == np.flatnonzero(expected).tolist()
    assert found.count == sum(expected)
    assert [at in found for at in range(len(metadatas))] == expected


@given(many_json, st.lists(filters(json_scalars), min_size=1, max_size=3))
def test_stored_columns_pass_what_the_predicate_passes(metadatas: list[dict[str, Any]], wheres: list[Filter]) -> None:
    chunks = rows_of(metadatas)
    with tempfile.TemporaryDirectory() as root:
        new = files.NewFolder(Path(root, "seg"))
        new.write(columns.NAME, columns.pieces(chunks))
        file = files.open_folder(new.path, new.seal())[columns.NAME]
        stored = Columns(range(len(chunks)), StoredColumns(file, len(chunks)))  # type: ignore[arg-type]  # not read
        for where in wheres:
            assert stored.select(parse(where)).mask.tolist() == by_hand(where, metadatas)


@given(many_json, filters(json_scalars), st.data())
def test_a_selection_holds_live_rows_that_pass(
    metadatas: list[dict[str, Any]], where: Filter, data: st.DataObject
) -> None:
    live = data.draw(st.lists(st.booleans(), min_size=len(metadatas), max_size=len(metadatas)))
    chunks = rows_of(metadatas)
    before = Rows(chunks)
    after = Rows(chunks, before.ids, np.array(live, dtype=np.bool_), before.columns)
    expected = [a and b for a, b in zip(by_hand(where, metadatas), live, strict=True)]
    for _ in range(2):
        found = after.selection(where)
        assert (found is None) == all(expected)
        if found is not None:
            assert found.mask.tolist() == expected
    assert list(after.places(after.ids, where)) == [chunks[at].id for at in np.flatnonzero(expected)]

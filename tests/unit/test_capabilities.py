"""The table of capabilities: what is refused, and how a statement is written."""

from __future__ import annotations

from pathlib import Path

from tests.capabilities import ROOT, Statement, faults, names, read, table

TEXT = "def test_a(): ...\nasync def test_b(): ...\ndef helper(): ...\nclass TestC:\n    def test_d(self): ...\n"


def test_the_tests_of_a_file_are_read_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(f"raise ValueError\n{TEXT}")
    assert names("test_x.py", tmp_path) == {"test_a", "test_b", "TestC::test_d"}
    assert names("test_none.py", tmp_path) == frozenset()


def test_a_statement_without_a_test_and_a_test_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TEXT)
    good = Statement("It works.", ("test_x.py::test_a", "test_x.py::TestC::test_d"))
    assert list(faults({"A": [good]}, tmp_path)) == []
    wrong = [
        Statement("It is fast.", ()),
        Statement("It is safe.", ("test_x.py::helper", "test_y.py::test_a", "test_x.py")),
    ]
    assert list(faults({"A": [good], "B": wrong}, tmp_path)) == [
        "no test shows, in B: It is fast.",
        *(
            f"there is no test {name}, named in B for: It is safe."
            for name in ("test_x.py::helper", "test_y.py::test_a", "test_x.py")
        ),
    ]


def test_a_row_is_a_statement_and_its_tests() -> None:
    shown = table({"A": [Statement("`a | b`\nis c.", ("tests/unit/test_x.py::test_a", "tests/test_y.py::test_b"))]})
    assert "## A\n\n| statement | tests |\n|---|---|\n" in shown
    assert "| `a \\| b` is c. | `unit/test_x.py::test_a`<br>`test_y.py::test_b` |\n" in shown


def test_every_test_that_is_named_is_there_and_no_statement_comes_twice() -> None:
    sections = read()
    assert [fault for fault in faults(sections) if not fault.startswith("no test shows")] == []
    said = [statement.text for statements in sections.values() for statement in statements]
    assert len(said) == len(set(said)) > 140
    assert (ROOT / "Makefile").read_text(encoding="utf-8").count("-m tests.capabilities --check") == 1

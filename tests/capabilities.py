"""The table of capabilities: each statement of `end_to_end/capabilities.yaml` with the tests that show it.

    python -m tests.capabilities            writes end_to_end/capabilities.md
    python -m tests.capabilities --check    exits 1: a statement has no test, a test is not there, or the table is old

A test is named as pytest names it: `tests/unit/test_x.py::test_name`, or `::TestClass::test_name`. Files are parsed and
not imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "end_to_end" / "capabilities.md"
HEAD = """# What shows each capability

Written by `python -m tests.capabilities` from `capabilities.yaml`; `make check` fails where a statement has no test.
"""


class Statement(NamedTuple):
    """What the package must do, in a sentence, and the tests that show it."""

    text: str
    tests: tuple[str, ...]


Sections: TypeAlias = dict[str, list[Statement]]


def read() -> Sections:
    """The statements of each section."""
    given = yaml.safe_load(TABLE.with_suffix(".yaml").read_text(encoding="utf-8"))
    return {title: [Statement(one["says"], tuple(one["tests"])) for one in said] for title, said in given.items()}


@cache
def names(path: str, root: Path = ROOT) -> frozenset[str]:
    """The tests of a file, those of a class as `Class::test`; none where there is no such file."""
    file = root / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(_names(tree.body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from (f"{node.name}::{name}" for name in _names(node.body))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name


def faults(sections: Sections, root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the statements, one line each."""
    for title, statements in sections.items():
        for text, tests in statements:
            if not tests:
                yield f"no test shows, in {title}: {text}"
            for test in tests:
                path, _, name = test.partition("::")
                if name not in names(path, root):
                    yield f"there is no test {test}, named in {title} for: {text}"


def table(sections: Sections) -> str:
    """The statements and their tests as Markdown."""
    lines = [HEAD]
    for title, statements in sections.items():
        lines += [f"## {title}\n", "| statement | tests |", "|---|---|"]
        for text, tests in statements:
            said, shown = " ".join(text.split()), "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
            lines.append("| " + said.replace("|", "\\|") + f" | {shown} |")
        lines.append("")
    return "\n".join(lines)


def main(check: bool) -> int:
    """Write the table, or check it; the exit status."""
    sections = read()
    if not check:
        TABLE.write_text(table(sections), encoding="utf-8")
        return 0
    wrong = list(faults(sections))
    if not TABLE.is_file() or TABLE.read_text(encoding="utf-8") != table(sections):
        wrong.append(f"{TABLE.relative_to(ROOT)} is another than is written by: python -m tests.capabilities")
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))

"""The blocks of the pages for LangChain run, and print what stands below them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_documents_run import needs_weights

pytest.importorskip("langchain_core")

DOCS = Path(__file__).parents[2] / "docs"
SETUP, *REST = re.split(r"(?m)^(?=## (?!What))", (DOCS / "migrating-from-langchain-classic.md").read_text("utf-8"))
SECTIONS = {part.splitlines()[0].removeprefix("## "): part for part in REST}
GUIDE = (DOCS / "langchain.md").read_text("utf-8")

# Reads sessions, lists of scripts that share their names, and writes what each script prints, or how it ends.
RUN = """
import contextlib, io, json, sys, traceback
outcomes = []
for session in json.load(sys.stdin):
    names, printed = {"__name__": "__main__"}, []
    for script in session:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(script, names)
            except BaseException:
                traceback.print_exc(file=out)
        printed.append(out.getvalue())
    outcomes.append(printed)
json.dump(outcomes, sys.stdout)
"""
STRICT = ("-W", "error", "-W", "ignore:The function `load` is in beta", "-W", "ignore:`langchain-community` is being")


class Block(NamedTuple):
    code: str
    prints: str

    @property
    def missing(self) -> list[str]:
        """The packages that it imports and that are not installed."""
        nodes = list(ast.walk(ast.parse(self.code)))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        return sorted({name.partition(".")[0] for name in names if find_spec(name.partition(".")[0]) is None})


def blocks(text: str) -> list[Block]:
    """The blocks that print something; that of the set-up has nothing below it."""
    found = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", text, re.DOTALL)
    return [Block(*each) for each in found]


@cache
def printed(sessions: tuple[tuple[str, ...], ...], options: tuple[str, ...] = ()) -> list[list[str]]:
    command = [sys.executable, *options, "-c", RUN]
    done = subprocess.run(command, input=json.dumps(sessions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes: list[list[str]] = json.loads(done.stdout)
    return outcomes


def check(sections: Sequence[str], at: int, options: tuple[str, ...], section: str) -> None:
    """Compare a section's block with what it prints; those of all sections run in one process, each alone."""
    (setup,) = re.findall(r"```python\n(.*?)```", SETUP, re.DOTALL)
    given = {name: blocks(SECTIONS[name])[at] for name in sections}
    block = given[section]
    if block.missing:
        pytest.skip(f"needs {block.missing}")
    whole = {name: (setup, each.code) for name, each in given.items() if not each.missing}
    outcomes = dict(zip(whole, printed(tuple(whole.values()), options), strict=True))
    assert outcomes[section] == ["", block.prints]


@pytest.mark.parametrize("section", SECTIONS)
def test_what_users_have_prints_what_the_page_says(section: str) -> None:
    check(list(SECTIONS), 0, (), section)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_takes_its_place_prints_what_the_page_says_and_warns_of_nothing(section: str) -> None:
    check(list(SECTIONS), 1, STRICT, section)


def test_every_class_of_the_table_has_a_before_and_an_after() -> None:
    assert re.findall(r"(?m)^\| \[`(\w+)`\]\(#(\w+)\)", SETUP) == [(name, name.lower()) for name in SECTIONS]
    for name, text in SECTIONS.items():
        before, after = blocks(text)
        assert len(re.findall("```python", text)) == 2
        assert re.search(rf"# before\n(.*\n)*from langchain_(classic|community)\.[\w.]+ import .*{name}", before.code)
        assert after.code.startswith("# after\n")
        assert "voicevault_retrievers" in after.code


@needs_weights
@pytest.mark.parametrize("at", range(len(blocks(GUIDE))), ids=lambda at: blocks(GUIDE)[at].code.splitlines()[0])
def test_the_blocks_of_the_guide_run_one_after_the_other(at: int) -> None:
    block = blocks(GUIDE)[at]
    if block.missing:
        pytest.skip(f"needs {block.missing}")
    runs = [each for each in blocks(GUIDE) if not each.missing]
    (outcomes,) = printed((tuple(each.code for each in runs),), STRICT)
    assert outcomes[runs.index(block)] == block.prints


def test_every_block_of_the_guide_says_what_it_prints() -> None:
    assert len(blocks(GUIDE)) == len(re.findall("```python", GUIDE))

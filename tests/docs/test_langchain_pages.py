"""The blocks of the pages for LangChain run, and print what stands below them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, printed
from tests.docs.test_documents_run import needs_weights

pytest.importorskip("langchain_core")

DOCS = Path(__file__).parents[2] / "docs"
SETUP, *REST = re.split(
    r"(?m)^(?=## (?!What))", (DOCS / "reference/migrating-from-langchain-classic.md").read_text("utf-8")
)
SECTIONS = {part.splitlines()[0].removeprefix("## "): part for part in REST}
GUIDE = (DOCS / "how-to/langchain.md").read_text("utf-8")

STRICT = ("-W", "error", "-W", "ignore:The function `load` is in beta", "-W", "ignore:`langchain-community` is being")


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

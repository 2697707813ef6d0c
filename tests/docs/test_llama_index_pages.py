"""The blocks of the pages for LlamaIndex run, and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, printed
from tests.docs.test_documents_run import needs_weights

pytest.importorskip("llama_index.core")

DOCS = Path(__file__).parents[2] / "docs"
SETUP, *REST = re.split(
    r"(?m)^(?=## (?!What))", (DOCS / "reference/migrating-from-llama-index.md").read_text(encoding="utf-8")
)
SECTIONS = {part.splitlines()[0].removeprefix("## "): part for part in REST}
GUIDE = (DOCS / "how-to/llama-index.md").read_text(encoding="utf-8")
STRICT = (
    "-W", "error",
    "-W", "ignore:`langchain-community` is being",  # core imports what is there of LangChain
    "-W", "ignore:The `__fields",  # workflows, of agents
    "-W", "ignore:The `model_",
    "-W", "ignore:Accessing the",
)  # fmt: skip

# As the page says: what SentenceTransformerRerank loads is the stand-in of the set-up.
STAND_IN = """
import sys, types
class Model:
    def __init__(self, *given, **options): ...
    def predict(self, pairs, **options):
        return Overlap().score(pairs[0][0], [text for _, text in pairs])
sys.modules["sentence_transformers"] = types.SimpleNamespace(CrossEncoder=Model)
"""


def check(section: str, at: int, *options: str) -> None:
    """Compare a section's block with what it prints; those of all sections run in one process, each alone."""
    (setup,) = re.findall(r"```python\n(.*?)```", SETUP, re.DOTALL)
    given = {name: blocks(text)[at] for name, text in SECTIONS.items()}
    if given[section].missing:
        pytest.skip(f"needs {given[section].missing}")
    whole = {name: (STAND_IN, setup, each.code) for name, each in given.items() if not each.missing}
    everything = ()  # is found: core looks at torch, as far as it is imported
    outcomes = dict(zip(whole, printed(tuple(whole.values()), options, everything), strict=True))
    assert outcomes[section] == ["", "", given[section].prints]


@pytest.mark.parametrize("section", SECTIONS)
def test_what_users_have_prints_what_the_page_says(section: str) -> None:
    check(section, 0)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_takes_its_place_prints_what_the_page_says_and_warns_of_nothing(section: str) -> None:
    check(section, 1, *STRICT)


def test_every_class_of_the_table_has_a_before_and_an_after() -> None:
    assert re.findall(r"(?m)^\| \[`(\w+)`\]\(#(\w+)\)", SETUP) == [(name, name.lower()) for name in SECTIONS]
    for name, text in SECTIONS.items():
        before, after = blocks(text)
        assert len(re.findall("```python", text)) == 2
        assert re.search(rf"# before\n(.*\n)*from llama_index\.[\w.]+ import .*{name}", before.code)
        assert after.code.startswith("# after\n")
        assert "voicevault_retrievers" in after.code


@needs_weights
@pytest.mark.parametrize("at", range(len(blocks(GUIDE))), ids=lambda at: str(blocks(GUIDE)[at].code.splitlines()[0]))
def test_the_blocks_of_the_guide_run_one_after_the_other(at: int) -> None:
    (outcomes,) = printed((tuple(each.code for each in blocks(GUIDE)),), STRICT)
    assert outcomes[at] == blocks(GUIDE)[at].prints


def test_every_block_of_the_guide_says_what_it_prints() -> None:
    assert len(blocks(GUIDE)) == len(re.findall("```python", GUIDE))

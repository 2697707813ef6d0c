"""The blocks of every page run, one after the other, and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, printed
from tests.docs.shared_runs import HIDDEN
from tests.docs.test_documents_run import needs_weights

DOCS = Path(__file__).parents[2] / "docs"
RUN_ELSEWHERE = {
    "tutorials/first-steps", "how-to/langchain", "how-to/llama-index", "how-to/other-engines", "how-to/postgresql",
    "reference/migrating-from-langchain-classic", "reference/migrating-from-llama-index",
}  # fmt: skip
"""Pages whose code other tests of this folder run."""
BY_OPENVINO = {"how-to/tenants"}
"""Pages that show scores as OpenVINO computes them."""
STRICT = (
    "-W", "error",
    "-W", "ignore:`langchain-community` is being",  # llama-index-core imports what is there of it
    "-W", "ignore::DeprecationWarning:ir_measures.util",  # from Python 3.12 on
)  # fmt: skip
ALL = {
    page.relative_to(DOCS).with_suffix("").as_posix(): page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))
}
PAGES = {name: text for name, text in ALL.items() if "```python" in text and name not in RUN_ELSEWHERE}


@needs_weights
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_print_what_stands_below_them(page: str) -> None:
    given = blocks(PAGES[page])
    assert len(given) == len(re.findall("```python", PAGES[page])) > 0
    if missing := [name for block in given for name in block.missing]:
        pytest.skip(f"needs {missing}")
    hidden = () if page in BY_OPENVINO else HIDDEN
    (outcomes,) = printed((tuple(block.code for block in given),), STRICT, hidden)
    assert outcomes == [block.prints for block in given]

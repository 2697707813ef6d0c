"""The blocks of the pages on the core run, one after the other, and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, printed
from tests.docs.shared_runs import HIDDEN
from tests.docs.test_documents_run import needs_weights

DOCS = Path(__file__).parents[2] / "docs"
NAMES = (
    "chroma", "claims", "command-line", "engines", "expansion", "extending", "filters", "flare", "funnel", "fusion",
    "graph", "index", "inspector", "keyword-search", "knowledge-bases", "mcp", "milvus", "newsroom", "observability",
    "parents", "pdf-chat", "provenance", "qdrant", "questions", "reranking",
)  # fmt: skip
BY_OPENVINO = {"newsroom"}
"""Pages that show scores as OpenVINO computes them."""
STRICT = ("-W", "error", "-W", "ignore:`langchain-community` is being")  # llama-index-core imports what is there of it
PAGES = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}


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

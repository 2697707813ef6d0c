"""The blocks of the page on PostgreSQL run over a real server, and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, printed
from tests.docs.test_documents_run import needs_weights
from tests.engines.engines import SYSTEMS, PostgresServer, running

PAGE = (Path(__file__).parents[2] / "docs/how-to/postgresql.md").read_text(encoding="utf-8")


@needs_weights
def test_the_blocks_of_the_page_print_what_stands_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    SYSTEMS["postgres"].skip()
    given = blocks(PAGE)
    assert len(given) == len(re.findall("```python", PAGE)) > 0
    with running(PostgresServer) as server:
        monkeypatch.setenv("DATABASE", server.database())
        (outcomes,) = printed((tuple(block.code for block in given),), ("-W", "error"))
    assert outcomes == [block.prints for block in given]

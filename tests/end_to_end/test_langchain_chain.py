"""integrations/langchain_chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.programs import SMALL, cited, commands, installed, run, turns

pytestmark = pytest.mark.skipif(not installed("langchain_core"), reason="needs the extras `langchain` and `demo`")


def test_a_conversation_with_sources(tmp_path: Path) -> None:
    program, _ = commands("langchain_chain")
    questions = ["When was ERR_2043 shown?", "And what was the cause?"]
    front, first, second = turns(run(program, *SMALL, *questions, home=tmp_path))
    assert front.startswith("model: scripted (no language model")
    assert "ERR_2043 was shown. [1]" in first
    assert "[1]" in cited(first)
    assert "\n   (searched for: When was ERR_2043 shown? And what was the cause?)\n" in second
    assert cited(second)

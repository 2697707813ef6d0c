"""integrations/agent_tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.programs import SMALL, cited, commands, installed, run, turns

pytestmark = pytest.mark.skipif(not installed("langchain"), reason="needs the extras `agents` and `demo`")


@pytest.mark.parametrize("program", commands("agent_tools", "langgraph_agent.py")[:2])
def test_two_turns_with_sources(program: str, tmp_path: Path) -> None:
    questions = ["When was ERR_2043 shown?", "Which alarm did the gas detector give?"]
    front, first, second = turns(run(program, *SMALL, *questions, home=tmp_path))
    assert front.startswith("model: scripted (no language model")
    assert "ERR_2043 was shown. [1]" in first
    assert ("(calls search with {'query': 'When was ERR_2043 shown?'})" in first) == ("--middleware" not in program)
    assert "[1]" in cited(first)
    assert "A gas detector gave an alarm" in second
    assert all(int(marker.strip("[]")) > 5 for marker in cited(second))

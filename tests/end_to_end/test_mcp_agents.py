"""integrations/agent_tools: agents that answer through the MCP server, with sources that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.end_to_end.programs import SMALL, cited, commands, installed, run, turns

PROGRAMS = {
    "mcp_langchain.py": ("mcp", "langchain", "langchain_mcp_adapters"),
    "mcp_llama_index.py": ("mcp", "llama_index.core", "llama_index.tools.mcp"),
}
QUESTIONS = ["When was ERR_2043 shown?", "Which alarm did the gas detector give?"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[str]]]:
    """What the programs print that can run here; they run at the same time."""
    with ThreadPoolExecutor() as pool:
        yield {
            program: pool.submit(run, command, *SMALL, *QUESTIONS, home=tmp_path_factory.mktemp("kbs"))
            for program, modules in PROGRAMS.items()
            if installed(*modules)
            for command in commands("agent_tools", program)
        }


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_agent_cites_what_the_server_gave(program: str, printed: Mapping[str, Future[str]]) -> None:
    if program not in printed:
        pytest.skip(f"needs {', '.join(PROGRAMS[program])} and the extra `demo`")
    front, first, second = turns(printed[program].result())
    assert front.startswith("model: scripted (no language model")
    assert "(calls search with {'query': 'When was ERR_2043 shown?'})" in first
    assert "ERR_2043 was shown. [1]" in first
    assert "[1]" in cited(first)
    assert "A gas detector gave an alarm" in second
    numbers = {int(marker.strip("[]")) for marker in cited(second)}
    assert numbers
    assert max(numbers) > 5

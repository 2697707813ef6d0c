"""The programs of integrations/ without a model, by the command lines of their READMEs: two turns with sources."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import pytest

from tests.docs.blocks import printed
from tests.end_to_end.programs import LOG, as_script, cited, commands, installed, turns

CHAIN = commands("langchain_chain")[0]
NEEDS = {
    CHAIN: "langchain_core",
    **dict.fromkeys(commands("agent_tools", "langgraph_agent.py")[:2], "langchain"),
    commands("agent_tools", "llama_index_agent.py")[0]: "llama_index",
    **dict.fromkeys(commands("llama_index_query_engine")[:2], "llama_index"),
}
"""The lines, and what each needs beside the extra `demo`."""
FIRST = "When was ERR_2043 shown?"
SECOND = {**dict.fromkeys(NEEDS, "Which alarm did the gas detector give?"), CHAIN: "And what was the cause?"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """The turns of each program that can run here; all run in one process, each with a knowledge base of its own."""
    lines = [line for line, module in NEEDS.items() if installed(module)]
    scripts = tuple(
        as_script(f"{line} --folder {LOG} --kb log-{at} {shlex.join([FIRST, SECOND[line]])}")
        for at, line in enumerate(lines)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("VOICEVAULT_HOME", str(tmp_path_factory.mktemp("kbs")))
        (outputs,) = printed((scripts,), quiet=True)
    return {line: turns(output) for line, output in zip(lines, outputs, strict=True)}


@pytest.mark.parametrize("line", NEEDS)
def test_two_turns_with_sources(line: str, told: Mapping[str, list[str]]) -> None:
    if line not in told:
        pytest.skip(f"needs {NEEDS[line]} and the extra `demo`")
    front, first, second = told[line]
    assert front.startswith("model: scripted (no language model")
    assert "ERR_2043 was shown. [1]" in first
    assert "[1]" in cited(first)
    if "agent.py" in line:
        assert (f"(calls search with {{'query': '{FIRST}'}})" in first) == ("--middleware" not in line)
        assert all(int(marker.strip("[]")) > 5 for marker in cited(second))
    if line == CHAIN:
        assert f"\n   (searched for: {FIRST} {SECOND[line]})\n" in second
    else:
        assert "A gas detector gave an alarm" in second
    assert cited(second)

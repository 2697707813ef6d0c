"""integrations/agent_tools/llama_index_agent.py."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.end_to_end.programs import installed, loaded

pytestmark = [
    pytest.mark.skipif(not installed("llama_index"), reason="needs the extras `llama-index` and `demo`"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),  # workflows, of agents
]


async def test_a_conversation_over_nodes_in_memory() -> None:
    from llama_index.core.memory import ChatMemoryBuffer

    from tests.frameworks.llama_index_parts import HashEmbedding, nodes
    from voicevault_retrievers.llama_index import HybridRetriever

    program = loaded("agent_tools/llama_index_agent.py")
    retriever = HybridRetriever.from_nodes(nodes(), HashEmbedding(), k=1)
    agent = program.agent_with_a_tool(retriever, program.language_model(None, None))
    questions = ["When does an alarm sound?", "Close which valve, and drain what?"]
    with redirect_stdout(StringIO()) as printed:
        await program.talk(agent, questions, ChatMemoryBuffer.from_defaults())
    first, second = printed.getvalue().strip().split("\n\n")
    assert "A: An alarm sounds when the water level is too high. [1]\n   [1] [Source: manual.pdf, p.2]" in first
    assert "A: Close the valve and drain the pump before winter. [2]\n   [2] [Source: manual.pdf, p.1]" in second

"""An agent of LlamaIndex whose tools are those of `voicevault mcp`, which it starts, and whose answers are checked."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

from llama_index.core.agent.workflow import AgentWorkflow, ToolCall, ToolCallResult
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool
from llama_index.tools.mcp import McpToolSpec
from mcp import ClientSession
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, TextContent
from mcp_server import add_options, index, server

from voicevault_retrievers import Citation
from voicevault_retrievers.answers import header, resolve_citations

sys.path.append(str(Path(__file__).parents[1]))
from scripted_llm import SCRIPTED, language_model

QUESTIONS = ["What does ERR_2043 mean?", "How often are the blades of T3 washed?"]


async def talk(args: argparse.Namespace) -> None:
    """Hold one conversation in one session of the server: the numbers of its sources go on as long as that lasts."""
    async with stdio_client(server(args)) as streams, ClientSession(*streams) as session:
        about = await session.initialize()
        tools = [readable(tool) for tool in await McpToolSpec(session).to_tool_list_async()]
        llm = language_model(args.llm, args.model)
        agent = AgentWorkflow.from_tools_or_functions(tools, llm=llm, system_prompt=about.instructions)
        memory = Memory.from_defaults()
        sources: list[Citation] = []
        for question in args.questions:
            print(f"\nQ: {question}")
            run = agent.run(user_msg=question, memory=memory)
            async for event in run.stream_events():
                if isinstance(event, ToolCallResult):
                    found = given(event.tool_output.raw_output)
                    sources += found
                    print(f"   ({len(found)} sources)")
                elif isinstance(event, ToolCall):
                    print(f"   (calls {event.tool_name} with {event.tool_kwargs})")
            show(str(await run), sources)


def readable(tool: FunctionTool) -> FunctionTool:
    """A tool of McpToolSpec as a model can read it: without this it is given the call's result as Python prints it."""

    async def said(result: CallToolResult) -> str:
        return "\n".join(content.text for content in result.content if isinstance(content, TextContent))

    return FunctionTool.from_defaults(async_fn=tool.async_fn, tool_metadata=tool.metadata, async_callback=said)


def given(result: CallToolResult) -> list[Citation]:
    """The sources that a call gave: its structured content has the data of the answer."""
    return [Citation(**source) for source in (result.structuredContent or {}).get("citations", ())]


def show(answer: str, sources: Iterable[Citation]) -> None:
    """Print an answer with the sources that it names, of this turn or an earlier one."""
    resolved = resolve_citations(answer, list(sources), numbered=True)
    print(f"A: {answer}")
    for citation in resolved.citations:
        print(f"   [{citation.index}] {header(citation)}")
    for marker in resolved.unresolved:
        print(f"   {marker.text} names no source")


def main() -> None:
    """Ask the questions in turn, and print what the agent does and answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="the turns of one conversation")
    parser.add_argument("--llm", metavar="MODULE:CLASS", help="an LLM's class; without it a script writes the answers")
    parser.add_argument("--model", metavar="NAME", help="the model that the LLM is to use")
    args = add_options(parser).parse_args()
    print(f"model: {args.llm or SCRIPTED}")
    index(args)
    asyncio.run(talk(args))


if __name__ == "__main__":
    main()

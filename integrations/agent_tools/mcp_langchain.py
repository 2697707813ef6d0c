"""An agent of LangChain whose tools are those of `voicevault mcp`, which it starts, and whose answers are checked."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.checkpoint.memory import InMemorySaver
from mcp import ClientSession
from mcp.client.stdio import stdio_client
from mcp_server import add_options, index, server

from voicevault_retrievers import Citation
from voicevault_retrievers.answers import header, resolve_citations

sys.path.append(str(Path(__file__).parents[1]))
from scripted_model import SCRIPTED, chat_model

QUESTIONS = ["What does ERR_2043 mean?", "How often are the blades of T3 washed?"]


async def talk(args: argparse.Namespace) -> None:
    """Hold one conversation in one session of the server: the numbers of its sources go on as long as that lasts."""
    async with stdio_client(server(args)) as streams, ClientSession(*streams) as session:
        about = await session.initialize()
        tools = await load_mcp_tools(session)
        model = chat_model(args.model)
        agent = create_agent(model, tools, system_prompt=about.instructions, checkpointer=InMemorySaver())
        thread: Any = {"configurable": {"thread_id": "1"}}
        seen = 0
        for question in args.questions:
            state = await agent.ainvoke({"messages": [{"role": "user", "content": question}]}, thread)
            show(state["messages"], seen)
            seen = len(state["messages"])


def given(messages: list[Any]) -> list[Citation]:
    """The sources that the tools gave: a tool message's artifact has the data of the answer."""
    artifacts = [one.artifact for one in messages if isinstance(one, ToolMessage) and one.artifact]
    return [Citation(**source) for one in artifacts for source in one["structured_content"].get("citations", ())]


def show(messages: list[Any], seen: int) -> None:
    """Print the turn: the question, what was searched for, and the answer with the sources that it names."""
    question, *steps = messages[seen:]
    print(f"\nQ: {question.text}")
    for message in steps:
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            print(f"   (calls {call['name']} with {call['args']})")
        if isinstance(message, ToolMessage):
            print(f"   ({len(given([message]))} sources)")
    resolved = resolve_citations(steps[-1].text, given(messages), numbered=True)
    print(f"A: {resolved.answer}")
    for citation in resolved.citations:
        print(f"   [{citation.index}] {header(citation)}")
    for marker in resolved.unresolved:
        print(f"   {marker.text} names no source")


def main() -> None:
    """Ask the questions in turn, and print what the agent does and answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="the turns of one conversation")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a chat model; without it a script writes the answers")
    args = add_options(parser).parse_args()
    print(f"model: {args.model or SCRIPTED}")
    index(args)
    asyncio.run(talk(args))


if __name__ == "__main__":
    main()

"""An agent of LlamaIndex that searches your documents by a tool, and cites them."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_index.core.agent.workflow import AgentWorkflow, ToolCall, ToolCallResult
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM
from llama_index.core.memory import BaseMemory, Memory

from voicevault_retrievers import Citation, KnowledgeBase, shipped
from voicevault_retrievers.answers import header, resolve_citations
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.llama_index import HybridRetriever, RetrievalTool, given_citations
from voicevault_retrievers.store import update

sys.path.append(str(Path(__file__).parents[1]))
from scripted_llm import SCRIPTED, language_model

QUESTIONS = ["What does ERR_2043 mean?", "How often are the blades of T3 washed?"]
PROMPT = "You answer questions about a tidal power station. Search before you answer, and cite what you found."


def agent_with_a_tool(retriever: BaseRetriever, llm: LLM) -> AgentWorkflow:
    """A FunctionAgent, or where the model has no function calls a ReActAgent.

    It may narrow a search to files and pages.
    """
    tool = RetrievalTool(retriever, filters=["source_file", "page_number"], max_tokens=3000)
    return AgentWorkflow.from_tools_or_functions([tool], llm=llm, system_prompt=PROMPT)


def retriever_over(folder: Path, name: str, root: Path | None) -> BaseRetriever:
    """Hybrid search, reranked, of a folder's documents; only what has changed since the last time is embedded."""
    with KnowledgeBase.open_or_create(name, root=root, embedder=load_embedder()) as base:
        update(base, folder)
    return HybridRetriever(kb_names=[base.path], preset="voicevault")


def main() -> None:
    """Ask the questions in turn, and print what the agent does and answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="the turns of one conversation")
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="sample", help="the knowledge base that they are kept in  [sample]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--llm", metavar="MODULE:CLASS", help="an LLM's class; without it a script writes the answers")
    parser.add_argument("--model", metavar="NAME", help="the model that the LLM is to use")
    args = parser.parse_args()

    print(f"model: {args.llm or SCRIPTED}")
    agent = agent_with_a_tool(retriever_over(args.folder, args.kb, args.root), language_model(args.llm, args.model))
    asyncio.run(talk(agent, args.questions, Memory.from_defaults()))


async def talk(agent: AgentWorkflow, questions: list[str], memory: BaseMemory) -> None:
    """Hold one conversation: its messages are in the memory, its sources in what the runs return."""
    outputs = []
    for question in questions:
        print(f"\nQ: {question}")
        run = agent.run(user_msg=question, memory=memory)
        async for event in run.stream_events():
            if isinstance(event, ToolCallResult):
                print(f"   ({len(given_citations(event))} sources)")
            elif isinstance(event, ToolCall):
                print(f"   (calls {event.tool_name} with {event.tool_kwargs})")
        outputs.append(await run)
        show(str(outputs[-1]), given_citations(*outputs))


def show(answer: str, sources: Sequence[Citation]) -> None:
    """Print an answer with the sources that it names, of this turn or an earlier one."""
    resolved = resolve_citations(answer, sources, numbered=True)
    print(f"A: {answer}")
    for citation in resolved.citations:
        print(f"   [{citation.index}] {header(citation)}")
    for marker in resolved.unresolved:
        print(f"   {marker.text} names no source")


if __name__ == "__main__":
    main()

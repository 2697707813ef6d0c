"""An agent that searches your documents and cites them: as a tool, or (--middleware) before each answer."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langgraph.checkpoint.memory import InMemorySaver

from voicevault_retrievers import Citation, KnowledgeBase, shipped
from voicevault_retrievers.answers import header, resolve_citations
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.langchain import HybridRetriever, RetrievalMiddleware, given_citations, retrieval_tool
from voicevault_retrievers.store import update

sys.path.append(str(Path(__file__).parents[1]))
from scripted_model import SCRIPTED, chat_model

QUESTIONS = ["What does ERR_2043 mean?", "How often are the blades of T3 washed?"]
PROMPT = "You answer questions about a tidal power station. Search before you answer, and cite what you found."


def agent_with_a_tool(retriever: BaseRetriever, model: BaseChatModel) -> Any:
    """The model decides when to search and for what; it may narrow the search to files and pages."""
    tool = retrieval_tool(retriever, filters=["source_file", "page_number"], max_tokens=3000)
    return create_agent(model, [tool], system_prompt=PROMPT, checkpointer=InMemorySaver())


def agent_with_middleware(retriever: BaseRetriever, model: BaseChatModel) -> Any:
    """Every question is searched for, and the model asked again where it cites what it was not given."""
    middleware = RetrievalMiddleware(retriever, max_tokens=3000, on_unresolved="retry")
    return create_agent(model, middleware=[middleware], system_prompt=PROMPT, checkpointer=InMemorySaver())


def retriever_over(folder: Path, name: str, root: Path | None) -> BaseRetriever:
    """Hybrid search, reranked, of a folder's documents; only what has changed since the last time is embedded."""
    with KnowledgeBase.open_or_create(name, root=root, embedder=load_embedder()) as base:
        update(base, folder)
    return HybridRetriever(kb_names=[base.path], preset="voicevault")


def main() -> None:
    """Ask the questions in turn, and print what the agent does and answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="the turns of one conversation")
    parser.add_argument("--middleware", action="store_true", help="search before each answer, instead of by a tool")
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="sample", help="the knowledge base that they are kept in  [sample]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a chat model; without it a script writes the answers")
    args = parser.parse_args()

    print(f"model: {args.model or SCRIPTED}")
    made = agent_with_middleware if args.middleware else agent_with_a_tool
    agent = made(retriever_over(args.folder, args.kb, args.root), chat_model(args.model))
    thread = {"configurable": {"thread_id": "1"}}
    seen = 0
    for question in args.questions:
        state = agent.invoke({"messages": [{"role": "user", "content": question}]}, thread)
        show(state, seen)
        seen = len(state["messages"])


def show(state: dict[str, Any], seen: int) -> None:
    """Print the turn: the question, what was searched for, and the answer with the sources that it names."""
    question, *steps = state["messages"][seen:]
    print(f"\nQ: {question.text}")
    for message in steps:
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            print(f"   (calls {call['name']} with {call['args']})")
        if isinstance(message, ToolMessage) and message.artifact:
            print(f"   ({len(message.artifact['documents'])} sources)")
    print(f"A: {steps[-1].text}")
    citations, unresolved = cited(state)
    for citation in citations:
        print(f"   [{citation.index}] {header(citation)}")
    for marker in unresolved:
        print(f"   {marker} names no source")


def cited(state: dict[str, Any]) -> tuple[list[Citation], list[str]]:
    """What the answer names, and the markers that name nothing: the middleware has it ready, a tool's are looked up."""
    if "citations" in state:
        return [Citation(**one) for one in state["citations"]["citations"]], state["citations"]["unresolved"]
    resolved = resolve_citations(state["messages"][-1].text, given_citations(state), numbered=True)
    return list(resolved.citations), [marker.text for marker in resolved.unresolved]


if __name__ == "__main__":
    main()

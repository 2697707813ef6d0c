"""Answers with sources, over a folder of documents, in a conversation: LangChain's own parts and a HybridRetriever."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBranch, RunnablePassthrough

from voicevault_retrievers import KnowledgeBase, shipped
from voicevault_retrievers.answers import header
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.langchain import ContextBuilder, HybridRetriever, resolve_citations
from voicevault_retrievers.store import update

sys.path.append(str(Path(__file__).parents[1]))
from scripted_model import SCRIPTED, chat_model

QUESTIONS = ["What does ERR_2043 mean?", "And what does the unit do by itself when it appears?"]
REWRITE = ChatPromptTemplate.from_messages(
    [
        ("system", "Rewrite the last question so that it can be understood without the conversation. Answer with it."),
        ("placeholder", "{history}"),
        ("human", "{question}"),
    ]
)
ANSWER = ChatPromptTemplate.from_messages([("system", "{instruction}\n\n{context}"), ("human", "{search}")])


def cited_rag(retriever: BaseRetriever, model: BaseChatModel) -> Runnable[dict[str, Any], dict[str, Any]]:
    """A chain from `question` and `history` (messages) to these with `search`, `documents`, `context`, `answer` and
    `resolved`, the markers of the answer with what they name.
    """
    builder = ContextBuilder(markers="numbered", max_tokens=3000)
    rewritten = REWRITE | model | StrOutputParser()
    read = RunnablePassthrough.assign(context=lambda turn: turn["context"].text)
    answer = read | ANSWER.partial(instruction=builder.instruction) | model | StrOutputParser()
    return (
        RunnablePassthrough.assign(search=RunnableBranch((itemgetter("history"), rewritten), itemgetter("question")))
        | RunnablePassthrough.assign(documents=itemgetter("search") | retriever)
        | RunnablePassthrough.assign(context=builder)
        | RunnablePassthrough.assign(answer=answer)
        | RunnablePassthrough.assign(resolved=lambda turn: resolve_citations(turn["answer"], turn["context"]))
    )


def retriever_over(folder: Path, name: str, root: Path | None) -> BaseRetriever:
    """Hybrid search, reranked, of a folder's documents; only what has changed since the last time is embedded."""
    with KnowledgeBase.open_or_create(name, root=root, embedder=load_embedder()) as base:
        update(base, folder)
    return HybridRetriever(kb_names=[base.path], preset="voicevault")


def main() -> None:
    """Ask the questions in turn, and print the answers with their sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="the turns of one conversation")
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="sample", help="the knowledge base that they are kept in  [sample]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a chat model; without it a script writes the answers")
    args = parser.parse_args()

    print(f"model: {args.model or SCRIPTED}")
    chain = cited_rag(retriever_over(args.folder, args.kb, args.root), chat_model(args.model))
    history: list[BaseMessage] = []
    for question in args.questions:
        turn = chain.invoke({"question": question, "history": history})
        show(turn)
        history += [HumanMessage(question), AIMessage(turn["answer"])]


def show(turn: dict[str, Any]) -> None:
    """Print an answer with the sources that it names."""
    print(f"\nQ: {turn['question']}")
    if turn["search"] != turn["question"]:
        print(f"   (searched for: {turn['search']})")
    print(f"A: {turn['answer']}")
    for citation in turn["resolved"].citations:
        print(f"   [{citation.index}] {header(citation)}")
    for marker in turn["resolved"].unresolved:
        print(f"   {marker.text} names no source")


if __name__ == "__main__":
    main()

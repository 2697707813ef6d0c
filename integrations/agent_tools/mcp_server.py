"""What the programs for the MCP server share: documents in a knowledge base, and the command that serves it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mcp import StdioServerParameters

from voicevault_retrievers import KnowledgeBase, shipped
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.store import update


def add_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options that say which documents are served."""
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="sample", help="the knowledge base that they are kept in  [sample]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    return parser


def index(args: argparse.Namespace) -> None:
    """Only what has changed since the last time is embedded."""
    with KnowledgeBase.open_or_create(args.kb, root=args.root, embedder=load_embedder()) as base:
        update(base, args.folder)


def server(args: argparse.Namespace) -> StdioServerParameters:
    """`voicevault mcp --kb NAME`, of the environment that runs this program."""
    command = str(Path(sys.executable).with_name("voicevault"))
    root = ["--root", str(args.root)] if args.root else []
    return StdioServerParameters(command=command, args=["mcp", "--kb", args.kb, *root], env=dict(os.environ))

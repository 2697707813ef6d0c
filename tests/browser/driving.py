"""A served inspector, and pages that are watched while tests drive them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.store import KnowledgeBase, question_index, update

WIDE, NARROW = (1440, 900), (390, 844)

PRESETS = {
    "plain": """
        version: 1
        name: plain
        channels: {bm25: {}, dense: {}}
        expansion: {method: rules, size: 3}
        fusion: {method: rrf, k: 60}
        stages:
          - weighted: {weights: {fused: 0.1, semantic: 0.2, keyword: 0.7}}
          - page_cap: {max_chunks_per_page: 1}
          - parents: {max_chars: 20000}
        """,
    "broken": """
        version: 1
        name: broken
        channels: {bm25: {}, dense: {}}
        stages:
          - llm_rerank: {ollama: none, timeout: 2}
        """,
}

# What a page must never take for anything but text; the code point turns the direction of what follows it.
HOSTILE = (
    '<script>window.hurt=1</script><img src="http://evil.example/i.png" onerror="window.hurt=1"><svg onload=alert(1)> '
    "[link](javascript:alert(1)) ![image](http://evil.example/p.png) <a href='javascript:alert(1)'>go</a> "
    "</script></style></title><iframe srcdoc='<script>parent.hurt=1</script>'></iframe> &lt;b&gt; ${alert(1)} {{7*7}} "
    "\u202egnp.exe\u202c \u0001 \u2066end"
)
QUESTION = "What should I do when the alarm of the pump is shown?"


def presets(folder: Path) -> list[str]:
    """The paths of the presets, as files of a folder."""
    paths = [folder / f"{name}.yaml" for name in PRESETS]
    for path, text in zip(paths, PRESETS.values(), strict=True):
        path.write_text(dedent(text), encoding="utf-8")
    return [str(path) for path in paths]


def documents(root: Path) -> KnowledgeBase:
    """The sample documents in parents and children, embedded by hashed words."""
    base = KnowledgeBase.open_or_create("manuals", root=root, embedder=HashEmbedder(64))
    update(base, shipped("sample") / "documents", parents=3000, children=700)
    return base


def statutes(root: Path) -> KnowledgeBase:
    """An act whose sections refer to each other, one of which answers a question that was asked before."""
    base = KnowledgeBase.create("law", root=root, embedder=HashEmbedder(64))
    corpus = Path(__file__).parents[2] / "notebooks" / "data" / "statutes" / "corpus.jsonl"
    lines = corpus.read_text(encoding="utf-8").splitlines()
    sections = [one for one in map(json.loads, lines) if one["metadata"]["act"] == "HNA"]
    base.add(Chunk(one["_id"], f"{one['title']}. {one['text']}", metadata=one["metadata"]) for one in sections)
    question_index(base).update({"HNA-80": ["Do sailing boats pay less?"]})
    return base


def hostile(root: Path) -> KnowledgeBase:
    """Chunks whose texts, ids, files, sections and metadata try to be markup."""
    base = KnowledgeBase.open_or_create("hostile", root=root, embedder=HashEmbedder(64))
    base.add(
        Chunk(
            f"{number}<img src=x onerror=window.hurt=1>",
            f"zebra {number} {HOSTILE} " + "quagga " * number,
            parent_id="<script>parent</script>",
            metadata={
                "source_file": f'"><img src=x onerror="window.hurt=1">\u202efdp.{number}',
                "page_number": number + 1,
                "section": "<iframe src='javascript:alert(1)'></iframe>",
                "<script>key</script>": ["<b>", {"javascript:alert(1)": None}, "null", "\x00"],
                "__proto__": "polluted",
                "constructor": "undefined",
            },
        )
        for number in range(4)
    )
    return base


@contextmanager
def served(application: Any) -> Iterator[str]:
    """The address of an application that a thread serves on a free port."""
    uvicorn = pytest.importorskip("uvicorn")
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = uvicorn.Server(
            uvicorn.Config(application, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


@dataclass
class Watch:
    """What a page did besides what it shows: addresses that it asked for, and what went wrong."""

    origin: str
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def over(self, page: Any) -> Any:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(f"raised {error}"))
        page.on("console", lambda said: said.type in ("error", "warning") and self.problems.append(said.text))
        page.on("dialog", self._dismiss)
        page.on("popup", lambda popup: self.problems.append(f"opened {popup.url}"))
        return page

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append(f"dialog {dialog.message}")
        dialog.dismiss()

    @property
    def elsewhere(self) -> list[str]:
        """Addresses of anything but the server."""
        return [url for url in self.requests if not url.startswith((f"{self.origin}/", f"blob:{self.origin}/"))]


def address(query: str, *, kb: str = "manuals", **more: object) -> str:
    """The page's address of a search."""
    return "/#" + urlencode({"q": query, "kb": kb, "preset": "plain", "k": 5, **more})


def shown(page: Any, path: str) -> None:
    """Open an address of a search, and wait for what it finds."""
    page.goto("about:blank")  # else one that differs in its hash alone would not load the page again
    page.goto(path)
    settled(page)


def settled(page: Any) -> None:
    """Wait until the search that runs has been drawn."""
    page.locator("#results[aria-busy=false] > *").first.wait_for(state="attached")


def overflow(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

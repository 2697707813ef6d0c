"""Of 500 mixed files, each is read or told, and the page shows what is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

for module in ("fpdf", "docx", "openpyxl", "pptx", "click"):
    pytest.importorskip(module)

from tests.docs import mixed_folder  # noqa: E402 - where it is not skipped
from tests.docs.mixed_folder import FILES, LINKS, ODD, PAGE, entries, indexed, make  # noqa: E402 - as above
from tests.helpers import HashEmbedder  # noqa: E402 - as above
from voicevault_retrievers.store import KnowledgeBase  # noqa: E402 - as above

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


def test_each_file_of_a_mixed_folder_is_read_or_told(tmp_path: Path) -> None:
    make(root := tmp_path / "share")
    done = json.loads(indexed(root, tmp_path / "kbs", "--json").stdout)
    found = set(entries(root))
    told = {one["source_file"]: one for one in done["skipped"]}
    base = KnowledgeBase.open("plant", root=tmp_path / "kbs", embedder=HashEmbedder())
    read = set(base.sources)
    assert len(found) == FILES
    assert (done["read"], done["chunks"]) == (len(read), len(base))
    assert {chunk.metadata["source_file"] for chunk in base} == read
    below = {name for name in found for folder in told if folder.endswith("/") and name.startswith(folder)}
    assert read | set(told) | below == found | {name for name in told if name.endswith("/")}
    assert not read & (set(told) | below)
    assert all(one["reason"] for one in told.values())
    unread = {"short.txt", "scan.pdf", "cut.pdf", "empty.md", "old.xlsx", "bomb.docx", "deep.json", "open.html"}
    assert {name for name, one in told.items() if one["why"] == "failed"} == unread
    assert {*ODD, *LINKS} - read - set(told) - below == set()
    assert {note["source_file"] for note in done["file_notes"]} == {"köln.txt", "köln.html", "tokyo.csv"}
    again = indexed(root, tmp_path / "kbs").output
    assert f"0 files read, {len(read)} unchanged; 0 chunks added, 0 replaced, 0 removed" in again


def test_the_page_shows_what_is_said() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert mixed_folder.with_transcript(page, told := mixed_folder.transcript()) == page
    assert told in page

"""ARCHITECTURE.md names folders and files that are there, and its picture is that of the package's imports."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.picture import A_DOCUMENT, A_QUERY, IMAGE, floors, imports, picture

ROOT = Path(__file__).parents[2]
PACKAGE = "voicevault_retrievers"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_the_picture_is_as_it_is_drawn_now() -> None:
    assert IMAGE.read_text(encoding="utf-8") == picture()


def test_each_arrow_of_the_picture_is_an_import() -> None:
    there = imports()
    assert [step for step in (*A_QUERY, *A_DOCUMENT) if (step.caller, step.called) not in there] == []


def test_each_folder_has_a_heading_that_is_a_question() -> None:
    headings = re.findall(r"(?m)^### (.*)$", PAGE)
    named = [name.rstrip("/") for heading in headings for name in re.findall(r"`(\w+/?)`", heading)]
    assert sorted(named) == sorted(name for floor in floors() for name in floor)
    assert [heading for heading in headings if not heading.endswith("?")] == []


def test_the_architecture_names_files_that_are_there() -> None:
    files = {path.relative_to(ROOT).as_posix() for root in (ROOT / PACKAGE, ROOT / "tests") for path in root.rglob("*")}
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", PAGE):
        assert any(f"/{path}/".endswith(f"/{name.rstrip('/')}/") for path in files), name

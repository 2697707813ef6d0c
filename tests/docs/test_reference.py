"""The reference has every public name, and every page is in the navigation."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import voicevault_retrievers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = "voicevault_retrievers"
LISTED = {
    name for page in (DOCS / "reference").glob("*.md") for name in re.findall(r"(?m)^::: ([\w.]+)$", page.read_text())
}


@pytest.mark.parametrize("name", voicevault_retrievers.__all__)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    home = f"{PACKAGE}.{voicevault_retrievers._HOMES[name]}"
    assert home in LISTED
    assert name in getattr(import_module(home), "__all__", [name])


@pytest.mark.parametrize("package", ["langchain", "llama_index"])
def test_a_framework_is_in_the_reference(package: str) -> None:
    assert f"{PACKAGE}.{package}" in LISTED


def test_what_the_reference_lists_is_there() -> None:
    for name in LISTED:
        assert (ROOT / name.replace(".", "/")).is_dir() or (ROOT / f"{name.replace('.', '/')}.py").is_file(), name


def test_every_extra_is_told() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (table,) = re.findall(r"\[project\.optional-dependencies\]\n(.*?)\n\n", project, re.DOTALL)
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"\| extra \| brings \|\n(.*?)\n\n", page, re.DOTALL)
    rows = " ".join(line.split(" | ")[0] for line in told.splitlines()) + " `agents`"
    assert set(re.findall(r"`([\w-]+)`", rows)) == set(re.findall(r"(?m)^([\w-]+) = ", table)) - {"dev"}


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert navigation == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}

"""What pyproject.toml tells LlamaHub of the package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("llama_index.core")

from tests.frameworks.llama_index_parts import KINDS, public_classes
from voicevault_retrievers import llama_index

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_it_lists_the_public_classes_that_llama_index_takes() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["llamahub"]
    assert import_module(told["import_path"]) is llama_index
    listed = {name for name, kind in public_classes().items() if issubclass(kind, KINDS)} - {"PipelineRetriever"}
    assert set(told["class_authors"]) == listed
    assert told["contains_example"]
    assert list((ROOT / "integrations").glob("llama_index_*"))

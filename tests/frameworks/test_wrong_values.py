"""A value of a wrong kind for any option of a public class is a ConfigError, where the object is made."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from tests.frameworks import llama_index_parts
from tests.frameworks.langchain_parts import Hashed, documents
from tests.frameworks.test_serialization import GIVEN, PLAIN
from voicevault_retrievers import langchain as lc
from voicevault_retrievers import llama_index as li
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import KnowledgeBase

NATIVE = {"callback_manager", "documents", "metadata", "name", "nodes", "object_map", "objects", "tags", "verbose"}
"""Options that the frameworks' own classes check, or do not, and what is iterated."""


class Nothing:
    """No option has a value like this."""


def of(call: Any) -> list[str]:
    """The options of a class, function or pydantic model."""
    kinds = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    named = [name for name, one in signature(call).parameters.items() if one.kind in kinds]
    return sorted({*named, *getattr(call, "model_fields", ())} - NATIVE - {"made"})


def made(folder: Path) -> dict[str, tuple[Callable[..., Any], list[str]]]:
    """What makes an object, with some options beside its own, and the options."""
    KnowledgeBase.create("plant", root=folder)
    base, embedding = [folder / "plant"], llama_index_parts.HashEmbedding()
    calls: dict[str, tuple[Callable[..., Any], Any]] = {
        "langchain over bases": (lambda **o: lc.HybridRetriever(**{"kb_names": base, **o}), lc.HybridRetriever),
        "llama_index over bases": (lambda **o: li.HybridRetriever(**{"kb_names": base, **o}), li.HybridRetriever),
        "langchain by words": (
            lambda **o: lc.BM25Retriever.from_documents(**{"documents": documents(), **o}),
            lc.BM25Retriever.from_documents,
        ),
        "langchain by vectors": (
            lambda **o: lc.VectorRetriever.from_documents(**{"documents": documents(), "embeddings": Hashed(), **o}),
            lc.VectorRetriever.from_documents,
        ),
        "langchain's store": (lambda **o: lc.HybridStore(**{"embedding": Hashed(), **o}), lc.HybridStore),
        "llama_index by words": (
            lambda **o: li.BM25Retriever.from_nodes(**{"nodes": llama_index_parts.nodes(), **o}),
            li.BM25Retriever.from_nodes,
        ),
        "llama_index's store": (
            lambda **o: li.HybridVectorStore.open(**{"base": "b", "root": folder, "embed_model": embedding, **o}),
            li.HybridVectorStore.open,
        ),
    }
    for face, given in ((lc, PLAIN), (li, GIVEN)):
        for name, options in given.items():
            kind = getattr(face, name)
            calls[f"{face.__name__}.{name}"] = (lambda kind=kind, own=options, **o: kind(**{**own, **o}), kind)
    return {name: (call, of(kind)) for name, (call, kind) in calls.items()}


def test_a_value_that_no_option_has_is_refused_where_an_object_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, (call, options) in made(tmp_path).items():
        for option in options:
            try:
                call(**{option: Nothing()})
            except ConfigError:
                continue
            except Exception as error:
                wrong.append(f"{name}, {option}: {error!r:.200}")
            else:
                wrong.append(f"{name}, {option}: taken")
    assert wrong == []
    assert {path.name for path in tmp_path.iterdir()} <= {"plant", "b"}

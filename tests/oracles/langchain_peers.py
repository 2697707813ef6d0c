"""What the tests beside LangChain's own parts share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from tests.frameworks.langchain_parts import Child

A, B, C, D = (Document(f"text {key}", id=key) for key in "abcd")


def peer(name: str) -> Any:
    """A class of LangChain's, by its full name."""
    module, _, attribute = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # langchain-community says that it is no longer kept up
        return getattr(pytest.importorskip(module), attribute)


def child(*found: Document) -> Child:
    return Child(found=list(found), seen=[])


def texts(found: Sequence[Document]) -> list[str]:
    return [document.page_content for document in found]


def degraded(found: Sequence[Document]) -> str:
    (said,) = {"; ".join(document.metadata["voicevault"]["degraded"]) for document in found}
    return said


def compressing(below: BaseRetriever, compressor: Any) -> Any:
    theirs = peer("langchain_classic.retrievers.ContextualCompressionRetriever")
    return theirs(base_retriever=below, base_compressor=compressor)

"""The vector retriever that keeps its documents in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.langchain_parts import documents, ids
from tests.helpers import HashEmbedder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain import VectorRetriever

pytest.importorskip("chromadb", reason="the extra 'chroma' is not installed")


async def test_what_is_in_a_folder_is_found_again_with_its_scores_and_filters(tmp_path: Path) -> None:
    made = VectorRetriever.from_documents(documents(), HashEmbedder(), persist_dir=tmp_path / "chroma")
    held = VectorRetriever.from_documents(documents(), HashEmbedder())
    opened = VectorRetriever.from_persist_dir(tmp_path / "chroma", HashEmbedder())
    for retriever in (made, opened):
        found = await retriever.ainvoke("pump seal")
        assert found == retriever.invoke("pump seal")
        assert ids(found) == ids(held.invoke("pump seal"))
        assert [document.metadata["relevance_score"] for document in found] == pytest.approx(
            [document.metadata["relevance_score"] for document in held.invoke("pump seal")], abs=1e-5
        )
        assert set(ids(retriever.invoke("pump", where={"page": 1}))) <= {"hose", "lamp"}
        assert found[0].metadata["tags"] == {"of": [found[0].id]}


def test_a_folder_that_holds_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        VectorRetriever.from_persist_dir(tmp_path / "absent", HashEmbedder())
    assert not (tmp_path / "absent").exists()

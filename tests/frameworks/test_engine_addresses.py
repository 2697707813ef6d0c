"""An engine's address where a knowledge base's name stands: the same ids and scores in both frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query, Result
from voicevault_retrievers.engines.addresses import connect, open_bases
from voicevault_retrievers.engines.copy import copy
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain import HybridRetriever as LangChainRetriever
from voicevault_retrievers.llama_index import HybridRetriever as LlamaIndexRetriever
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.store import Bases, KnowledgeBase

pytest.importorskip("qdrant_client")

TEXTS = ("the pump hums", "the valve opens", "a pump with a valve", "the idle turbine")
ASKED = "pump valve"


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    made = KnowledgeBase.create("plant", root=tmp_path, embedder=HashEmbedder())
    made.add([Chunk(f"c{at}", text, None, {"page_number": at, "source_file": "a"}) for at, text in enumerate(TEXTS)])
    return made


@pytest.fixture
def address(tmp_path: Path, kb: KnowledgeBase) -> str:
    found = f"qdrant+file://{tmp_path}/qdrant/plant"
    engine = connect(found, embedder=HashEmbedder(), analyzer=kb.analyzer)
    assert copy(kb, engine).verified
    engine.close()
    return found


def _told(result: Result) -> list[tuple[str, Any]]:
    return [(hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in result.ranking]


@pytest.mark.parametrize("fusion", ["rrf", None])
async def test_an_address_is_searched_as_the_base_it_was_copied_from(
    kb: KnowledgeBase, address: str, fusion: str | None
) -> None:
    base = LangChainRetriever(kb_names=[kb], embeddings=HashEmbedder(), fusion=fusion)
    lang = LangChainRetriever(kb_names=[address], embeddings=HashEmbedder(), fusion=fusion)
    llama = LlamaIndexRetriever(address, embed_model=HashEmbedder(), fusion=fusion)
    found = lang.search(ASKED)
    assert _told(await lang.asearch(ASKED)) == _told(found) == _told(llama.search(ASKED))
    assert [node.node.node_id for node in await llama.aretrieve(ASKED)] == list(found.ranking.ids)
    assert not found.degraded
    for asked in (ASKED, f"{ASKED} xyzzy qwert zork"):  # words that no chunk has say that another language is asked in
        found = lang.search(asked)
        assert found.errors == ()
        assert _told(found) == _told(base.search(asked))
    _close(lang, llama)


def test_a_preset_over_an_address_is_that_over_the_base(kb: KnowledgeBase, address: str) -> None:
    preset = load_preset("voicevault").with_stages(())
    lang = LangChainRetriever(kb_names=[address], embeddings=HashEmbedder(), preset=preset)
    found = lang.search(ASKED, where={"page_number": {"$lt": 3}})
    assert _told(found) == _told(preset.over(kb).search(Query(ASKED, where={"page_number": {"$lt": 3}})))
    _close(lang)


def test_a_collection_is_named_alone(tmp_path: Path, kb: KnowledgeBase, address: str) -> None:
    with pytest.raises(ConfigError, match="searched alone"):
        open_bases([address, kb])
    with pytest.raises(ConfigError, match="SCHEME"):
        open_bases(["plants://x/y"])
    opened = open_bases([address], embedder=HashEmbedder())
    assert isinstance(opened, Engine)
    assert isinstance(open_bases([kb]), Bases)
    assert open_bases([opened]) is opened


def _close(*retrievers: Any) -> None:
    for one in retrievers:
        opened = one._bases() if isinstance(one, LangChainRetriever) else one._searched.bases
        opened.close()

"""Which model an embedder is, in both frameworks by one rule: by its name, in doubt by a probe kept with the index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.stores import InMemoryByteStore
from langchain_openai import AzureOpenAIEmbeddings, OpenAIEmbeddings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.adapters.embedders import FrameworkEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import probes
from voicevault_retrievers.engines.chroma import ChromaEngine
from voicevault_retrievers.errors import EmbeddingError, IncompatibleIndexError
from voicevault_retrievers.langchain import HybridIndex, LangChainEmbedder
from voicevault_retrievers.langchain.models import as_embedder as of_langchain
from voicevault_retrievers.llama_index import HybridVectorStore, LlamaIndexEmbedder
from voicevault_retrievers.llama_index.models import as_embedder as of_llama_index
from voicevault_retrievers.store import Bases, KnowledgeBase

DIMENSION = 16
CHUNKS = [Chunk("a", "the pump seal"), Chunk("b", "a warning lamp"), Chunk("blank", "nothing")]


class Vectors:
    """What both frameworks' test models give: words hashed with a seed, shaken by `noise`; zeros for "nothing"."""

    def __init__(self, seed: int, noise: float = 0.0, dimension: int = DIMENSION) -> None:
        self.seed, self.noise, self.dimension = seed, noise, dimension
        self.texts: list[str] = []

    def of(self, text: str) -> list[float]:
        self.texts.append(text)
        if text == "nothing":
            return [0.0] * self.dimension
        rows = [self._row(f"{self.seed} {word}") for word in text.split()]
        row = np.sum(rows, axis=0) / np.linalg.norm(np.sum(rows, axis=0))
        shaken: list[float] = (row + self.noise * self._row(f"noise {text}")).tolist()
        return shaken

    def _row(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
        return np.random.default_rng(seed).standard_normal(self.dimension) / np.sqrt(self.dimension)


class LangChainModel(Embeddings):
    def __init__(self, vectors: Vectors, model: str | None = None, **settings: Any) -> None:
        self.vectors = vectors
        self.model = model
        self.__dict__.update(settings)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.vectors.of(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vectors.of(text)


class OtherLangChainModel(LangChainModel):
    """Another class."""


class LlamaIndexModel(BaseEmbedding):
    revision: str | None = None
    _vectors: Vectors = PrivateAttr()

    def __init__(self, vectors: Vectors, model: str | None = None, **settings: Any) -> None:
        super().__init__(**({} if model is None else {"model_name": model}), **settings)
        self._vectors = vectors

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors.of(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors.of(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vectors.of(query)


class OtherLlamaIndexModel(LlamaIndexModel):
    """Another class, which does not say so by its `class_name`."""


class Framework(NamedTuple):
    as_embedder: Callable[[Any], Any]
    model: type[Any]
    other: type[Any]

    def embedder(self, *given: Any, **settings: Any) -> Any:
        return self.as_embedder(self.model(Vectors(*given), **settings))


FRAMEWORKS = {
    "langchain": Framework(of_langchain, LangChainModel, OtherLangChainModel),
    "llama_index": Framework(of_llama_index, LlamaIndexModel, OtherLlamaIndexModel),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]


def made(folder: Path, embedder: Any) -> None:
    with KnowledgeBase.create(folder, embedder=embedder) as base:
        base.add(CHUNKS[:2])


# By a probe


def test_two_models_of_one_class_without_names_are_two(framework: Framework, tmp_path: Path) -> None:
    one, two = framework.embedder(1), framework.embedder(2)
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == framework.embedder(1).fingerprint
    made(tmp_path / "kb", one)
    with pytest.raises(IncompatibleIndexError, match=f"made by '{one.fingerprint}', given '{two.fingerprint}'"):
        KnowledgeBase.open(tmp_path / "kb", embedder=two)
    opened = KnowledgeBase.open(tmp_path / "kb", embedder=framework.embedder(1))
    assert opened.dense().search("pump").ids[0] == "a"


def test_float_noise_is_the_same_model_and_more_is_another(framework: Framework, tmp_path: Path) -> None:
    made(tmp_path / "kb", framework.embedder(1))
    # As bfloat16 and int8 shake a model; a pooling or prefix more changes its vectors by .25 and more.
    for noise in (1e-6, 0.03):
        shaken = framework.embedder(1, noise)
        assert KnowledgeBase.open(tmp_path / "kb", embedder=shaken).dense().search("pump").ids[0] == "a"
    with pytest.raises(IncompatibleIndexError):
        KnowledgeBase.open(tmp_path / "kb", embedder=framework.embedder(1, 0.3))


def test_a_model_is_known_again_under_another_class(framework: Framework, tmp_path: Path) -> None:
    made(tmp_path / "kb", framework.embedder(1))
    renamed = framework.as_embedder(framework.other(Vectors(1)))
    assert KnowledgeBase.open(tmp_path / "kb", embedder=renamed).dense().search("pump").ids[0] == "a"


def test_settings_that_may_change_a_named_models_vectors_are_probed(framework: Framework, tmp_path: Path) -> None:
    made(tmp_path / "kb", framework.embedder(1, model="m", revision="one"))
    KnowledgeBase.open(tmp_path / "kb", embedder=framework.embedder(1, model="m", revision="two"))
    with pytest.raises(IncompatibleIndexError):
        KnowledgeBase.open(tmp_path / "kb", embedder=framework.embedder(2, model="m", revision="one"))


def test_a_model_without_a_name_is_asked_once_for_a_probe(framework: Framework, tmp_path: Path) -> None:
    vectors = Vectors(1)
    made(tmp_path / "kb", framework.as_embedder(framework.model(vectors)))
    assert vectors.texts == [*probes.TEXTS, *(chunk.text for chunk in CHUNKS[:2])]
    vectors.texts.clear()
    opened = KnowledgeBase.open(tmp_path / "kb", embedder=framework.as_embedder(framework.model(vectors)))
    assert vectors.texts == [*probes.TEXTS]
    opened.dense().search("pump")
    assert vectors.texts == [*probes.TEXTS, "pump"]


def test_a_search_in_memory_asks_for_no_probe() -> None:
    vectors = Vectors(1)
    retriever = langchain.VectorRetriever.from_documents([Document("the pump seal")], LangChainModel(vectors))
    retriever.invoke("pump")
    assert vectors.texts == ["the pump seal", "pump"]
    vectors.texts.clear()
    llama_index.VectorRetriever.from_nodes([TextNode(text="the pump seal")], LlamaIndexModel(vectors)).retrieve("pump")
    assert vectors.texts == ["the pump seal", "pump"]


def test_bases_of_two_models_of_one_class_are_not_compared(framework: Framework, tmp_path: Path) -> None:
    bases = {}
    for name, given in {"one": (1,), "shaken": (1, 0.01), "two": (2,)}.items():
        made(tmp_path / name, framework.embedder(*given))
        bases[name] = KnowledgeBase.open(tmp_path / name, embedder=framework.embedder(*given))
    described = Bases(bases.values()).dense().describe()
    assert [line.split(":")[0].strip() for line in described.splitlines()] == ["dense", "one+shaken", "two"]


def test_a_collection_of_an_engine_keeps_the_probe_too(framework: Framework, tmp_path: Path) -> None:
    pytest.importorskip("chromadb")

    def engine(embedder: Any) -> ChromaEngine:
        return ChromaEngine("pumps", path=tmp_path, embedder=embedder)

    engine(framework.embedder(1)).upsert(CHUNKS[:2])
    assert engine(framework.embedder(1, 1e-6)).dense().search("pump").ids[0] == "a"
    with pytest.raises(IncompatibleIndexError):
        engine(framework.embedder(2)).dense().search("pump")


def test_a_folder_of_vectors_keeps_which_model_made_them(tmp_path: Path) -> None:
    pytest.importorskip("chromadb")
    langchain.VectorRetriever.from_documents(
        [Document("the pump seal", id="a")], LangChainModel(Vectors(1)), persist_dir=tmp_path / "c"
    )
    again = langchain.VectorRetriever.from_persist_dir(tmp_path / "c", LangChainModel(Vectors(1, 1e-6)))
    assert [document.id for document in again.invoke("pump")] == ["a"]
    with pytest.raises(IncompatibleIndexError):
        langchain.VectorRetriever.from_persist_dir(tmp_path / "c", LangChainModel(Vectors(2))).invoke("pump")
    with pytest.raises(IncompatibleIndexError):
        langchain.VectorRetriever.from_documents(
            [Document("a lamp", id="b")], LangChainModel(Vectors(2)), persist_dir=tmp_path / "c"
        )
    llama_index.VectorRetriever.from_nodes(
        [TextNode(id_="a", text="the pump seal")], LlamaIndexModel(Vectors(1)), persist_dir=tmp_path / "l"
    )
    found = llama_index.VectorRetriever.from_persist_dir(tmp_path / "l", LlamaIndexModel(Vectors(1))).retrieve("pump")
    assert [node.node_id for node in found] == ["a"]
    with pytest.raises(IncompatibleIndexError):
        llama_index.VectorRetriever.from_persist_dir(tmp_path / "l", LlamaIndexModel(Vectors(2))).retrieve("pump")


def test_the_classes_of_both_frameworks_refuse_another_model(tmp_path: Path) -> None:
    HybridIndex.open(tmp_path / "c", embeddings=LangChainModel(Vectors(1))).kb.close()
    with pytest.raises(IncompatibleIndexError):
        HybridIndex.open(tmp_path / "c", embeddings=LangChainModel(Vectors(2)))
    HybridVectorStore.open(tmp_path / "l", embed_model=LlamaIndexModel(Vectors(1))).close()
    with pytest.raises(IncompatibleIndexError):
        HybridVectorStore.open(tmp_path / "l", embed_model=LlamaIndexModel(Vectors(2)))


# By name


def test_a_named_model_is_never_probed(framework: Framework, tmp_path: Path) -> None:
    vectors = Vectors(1)
    made(tmp_path / "kb", framework.as_embedder(framework.model(vectors, "small")))
    assert vectors.texts == ["dimension", *(chunk.text for chunk in CHUNKS[:2])]
    vectors.texts.clear()
    opened = KnowledgeBase.open(tmp_path / "kb", embedder=framework.as_embedder(framework.model(vectors, "small")))
    assert vectors.texts == []
    assert opened.dense().search("pump").ids[0] == "a"
    assert vectors.texts == ["pump"]
    with pytest.raises(IncompatibleIndexError, match=r"/small', given '.*/large'"):
        KnowledgeBase.open(tmp_path / "kb", embedder=framework.as_embedder(framework.model(vectors, "large")))
    other = framework.as_embedder(framework.other(vectors, "small"))
    with pytest.raises(IncompatibleIndexError, match=f"given '.*/{framework.other.__name__}/small'"):
        KnowledgeBase.open(tmp_path / "kb", embedder=other)


def test_a_named_model_of_another_dimension_raises(framework: Framework, tmp_path: Path) -> None:
    made(tmp_path / "kb", framework.embedder(1, model="small"))
    other = framework.embedder(1, 0.0, 8, model="small")
    opened = KnowledgeBase.open(tmp_path / "kb", embedder=other)
    with pytest.raises(ValueError, match="expected dimension 16"):
        opened.dense().search("pump")
    known = framework.embedder(1, 0.0, 8, model="small")
    assert known.dimension == 8
    with pytest.raises(IncompatibleIndexError, match="with 8 dimensions in place of 16"):
        KnowledgeBase.open(tmp_path / "kb", embedder=known)


def azure(deployment: str) -> Embeddings:
    return AzureOpenAIEmbeddings(
        azure_deployment=deployment, azure_endpoint="https://x.openai.azure.com", api_key="k", api_version="2024-02-01"
    )  # type: ignore[call-arg]  # aliases


def test_an_azure_model_is_known_by_its_deployment() -> None:
    one, two = LangChainEmbedder(azure("large")), LangChainEmbedder(azure("small"))
    assert (one.fingerprint, two.fingerprint) == (
        "langchain/AzureOpenAIEmbeddings/large",
        "langchain/AzureOpenAIEmbeddings/small",
    )
    plain = OpenAIEmbeddings(model="text-embedding-3-large", dimensions=256, api_key="k")  # type: ignore[arg-type]
    assert LangChainEmbedder(plain).fingerprint == "langchain/OpenAIEmbeddings/text-embedding-3-large/256"


def cached(below: Embeddings) -> Embeddings:
    store: Any = InMemoryByteStore()
    return CacheBackedEmbeddings.from_bytes_store(below, store, key_encoder="sha256")


def test_a_cache_is_the_model_below_it(tmp_path: Path) -> None:
    for below in (azure("large"), LangChainModel(Vectors(1)), LangChainModel(Vectors(1), "small")):
        assert LangChainEmbedder(cached(cached(below))).fingerprint == LangChainEmbedder(below).fingerprint
    made(tmp_path / "kb", LangChainEmbedder(cached(LangChainModel(Vectors(1)))))
    KnowledgeBase.open(tmp_path / "kb", embedder=LangChainEmbedder(LangChainModel(Vectors(1))))
    with pytest.raises(IncompatibleIndexError):
        KnowledgeBase.open(tmp_path / "kb", embedder=LangChainEmbedder(cached(LangChainModel(Vectors(2)))))


def test_what_langchain_gives_for_tests_is_known_by_its_vectors() -> None:
    embedder = LangChainEmbedder(DeterministicFakeEmbedding(size=8))
    assert embedder.fingerprint.startswith("langchain/DeterministicFakeEmbedding/-/probe-")
    assert embedder.fingerprint != LangChainEmbedder(DeterministicFakeEmbedding(size=4)).fingerprint


# Texts without a vector


def test_a_text_of_zeros_is_refused_when_indexed(framework: Framework, tmp_path: Path) -> None:
    with KnowledgeBase.create(tmp_path / "kb", embedder=framework.embedder(1)) as base:
        with pytest.raises(EmbeddingError, match="chunk 'blank' cannot be indexed"):
            base.add(CHUNKS)
        assert len(base) == 0


def test_a_question_of_zeros_is_marked_when_searched() -> None:
    documents = [Document(chunk.text, id=chunk.id) for chunk in (*CHUNKS[:2], Chunk("c", "nothing at all"))]
    found = langchain.HybridRetriever.from_documents(documents, LangChainModel(Vectors(1))).invoke("nothing")
    assert found[0].id == "c"
    assert "EmbeddingError" in found[0].metadata["voicevault"]["degraded"][0]
    nodes = [TextNode(id_=document.id, text=document.page_content) for document in documents]
    hybrid = llama_index.HybridRetriever.from_nodes(nodes, embed_model=LlamaIndexModel(Vectors(1)))
    (first, *_) = hybrid.retrieve("nothing")
    assert first.node_id == "c"
    assert "EmbeddingError" in (llama_index.provenance(first) or {})["degraded"][0]


def test_both_frameworks_embedders_are_one_class() -> None:
    assert issubclass(LangChainEmbedder, FrameworkEmbedder)
    assert issubclass(LlamaIndexEmbedder, FrameworkEmbedder)


def test_a_probe_tells_models_and_not_precisions() -> None:
    rows = np.random.default_rng(0).standard_normal((len(probes.TEXTS), 384))
    whole = probes.encoded(rows)
    assert probes.are_one_model(whole, probes.encoded(rows.astype(np.float16)))
    assert probes.are_one_model(whole, probes.encoded(5 * rows))
    for other in (rows[::-1], rows[:, ::-1], rows[:, :128], np.zeros_like(rows)):
        assert not probes.are_one_model(whole, probes.encoded(other))
    zeros: Sequence[Sequence[float]] = [[0.0, float("nan")]] * len(probes.TEXTS)
    assert probes.are_one_model(probes.encoded(zeros), probes.encoded(np.zeros((3, 2))))
    assert probes.fits(whole, 384)
    assert not probes.fits(whole, 383)
    assert not probes.fits("no base64", 384)

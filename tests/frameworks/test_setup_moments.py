"""What is set up wrongly raises at the same moment and with the same class in LangChain and in LlamaIndex.

At construction, where it can be known without opening a file or loading a model; else at the first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.frameworks import langchain_parts, llama_index_parts
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    IndexDamagedError,
    MissingExtraError,
    NotIndexedError,
    RerankerNotAvailableError,
)
from voicevault_retrievers.rerank import scorers
from voicevault_retrievers.store import KnowledgeBase

WRONG_FILTER = {"page": {"$above": 1}}
PRESETS = {
    "wrong-key.yaml": "version: 1\nfusio: {}\n",
    "asks.yaml": "version: 1\nstages: [llm_rerank]\n",
    "expands.yaml": "version: 1\nexpansion: {method: hyde}\n",
    "structure.yaml": "version: 1\nchannels: {bm25: {}, questions: {}}\n",
}


class Framework(NamedTuple):
    """How the parts of one framework are made and asked; `documents` and `bases` are hybrid retrievers over these."""

    hybrid: Callable[..., Any]
    documents: Callable[..., Any]
    keyword: Callable[..., Any]
    semantic: Callable[..., Any]
    reranker: Callable[..., Any]
    llm_reranker: Callable[..., Any]
    weighted: Callable[..., Any]
    recency: Callable[..., Any]
    tool: Callable[..., Any]
    staged: Callable[[Any], dict[str, Any]]
    embedding: str
    use: Callable[[Any], Any]

    def bases(self, *names: Any, dimension: int = 16, **options: Any) -> Any:
        return self.hybrid(kb_names=names, **{self.embedding: HashEmbedder(dimension)}, **options)


def _embedded(make: Any, of: str, given: Callable[[], Any]) -> Callable[..., Any]:
    return lambda **options: getattr(make, of)(given(), HashEmbedder(), **options)


def _plain(make: Any, of: str, given: Callable[[], Any]) -> Callable[..., Any]:
    return lambda **options: getattr(make, of)(given(), **options)


LANGCHAIN = Framework(
    langchain.HybridRetriever,
    _embedded(langchain.HybridRetriever, "from_documents", langchain_parts.documents),
    _plain(langchain.BM25Retriever, "from_documents", langchain_parts.documents),
    _embedded(langchain.VectorRetriever, "from_documents", langchain_parts.documents),
    lambda model=None, **options: langchain.CrossEncoderReranker(**({"scorer": model} if model else {}), **options),
    langchain.LLMReranker,
    langchain.WeightedReranker,
    langchain.RecencyReranker,
    langchain.retrieval_tool,
    lambda stage: {"stages": [stage]},
    "embeddings",
    lambda made: made.invoke("pump"),
)
LLAMA_INDEX = Framework(
    llama_index.HybridRetriever,
    _embedded(llama_index.HybridRetriever, "from_nodes", llama_index_parts.nodes),
    _plain(llama_index.BM25Retriever, "from_nodes", llama_index_parts.nodes),
    _embedded(llama_index.VectorRetriever, "from_nodes", llama_index_parts.nodes),
    lambda model=None, **options: llama_index.CrossEncoderRerank(*([model] if model else []), **options),
    llama_index.LLMRerank,
    llama_index.WeightedRerank,
    llama_index.RecencyPostprocessor,
    llama_index.RetrievalTool,
    lambda stage: {"node_postprocessors": [stage]},
    "embed_model",
    lambda made: made.retrieve("pump"),
)
both = pytest.mark.parametrize("of", [LANGCHAIN, LLAMA_INDEX], ids=["langchain", "llama_index"])
Make = Callable[[Framework], Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knowledge bases `plant`, `bare` without an embedder and `damaged`; and preset files."""
    folder = tmp_path_factory.mktemp("kbs")
    for name, embedder in (("plant", HashEmbedder()), ("bare", None)):
        with KnowledgeBase.create(name, root=folder, embedder=embedder) as base:
            base.add([Chunk("a", "the pump")])
    KnowledgeBase.create("damaged", root=folder)
    (folder / "damaged" / "manifest.json").write_text("{")
    for name, text in PRESETS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def in_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICEVAULT_HOME", str(root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(root)


# At construction

OPTIONS: dict[str, dict[str, Any]] = {
    "misspelt": {"fusoin": "rrf"},
    "reranker of another type": {"rerank": 3},
    "fusion": {"fusion": "rff"},
    "weights of no channel": {"fusion": {"weights": {"colbert": 1.0}}},
    "weight below 0": {"fusion": {"weights": {"bm25": -1.0}}},
    "depth of no channel": {"fusion": {"depth": {"colbert": 5}}},
    "depth 0": {"fusion": {"depth": 0}},
    "channel of another type": {"channels": {"more": 3}},
    "channels as a list": {"channels": [3]},
    "preset that is none": {"preset": "no-such-preset"},
    "preset with an unknown key": {"preset": Path("wrong-key.yaml")},
    "preset without a model to rerank": {"preset": Path("asks.yaml")},
    "preset without a model to expand": {"preset": Path("expands.yaml")},
    "weight of no channel of a preset": {"preset": "voicevault", "fusion": {"weights": {"graph": 1.0}}},
    "k": {"k": -1},
    "k of another type": {"k": "x"},
    "where": {"where": WRONG_FILTER},
    "where of another type": {"where": "x"},
    "require": {"require": WRONG_FILTER},
    "timeout": {"timeout": 0},
    "timeout of another type": {"timeout": "x"},
    "on_error": {"fusion": {"on_error": "ignore"}},
    "expansion": {"expansion": 3},
    "route": {"expansion": {"route": 3}},
    "route of no channel": {"expansion": {"route": {"simple": ["colbert"]}}},
    "page cap": {"rerank": {"max_chunks_per_page": 0}},
    "flare": {"flare": 3},
}
HYBRIDS: dict[str, Callable[..., Any]] = {
    "bases": lambda of, **options: of.bases("plant", **options),
    "documents": lambda of, **options: of.documents(**options),
    "channels": lambda of, **options: of.hybrid(**{"channels": {"bm25": of.keyword()}, **options}),
}


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("over", HYBRIDS)
@both
def test_options_of_a_hybrid_retriever_raise_at_construction(of: Framework, over: str, option: str) -> None:
    with pytest.raises(ConfigError):
        HYBRIDS[over](of, **OPTIONS[option])


AT_ONCE: dict[str, Make] = {
    "nothing to search": lambda of: of.hybrid(),
    "name that is a path": lambda of: of.bases("../plant"),
    "name of another type": lambda of: of.bases(3),
    "address of no engine": lambda of: of.bases("redis://host/x"),
    "channel of a base's name": lambda of: of.bases("plant", channels={"bm25": of.keyword()}),
    "stage of another type": lambda of: of.bases("plant", **of.staged(3)),
    "questions of documents": lambda of: of.documents(channels={"questions": True}),
    "graph of documents": lambda of: of.documents(channels={"graph": True}),
    "graph of channels": lambda of: of.hybrid(channels={"bm25": of.keyword(), "graph": True}),
    "preset over documents": lambda of: of.documents(preset="structure.yaml"),
    "preset over channels": lambda of: of.hybrid(channels={"bm25": of.keyword()}, preset="structure.yaml"),
    "formula": lambda of: of.keyword(formula="bm26"),
    "language": lambda of: of.keyword(language="klingon"),
    "reranker's type": lambda of: of.reranker(3),
    "reranker's option": lambda of: of.reranker(model_name="x"),
    "reranker's depth": lambda of: of.reranker(depth=0),
    "reranker's top_n": lambda of: of.reranker(top_n=0),
    "reranker's timeout": lambda of: of.reranker(timeout=0),
    "model's type": lambda of: of.llm_reranker(llm=3),
    "model's prompt": lambda of: of.llm_reranker(llm=str, prompt="no places"),
    "model's window": lambda of: of.llm_reranker(llm=str, window=0),
    "model's timeout": lambda of: of.llm_reranker(llm=str, timeout="x"),
    "signal that is none": lambda of: of.weighted(weights={"colour": 1.0}),
    "signal's channel": lambda of: of.weighted(dense=3),
    "half-life": lambda of: of.recency(half_life_days=0),
    "reference date": lambda of: of.recency(reference_date="x"),
    "tool over no retriever": lambda of: of.tool(3),
    "tool's k": lambda of: of.tool(of.keyword(), k=-1),
    "tool's name": lambda of: of.tool(of.keyword(), name=3),
    "tool's filters": lambda of: of.tool(of.keyword(), filters=3),
    "tool's budget": lambda of: of.tool(of.keyword(), max_tokens=-1),
    "tool's markers": lambda of: of.tool(of.keyword(), markers="x"),
}


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("case", AT_ONCE)
@both
def test_what_can_be_known_raises_at_construction(of: Framework, case: str) -> None:
    with pytest.raises(ConfigError):
        AT_ONCE[case](of)


@pytest.mark.parametrize(
    "option", ["misspelt", "k", "where", "require", "timeout", "timeout of another type", "on_error"]
)
@pytest.mark.parametrize("kind", ["keyword", "semantic"])
@both
def test_options_of_one_channel_s_retriever_raise_at_construction(of: Framework, kind: str, option: str) -> None:
    with pytest.raises(ConfigError):
        getattr(of, kind)(**OPTIONS[option])


# At first use

AT_FIRST_USE: dict[str, tuple[type[Exception], Make]] = {
    "model to rerank": (RerankerNotAvailableError, lambda of: of.bases("plant", rerank="no-such-model")),
    "model of documents": (RerankerNotAvailableError, lambda of: of.documents(rerank="no-such-model")),
    "model of a stage": (RerankerNotAvailableError, lambda of: of.documents(**of.staged(of.reranker("no-such-model")))),
    "damaged base": (IndexDamagedError, lambda of: of.bases("damaged")),
    "dimension": (IncompatibleIndexError, lambda of: of.bases("plant", dimension=5)),
    "questions that were not made": (NotIndexedError, lambda of: of.bases("plant", channels={"questions": True})),
}


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("case", AT_FIRST_USE)
@both
def test_what_has_to_be_opened_raises_at_first_use(of: Framework, case: str) -> None:
    error, make = AT_FIRST_USE[case]
    made = make(of)
    for _ in range(2):
        with pytest.raises(error):
            of.use(made)


@both
def test_a_missing_extra_raises_at_first_use(of: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "openvino", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(scorers, "_SHARED", {})
    made = of.documents(rerank="ms-marco-MiniLM-L-12-v2")
    with pytest.raises((MissingExtraError, RerankerNotAvailableError), match="pip install"):
        of.use(made)


# Not at all


@pytest.mark.usefixtures("in_root")
@both
def test_a_base_that_is_not_there_yet_is_searched_to_nothing(of: Framework) -> None:
    assert list(of.use(of.bases("later"))) == []


@pytest.mark.usefixtures("in_root")
@both
def test_what_a_preset_s_base_was_indexed_without_degrades(of: Framework) -> None:
    made = of.bases("plant", preset="structure.yaml")
    assert [hit.id for hit in made.search("pump").hits] == ["a"]
    assert made.search("pump").degraded


@pytest.mark.usefixtures("in_root")
@both
def test_one_base_needs_no_list(of: Framework) -> None:
    made = of.hybrid(kb_names="plant", **{of.embedding: HashEmbedder()})
    assert [hit.id for hit in made.search("pump").hits] == ["a"]

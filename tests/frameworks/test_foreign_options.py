"""Words of LangChain and LlamaIndex at any public entry raise ConfigError, which names what to write instead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

from tests.frameworks import langchain_parts, llama_index_parts
from tests.frameworks.langchain_parts import Child, Hashed, documents
from tests.frameworks.llama_index_parts import Answering, HashEmbedding
from tests.frameworks.llama_index_parts import nodes as llama_index_nodes
from voicevault_retrievers import langchain as lc
from voicevault_retrievers import llama_index as li
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import Fused, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.store import KnowledgeBase

K = ("k", "top_k", "similarity_top_k", "top_n")
FILTER = ("filter", "filters", "where")
EMBED = ("embed_model", "embedding", "embeddings")
TEXTS = ("docs", "documents", "nodes")
CUT = ("score_threshold", "similarity_cutoff")
WORDS = (*K, *FILTER, *EMBED, *TEXTS, *CUT, "c", "llm", "retrievers", "rrf_k", "search_kwargs", "weights")
BM = BM25.from_chunks([])
WEIGHTS = "{'bm25': 0.5, 'dense': 0.5}"


def named(
    k: str = "`k` of a search",
    where: str = "`where` of a retriever",
    embed: str = "`embeddings` in LangChain, `embed_model` in LlamaIndex",
    texts: str = "`from_documents` of a LangChain retriever, `from_nodes` of a LlamaIndex one",
    cut: str = "an option of the vector store",
    **others: str,
) -> dict[str, str]:
    """What messages name, by the word."""
    groups = ((K, k), (FILTER, where), (EMBED, embed), (TEXTS, texts), (CUT, cut))
    told = {word: said for words, said in groups for word in words}
    told |= dict.fromkeys(("c", "rrf_k"), "RRF(k=60)")
    told |= {"llm": "QueryExpander(llm=...)", "retrievers": "`channels`", "search_kwargs": "`k` and `where`"}
    return {**told, "weights": WEIGHTS, **others}


class Call(NamedTuple):
    """A public entry, what its messages name, and the words that are its own options."""

    make: Callable[..., Any]
    said: dict[str, str]
    own: tuple[str, ...] = ()


def awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **options: asyncio.run(call(**options))


IN_LANGCHAIN = named("`k`", "`where`", texts="`from_documents`", cut="`score_threshold`")
OWN = ("k", "where", "score_threshold")
EMBEDS = IN_LANGCHAIN | dict.fromkeys(EMBED, "`embeddings`")
CALLED = named("`k`", "`where`", weights=WEIGHTS)
STORE = named(embed="`embedding`", k="`k` of a search", where="`filter` of a vector store")
SEARCHED = named("`k`", "`filter`", cut="search_type='similarity_score_threshold'", weights=WEIGHTS)
COMPRESSORS = named(texts="`compress_documents(documents, query)`")


def in_langchain(folder: Path) -> Iterator[tuple[str, Call]]:
    docs = documents()
    middleware = pytest.importorskip("langchain.agents", reason="needs the extra agents") and lc.RetrievalMiddleware
    bm25, hybrid = lc.BM25Retriever.from_documents(docs), langchain_parts.hybrid()
    vector = lc.VectorRetriever.from_documents(docs, Hashed())
    store = lc.HybridStore.from_documents(docs, Hashed())
    kb = KnowledgeBase.create(folder / "base")
    staged = Child(found=docs, seen=[]) >> lc.PageDiversityFilter()
    yield "BM25Retriever", Call(lc.BM25Retriever, IN_LANGCHAIN, OWN)
    own = (*OWN, "documents")
    for kind in (lc.BM25Retriever, lc.BM25Index):
        made = kind.from_documents
        yield f"{kind.__name__}.from_documents", Call(lambda made=made, **o: made(docs, **o), IN_LANGCHAIN, own)
    yield "from_texts", Call(lambda **o: lc.BM25Retriever.from_texts(["a"], **o), IN_LANGCHAIN, own)
    ids = [str(one.id) for one in docs]
    copied = lambda **o: lc.BM25Retriever.from_vector_store(store, ids=ids, **o)  # noqa: E731 - as its neighbours
    yield "from_vector_store", Call(copied, IN_LANGCHAIN, OWN)
    own = (*OWN, "embeddings")
    yield "VectorRetriever", Call(lambda **o: lc.VectorRetriever(index=vector.index, **o), EMBEDS, own)
    yield "HybridRetriever", Call(lambda **o: lc.HybridRetriever(channels={"bm25": BM}, **o), EMBEDS, own)
    own = (*own, "documents")
    for kind in (lc.VectorRetriever, lc.HybridRetriever):
        made = kind.from_documents  # type: ignore[assignment]
        call = Call(lambda made=made, **o: made(docs, Hashed(), **o), EMBEDS, own)
        yield f"{kind.__name__}.from_documents", call
        made = kind.afrom_documents  # type: ignore[assignment]
        call = Call(awaited(lambda made=made, **o: made(docs, Hashed(), **o)), EMBEDS, own)
        yield f"{kind.__name__}.afrom_documents", call
    yield "HybridIndex", Call(lambda **o: lc.HybridIndex(kb=kb, **o), IN_LANGCHAIN, OWN)
    yield (
        "HybridIndex.open",
        Call(lambda **o: lc.HybridIndex.open(kb.path, **o), IN_LANGCHAIN, (*OWN, "embeddings")),
    )
    yield "StagedRetriever", Call(lambda **o: lc.StagedRetriever(retriever=bm25, **o), IN_LANGCHAIN, OWN)
    for name, one in {"bm25": bm25, "hybrid": hybrid, "vector": vector, "staged": staged}.items():
        for method in ("invoke", "batch", "search"):
            asked: Any = ["pump"] if method == "batch" else "pump"
            call, acall = getattr(one, method), getattr(one, f"a{method}")
            yield f"{name}.{method}", Call(lambda f=call, q=asked, **o: f(q, **o), CALLED, ("k", "where"))
            yield f"{name}.a{method}", Call(awaited(lambda f=acall, q=asked, **o: f(q, **o)), CALLED, ("k", "where"))
    yield (
        "hybrid_search",
        Call(lambda **o: hybrid.hybrid_search("pump", **o), named("`top_k`", "`where`"), ("top_k", "where")),
    )
    yield "HybridStore", Call(lambda **o: lc.HybridStore(**o), STORE, ("embedding",))
    yield "HybridStore.open", Call(lambda **o: lc.HybridStore.open(folder / "s", Hashed(), **o), STORE, ("embedding",))
    yield (
        "HybridStore.from_texts",
        Call(lambda **o: lc.HybridStore.from_texts(["a"], Hashed(), **o), STORE, ("embedding",)),
    )
    for method in ("similarity_search", "max_marginal_relevance_search"):
        call, acall = getattr(store, method), getattr(store, f"a{method}")
        yield method, Call(lambda f=call, **o: f("pump", **o), SEARCHED, ("k", "filter"))
        yield f"a{method}", Call(awaited(lambda f=acall, **o: f("pump", **o)), SEARCHED, ("k", "filter"))
    yield "retrieval_tool", Call(lambda **o: lc.retrieval_tool(bm25, **o), named("`k`"), ("k", "filters"))
    yield "RetrievalMiddleware", Call(lambda **o: middleware(bm25, **o), named("`k`"), ("k",))
    yield "as_channel", Call(lambda **o: lc.as_channel(bm25, **o), named())
    yield "VectorStoreChannel", Call(lambda **o: lc.VectorStoreChannel(store, **o), named(), ("search_kwargs",))
    yield "RetrieverChannel", Call(lambda **o: lc.RetrieverChannel(bm25, **o), named())
    compressors: dict[Any, dict[str, Any]] = {
        lc.CrossEncoderReranker: {}, lc.LLMReranker: {"llm": str}, lc.MMRFilter: {}, lc.RecencyReranker: {},
        lc.WeightedReranker: {}, lc.NearDuplicateFilter: {}, lc.PageDiversityFilter: {},
        lc.ParentExpander: {"store": {}},
    }  # fmt: skip
    for kind, given in compressors.items():
        ranks = {**COMPRESSORS, **dict.fromkeys(K, "`top_n`")} if "top_n" in kind.model_fields else COMPRESSORS
        own = (
            "top_n",
            *(("llm",) if "llm" in given else ()),
            *(("weights",) if "weights" in kind.model_fields else ()),
        )
        call = Call(
            lambda f=kind, given=given, **o: f(**{**given, **o}), ranks, own if ranks is not COMPRESSORS else ()
        )
        yield kind.__name__, call
    asked = {"documents": docs, "query": "pump"}
    for stage in (lc.MMRFilter(), lc.ContextReorder()):
        call, acall = stage.compress_documents, stage.acompress_documents
        own = ("documents",)
        told = named("`top_n` of a reranker", texts="`documents`")
        yield f"{type(stage).__name__}.compress_documents", Call(lambda f=call, **o: f(**asked, **o), told, own)
        yield (
            f"{type(stage).__name__}.acompress_documents",
            Call(awaited(lambda f=acall, **o: f(**asked, **o)), told, own),
        )


IN_LLAMA_INDEX = named(
    "`k`",
    "`where`",
    texts="`from_nodes`",
    cut="`similarity_cutoff`",
    llm="QueryExpander(llm)",
)
MODELLED = IN_LLAMA_INDEX | dict.fromkeys(EMBED, "`embed_model`")
COUNTED = ("k", "similarity_top_k", "where", "similarity_cutoff")


def in_llama_index(folder: Path) -> Iterator[tuple[str, Call]]:
    nodes, model = llama_index_nodes(), HashEmbedding()
    bm25, hybrid = li.BM25Retriever.from_nodes(nodes), li.HybridRetriever.from_nodes(nodes, model)
    vector, index = li.VectorRetriever.from_nodes(nodes, model), VectorStoreIndex(nodes, embed_model=model)
    store = li.HybridVectorStore.open(folder / "store", embed_model=model)
    yield "BM25Retriever", Call(lambda **o: li.BM25Retriever(BM, **o), IN_LLAMA_INDEX, COUNTED)
    yield (
        "BM25Retriever.from_vector_store",
        Call(lambda **o: li.BM25Retriever.from_vector_store(index, **o), IN_LLAMA_INDEX, COUNTED),
    )
    for make in (li.BM25Retriever.from_nodes, li.BM25Retriever.from_defaults):
        yield (
            f"BM25Retriever.{make.__name__}",
            Call(lambda f=make, **o: f(nodes, **o), IN_LLAMA_INDEX, (*COUNTED, "nodes")),
        )
    own = (*COUNTED, "embed_model")
    yield "PipelineRetriever", Call(lambda **o: li.PipelineRetriever(bm25.pipeline, **o), IN_LLAMA_INDEX, COUNTED)
    yield "VectorRetriever", Call(lambda **o: li.VectorRetriever(index, **o), MODELLED, own)
    yield "HybridRetriever", Call(lambda **o: li.HybridRetriever(channels={"bm25": BM}, **o), MODELLED, own)
    yield "HybridRetriever.from_index", Call(lambda **o: li.HybridRetriever.from_index(index, **o), MODELLED, own)
    for kind in (li.VectorRetriever, li.HybridRetriever):
        call, acall = kind.from_nodes, kind.afrom_nodes
        own = (*COUNTED, "embed_model", "nodes")
        yield f"{kind.__name__}.from_nodes", Call(lambda f=call, **o: f(nodes, model, **o), MODELLED, own)
        yield f"{kind.__name__}.afrom_nodes", Call(awaited(lambda f=acall, **o: f(nodes, model, **o)), MODELLED, own)
    for name, one in {"bm25": bm25, "hybrid": hybrid, "vector": vector}.items():
        yield f"{name}.with_options", Call(one.with_options, CALLED, ("k", "where"))
        yield f"{name}.search", Call(lambda f=one.search, **o: f("pump", **o), CALLED, ("k", "where"))
        yield f"{name}.asearch", Call(awaited(lambda f=one.asearch, **o: f("pump", **o)), CALLED, ("k", "where"))
        told = CALLED | {"k": "`with_options(k=...)", "where": "`with_options(where=...)"}
        yield f"{name}.retrieve", Call(lambda f=one.retrieve, **o: f("pump", **o), told)
        yield f"{name}.aretrieve", Call(awaited(lambda f=one.aretrieve, **o: f("pump", **o)), told)
        yield f"{name}.retrieve_many", Call(lambda f=one.retrieve_many, **o: f(["pump"], **o), told)
        yield f"{name}.aretrieve_many", Call(awaited(lambda f=one.aretrieve_many, **o: f(["pump"], **o)), told)
    yield (
        "hybrid_search",
        Call(lambda **o: hybrid.hybrid_search("pump", **o), named("`top_k`", "`where`"), ("top_k", "where")),
    )
    yield "HybridVectorStore", Call(lambda **o: li.HybridVectorStore(store.client, **o), named())
    opened = lambda **o: li.HybridVectorStore.open(folder / "store", **o)  # noqa: E731 - as its neighbours
    yield "HybridVectorStore.open", Call(opened, named(embed="`embed_model`"), ("embed_model",))
    yield "QueryExpander", Call(li.QueryExpander, named(), ("llm",))
    yield "RetrievalTool", Call(lambda **o: li.RetrievalTool(bm25, **o), named("`k`"), ("k", "filters"))
    engine = lambda **o: li.CitedQueryEngine(bm25, **{"llm": Answering(answer="yes"), **o})  # noqa: E731 - as above
    yield "CitedQueryEngine", Call(engine, named(), ("llm",))
    yield "as_channel", Call(lambda **o: li.as_channel(bm25, **o), named(embed="`embed_model`"), ("embed_model",))
    yield (
        "VectorStoreChannel",
        Call(lambda **o: li.VectorStoreChannel(index, **o), named(embed="`embed_model`"), ("embed_model",)),
    )
    yield "RetrieverChannel", Call(lambda **o: li.RetrieverChannel(bm25, **o), named())
    stages: dict[Any, dict[str, Any]] = {
        li.CrossEncoderRerank: {}, li.LLMRerank: {"llm": str}, li.MMRPostprocessor: {}, li.RecencyPostprocessor: {},
        li.WeightedRerank: {}, li.NearDuplicatePostprocessor: {}, li.PageDiversityPostprocessor: {},
        li.ParentExpansionPostprocessor: {"store": {}}, li.SentenceWindowPostprocessor: {},
        li.CitationPostprocessor: {},
    }  # fmt: skip
    for kind, given in stages.items():
        ranks = named("`top_n`") if "top_n" in kind.model_fields else named()
        own = tuple(name for name in ("top_n", "llm", "weights") if name in kind.model_fields)
        yield kind.__name__, Call(lambda f=kind, given=given, **o: f(**{**given, **o}), ranks, own)
    stage, found = li.MMRPostprocessor(), bm25.retrieve("pump")
    told = named("`top_n` of a reranker", texts="`nodes`")
    yield "postprocess_nodes", Call(lambda **o: stage.postprocess_nodes(found, **o), told, ("nodes",))
    yield "apostprocess_nodes", Call(awaited(lambda **o: stage.apostprocess_nodes(found, **o)), told, ("nodes",))


def in_both(folder: Path) -> Iterator[tuple[str, Call]]:
    def preset(**options: Any) -> Any:
        yaml = pytest.importorskip("yaml")
        file = folder / "own.yaml"
        plain = {name: str(option) for name, option in options.items() if not isinstance(option, int | float | dict)}
        file.write_text(yaml.safe_dump({"version": 1, "name": "own", "channels": {"bm25": {}}, **options, **plain}))
        return load_preset(file)

    yield "fuse", Call(lambda **o: fuse({"bm25": BM}, **o), named(), ())
    yield "Fusion", Call(Fusion, named(), ())
    yield "fusion={}", Call(lambda **o: lc.HybridRetriever(channels={"bm25": BM}, fusion=o), named())
    yield "Rerank", Call(Rerank, named())
    yield "rerank={}", Call(lambda **o: li.HybridRetriever(channels={"bm25": BM}, rerank=o), named())
    yield "Expand", Call(Expand, named())
    told = named(
        "`k` of the preset",
        "`where` of the retriever",
        "`model` of the channel `dense`",
        c="{method: rrf, k: 60}",
        rrf_k="{method: rrf, k: 60}",
        retrievers="`channels`",
        weights="{weights: {bm25: 0.5, dense: 0.5}}",
    )
    yield "preset", Call(preset, told, ("k", "llm"))


VALUES: dict[str, Any] = {"weights": [0.5, 0.5], "filter": {"a": 1}, "where": {"a": 1}, "search_kwargs": {"k": 3}}


def wrong(call: Call, word: str, name: str) -> str | None:
    """What is wrong with a call's answer to a word; None where it names what to write."""
    try:
        call.make(**{word: VALUES.get(word, 3)})
    except ConfigError as error:
        return None if call.said[word] in str(error) else f"{name}({word}=...): {error}"
    except Exception as error:
        return f"{name}({word}=...): {type(error).__name__}: {error}"
    return f"{name}({word}=...) is taken"


@pytest.mark.parametrize("calls", [in_langchain, in_llama_index, in_both])
def test_a_word_of_a_framework_is_answered_with_what_to_write(calls: Any, tmp_path: Path) -> None:
    found = [wrong(call, word, name) for name, call in calls(tmp_path) for word in WORDS if word not in call.own]
    assert [said for said in found if said] == []
    assert len(found) > 100


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("reciprocal_rerank", "'rrf'"),
        ("relative_score", "'weighted_sum'"),
        ("dist_based_score", "'distribution'"),
        ("simple", "not available"),
    ],
)
def test_a_fusion_mode_of_llama_index_is_answered_with_the_method(mode: str, said: str) -> None:
    assert mode in {one.value for one in FUSION_MODES}
    makes: list[Callable[[str], Any]] = [
        lambda name: fuse({"bm25": BM}, method=name),
        Fusion,
        lambda name: lc.HybridRetriever(channels={"bm25": BM}, fusion=name),
        lambda name: li.HybridRetriever(channels={"bm25": BM}, fusion={"method": name}),
        lambda name: langchain_parts.hybrid().invoke("pump", fusion=name),
        lambda name: li.HybridRetriever(channels={"bm25": BM}).with_options(fusion=name),
    ]
    for make in makes:
        for name in (mode, FUSION_MODES(mode)):
            with pytest.raises(ConfigError, match=re.escape(f"unknown fusion method '{mode}'; here it is {said}")):
                make(name)


def test_weights_in_a_list_are_answered_with_a_mapping(tmp_path: Path) -> None:
    bm25 = lc.BM25Retriever.from_documents(documents())
    file = tmp_path / "own.yaml"
    file.write_text("version: 1\nname: own\nchannels: {bm25: {}, dense: {}}\nfusion: {weights: [0.5, 0.5]}\n")
    calls: list[Callable[[], Any]] = [
        lambda: fuse({"bm25": BM}, weights=[0.5, 0.5]),  # type: ignore[arg-type]  # it is wrong
        lambda: bm25.invoke("pump", weights=[0.5, 0.5]),
        lambda: bm25.batch(["pump"], weights=[0.5, 0.5]),
        lambda: load_preset(file),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=re.escape(f"such as {WEIGHTS}")):
            call()


def test_a_checked_call_is_as_it_was() -> None:
    fused = fuse({"bm25": BM}, weights={"bm25": 0.5}, depth=3)
    assert isinstance(fused, Fused)
    assert Fusion("rrf", {"bm25": 1.0}) == Fusion(method="rrf", weights={"bm25": 1.0})
    assert llama_index_parts.public_classes()["RetrievalTool"].__init__.__name__ == "__init__"
    assert asyncio.iscoroutinefunction(lc.BM25Retriever.asearch)
    assert not asyncio.iscoroutinefunction(lc.BM25Retriever.search)


@pytest.mark.parametrize("kind", [lc.HybridRetriever, li.HybridRetriever], ids=["langchain", "llama_index"])
@pytest.mark.parametrize("word", ["bm25", "formula", "statistics", "operators"])
def test_an_option_of_a_channel_is_told_where_it_is_set(kind: Callable[..., Any], word: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("`channels={'bm25': base.bm25(statistics=...)}`")):
        kind(kb_names=["station"], **{word: "exact"})

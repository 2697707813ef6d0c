"""Public classes as data: schemas, dumps and dicts have every option, or say which they cannot have."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from langchain_core.load import dumpd, load
from langchain_core.load.serializable import Serializable
from langchain_core.runnables import ConfigurableField
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from pydantic import BaseModel, TypeAdapter

from tests.frameworks import llama_index_parts
from tests.frameworks.langchain_parts import Child, Hashed, documents, hybrid
from voicevault_retrievers import Chunk, KnowledgeBase, langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank import CallableScorer


def public(face: Any, kind: type = object) -> dict[str, Any]:
    """The public classes of a framework's face that are subclasses of `kind`, by name."""
    named = {name: getattr(face, name) for name in face.__all__}
    return {name: one for name, one in named.items() if isinstance(one, type) and issubclass(one, kind)}


MODELS = {
    f"{face.__name__.rpartition('.')[2]}.{name}": one
    for face in (langchain, llama_index)
    for name, one in public(face, BaseModel).items()
}


# Schemas


@pytest.mark.parametrize("mode", ["validation", "serialization"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_schema_of_its_options(name: str, mode: Any) -> None:
    model = MODELS[name]
    shown = model.model_json_schema(mode=mode)
    assert "made" not in shown.get("properties", ())
    if mode == "validation":
        assert model.model_fields.keys() - {"made", "callback_manager"} <= shown["properties"].keys()
    assert TypeAdapter(list[model]).json_schema(mode=mode)["items"]  # type: ignore[valid-type]  # it is a class


def test_what_was_built_is_shown_nowhere_and_shared_by_configured_copies() -> None:
    retriever = hybrid()
    retriever.invoke("pump")
    assert retriever.made.all("HybridRetriever")
    assert "made" not in repr(retriever) + json.dumps(dumpd(retriever)) + repr(retriever.config_specs)
    configured = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert "made" not in json.dumps(configured.config_schema().model_json_schema())
    copied, _ = configured._prepare({"configurable": {"k": 1}})  # type: ignore[attr-defined]  # it is what a call does
    assert copied.made is retriever.made  # type: ignore[attr-defined]
    assert copied.pipeline is retriever.pipeline  # type: ignore[attr-defined]


# LangChain's dumps

PLAIN: dict[str, dict[str, Any]] = {
    "ContextBuilder": {"max_tokens": 300, "markers": "numbered"},
    "ContextReorder": {},
    "CrossEncoderReranker": {"scorer": "ms-marco-MiniLM-L-12-v2", "top_n": 3, "blend": 1.0},
    "HybridRetriever": {
        "kb_names": ["manual"],
        "k": 3,
        "where": {"page": {"$gte": 1}},
        "require": {"tenant": "a"},
        "expansion": {"rewriters": True, "route": True},
        "fusion": {"method": "rrf", "weights": {"bm25": 2.0}},
        "rerank": "ms-marco-MiniLM-L-12-v2",
        "timeout": 2.0,
        "stages": [langchain.PageDiversityFilter(max_chunks_per_page=1)],
    },
    "LLMReranker": {"llm": "openai:some-model", "top_n": 3},
    "MMRFilter": {"lambda_mult": 0.3, "top_n": 2, "on_error": "raise"},
    "NearDuplicateFilter": {"threshold": 0.9},
    "PageDiversityFilter": {"max_chunks_per_page": None, "max_chunks_per_document": 3, "text_of": ["title"]},
    "ParentExpander": {"store": {}, "max_chars": 100, "require": {"tenant": "a"}},
    "QueryExpander": {"llm": "openai:some-model", "size": 4, "hyde": True},
    "RecencyReranker": {"weight": 0.3, "date_key": "day", "reference_date": "2024-07-01"},
    "RelevanceFilter": {"least": 0.3},
    "WeightedReranker": {"weights": {"fused": 1.0}, "top_n": 3},
}
"""Classes that plain options make, with such options."""


def live(folder: Path) -> dict[str, tuple[Any, str]]:
    """Objects over what no dump holds, and what a load names of it."""
    return {
        "BM25Index": (langchain.BM25Index.from_documents(documents()), "BM25"),
        "BM25Retriever": (langchain.BM25Retriever.from_documents(documents()), "BM25"),
        "HybridIndex": (langchain.HybridIndex.open(folder / "base", embeddings=False), "KnowledgeBase"),
        "HybridStore": (langchain.HybridStore(Hashed()), "HybridStore"),
        "LangChainEmbedder": (langchain.LangChainEmbedder(Hashed()), "LangChainEmbedder"),
        "LocalEmbeddings": (langchain.LocalEmbeddings(), "LocalEmbeddings"),
        "RetrieverChannel": (langchain.RetrieverChannel(Child(found=[], seen=[])), "RetrieverChannel"),
        "StagedRetriever": (Child(found=[], seen=[]) >> langchain.PageDiversityFilter(), "Child"),
        "VectorRetriever": (langchain.VectorRetriever.from_documents(documents(), Hashed()), "MemoryVectors"),
        "VectorStoreChannel": (langchain.VectorStoreChannel(langchain.HybridStore(Hashed())), "VectorStoreChannel"),
    }


def loaded(given: Any) -> Any:
    known = list(public(langchain, Serializable).values())
    return load(json.loads(json.dumps(dumpd(given))), allowed_objects=known, valid_namespaces=["voicevault_retrievers"])


def test_every_class_is_dumped_here(tmp_path: Path) -> None:
    assert PLAIN.keys() | live(tmp_path).keys() == public(langchain).keys()
    assert PLAIN.keys() <= public(langchain, Serializable).keys()


@pytest.mark.filterwarnings("ignore:The function `load`")
@pytest.mark.parametrize("name", PLAIN)
def test_what_plain_options_make_is_dumped_and_loaded(name: str) -> None:
    given = getattr(langchain, name)(**PLAIN[name])
    assert loaded(given) == given
    assert dumpd(given)["id"] == ["voicevault_retrievers", "langchain", name]
    assert repr(loaded(given)) == repr(given)


@pytest.mark.filterwarnings("ignore:The function `load`")
def test_what_a_dump_cannot_hold_is_named_when_it_is_loaded(tmp_path: Path) -> None:
    for name, (given, said) in live(tmp_path).items():
        with pytest.raises(NotImplementedError, match=f"doesn't implement serialization: .*'{said}'"):
            loaded(given)
        assert name == type(given).__name__
    with pytest.raises(NotImplementedError, match=r"datetime\.date"):
        loaded(langchain.RecencyReranker(reference_date=date(2024, 7, 1)))


@pytest.mark.filterwarnings("ignore:The function `load`")
def test_a_path_of_a_base_is_dumped_as_its_address(tmp_path: Path) -> None:
    KnowledgeBase.create("plant", root=tmp_path).add([Chunk("a", "the pump hums")])
    given = langchain.HybridRetriever(kb_names=[tmp_path / "plant"], k=3)
    again = langchain.HybridRetriever.model_validate_json(given.model_dump_json(exclude_defaults=True))
    for retriever in (loaded(given), loaded(given >> langchain.PageDiversityFilter()), again):
        assert [document.id for document in retriever.invoke("pump")] == ["a"]


ADDRESSES = [
    "postgresql://hush@192.0.2.1/db#plant",
    "postgresql://u:hush***hush@192.0.2.1/db#plant",
    "postgresql://u:hush@192.0.2.1/db?sslpassword=hush#plant",
    "qdrants://:hush@192.0.2.1/plant",
    "elasticsearchs://u:hush@192.0.2.1/plant",
    "milvuss://u:hush@192.0.2.1/plant",
]


@pytest.mark.filterwarnings("ignore:The function `load`")
@pytest.mark.parametrize("address", ADDRESSES)
def test_credentials_of_an_address_are_in_no_text_of_a_retriever(address: str) -> None:
    by_langchain, by_llama_index = (face.HybridRetriever(kb_names=[address]) for face in (langchain, llama_index))
    for shown in (
        by_langchain,
        by_langchain >> langchain.PageDiversityFilter(),
        langchain.retrieval_tool(by_langchain),
        langchain.HybridStore.open(address, Hashed()),
        by_llama_index,
        by_llama_index >> llama_index.PageDiversityPostprocessor(),
        llama_index.RetrievalTool(by_llama_index),
    ):
        assert "hush" not in repr(shown) + str(shown)
    assert by_langchain.kb_names == by_llama_index.kb_names == [address]
    given = langchain.HybridRetriever(kb_names=[address])
    for dumped in (
        json.dumps(dumpd(given)),
        given.model_dump_json(),
        json.dumps(dumpd(given >> langchain.PageDiversityFilter())),
    ):
        assert "hush" not in dumped
        assert "***" in dumped
    with pytest.raises(ConfigError, match="without its credentials: give kb_names again"):
        loaded(given)


@pytest.mark.parametrize("address", ["foo://u:hush@h/db#plant", "postgresql//u:hush@h/db#plant"])
@pytest.mark.parametrize("face", [langchain, llama_index], ids=["langchain", "llama_index"])
def test_an_address_that_is_refused_shows_no_credentials_in_a_traceback(face: Any, address: str) -> None:
    with pytest.raises(ConfigError) as raised:
        face.HybridRetriever(kb_names=[address])
    chain: list[BaseException] = [raised.value]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    assert "hush" not in "".join(map(str, chain))


# LlamaIndex's dicts

GIVEN: dict[str, dict[str, Any]] = {
    "CitationPostprocessor": {"max_tokens": 30, "count_tokens": len},
    "CrossEncoderRerank": {"model": CallableScorer(lambda query, passages: [0.0] * len(passages), name="zeros")},
    "LLMRerank": {"llm": lambda prompt: "[1]"},
    "MMRPostprocessor": {"by": llama_index_parts.HashEmbedding(), "lambda_mult": 0.3},
    "NearDuplicatePostprocessor": {"by": llama_index_parts.HashEmbedding()},
    "PageDiversityPostprocessor": {"max_chunks_per_page": 1},
    "ParentExpansionPostprocessor": {"store": {}, "count_tokens": len, "require": {"tenant": "a"}},
    "RecencyPostprocessor": {"date_key": ("day", "night"), "reference_date": "2024-07-01"},
    "RelevancePostprocessor": {"least": 0.3},
    "SentenceWindowPostprocessor": {"count_tokens": len},
    "WeightedRerank": {"dense": llama_index.BM25Retriever.from_nodes([]), "weights": {"fused": 1.0}},
}
OBJECTS = ("by", "count_tokens", "dense", "llm", "model", "store")


def test_every_postprocessor_is_here() -> None:
    assert GIVEN.keys() == public(llama_index, BaseNodePostprocessor).keys()


@pytest.mark.parametrize("name", GIVEN)
def test_a_dict_has_every_option_or_asks_for_it_again(name: str) -> None:
    given = getattr(llama_index, name)(**GIVEN[name])
    kind, told = type(given), json.loads(given.to_json())
    options = kind.model_fields.keys() - {"callback_manager"}
    objects = told.get("objects", {})
    assert objects.keys() == {option for option in OBJECTS if option in GIVEN[name]}
    assert {option for option in options if option not in told and option not in objects} == {
        option for option in options if kind.model_fields[option].exclude and option not in GIVEN[name]
    }
    for option in objects:
        with pytest.raises(ConfigError, match=rf"not in its dict: give it again, from_dict\(data, {option}=\.\.\.\)"):
            kind.from_dict(told, **{other: getattr(given, other) for other in objects if other != option})
    again = kind.from_dict(told, **{option: getattr(given, option) for option in objects})
    assert {option: getattr(again, option) for option in options} == {
        option: getattr(given, option) for option in options
    }
    assert again.to_dict() == given.to_dict()


@pytest.mark.parametrize(
    ("name", "option"),
    [("MMRPostprocessor", "by"), ("NearDuplicatePostprocessor", "by"), ("CrossEncoderRerank", "model")],
)
def test_an_option_that_is_a_name_is_in_the_dict(name: str, option: str) -> None:
    value = "shingles" if option == "by" else "ms-marco-MiniLM-L-12-v2"
    kind = getattr(llama_index, name)
    assert getattr(kind.from_json(kind(**{option: value}).to_json()), option) == value

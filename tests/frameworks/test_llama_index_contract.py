"""What every public class is to LlamaIndex: its kind, its async twin, its inputs, its options."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.tools import BaseTool
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from tests.frameworks.llama_index_parts import (
    KINDS,
    HashEmbedding,
    Lengths,
    ListRetriever,
    embedded,
    nodes,
    public_classes,
    scored,
)
from voicevault_retrievers import llama_index as vv
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.llama_index.convert import chunks_of
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import Calibration

QUESTION = "drain the pump before winter"


def retrieved() -> list[NodeWithScore]:
    """Nodes with provenance and relevance, and two of others."""
    ranked = vv.BM25Retriever.from_nodes(nodes()) >> vv.CrossEncoderRerank(Lengths(), calibration=Calibration(1.0, 0.0))
    return [*ranked.retrieve("pump"), *scored(("bare", 0.3), ("unscored", None))]


def asked() -> QueryBundle:
    return QueryBundle(QUESTION, custom_embedding_strs=["winter"], embedding=[0.5] * 16)


@dataclass
class Given:
    """What the parts are made of and asked with; they are to leave it as it is."""

    nodes: list[BaseNode] = field(default_factory=lambda: embedded(nodes()))
    found: list[NodeWithScore] = field(default_factory=retrieved)
    bundle: QueryBundle = field(default_factory=asked)
    where: dict[str, Any] = field(default_factory=lambda: {"$or": [{"key": {"$lt": 9}}]})

    def state(self) -> Any:
        """All of it, with what is kept beside the fields of nodes."""
        held = [*self.nodes, *self.found, *(each.node for each in self.found)]
        return copy.deepcopy(([vars(each) for each in held], vars(self.bundle), self.where))


@dataclass(frozen=True)
class Kind:
    """A kind of part: its base, what its users call, and the async method that must be its own."""

    base: type
    ask: Callable[[Any, Given], Any]
    aask: Callable[[Any, Given], Awaitable[Any]]
    awaited: str


def query(given: Given) -> VectorStoreQuery:
    return VectorStoreQuery(query_embedding=given.bundle.embedding, query_str=QUESTION, similarity_top_k=4)


RETRIEVER = Kind(
    BaseRetriever, lambda part, given: part.retrieve(given.bundle), lambda part, given: part.aretrieve(given.bundle),
    "_aretrieve",
)  # fmt: skip
POSTPROCESSOR = Kind(
    BaseNodePostprocessor,
    lambda part, given: part.postprocess_nodes(given.found, given.bundle),
    lambda part, given: part.apostprocess_nodes(given.found, given.bundle),
    "_apostprocess_nodes",
)
ENGINE = Kind(
    BaseQueryEngine, lambda part, given: part.query(given.bundle), lambda part, given: part.aquery(given.bundle),
    "_aquery",
)  # fmt: skip
SYNTHESIZER = Kind(
    BaseSynthesizer,
    lambda part, given: part.synthesize(given.bundle, given.found),
    lambda part, given: part.asynthesize(given.bundle, given.found),
    "asynthesize",
)
TRANSFORM = Kind(
    BaseQueryTransform, lambda part, given: part.run(given.bundle), lambda part, given: part.arun(given.bundle), "arun"
)
STORE = Kind(
    BasePydanticVectorStore,
    lambda part, given: part.query(query(given)),
    lambda part, given: part.aquery(query(given)),
    "aquery",
)
TOOL = Kind(BaseTool, lambda part, given: part.call(QUESTION), lambda part, given: part.acall(QUESTION), "acall")


def store(given: Given, folder: Path) -> vv.HybridVectorStore:
    made = vv.HybridVectorStore.open("manual", root=folder, embed_model=HashEmbedding())
    made.add(given.nodes)
    return made


Make = Callable[[Given, Path], Any]
PARTS: dict[str, tuple[Kind, Make]] = {
    "BM25Retriever": (RETRIEVER, lambda given, _: vv.BM25Retriever.from_nodes(given.nodes, where=given.where)),
    "HybridRetriever": (
        RETRIEVER, lambda given, _: vv.HybridRetriever.from_nodes(given.nodes, HashEmbedding(), require=given.where)
    ),
    "PipelineRetriever": (
        RETRIEVER, lambda given, _: vv.PipelineRetriever(Pipeline(BM25.from_chunks(chunks_of(given.nodes))))
    ),
    "VectorRetriever": (RETRIEVER, lambda given, _: vv.VectorRetriever.from_nodes(given.nodes, HashEmbedding())),
    "CitationPostprocessor": (POSTPROCESSOR, lambda given, _: vv.CitationPostprocessor()),
    "CrossEncoderRerank": (POSTPROCESSOR, lambda given, _: vv.CrossEncoderRerank(Lengths())),
    "LLMRerank": (POSTPROCESSOR, lambda given, _: vv.LLMRerank(lambda prompt: "[2, 1]")),
    "MMRPostprocessor": (POSTPROCESSOR, lambda given, _: vv.MMRPostprocessor()),
    "RelevancePostprocessor": (POSTPROCESSOR, lambda given, _: vv.RelevancePostprocessor(least=0.0)),
    "NearDuplicatePostprocessor": (POSTPROCESSOR, lambda given, _: vv.NearDuplicatePostprocessor()),
    "PageDiversityPostprocessor": (POSTPROCESSOR, lambda given, _: vv.PageDiversityPostprocessor()),
    "ParentExpansionPostprocessor": (
        POSTPROCESSOR,
        lambda given, _: vv.ParentExpansionPostprocessor({"manual": given.nodes[0]}, use_source=True),
    ),
    "RecencyPostprocessor": (POSTPROCESSOR, lambda given, _: vv.RecencyPostprocessor(reference_date="2024-07-01")),
    "SentenceWindowPostprocessor": (POSTPROCESSOR, lambda given, _: vv.SentenceWindowPostprocessor(window_key="key")),
    "WeightedRerank": (POSTPROCESSOR, lambda given, _: vv.WeightedRerank()),
    "CitedQueryEngine": (ENGINE, lambda given, _: vv.CitedQueryEngine(ListRetriever(given.found), llm=MockLLM())),
    "CitedSynthesizer": (
        SYNTHESIZER, lambda given, _: vv.CitedSynthesizer(get_response_synthesizer(MockLLM(), **vv.cite_prompts()))
    ),
    "QueryExpander": (TRANSFORM, lambda given, _: vv.QueryExpander()),
    "HybridVectorStore": (STORE, store),
    "RetrievalTool": (TOOL, lambda given, _: vv.RetrievalTool(ListRetriever(given.found))),
}  # fmt: skip
every = pytest.mark.parametrize("name", PARTS)


def test_no_public_part_is_left_out() -> None:
    taken = {name for name, kind in public_classes().items() if issubclass(kind, (*KINDS, BaseSynthesizer))}
    assert PARTS.keys() == taken


@every
def test_a_part_is_of_its_kind_with_an_async_call_of_its_own(name: str, tmp_path: Path) -> None:
    kind, make = PARTS[name]
    part = make(Given(), tmp_path)
    assert type(part) is getattr(vv, name)
    assert kind.base in type(part).__mro__
    assert getattr(type(part), kind.awaited) is not getattr(kind.base, kind.awaited, None)


@every
async def test_sync_and_async_agree_and_leave_what_they_are_given_as_it_was(name: str, tmp_path: Path) -> None:
    kind, make = PARTS[name]
    given = Given()
    before = given.state()
    answer = kind.ask(make(given, tmp_path / "sync"), given)
    assert answer
    assert answer == await kind.aask(make(given, tmp_path / "async"), given)
    assert given.state() == before


def test_classes_are_called_by_their_names() -> None:
    told = {name: kind.class_name() for name, kind in public_classes().items() if hasattr(kind, "class_name")}
    assert told == {name: name for name in told}
    assert {"HybridVectorStore", "LLMRerank", "NodeWithProvenance", "SearchStepEndEvent"} <= told.keys()


# The options that type checkers know are those that are taken.


@pytest.mark.parametrize("name", [name for name, (kind, _) in PARTS.items() if kind is RETRIEVER])
def test_types_know_the_options_of_a_retriever(name: str) -> None:
    retriever = getattr(vv, name)
    constructors = [vars(base)["__init__"] for base in retriever.__mro__ if "__init__" in vars(base)]
    known = set().union(*map(named, constructors[:-1]))  # not that of `object`
    assert typed(retriever.__init__) == known - ({"pipeline"} if name != "PipelineRetriever" else set())
    sources = {"pipeline", "bm25", "index", "kb_names", "root", "channels", "embed_model"}
    for method in [maker for maker in vars(retriever) if maker.startswith("from_")]:
        assert known - sources <= typed(getattr(retriever, method)), method


@pytest.mark.parametrize("name", ["CrossEncoderRerank", "LLMRerank", "ParentExpansionPostprocessor"])
def test_types_know_the_fields_of_a_postprocessor(name: str) -> None:
    part = getattr(vv, name)
    assert typed(part.__init__) == set(part.model_fields)


def test_types_know_the_options_of_the_tool() -> None:
    assert typed(vv.RetrievalTool.from_defaults) == typed(vv.RetrievalTool.__init__)


def named(function: Callable[..., Any]) -> set[str]:
    """The parameters of a function that are not for any name."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}


def typed(function: Callable[..., Any]) -> set[str]:
    """What a type checker knows a function to take."""
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(function.__annotations__.get("options")))
    more = getattr(sys.modules[function.__module__], found[1]).__annotations__ if found else ()
    return named(function) | set(more)

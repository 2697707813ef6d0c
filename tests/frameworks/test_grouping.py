"""k documents and k nodes are k files with their best passages, and can be cut by relevance, in both frameworks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.load import dumpd
from llama_index.core.schema import NodeWithScore, TextNode

from tests.frameworks.llama_index_parts import Answering
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.options import Rerank
from voicevault_retrievers.pipeline.presets import preset_to_data
from voicevault_retrievers.rerank import Calibration, CallableScorer, CrossEncoderRerank, GroupBy

TEXTS = {f"{name}-{at}": f"pump {'valve ' * at}{name}" for name in ("a.md", "b.md", "c.md") for at in range(4)}
DATA: dict[str, dict[str, Any]] = {name: {"source": name[:4], "page": int(name[5:])} for name in TEXTS}
SCORER = CallableScorer(lambda query, passages: [len(passage) - 17.0 for passage in passages], name="length")
RERANK = Rerank(CrossEncoderRerank(SCORER, blend=1, calibration=Calibration(1.0, 0.0)))
EMBEDDER = HashEmbedder()


def documents() -> list[Document]:
    return [Document(text, id=name, metadata=DATA[name]) for name, text in TEXTS.items()]


def nodes() -> list[TextNode]:
    return [TextNode(id_=name, text=text, metadata=DATA[name]) for name, text in TEXTS.items()]


async def test_langchain_gives_a_document_for_each_file() -> None:
    retriever = langchain.HybridRetriever.from_documents(
        documents(), EMBEDDER, k=2, rerank=RERANK, group_by={"passages": 2}
    )
    found = retriever.invoke("pump valve")
    assert [document.id for document in found] == ["a.md-3", "b.md-3"]
    for document in found:
        first, second = document.metadata["voicevault"]["passages"]
        assert (first["id"], second["id"]) == (document.id, f"{document.id[:4]}-2")
        assert (first["page"], second["page"]) == (4, 3)
        assert document.page_content[second["start"] :] == TEXTS[second["id"]]
    assert await retriever.ainvoke("pump valve") == found
    assert retriever.batch(["pump valve"]) == [found]
    (flat, _) = langchain.flatten_provenance(found)
    assert flat.metadata["voicevault_passages"] == "a.md-3, a.md-2"
    assert preset_to_data(retriever.to_preset().with_stages([]))["group_by"] == {"key": "document", "passages": 2}


async def test_llama_index_gives_a_node_for_each_file() -> None:
    retriever = llama_index.HybridRetriever.from_nodes(
        nodes(), EMBEDDER, k=2, rerank=RERANK, group_by=GroupBy(passages=2), metadata_mode="none"
    )
    found = retriever.retrieve("pump valve")
    assert [node.node_id for node in found] == ["a.md-3", "b.md-3"]
    for node in found:
        first, second = (llama_index.provenance(node) or {})["passages"]
        assert (first["id"], second["id"]) == (node.node_id, f"{node.node_id[:4]}-2")
        assert node.text[second["start"] :] == TEXTS[second["id"]]
    assert [node.text for node in await retriever.aretrieve("pump valve")] == [node.text for node in found]
    assert [[node.text for node in one] for one in retriever.retrieve_many(["pump valve"])] == [
        [node.text for node in found]
    ]
    assert "group_by=GroupBy(key='document', passages=2)" in repr(retriever)


def test_relevance_is_cut_before_grouping() -> None:
    ours = langchain.HybridRetriever.from_documents(
        documents(), EMBEDDER, k=9, rerank=RERANK, score_threshold=0.9, group_by="source"
    )
    theirs = llama_index.HybridRetriever.from_nodes(
        nodes(), EMBEDDER, k=9, rerank=RERANK, similarity_cutoff=0.9, group_by="source", metadata_mode="none"
    )
    kept = {name for name, text in TEXTS.items() if Calibration(1.0, 0.0).probability(len(text) - 17.0) >= 0.9}
    assert 0 < len(kept) < len(TEXTS)
    for passages in (
        [one.metadata["voicevault"].get("passages", [{"id": one.id}]) for one in ours.invoke("pump")],
        [(llama_index.provenance(one) or {}).get("passages", [{"id": one.node_id}]) for one in theirs.retrieve("pump")],
    ):
        assert {one["id"] for group in passages for one in group} == kept
    stages = [preset_to_data(retriever.to_preset().with_reranker(None))["stages"] for retriever in (ours, theirs)]
    assert stages == [[{"relevance_threshold": {"least": 0.9}}]] * 2


def test_langchain_dumps_both() -> None:
    retriever = langchain.BM25Retriever.from_documents(documents(), score_threshold=0.5, group_by="source")
    kwargs = dumpd(retriever)["kwargs"]
    assert (kwargs["score_threshold"], kwargs["group_by"]) == (0.5, "source")


@pytest.mark.parametrize("option", ["score_threshold", "similarity_cutoff", "group_by"])
def test_what_is_none_of_these_is_refused_at_once(option: str) -> None:
    if option != "similarity_cutoff":
        with pytest.raises(ConfigError):
            langchain.BM25Retriever.from_documents(documents(), **{option: 7})
    if option != "score_threshold":
        with pytest.raises(ConfigError):
            llama_index.BM25Retriever.from_nodes(nodes(), **{option: 7})


def test_each_framework_knows_the_word_of_the_other() -> None:
    with pytest.raises(ConfigError, match="here it is `score_threshold`"):
        langchain.BM25Retriever.from_documents(documents(), similarity_cutoff=0.5)
    with pytest.raises(ConfigError, match="here it is `similarity_cutoff`"):
        llama_index.BM25Retriever.from_nodes(nodes(), score_threshold=0.5)


PAGES = {1: "The pump is primed with oil.", 7: "The pump pressure is held at 70 bar.", 9: "The pump colour is green."}


def test_langchain_cites_each_passage_of_a_group_by_its_own_page() -> None:
    given = [
        Document(text, id=f"p{page}", metadata={"source": "a.pdf", "page": page - 1}) for page, text in PAGES.items()
    ]
    given.append(Document("A pump.", id="b", metadata={"source": "b.pdf", "page": 4}))
    retriever = langchain.BM25Retriever.from_documents(given, k=2, group_by="document")
    found = retriever.invoke("pump")
    assert len(found) == 2
    expected = {("a.pdf", page, text) for page, text in PAGES.items()} | {("b.pdf", 5, "A pump.")}
    context = langchain.ContextBuilder().invoke(found)
    assert {(one.source_file, one.page_number, one.text) for one in context.citations} == expected
    core = retriever.search("pump").context.citations
    assert {(one.source_file, one.page_number, one.text) for one in core} == expected
    assert len({one.index for one in context.citations}) == 4
    call: Any = {"name": "search", "args": {"query": "pump"}, "id": "1", "type": "tool_call"}
    said = langchain.retrieval_tool(retriever).invoke(call).content
    for file, page, text in expected:
        assert f"[Source: {file}, p.{page}]\n{text}" in said
    answer = "It is held at 70 bar [Source: a.pdf, p.7]."
    (marker,) = langchain.resolve_citations(answer, found).markers
    assert [one.chunk_id for one in marker.citations] == ["p7"]
    masked = [one.model_copy(update={"page_content": one.page_content.replace("pump", "***")}) for one in found]
    whole = langchain.ContextBuilder().invoke(masked)
    assert len(whole.citations) == 2  # where the passages are now is not known
    assert "pump" not in whole.text


def test_llama_index_cites_each_passage_of_a_group_by_its_own_page() -> None:
    given = [
        TextNode(id_=f"p{page}", text=text, metadata={"file_name": "a.pdf", "page_label": str(page)})
        for page, text in PAGES.items()
    ]
    retriever = llama_index.BM25Retriever.from_nodes(given, k=2, group_by="document")
    engine = llama_index.CitedQueryEngine(retriever, llm=Answering(answer="Primed [1], green [2] and at 70 bar [3]."))
    answer = engine.query("pump")
    expected = {(str(page), f"p{page}", text) for page, text in PAGES.items()}
    assert {(one.page_number, one.chunk_id, one.text) for one in answer.citations} == expected
    nodes = llama_index.CitationPostprocessor().postprocess_nodes(retriever.retrieve("pump"), query_str="pump")
    assert {(node.node_id, node.node.metadata["page_label"]) for node in nodes} == {(f"p{at}", str(at)) for at in PAGES}
    said = llama_index.RetrievalTool(retriever).call("pump").content
    assert all(f"[Source: a.pdf, p.{page}]\n{text}" in said for page, text in PAGES.items())


def broken(query: str, passages: Any) -> list[float]:
    raise ConnectionError


def test_a_threshold_behind_a_reranker_that_failed_keeps_all_and_says_so() -> None:
    scorer, calibration = CallableScorer(broken, name="down"), Calibration(1.0, 0.0)
    reranker = langchain.CrossEncoderReranker(scorer=scorer, calibration=calibration)
    both = DocumentCompressorPipeline(transformers=[reranker, langchain.RelevanceFilter(least=0.3)])
    kept = both.compress_documents(documents(), "pump")
    assert [one.id for one in kept] == list(TEXTS)
    assert ["rerank" in one.partition(":")[0] for one in kept[0].metadata["voicevault"]["degraded"]] == [True, False]
    found = [NodeWithScore(node=node) for node in nodes()]
    postprocessors: list[Any] = [
        llama_index.CrossEncoderRerank(scorer, calibration=calibration), llama_index.RelevancePostprocessor(least=0.3),
    ]  # fmt: skip
    for one in postprocessors:
        found = one.postprocess_nodes(found, query_str="pump")
    assert [node.node_id for node in found] == list(TEXTS)
    told = llama_index.provenance(found[0])
    assert told is not None
    assert len(told["degraded"]) == 2

"""Pages of real loaders' documents in both frameworks: the page cap, citations, and what no document names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from langchain_community.document_loaders import PyPDFium2Loader, PyPDFLoader
from langchain_core.documents import Document
from llama_index.core import SimpleDirectoryReader
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from voicevault_retrievers import Chunk, ContextBuilder, Hit, PageCap
from voicevault_retrievers import langchain as lc
from voicevault_retrievers import llama_index as li
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.pipeline.presets.serialization import preset_to_data

PATH = "/srv/data/tenant7/report.pdf"
OTHER = "/srv/data/tenant8/report.pdf"


def hybrid(documents: list[Document], *stages: PageCap) -> lc.HybridRetriever:
    return lc.HybridRetriever(channels={"bm25": lc.BM25Retriever.from_documents(documents)}, stages=stages)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PDF of three pages, with a text on each."""
    fpdf = pytest.importorskip("fpdf", reason="the development tools are not installed")
    path = tmp_path_factory.mktemp("tenant7") / "report.pdf"
    pdf = fpdf.FPDF()
    pdf.set_font("helvetica")
    for page in (1, 2, 3):
        pdf.add_page()
        pdf.cell(text=f"The pump of page {page} hums.")
    pdf.output(str(path))
    return path


@pytest.mark.parametrize("loader", [PyPDFLoader, PyPDFium2Loader])
def test_documents_of_langchains_loaders_are_capped_and_cited(report: Path, loader: Any) -> None:
    documents = loader(str(report)).load()
    twice = [*documents, *(one.model_copy(update={"page_content": f"Again: {one.page_content}"}) for one in documents)]
    retriever = hybrid(twice, PageCap(1))
    result = retriever.search("pump", 6)
    assert sorted(citation.page_number for citation in result.context.citations) in ([1, 2, 3], ["1", "2", "3"])
    assert {citation.source_file for citation in result.context.citations} == {"report.pdf"}
    assert str(report.parent) not in result.context.text
    assert result.errors == ()


def test_nodes_of_llama_indexs_reader_are_cited_by_their_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The pump hums.")
    nodes = SimpleDirectoryReader(str(tmp_path)).load_data()
    assert nodes[0].metadata["file_path"] == str(tmp_path / "notes.txt")
    found = li.BM25Retriever.from_nodes(nodes).retrieve("pump")
    (block,) = li.CitationPostprocessor().postprocess_nodes(found)
    assert block.node.get_content().startswith("[1] [Source: notes.txt]\n")
    (block,) = li.CitationPostprocessor(paths=True).postprocess_nodes(found)
    assert f"[Source: {tmp_path / 'notes.txt'}]" in block.node.get_content()


def pymupdf(page: int) -> dict[str, Any]:
    """The metadata that PyMuPDFReader of llama-index-readers-file 0.5 writes."""
    return {"total_pages": 9, "file_path": PATH, "source": f"{page}"}


def test_nodes_of_pymupdf_reader_are_capped_by_page() -> None:
    nodes = [
        NodeWithScore(node=TextNode(text=f"t{at}", id_=f"n{at}", metadata=pymupdf(1 + at // 3))) for at in range(6)
    ]
    kept = li.PageDiversityPostprocessor(max_chunks_per_page=2).postprocess_nodes(nodes)
    assert [one.node.node_id for one in kept] == ["n0", "n1", "n3", "n4"]
    cited = li.CitationPostprocessor().postprocess_nodes(kept)
    assert [one.page_number for one in li.citations_of(cited)] == ["1", "1", "2", "2"]
    assert {one.source_file for one in li.citations_of(cited)} == {"report.pdf"}


def nested(at: int) -> Document:
    return Document(page_content=f"text {at}", id=str(at), metadata={"where": {"file": "a.pdf", "leaf": at // 3}})


KEYS = {"page_key": "where.leaf", "source_key": "where.file"}


async def test_keys_of_ones_own_cap_and_cite_in_both_frameworks() -> None:
    documents = [nested(at) for at in range(6)]
    cap = lc.PageDiversityFilter(max_chunks_per_page=1, **KEYS)
    assert [one.id for one in cap.compress_documents(documents, "q")] == ["0", "3"]
    assert [one.id for one in await cap.acompress_documents(documents, "q")] == ["0", "3"]
    context = lc.ContextBuilder(**KEYS).invoke(documents)
    assert [one.page_number for one in context.citations] == [0, 0, 0, 1, 1, 1]
    assert context.text.startswith("[Source: a.pdf, p.0]\n")
    nodes = [
        NodeWithScore(node=TextNode(text=one.page_content, id_=one.id, metadata=one.metadata)) for one in documents
    ]
    kept = li.PageDiversityPostprocessor(max_chunks_per_page=1, **KEYS).postprocess_nodes(nodes)
    assert [one.node.node_id for one in kept] == ["0", "3"]
    blocks = li.CitationPostprocessor(**KEYS).postprocess_nodes(kept)
    assert [one.page_number for one in li.citations_of(blocks)] == [0, 1]


def test_a_hybrid_retrievers_stage_has_keys_of_its_own() -> None:
    documents = [nested(at) for at in range(6)]
    retriever = hybrid(documents, PageCap(1, **KEYS))
    assert len(retriever.invoke("text", k=6)) == 2


async def test_a_cap_without_pages_says_so(caplog: pytest.LogCaptureFixture) -> None:
    documents = [Document(page_content=f"text {at}", id=str(at)) for at in range(30)]
    retriever = hybrid(documents, PageCap(1))
    for result in (retriever.search("text", 20), await retriever.asearch("text", 20)):
        assert [(note.stage, note.kind, note.degrades) for note in result.errors] == [("page_cap", "NoPages", False)]
        assert len(result.hits) == 20
        assert not result.degraded
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert len(lc.PageDiversityFilter().compress_documents(documents, "q")) == 30
        nodes = [NodeWithScore(node=TextNode(text="text", id_="n"))]
        assert len(li.PageDiversityPostprocessor().postprocess_nodes(nodes, QueryBundle("q"))) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert all("no page is capped" in record.getMessage() for record in caplog.records)


def test_a_cap_of_documents_alone_needs_no_pages() -> None:
    cap = PageCap(None, max_chunks_per_document=1)
    retriever = hybrid([Document(page_content="text")], cap)
    assert retriever.search("text").errors == ()


def test_two_files_of_one_name_stay_two_sources() -> None:
    metadata = [{"source": path, "page": 0} for path in (PATH, OTHER, PATH)]
    documents = [Document(page_content="text", id=str(at), metadata=one) for at, one in enumerate(metadata)]
    assert [one.id for one in lc.PageDiversityFilter(max_chunks_per_page=1).compress_documents(documents, "q")] == [
        "0", "1"]  # fmt: skip
    context = lc.ContextBuilder(markers="numbered").invoke(documents[:2])
    assert context.text.count("[Source: report.pdf, p.1]") == 2
    assert [one.chunk_id for one in lc.resolve_citations("So [2].", context).citations] == ["1"]
    shown = lc.ContextBuilder(paths=True).invoke(documents[:2])
    assert [one.source_file for one in shown.citations] == [PATH, OTHER]


def test_a_tools_answer_shows_no_path() -> None:
    documents = [Document(page_content="The pump hums.", metadata={"source": PATH, "page": 0})]
    retriever = hybrid(documents)
    call = {"type": "tool_call", "id": "1", "name": "search", "args": {"query": "pump"}}
    message = lc.retrieval_tool(retriever).invoke(call)
    assert "[Source: report.pdf, p.1]" in message.content
    assert "tenant7" not in message.content
    assert message.artifact["citations"][0]["source_file"] == "report.pdf"


def test_presets_and_dumps_keep_the_keys() -> None:
    data = {
        "version": 1,
        "channels": {"bm25": {}},
        "stages": [{"page_cap": {"max_chunks_per_page": 1, **KEYS}}],
        "context": {"paths": True, **KEYS},
    }
    preset = Preset.of(data)
    saved = preset_to_data(preset)
    assert (saved["stages"], saved["context"]) == (data["stages"], data["context"])
    assert repr(Preset.of(saved)) == repr(preset)
    assert repr(preset.with_page_cap(3).stages[0]) == ("PageCap(3, page_key='where.leaf', source_key='where.file')")
    dumped = lc.PageDiversityFilter(**KEYS).model_dump()
    assert lc.PageDiversityFilter(**dumped).stage.page_key == dumped["page_key"] == "where.leaf"


@pytest.mark.parametrize("key", ["", "a..b", ".a", 3])
def test_a_key_is_a_name_or_a_dotted_path(key: Any) -> None:
    for make in (PageCap, ContextBuilder, lc.PageDiversityFilter, lc.ContextBuilder):
        with pytest.raises(ConfigError, match="page_key"):
            make(page_key=key)


def test_an_answer_cites_a_nested_page_by_its_number() -> None:
    builder = ContextBuilder(**KEYS)
    hits = [Hit(Chunk(str(at), f"text {at}", metadata=nested(at).metadata)) for at in (0, 3)]
    context = builder.build(hits)
    assert [one.chunk_id for one in builder.resolve("So [Source: a.pdf, p.1].", context).citations] == ["3"]

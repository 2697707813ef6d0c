"""File and page of a chunk, in the metadata that loaders write; each case names the loader that writes this form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from voicevault_retrievers.core.pages import file_key_of, file_of, page_of, shown_file, shown_page, value_at

PATH = "/srv/data/tenant7/report.pdf"


def docling(page: int, *, filename: str = "report.pdf") -> dict[str, Any]:
    """The metadata of a chunk as docling's `DocMeta.export_json_dict` writes it."""
    items = [
        {"self_ref": "#/texts/1", "label": "section_header", "prov": []},
        {"self_ref": "#/texts/2", "label": "text", "prov": [{"page_no": page, "charspan": [0, 9]}, {"page_no": 9}]},
    ]
    origin = {"mimetype": "application/pdf", "binary_hash": 42, "filename": filename}
    return {"schema_name": "docling_core.transforms.chunker.DocMeta", "doc_items": items, "origin": origin}


LOADERS: dict[str, tuple[dict[str, Any], object, object, object, object]] = {
    # name: metadata, file, page, file as shown, page as shown
    "voicevault_retrievers": ({"source_file": "b/a.pdf", "page_number": 3}, "b/a.pdf", 3, "b/a.pdf", 3),
    "langchain PyPDFLoader": (
        {"source": PATH, "total_pages": 9, "page": 2, "page_label": "iii"}, PATH, 2, "report.pdf", "iii"),
    "langchain PyMuPDFLoader": (
        {"source": PATH, "file_path": PATH, "total_pages": 9, "page": 2}, PATH, 2, "report.pdf", 3),
    "langchain UnstructuredLoader": (
        {"source": PATH, "filename": "report.pdf", "file_directory": "/srv/data/tenant7", "page_number": 3},
        PATH, 3, "report.pdf", 3),
    "unstructured elements": ({"filename": "report.pdf", "page_number": 3}, "report.pdf", 3, "report.pdf", 3),
    "langchain DoclingLoader": ({"source": PATH, "dl_meta": docling(3)}, PATH, 3, "report.pdf", 3),
    "langchain DoclingLoader of a URL": (
        {"source": "https://a.org/b/report.pdf", "dl_meta": docling(3)},
        "https://a.org/b/report.pdf", 3, "https://a.org/b/report.pdf", 3),
    "llama_index DoclingNodeParser": (docling(3), "report.pdf", 3, "report.pdf", 3),
    "llama_index PDFReader": (
        {"page_label": "3", "file_name": "report.pdf", "file_path": PATH}, PATH, "3", "report.pdf", "3"),
    "llama_index PyMuPDFReader": (
        {"total_pages": 9, "file_path": PATH, "source": "3"}, PATH, "3", "report.pdf", "3"),
    "LlamaParse by page": ({"page_number": 3, "file_name": "report.pdf"}, "report.pdf", 3, "report.pdf", 3),
    "LlamaParse of JSON": ({"page": 3, "file_name": "report.pdf"}, "report.pdf", 3, "report.pdf", 3),
    "pymupdf4llm LlamaMarkdownReader": (
        {"page": 3, "total_pages": 9, "file_path": PATH}, PATH, 3, "report.pdf", 3),
    "langchain TextLoader": ({"source": PATH}, PATH, None, "report.pdf", None),
    "a page without a file": ({"page": 3}, None, None, None, None),
    "empty values": ({"source": "", "file_name": "a.pdf", "page_label": "", "page": 0}, "a.pdf", 0, "a.pdf", 0),
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_the_keys_of_loaders_are_known(loader: str) -> None:
    metadata, file, page, name, number = LOADERS[loader]
    assert file_of(metadata) == file
    assert page_of(metadata) == (None if page is None else (file, page))
    assert (shown_file(metadata), shown_page(metadata)) == (name, number)
    key = file_key_of(metadata)
    assert metadata.get(key or "") == (None if loader == "llama_index DoclingNodeParser" else file)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (PATH, "report.pdf"),
        (Path(PATH), "report.pdf"),
        ("~/papers/report.pdf", "report.pdf"),
        ("../tenant7/report.pdf", "report.pdf"),
        (r"C:\data\tenant 7\report.pdf", "report.pdf"),
        ("C:/data/report.pdf", "report.pdf"),
        (r"\\server\share\report.pdf", "report.pdf"),
        ("file:///srv/data/annual%20report.pdf", "annual report.pdf"),
        ("/srv/data/folder/", "folder"),
        ("/", "/"),
        ("manuals/a.pdf", "manuals/a.pdf"),
        ("https://example.com/srv/report.pdf?page=3", "https://example.com/srv/report.pdf?page=3"),
        ("s3://bucket/report.pdf", "s3://bucket/report.pdf"),
        ("a: b/c.pdf", "a: b/c.pdf"),
    ],
)
def test_a_path_of_a_machine_is_shown_as_a_name(file: object, shown: str) -> None:
    assert shown_file({"source": file}) == shown
    assert shown_file({"source": file}, paths=True) == str(file)


def test_other_keys_replace_those_of_loaders() -> None:
    metadata = {"source": "a.pdf", "page": 3, "doc": {"path": PATH, "at": [{}, {"no": 7}]}, "a.b": "c.pdf"}
    assert page_of(metadata, "page", "doc.path") == (PATH, 3)
    assert shown_page(metadata, "page") == 3  # as it is, where page is no longer that of a loader
    assert (shown_page(metadata, "doc.at.no"), shown_file(metadata, "doc.path")) == (7, "report.pdf")
    assert shown_file(metadata, "a.b") == "c.pdf"
    assert page_of(metadata, "nowhere") is page_of(metadata, None, "doc.nowhere") is None


@pytest.mark.parametrize("data", [None, 3, "text", [], {"a": None}, {"a": "b"}, {"a": [{"b": ""}, 4]}])
def test_nothing_stands_at_a_path_that_is_not_there(data: object) -> None:
    assert value_at(data, "a.b") is None

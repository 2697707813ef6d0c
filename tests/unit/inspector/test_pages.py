"""The page image of a PDF hit: which files are shown, which are not, and why."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra inspector is not installed")
pytest.importorskip("uvicorn", reason="the extra inspector is not installed")
pytest.importorskip("pypdfium2", reason="the extra inspector is not installed")
pytest.importorskip("pypdf", reason="the extra documents is not installed")

import pypdf
from pypdf.constants import PageLabelStyle
from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, StreamObject
from starlette.testclient import TestClient

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.inspector import app, pages
from voicevault_retrievers.inspector.pages import Pages
from voicevault_retrievers.inspector.pdf_pages import PIXELS, WIDTH, png
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.sources import Source

MANUAL = "operations-manual.pdf"


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample manual, below it another PDF, and beside it one that is not to be seen."""
    folder = tmp_path_factory.mktemp("pages") / "documents"
    (folder / "sub").mkdir(parents=True)
    shutil.copy(shipped("sample") / "documents" / MANUAL, folder / MANUAL)
    shutil.copy(folder / MANUAL, folder.parent / "secret.pdf")
    (folder / "link.pdf").symlink_to(folder.parent / "secret.pdf")
    for name, sizes in (("sub/wide.pdf", [(14_400, 144)]), ("labelled.pdf", [(200, 100), (200, 100), (100, 300)])):
        writer = pypdf.PdfWriter()
        for width, height in sizes:
            writer.add_blank_page(width, height)
        if name == "labelled.pdf":
            writer.set_page_label(0, 2, style=PageLabelStyle.LOWERCASE_ROMAN)
        writer.write(folder / name)
    locked = pypdf.PdfWriter(clone_from=folder / "sub/wide.pdf")
    locked.encrypt("password")
    locked.write(folder / "locked.pdf")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 and no more")
    (folder / "text.txt").write_text("text")
    return folder


def of(file: Any, page: Any = 1, **others: Any) -> Chunk:
    return Chunk("c", "text", metadata={"source_file": file, "page_number": page, **others})


def size(image: bytes) -> tuple[int, int]:
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    return width, height


@pytest.mark.program
def test_the_page_of_a_hit_is_shown(manual: Path, tmp_path: Path) -> None:
    with KnowledgeBase.create("plant", root=tmp_path / "kbs") as base:
        base.add([Chunk("c1", "pump", metadata={"source_file": MANUAL, "page_number": 12}), Chunk("c2", "a pump")],
                 sources=[Source.of(manual / MANUAL)])  # fmt: skip
    (tmp_path / "own.yaml").write_text("version: 1\nchannels: {bm25: {}}\n")
    served = app(root=tmp_path / "kbs", presets=[str(tmp_path / "own.yaml")])
    client = TestClient(served, base_url="http://localhost")
    asked = {"query": "pump", "kb": ["plant"], "preset": "own"}
    hits = client.post("/api/search", json=asked).json()["hits"]
    assert {hit["id"]: hit["page_image"] for hit in hits} == {"c1": True, "c2": False}
    answer = client.get("/api/page", params={"kb": "plant", "id": "c1"})
    assert answer.headers["content-type"] == "image/png"
    width, height = size(answer.content)
    assert width == WIDTH
    assert width * height <= PIXELS
    none = client.get("/api/page", params={"kb": "plant", "id": "c2"})
    assert (none.status_code, none.json()["error"]) == (404, "chunk 'c2' is not from a page of a PDF")


@pytest.mark.program
def test_a_file_that_was_read_is_shown_as_long_as_it_is_the_same(manual: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.pdf"
    shutil.copy(manual / "sub/wide.pdf", copy)
    sources = {"copy.pdf": Source.of(copy)}
    shown = Pages()
    assert size(shown.png(of("copy.pdf"), sources)) == (1200, 12)
    copy.write_bytes((manual / MANUAL).read_bytes())
    with pytest.raises(DocumentError, match="has changed since it was read"):
        shown.png(of("copy.pdf"), sources)
    forged = {"copy.pdf": Source("copy.pdf", "0" * 64, path=str(manual.parent / "secret.pdf"))}
    with pytest.raises(DocumentError, match="has changed since it was read"):
        shown.png(of("copy.pdf"), forged)
    copy.unlink()
    assert not shown.has(of("copy.pdf"), sources)
    with pytest.raises(DocumentError, match="neither in a folder of documents nor where it was read"):
        shown.png(of("copy.pdf"), sources)


@pytest.mark.parametrize(
    "file",
    ["../secret.pdf", "sub/../../secret.pdf", "link.pdf", "{}/secret.pdf", "./../secret.pdf\0.pdf", "\ud800.pdf",
     "x" * 5000 + ".pdf", "..pdf", ".pdf", "~/secret.pdf", "sub.pdf", "%2e%2e/secret.pdf"],
)  # fmt: skip
def test_no_name_leads_out_of_the_folders(manual: Path, file: str) -> None:
    chunk = of(file.format(manual.parent))
    assert not Pages([manual]).has(chunk, {})
    with pytest.raises(DocumentError):
        Pages([manual]).png(chunk, {})


@pytest.mark.program
@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"source_file": "locked.pdf", "page_number": 1}, "it is encrypted"),
        ({"source_file": "broken.pdf", "page_number": 1}, "it seems damaged"),
        ({"source_file": "text.txt", "page_number": 1}, "not from a page of a PDF"),
        ({"source_file": MANUAL}, "not from a page of a PDF"),
        ({"source_file": MANUAL, "page_number": 0}, "has 2[0-9] pages, and not the one"),
        ({"source_file": MANUAL, "page_number": 10_000}, "has 2[0-9] pages, and not the one"),
        ({"source_file": MANUAL, "page_number": "9" * 5000}, "which is no number"),
        ({"source_file": MANUAL, "page_number": "iv"}, "'iv', which is no number"),
        ({"source_file": MANUAL, "page_number": 1.5}, "which is no number"),
        ({"source_file": ["a.pdf"], "page_number": 1}, "not from a page of a PDF"),
        ({"file_name": "labelled.pdf", "page_label": "iv"}, "has 3 pages, and not the one"),
    ],
)
def test_what_cannot_be_shown_says_why(manual: Path, metadata: Mapping[str, Any], said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        Pages([manual]).png(Chunk("c", "text", metadata=metadata), {})


@pytest.mark.program
@pytest.mark.parametrize(
    "metadata",
    [
        {"source_file": "labelled.pdf", "page_number": 3},
        {"source_file": "labelled.pdf", "page_number": "3", "page": 0},
        {"source": "labelled.pdf", "page": 2, "page_label": "iii"},
        {"file_name": "labelled.pdf", "page_label": "iii"},
        {"file_name": "labelled.pdf", "page_label": "3", "source_file": "labelled.pdf", "page_number": 3},
        {"source": "{}/labelled.pdf", "page": 2},
    ],
)
def test_pages_are_counted_as_those_who_wrote_the_metadata_do(manual: Path, metadata: dict[str, Any]) -> None:
    if "source" in metadata:
        metadata = metadata | {"source": metadata["source"].format(manual)}
    image = Pages([manual]).png(Chunk("c", "text", metadata=metadata), {})
    assert size(image) == (400, 1200)  # of the third page alone, four pixels a point


def test_a_png_holds_the_pixels() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    image = png(5, [row.tobytes() for row in rows])
    length = struct.unpack(">I", image[33:37])[0]
    lines = np.frombuffer(zlib.decompress(image[41 : 41 + length]), np.uint8).reshape(3, 16)
    assert (lines[:, 0] == 0).all()
    assert (lines[:, 1:].reshape(3, 5, 3) == rows).all()
    head, check = image[12:29], struct.unpack(">I", image[29:33])[0]
    assert zlib.crc32(head) == check


def nested(path: Path, deep: int) -> None:
    """A small file whose page draws a line 10 ** deep times."""
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(300, 300)
    kind, form, below = (NameObject(name) for name in ("/Subtype", "/Form", "/Resources"))
    inner = None
    for level in range(deep + 1):
        stream = StreamObject()
        stream.set_data(b"/F Do " * 10 if level else b"0 0 m 300 300 l S")
        stream.update({kind: form, NameObject("/BBox"): ArrayObject(map(FloatObject, (0, 0, 300, 300)))})
        if inner is not None:
            stream[below] = _named(inner)
        inner = writer._add_object(stream)
    page[below] = _named(inner)
    content = StreamObject()
    content.set_data(b"/F Do")
    page[NameObject("/Contents")] = writer._add_object(content)
    writer.write(path)


def _named(inner: Any) -> DictionaryObject:
    return DictionaryObject({NameObject("/XObject"): DictionaryObject({NameObject("/F"): inner})})


@pytest.mark.program
def test_a_page_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested(tmp_path / "endless.pdf", 9)
    nested(tmp_path / "short.pdf", 1)
    monkeypatch.setattr(pages, "SECONDS", 1)
    with pytest.raises(DocumentError, match=r"no page of endless.pdf can be shown: drawing it takes more than 1 s"):
        Pages([tmp_path]).png(of("endless.pdf"), {})
    monkeypatch.undo()
    assert size(Pages([tmp_path]).png(of("short.pdf"), {})) == (1200, 1200)


@pytest.mark.program
def test_a_page_that_ends_its_process_ends_nothing_else(
    manual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "breaks.py").write_text("import sys\nsys.exit('pdfium is broken')\n")
    monkeypatch.setattr(pages, "_PROGRAM", str(tmp_path / "breaks.py"))
    with pytest.raises(DocumentError, match="drawing it failed, and the server's log says more"):
        Pages([manual]).png(of(MANUAL), {})
    assert "pdfium is broken" in caplog.text


@pytest.mark.program
def test_threads_draw_one_after_the_other(manual: Path) -> None:
    shown = Pages([manual])
    alone = {number: shown.png(of(MANUAL, number), {}) for number in (1, 5)}
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda number: shown.png(of(MANUAL, number), {}), (1, 5, 1, 5)))
    assert drawn == [alone[number] for number in (1, 5, 1, 5)]

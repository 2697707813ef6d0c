"""Loading, splitting, discovering and reading files. The tests make every file themselves."""

from __future__ import annotations

import codecs
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast
from zipfile import ZIP_DEFLATED, ZipFile

import docx
import pypdf
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from fpdf import FPDF
from pypdf.generic import DictionaryObject, NameObject, NumberObject, TextStringObject

from voicevault_retrievers.documents import Document, Part, discover, load, read, split
from voicevault_retrievers.documents._load import LOADERS, MAX_FILE_BYTES
from voicevault_retrievers.documents._pdf import MAX_PAGES
from voicevault_retrievers.errors import ConfigError, DocumentError, MissingExtraError

pytestmark = pytest.mark.program  # a child process reads files


def pdf(path: Path, *pages: str, outline: dict[int, str] | None = None) -> Path:
    """A PDF with these pages; `outline` maps page numbers to titles."""
    document = FPDF()
    document.set_font("helvetica", size=12)
    for number, text in enumerate(pages, 1):
        document.add_page()
        if outline and number in outline:
            document.start_section(outline[number])
        if text:
            document.cell(text=text)
    document.output(str(path))
    return path


def encrypted(path: Path, password: str) -> Path:
    writer = pypdf.PdfWriter(clone_from=str(pdf(path, "secret text")))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    writer.write(str(path))
    return path


def declaring(path: Path, pages: int) -> Path:
    writer = pypdf.PdfWriter(clone_from=str(pdf(path, "one")))
    cast("DictionaryObject", writer.root_object["/Pages"])[NameObject("/Count")] = NumberObject(pages)
    writer.write(str(path))
    return path


def truncated(path: Path) -> Path:
    path.write_bytes((data := pdf(path, "cut short").read_bytes())[: len(data) // 2])
    return path


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def sections(path: Path) -> list[tuple[str | None, str]]:
    return [(part.section, part.text) for part in load(path).parts]


def zip_of(path: Path, size: int, declared: int | None = None) -> Path:
    """A zip with one member of zeros; its directory may declare another size, packed to half of that."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", bytes(size))
        if declared is not None:
            archive.infolist()[0].file_size = declared
            archive.infolist()[0].compress_size = declared // 2
    return path


def test_a_pdf_gives_a_part_per_page_with_text_and_the_outline_as_section(tmp_path: Path) -> None:
    path = pdf(tmp_path / "a.pdf", "before", "one", "", "more", "two", outline={2: "First", 5: "Second"})
    assert load(path).parts == (
        Part("before", 1, None),
        Part("one", 2, "First"),
        Part("more", 4, "First"),
        Part("two", 5, "Second"),
    )


def test_a_pdf_with_an_empty_user_password_is_read(tmp_path: Path) -> None:
    assert load(encrypted(tmp_path / "open.pdf", "")).parts == (Part("secret text", 1),)


def test_a_broken_outline_counts_as_none(tmp_path: Path) -> None:
    path = pdf(tmp_path / "a.pdf", "one", outline={1: "First"})
    writer = pypdf.PdfWriter(clone_from=str(path))
    first = cast("DictionaryObject", cast("DictionaryObject", writer.root_object["/Outlines"])["/First"])
    first[NameObject("/Count")] = TextStringObject("x")
    writer.write(str(path))
    assert load(path).parts == (Part("one", 1, None),)


def test_pypdf_logs_nothing_while_loading_and_is_as_before_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.getLogger("pypdf").level
    with pytest.raises(DocumentError):
        load(truncated(tmp_path / "cut.pdf"), limits=None)
    assert caplog.records == []
    assert logging.getLogger("pypdf").level == before


MARKDOWN = """---
title: not text
---
Intro.

# Guide *to* `x` &amp; [y](z)

```sh
# no heading
```

> # quoted

## Limits ##
- Grüße

Set
text
===
end
"""


def test_markdown_gives_a_part_per_heading_and_keeps_the_markup(tmp_path: Path) -> None:
    assert sections(written(tmp_path / "a.md", MARKDOWN)) == [
        (None, "Intro."),
        ("Guide to x & y", "# Guide *to* `x` &amp; [y](z)\n\n```sh\n# no heading\n```\n\n> # quoted"),
        ("Limits", "## Limits ##\n- Grüße"),
        ("Set text", "Set\ntext\n===\nend"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("---\n\nA thematic break.\n\n---\n", "---\n\nA thematic break.\n\n---"),
        ("---\n---\nBody", "Body"),
        ("---\r\na: 1\r\n...\r\nBody", "Body"),
    ],
)
def test_only_yaml_is_front_matter(tmp_path: Path, content: str, text: str) -> None:
    assert sections(written(tmp_path / "a.md", content)) == [(None, text)]


HTML = """<!DOCTYPE html><html><head><title>T</title><style>b{}</style></head><body><nav>menu</nav>
<p>Before  it<br>now</p><!-- no --><template>no</template><noscript>no</noscript>
<h1>Caf&eacute;<br><em>rules</em></h1><p>One &lt; two</p><div>three<p>four</div>
<script>var x = "<h2>no</h2>"</script>
<h2>Prices</h2><table><tr><th>Name<th>Euro<tr><td><p>Tea</p><p>pot</p><td>3<tr><td><td>4<tr><td></table>
<pre>a
  b</pre>tail</body></html>"""


def test_html_gives_a_part_per_heading_with_blocks_and_rows_as_lines(tmp_path: Path) -> None:
    assert sections(written(tmp_path / "a.html", HTML)) == [
        (None, "Before it\nnow"),
        ("Café rules", "Café rules\nOne < two\nthree\nfour"),
        ("Prices", "Prices\nName | Euro\nTea pot | 3\n| 4\na\n  b\ntail"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<meta charset='iso-8859-1'><p>“5 €”</p>".encode("cp1252"), "“5 €”"),
        ("<meta charset=shift_jis><p>東京</p>".encode("shift_jis"), "東京"),
        ("<?xml version='1.0'?><div>xml</div>", "xml"),
        ("notes.txt", "notes.txt"),
        ("<div>" * 20_000 + "deep", "deep"),
    ],
    ids=["latin-1", "shift_jis", "xml", "like a name", "deep"],
)
def test_html_is_read_as_declared_and_without_warnings(tmp_path: Path, content: str | bytes, text: str) -> None:
    assert sections(written(tmp_path / "a.htm", content)) == [(None, text)]


def test_docx_gives_a_part_per_heading_with_tables_in_place(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_paragraph("Before")
    document.add_heading("Preise", 1)
    table = document.add_table(2, 2)
    for at, text in enumerate(("Tee", "3 €", "Käse\nalt", "4 €")):
        table.cell(*divmod(at, 2)).text = text
    document.add_paragraph("After")
    own = document.styles.add_style("Own", 1)
    own.base_style = document.styles["Heading 2"]
    document.add_paragraph("Based", style="Own")
    document.add_paragraph("Below")
    document.save(str(path := tmp_path / "a.docx"))
    assert sections(path) == [
        (None, "Before"),
        ("Preise", "Preise\n\nTee | 3 €\nKäse alt | 4 €\n\nAfter"),
        ("Based", "Based\n\nBelow"),
    ]
    assert [part.above for part in load(path).parts] == [(), (), ("Preise",)]


def test_docx_text_in_insertions_controls_and_boxes_is_read_once_and_deleted_text_is_not(tmp_path: Path) -> None:
    document = docx.Document()
    runs = "<w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
    box = "<w:txbxContent><w:p><w:r><w:t> box</w:t></w:r></w:p></w:txbxContent>"
    boxes = f"<w:r><m:Alt xmlns:m='urn:m'><m:Choice>{box}</m:Choice><m:Fallback>{box}</m:Fallback></m:Alt></w:r>"
    control = f"<w:sdt {nsdecls('w')}><w:sdtContent><w:p>{runs}{boxes}</w:p></w:sdtContent></w:sdt>"
    document.element.body.insert(0, parse_xml(control))
    document.save(str(path := tmp_path / "a.docx"))
    assert sections(path) == [(None, "new box")]


@pytest.mark.parametrize("bom_and_codec", [(b"", "utf-8"), (codecs.BOM_UTF8, "utf-8"), (b"", "utf-16")])
@pytest.mark.parametrize("suffix", [suffix for suffix, loader in LOADERS.items() if loader is LOADERS[".txt"]])
def test_text_is_utf8_or_has_a_mark(tmp_path: Path, suffix: str, bom_and_codec: tuple[bytes, str]) -> None:
    bom, codec = bom_and_codec
    path = written(tmp_path / f"a{suffix.upper()}", bom + "Grüße\r\n向你问好".encode(codec))
    assert load(path).parts == (Part("Grüße\n向你问好"),)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "scan.pdf": (
        lambda p: pdf(p, "", "", ""),
        r"scan.pdf has 3 pages and no text.*scanned; run OCR.*`ocrmypdf scan.pdf out.pdf`",
    ),
    "locked.pdf": (lambda p: encrypted(p, "x"), "locked.pdf is encrypted and needs a password"),
    "cut.pdf": (truncated, "cut.pdf is damaged or cut short"),
    "text.pdf": (lambda p: written(p, "plain text"), "text.pdf is not a PDF"),
    "none.pdf": (lambda p: pypdf.PdfWriter().write(str(p)), "none.pdf has no pages"),
    "long.pdf": (lambda p: declaring(p, MAX_PAGES + 1), f"long.pdf has {MAX_PAGES + 1} pages, more than {MAX_PAGES}"),
    "empty.pdf": (lambda p: p.touch(), "empty.pdf is empty"),
    "blank.txt": (lambda p: written(p, " \n"), "blank.txt has no text"),
    "broken.txt": (
        lambda p: written(p, b"ab\xff"),
        "broken.txt is not utf-8 text .byte 0xff at offset 2.; it may be cp1251, cp1252.*: save it",
    ),
    "nul.txt": (lambda p: written(p, "ab".encode("utf-16-le")), "nul.txt holds NUL"),
    "odd.html": (lambda p: written(p, "<meta charset=klingon>x"), "odd.html declares the unknown encoding 'klingon'"),
    "rejected.html": (lambda p: written(p, "<![foo[ x"), "rejected.html is damaged"),
    "old.docx": (lambda p: written(p, b"\xd0\xcf\x11\xe0"), "old.docx is no DOCX file"),
    "other.docx": (lambda p: zip_of(p, 10), "other.docx is damaged"),
    "ratio.docx": (lambda p: zip_of(p, (64 << 20) + 1), "ratio.docx declares 64 MiB unpacked.*zip bomb"),
    "bomb.docx": (lambda p: zip_of(p, 10, 513 << 20), "bomb.docx declares 513 MiB unpacked.*zip bomb"),
    "a.xyz": (lambda p: written(p, "x"), "a.xyz is of unknown type '.xyz'; known: .c, .*.csv"),
    "big.txt": (lambda p: os.truncate(written(p, b""), MAX_FILE_BYTES + 1), "big.txt is too large"),
    "folder.txt": (lambda p: p.mkdir(), "folder.txt is not a file"),
    "missing.txt": (lambda p: None, "missing.txt cannot be read: No such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_says_which_and_what_is_wrong(tmp_path: Path, name: str) -> None:
    make, message = BAD[name]
    make(tmp_path / name)
    with pytest.raises(DocumentError, match=message):
        load(tmp_path / name)


def test_the_source_file_is_the_path_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = written(tmp_path / "sub" / "ä.txt", "x")
    assert load(path).source_file == "ä.txt"
    assert load(path, root=tmp_path).source_file == "sub/ä.txt"
    with pytest.raises(ConfigError, match="is not below"):
        load(path, root=tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("a.pdf", "pypdf"),
        ("a.docx", "docx"),
        ("a.html", "bs4"),
        ("a.md", "markdown_it"),
        ("a.txt", "semantic_text_splitter"),
    ],
)
def test_a_missing_library_is_not_a_skipped_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    written(tmp_path / name, "%PDF- text")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module} is needed.*\[documents\]"):
        read([tmp_path], limits=None)


def test_a_cipher_that_is_not_installed_is_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise pypdf.errors.DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(pypdf, "PdfReader", refuse)
    with pytest.raises(MissingExtraError, match=r"cryptography.*\[documents\]"):
        read([pdf(tmp_path / "a.pdf", "x")], limits=None)


GERMAN = "Die Größe zählt nicht. Über Käse lässt sich streiten!\n\n  Äpfel kosten 3 € je Kilo. "
CHINESE = "第一句话讲茶。第二句话讲水。\n\n第三段讲山,也讲海。\n"
PARTS = Document(
    "a.txt",
    (Part(GERMAN, 1), Part(" \n\n", 2), Part(CHINESE, 3, "茶"), Part("x" * 50, 4)),
)


@pytest.mark.parametrize("max_chars", [7, 20, 900])
@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_offsets_point_at_the_text_and_nothing_but_whitespace_is_lost(name: str, max_chars: int) -> None:
    parts = {part.page_number: part for part in PARTS.parts}
    chunks = split(Document(name, PARTS.parts), max_chars=max_chars)
    for index, chunk in enumerate(chunks):
        part = parts[chunk.metadata["page_number"]]
        assert part.text[chunk.metadata["start"] : chunk.metadata["end"]] == chunk.text == chunk.text.strip() != ""
        assert len(chunk.text) <= max_chars
        assert chunk.metadata.get("section") == part.section
        assert chunk.metadata["chunk_index"] == index
    joined = "".join(chunk.text for chunk in chunks)
    assert "".join(joined.split()) == "".join("".join(part.text for part in PARTS.parts).split())


def test_metadata_holds_only_what_is_known() -> None:
    (chunk,) = split(Document("a.txt", (Part("  text\nmore  "),)))
    assert (chunk.text, dict(chunk.metadata)) == (
        "text\nmore",
        {
            "source_file": "a.txt",
            "file_id": chunk.metadata["file_id"],
            "start": 2,
            "end": 2 + len("text\nmore"),
            "chunk_index": 0,
            "chunks_in_file": 1,
        },
    )


def test_a_files_chunks_have_its_id_and_how_many_there_are() -> None:
    several = split(PARTS, max_chars=60)
    assert {chunk.metadata["chunks_in_file"] for chunk in several} == {len(several)}
    (file_id,) = {chunk.metadata["file_id"] for chunk in several}
    (other,) = split(Document("b.txt", PARTS.parts[:1]))
    assert isinstance(file_id, str)
    assert other.metadata["file_id"] != file_id == split(PARTS)[0].metadata["file_id"]


def test_overlap_repeats_the_end_of_the_chunk_before() -> None:
    words = Document("a.txt", (Part("one two three four five six"),))
    first, second, *_ = split(words, max_chars=14, overlap=6)
    assert first.metadata["start"] < second.metadata["start"] < first.metadata["end"]


@pytest.mark.parametrize(("max_chars", "overlap"), [(0, 0), (10, 10), (10, -1)])
def test_wrong_sizes_are_named(max_chars: int, overlap: int) -> None:
    with pytest.raises(ConfigError, match=f"not {overlap} with max_chars {max_chars}"):
        split(PARTS, max_chars=max_chars, overlap=overlap)


def test_ids_stay_when_a_paragraph_is_inserted_in_another_section(tmp_path: Path) -> None:
    def ids(first: str) -> dict[str, set[str]]:
        chunks = split(load(written(tmp_path / "a.md", f"# A\n{first}\n\n# B\nsame\n\n# B\nsame\n\n# C\nend\n")))
        assert len({chunk.id for chunk in chunks}) == len(chunks)
        return {name: {c.id for c in chunks if c.metadata["section"] == name} for name in "ABC"}

    before, after = ids("text"), ids("text\n\ninserted")
    assert before["A"] != after["A"]
    assert (before["B"], before["C"]) == (after["B"], after["C"])
    assert all(len(each) == 2 * 10 for each in after["B"] | after["C"])


@pytest.mark.parametrize(
    "other",
    [Part("x", 2, "s"), Part("x", 1, "t"), Part("y", 1, "s"), Part("x", None, "s")],
)
def test_ids_differ_by_page_section_and_text(other: Part) -> None:
    first, second = split(Document("a.txt", (Part("x", 1, "s"), other)))
    assert first.id != second.id == split(Document("a.txt", (other,)))[0].id


def test_a_very_long_line_is_split_in_pieces() -> None:
    text = "".join(f"w{number} " for number in range(20_000))
    chunks = split(Document("a.txt", (Part(text),)), max_chars=100)
    assert [word for chunk in chunks for word in chunk.text.split()] == text.split()
    assert all(text[chunk.metadata["start"] : chunk.metadata["end"]] == chunk.text for chunk in chunks)


def test_discover_walks_folders_in_order_and_tries_named_files(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for name in ("b.txt", "a/z.md", "a/.hidden.md", ".git/c.txt", "a/x.bin", "c.TXT"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        written(root / name, "x")
    outside.mkdir()
    named = written(outside / "n.bin", "x")
    (root / "out.txt").symlink_to(written(outside / "o.txt", "x"))
    (root / "outdir").symlink_to(outside, target_is_directory=True)
    (root / "in.txt").symlink_to(root / "b.txt")
    files = [root / name for name in ("a/z.md", "b.txt", "c.TXT")]
    assert discover([root, named, str(root / "b.txt")]) == [*((root, file) for file in files), (outside, named)]
    assert discover(str(named)) == [(outside, named)]
    with pytest.raises(DocumentError, match="nowhere does not exist"):
        discover([root, tmp_path / "nowhere"])


def test_read_names_every_bad_file_and_reads_the_rest(tmp_path: Path) -> None:
    for name in ("scan.pdf", "broken.txt", "bomb.docx"):
        BAD[name][0](tmp_path / name)
    pdf(tmp_path / "good.pdf", "a page")
    written(tmp_path / "good.md", "# H\ntext")
    seen: list[tuple[int, int]] = []
    ingest = read([tmp_path], progress=lambda done, total: seen.append((done, total)))
    assert [skipped.source_file for skipped in ingest.skipped] == ["bomb.docx", "broken.txt", "scan.pdf"]
    assert all(skipped.source_file in skipped.reason for skipped in ingest.skipped)
    assert [(chunk.metadata["source_file"], chunk.text) for chunk in ingest.chunks] == [
        ("good.md", "# H\ntext"),
        ("good.pdf", "a page"),
    ]
    assert ingest.files == 2
    assert seen == [(done, 5) for done in range(1, 6)]


def test_read_skips_a_file_with_the_name_of_another_as_their_ids_would_clash(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "a.txt", "same")
    ingest = read([tmp_path / "x", tmp_path / "y"])
    assert (len(ingest.chunks), ingest.files) == (1, 1)
    assert "has the same name as" in ingest.skipped[0].reason
    assert read([tmp_path]).files == 2

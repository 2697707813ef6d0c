"""Tables, slides, e-mails, JSON and source code: parts by record, each with what a citation needs."""

from __future__ import annotations

from datetime import date, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import openpyxl
import pptx
import pytest

from voicevault_retrievers.answers.citations import citation_of, header
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.documents import Document, Part, _tables, load, recipe, split, split_families
from voicevault_retrievers.documents._records import MAX_RECORDS
from voicevault_retrievers.errors import DocumentError

pytestmark = pytest.mark.program  # a child process reads files


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def told(path: Path, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(part.text, dict(part.metadata)) for part in load(path, **options).parts]


def cited(chunk: Chunk) -> str:
    return header(citation_of(1, Hit(chunk, 1, 1.0), chunk.text))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_row_of_csv_is_a_part_with_its_columns_and_number(tmp_path: Path, delimiter: str) -> None:
    rows = ["name;price;note", 'Tee;3,50;"a\nb"', "", "Käse;;old;more"]
    path = written(tmp_path / "a.csv", "\r\n".join(rows).replace(",", ".").replace(";", delimiter))
    assert told(path) == [
        ("name: Tee\nprice: 3.50\nnote: a\nb", {"row": 2}),
        ("name: Käse\nnote: old\ncolumn 4: more", {"row": 4}),
    ]
    assert [cited(chunk) for chunk in split(load(path))] == [
        "[Source: a.csv | Section: row 2]",
        "[Source: a.csv | Section: row 4]",
    ]


def test_a_table_without_names_has_bare_cells_and_titles_above_it_are_read(tmp_path: Path) -> None:
    assert told(written(tmp_path / "a.tsv", "1\t2\n3\t4\n")) == [("1 | 2", {"row": 1}), ("3 | 4", {"row": 2})]
    assert told(written(tmp_path / "b.csv", "one\ntwo\n")) == [("one", {"row": 1}), ("two", {"row": 2})]
    assert told(written(tmp_path / "c.csv", "Prices\nin euro\n\nname,price\ntea,3\n")) == [
        ("Prices\nin euro", {"row": 1, "row_end": 2}),
        ("name: tea\nprice: 3", {"row": 5}),
    ]


def test_rows_keep_their_ids_when_one_is_inserted(tmp_path: Path) -> None:
    def ids(*rows: str) -> list[str]:
        return [chunk.id for chunk in split(load(written(tmp_path / "a.csv", "\n".join(["name,price", *rows]))))]

    before, after = ids("tea,3", "milk,2"), ids("oil,4", "tea,3", "milk,2")
    assert after[1:] == before


def test_a_parent_of_rows_names_their_range(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "name,price\ntea,3\nmilk,2\noil,4\n")
    (parent,) = split_families(load(path)).parents
    assert (parent.metadata["row"], parent.metadata["row_end"]) == (2, 4)
    assert cited(parent) == "[Source: a.csv | Section: rows 2-4]"


def test_too_many_records_and_broken_tables_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=f"more than {MAX_RECORDS} records"):
        load(written(tmp_path / "a.csv", "1,2\n" * (MAX_RECORDS + 1)))
    with pytest.raises(DocumentError, match="is not CSV"):
        load(written(tmp_path / "b.csv", 'a,b\n1,"' + "x" * 200_000))
    with pytest.raises(DocumentError, match=r"b.xlsx is no XLSX file.*password or be of an older format"):
        load(written(tmp_path / "b.xlsx", b"\xd0\xcf\x11\xe0"))
    with pytest.raises(DocumentError, match=r"b\.pptx is no PPTX file"):
        load(written(tmp_path / "b.pptx", b"x"))


def test_a_row_of_xlsx_has_its_sheet_and_row(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    first = book.active
    first.title = "Prices"
    for row in (["name", "price", "since", "sold"], ["tea", 3.0, date(2024, 5, 1), True], [], ["oil", 4.5]):
        first.append(row)
    first["C4"] = datetime(2024, 5, 2, 8, 30)
    book.create_sheet("Empty")
    book.create_sheet("Words").append(["one"])
    book.save(path := tmp_path / "a.xlsx")
    assert told(path) == [
        ("name: tea\nprice: 3\nsince: 2024-05-01\nsold: TRUE", {"sheet": "Prices", "row": 2}),
        ("name: oil\nprice: 4.5\nsince: 2024-05-02 08:30:00", {"sheet": "Prices", "row": 4}),
        ("one", {"sheet": "Words", "row": 1}),
    ]
    chunk = split(load(path))[1]
    assert (chunk.metadata["sheet"], chunk.metadata["row"], chunk.header) == ("Prices", 4, "Prices")
    assert cited(chunk) == "[Source: a.xlsx | Section: Prices, row 4]"


def test_a_far_cell_costs_little_and_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = openpyxl.Workbook()
    book.active["XFD1048576"] = "far"
    book.save(path := tmp_path / "a.xlsx")
    assert told(path) == [("far", {"sheet": "Sheet", "row": 1_048_576})]
    monkeypatch.setattr(_tables, "MAX_CELLS", 16_383)
    with pytest.raises(DocumentError, match=r"a\.xlsx has more than 16383 cells on a sheet"):
        load(path, limits=None)


def test_a_slide_is_a_part_with_title_table_groups_and_notes(tmp_path: Path) -> None:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Pump\vreset"
    slide.placeholders[1].text = "Green key\n\nHold it"
    slide.notes_slide.notes_text_frame.text = "Say it slowly"
    other = deck.slides.add_slide(deck.slide_layouts[6])
    table = other.shapes.add_table(2, 2, 0, 0, 100, 100).table
    for at, text in enumerate(("Tea", "3", "Oil", "4")):
        table.cell(*divmod(at, 2)).text = text
    group = other.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 10, 10).text_frame.text = "in a group"
    deck.save(str(path := tmp_path / "a.pptx"))
    assert load(path).parts == (
        Part(
            "Pump reset\n\nGreen key\nHold it\n\nNotes: Say it slowly", 1, "Pump reset", body=10, metadata={"slide": 1}
        ),
        Part("Tea | 3\nOil | 4\n\nin a group", 2, metadata={"slide": 2}),
    )
    chunk = split(load(path))[0]
    assert (chunk.metadata["slide"], chunk.metadata["page_number"]) == (1, 1)
    assert cited(chunk) == "[Source: a.pptx, p.1 | Section: Pump reset]"


def mail(**parts: str) -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Ada Köhler <ada@example.org>"
    message["Date"] = "Fri, 03 May 2024 08:30:00 +0200"
    message["Subject"] = "Pump in hall 4"
    if "plain" in parts:
        message.set_content(parts["plain"])
    if "html" in parts:
        message.add_alternative(parts["html"], subtype="html")
    return message


MAIL = {"sender": "Ada Köhler <ada@example.org>", "date": "2024-05-03T08:30:00+02:00", "subject": "Pump in hall 4"}


def test_an_email_has_sender_date_and_subject_and_names_attachments(tmp_path: Path) -> None:
    message = mail(plain="Reset it, Grüße", html="<p>no</p>")
    message.add_attachment(b"x", maintype="application", subtype="pdf", filename="plan.pdf")
    path = written(tmp_path / "a.eml", bytes(message))
    document = load(path)
    assert [(part.text.strip(), dict(part.metadata)) for part in document.parts] == [
        ("Reset it, Grüße", MAIL),
        ("Attachments: plan.pdf", MAIL),
    ]
    assert document.notes == ("attachments not read: plan.pdf",)
    chunk = split(document)[0]
    assert chunk.header == f"From {MAIL['sender']}, {MAIL['date']} > Pump in hall 4"
    assert cited(chunk) == f"[Source: a.eml | Section: Pump in hall 4, from {MAIL['sender']}, {MAIL['date']}]"


def test_an_email_of_html_is_read_by_headings_and_one_without_text_is_its_subject(tmp_path: Path) -> None:
    path = written(tmp_path / "a.eml", bytes(mail(html="<p>Hello</p><h1>Steps</h1><p>Reset</p>")))
    assert [(part.section, part.text) for part in load(path).parts] == [
        ("Pump in hall 4", "Hello"),
        ("Steps", "Steps\nReset"),
    ]
    assert told(written(tmp_path / "b.eml", bytes(mail()))) == [("Pump in hall 4", MAIL)]
    with pytest.raises(DocumentError, match=r"c\.eml is not an e-mail"):
        load(written(tmp_path / "c.eml", "no headers"))


def test_an_email_in_an_undeclared_encoding_says_so(tmp_path: Path) -> None:
    text = "Grüße aus Köln: die Größe zählt nicht. Über Käse lässt sich streiten."
    path = written(tmp_path / "a.eml", f"From: a@b.c\nDate: some day\n\n{text}".encode("latin-1"))
    assert told(path) == [(text, {"sender": "a@b.c", "date": "some day"})]
    assert load(path).notes == ("read as cp1252",)


def test_a_json_record_is_a_part_with_its_key_path(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.json",
        '{"title": "Stock", "size": 2, "items": [{"name": "tea", "at": {"hall": 4}, "tags": ["a", "b"], "no": null},'
        ' {"name": "oil", "new": true}], "odd key": [[1, 2], [3]]}',
    )
    assert told(path) == [
        ("title: Stock\nsize: 2", {"key_path": "$"}),
        ("name: tea\nat.hall: 4\ntags: a, b", {"key_path": "$.items[0]"}),
        ("name: oil\nnew: true", {"key_path": "$.items[1]"}),
        ("value: 1, 2", {"key_path": '$["odd key"][0]'}),
        ("value: 3", {"key_path": '$["odd key"][1]'}),
    ]
    assert cited(split(load(path))[1]) == "[Source: a.json | Section: $.items(0)]"
    assert told(written(tmp_path / "b.json", '{"en": {"a": "b"}, "de": {"a": "c"}}')) == [
        ("a: b", {"key_path": "$.en"}),
        ("a: c", {"key_path": "$.de"}),
    ]
    assert told(written(tmp_path / "c.json", '["x", "y"]')) == [("value: x, y", {"key_path": "$"})]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json"])
def test_a_line_of_json_is_a_part_and_a_broken_one_is_told(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, '{"q": "one"}\n\n{"q": "two"}\n{"q": \n')
    assert told(path) == [
        ("q: one", {"line_start": 1, "line_end": 1}),
        ("q: two", {"line_start": 3, "line_end": 3}),
    ]
    assert load(path).notes == ("lines that are no JSON were left out: 4",)
    assert cited(split(load(path))[1]) == f"[Source: {name} | Section: line 3]"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "a.json is not JSON"), ("[" * 100_000, "nested too deeply"), ("x\ny\n", "a.json is not JSON")],
)
def test_broken_json_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        load(written(tmp_path / "a.json", content))


def test_the_text_field_is_the_text_of_a_record(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", '[{"id": 1, "body": {"text": "pump"}}, {"id": 2}]')
    assert told(path, text_field="body.text") == [("pump", {"key_path": "$[0]"})]
    assert load(path, text_field="body.text").notes == ("1 of 2 records have no text field 'body.text'",)
    table = written(tmp_path / "a.csv", "id,text\n1,pump\n2,\n")
    assert told(table, text_field="text") == [("pump", {"row": 2})]
    for wrong in (path, table):
        with pytest.raises(DocumentError, match=r"has no text field 'none': give one of id, "):
            load(wrong, text_field="none")
    assert recipe(text_field="text") != recipe()
    assert load(written(tmp_path / "a.txt", "x"), text_field="text").parts == (Part("x"),)


PYTHON = '''"""Module."""
import os

@cache
# why
def first() -> None:
    """Doc."""


class Pump:
    """A pump."""

    size = 4

    def reset(self) -> None:
        def inner() -> None: ...

    async def stop(self) -> None:
        pass

print(first)
'''


def test_python_is_read_by_definitions_with_path_name_and_lines(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    path = written(tmp_path / "src" / "a.py", PYTHON)
    document = load(path, root=tmp_path)
    assert [(part.section, part.metadata["line_start"], part.metadata["line_end"]) for part in document.parts] == [
        (None, 1, 2),
        ("first", 4, 7),
        ("Pump", 10, 13),
        ("Pump.reset", 15, 16),
        ("Pump.stop", 18, 19),
        (None, 21, 21),
    ]
    chunk = split(document)[3]
    assert chunk.header == "src/a.py > Pump.reset"
    assert cited(chunk) == "[Source: src/a.py | Section: Pump.reset, lines 15-16]"


def test_a_piece_of_a_definition_names_its_own_lines() -> None:
    text = "def f():\n" + "".join(f"    line_{at} = {at}\n" for at in range(40))
    part = Part(text, section="f", metadata={"line_start": 11, "line_end": 51})
    chunks = split(Document("a.py", (part,)), max_chars=200)
    lines = text.split("\n")
    assert len(chunks) > 2
    for chunk in chunks:
        start, end = chunk.metadata["line_start"] - 11, chunk.metadata["line_end"] - 11
        assert chunk.text == "\n".join(lines[start : end + 1]).strip()


def test_python_that_does_not_parse_is_read_by_its_lines_and_says_so(tmp_path: Path) -> None:
    document = load(written(tmp_path / "a.py", "print 'old'\nclass A:\n    def f(self):\n        pass\n"))
    assert [part.section for part in document.parts] == [None, "A", "A.f"]
    assert document.notes == ("it is not Python 3, and was read by its lines",)


LANGUAGES: dict[str, tuple[list[str | None], str]] = {
    ".js": (
        [None, "Pump", "stop"],
        "import x from 'y';\n\nexport class Pump {\n  reset() {}\n}\n\nasync function stop() {\n  return f(1);\n}\n",
    ),
    ".go": (
        ["main", "Reset", "Pump"],
        "package main\n\n// Resets.\nfunc (p *Pump) Reset() {\n}\n\ntype Pump struct {}\n",
    ),
    ".rs": (["Pump", "Pump", "Pump.reset"], "pub struct Pump;\nimpl Pump {\n    pub fn reset(&self) {}\n}\n"),
    ".java": (
        ["Pump", "Pump.reset"],
        "public class Pump {\n    @Override\n    public void reset(int a) {\n        if (a) {}\n    }\n}\n",
    ),
    ".c": ([None, "reset"], "#include <a.h>\n\nstatic int *reset(int a)\n{\n    return f(a);\n}\n"),
    ".sql": (["pumps", "halls"], "CREATE TABLE pumps (id int);\nCREATE OR REPLACE VIEW halls AS SELECT 1;\n"),
    ".sh": ([None, "reset"], "echo one\nfunction reset {\n  echo two\n}\n"),
}


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_other_languages_are_read_by_lines_that_begin_definitions(tmp_path: Path, suffix: str) -> None:
    sections, content = LANGUAGES[suffix]
    parts = load(written(tmp_path / f"a{suffix}", content)).parts
    assert [part.section for part in parts] == sections
    assert "\n".join(part.text for part in parts).split() == content.split()

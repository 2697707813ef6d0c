"""Checks that the sample documents, questions and relevance judgements agree."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
from collections import defaultdict
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

pypdf = pytest.importorskip("pypdf")

DATA = Path(__file__).parents[2] / "notebooks" / "data"
DOCUMENTS = DATA / "documents"
MANUAL = "operations-manual.pdf"


class SectionParser(HTMLParser):
    """Collects the visible text of an HTML file under its innermost heading."""

    def __init__(self) -> None:
        """Start with no heading open."""
        super().__init__()
        self.sections: list[tuple[str, str]] = [("", "")]
        self.heading = False
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a section at a heading and hide scripts, styles and navigation."""
        if re.fullmatch(r"h[1-6]", tag):
            self.heading = True
            self.sections.append(("", ""))
        self.hidden += tag in {"script", "style", "nav", "head"}

    def handle_endtag(self, tag: str) -> None:
        """Close what the matching start tag opened."""
        if re.fullmatch(r"h[1-6]", tag):
            self.heading = False
        self.hidden -= tag in {"script", "style", "nav", "head"}

    def handle_data(self, data: str) -> None:
        """Add text to the heading or to the body of the open section."""
        if self.hidden:
            return
        title, body = self.sections[-1]
        self.sections[-1] = (title + data, body) if self.heading else (title, body + data)


def squeeze(text: str) -> str:
    """Return the text with every run of white space made one space."""
    return re.sub(r"\s+", " ", text)


def pdf_pages(content: bytes) -> list[str]:
    """Return the text of each page of a PDF."""
    return [squeeze(page.extract_text()) for page in pypdf.PdfReader(io.BytesIO(content)).pages]


def markdown_sections(text: str) -> list[tuple[str, str]]:
    """Return heading and text of each Markdown section, leaving code marks alone."""
    sections: list[tuple[str, str]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        match = None if fenced else re.match(r"#{1,6} (.+)", line)
        if match:
            sections.append((match.group(1), ""))
        elif sections:
            title, body = sections[-1]
            sections[-1] = (title, body + line + "\n")
    return sections


def html_sections(text: str) -> list[tuple[str, str]]:
    """Return heading and visible text of each HTML section."""
    parser = SectionParser()
    parser.feed(text)
    return [(title, body) for title, body in parser.sections if title]


def read_sections(path: Path) -> list[tuple[str, str]]:
    """Return the judged places of one document and their text."""
    if path.suffix == ".pdf":
        pages = pdf_pages(path.read_bytes())
        return [(f"{path.name}#p{number}", page) for number, page in enumerate(pages, 1)]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        return [(path.name, text)]
    parts = html_sections(text) if path.suffix == ".html" else markdown_sections(text)
    return [(f"{path.name}#{title}", body) for title, body in parts]


@cache
def corpus() -> dict[str, str]:
    """Return the squeezed text of every place, by its identifier."""
    places = [place for path in sorted(DOCUMENTS.iterdir()) for place in read_sections(path)]
    return {name: squeeze(body) for name, body in places}


def load_questions() -> list[dict[str, str]]:
    """Return the questions in file order."""
    lines = (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def load_qrels() -> dict[str, dict[str, int]]:
    """Return the grade of every judged place, by question."""
    qrels: dict[str, dict[str, int]] = defaultdict(dict)
    with (DATA / "qrels.tsv").open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            qrels[row["query-id"]][row["corpus-id"]] = int(row["score"])
    return dict(qrels)


def test_manual_has_enough_dense_pages() -> None:
    pages = pdf_pages((DOCUMENTS / MANUAL).read_bytes())
    assert len(pages) >= 20
    assert min(len(page) for page in pages) > 1000


def test_rebuilding_the_manual_gives_the_same_text() -> None:
    pytest.importorskip("fpdf")
    path = DATA / "source" / "build_pdf.py"
    spec = importlib.util.spec_from_file_location("build_pdf", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    content: bytes = module.build()
    assert content == module.build()
    assert pdf_pages(content) == pdf_pages((DOCUMENTS / MANUAL).read_bytes())


def test_headings_are_unique_within_a_file() -> None:
    for path in DOCUMENTS.iterdir():
        names = [name for name, _ in read_sections(path)]
        assert len(names) == len(set(names)), path.name


def test_questions_are_complete() -> None:
    questions = load_questions()
    assert [question["_id"] for question in questions] == [f"q{n:02d}" for n in range(1, 41)]
    assert {question["kind"] for question in questions} == {"exact", "meaning", "mixed"}
    assert len({question["text"] for question in questions}) == 40
    languages = [question["language"] for question in questions]
    assert set(languages) == {"en", "de", "zh"}
    assert languages.count("de") >= 4
    assert languages.count("zh") >= 4


def test_every_judged_place_exists() -> None:
    judged = {name for grades in load_qrels().values() for name in grades}
    assert judged <= corpus().keys()


def test_every_question_has_a_full_answer() -> None:
    qrels = load_qrels()
    assert qrels.keys() == {question["_id"] for question in load_questions()}
    for question_id, grades in qrels.items():
        assert set(grades.values()) <= {1, 2}, question_id
        assert 2 in grades.values(), question_id


@pytest.mark.parametrize("question", load_questions(), ids=lambda question: question["_id"])
def test_answer_phrase_stands_on_a_relevant_place(question: dict[str, str]) -> None:
    grades = load_qrels()[question["_id"]]
    full = [corpus()[name] for name, grade in grades.items() if grade == 2]
    assert any(question["answer"] in text for text in full)


def test_documents_hold_no_citation_markers() -> None:
    text = "\n".join(corpus().values())
    assert not re.search(r"\[\s*(source|citation|quelle|来源)\b", text, re.IGNORECASE)

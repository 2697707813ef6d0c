"""Checks that the sample documents, questions and relevance judgements agree."""

from __future__ import annotations

import io
import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import module_at
from voicevault_retrievers.documents import load
from voicevault_retrievers.evaluation import load_qrels

pytestmark = pytest.mark.program  # a child process reads files

pypdf = pytest.importorskip("pypdf")
pytest.importorskip("bs4")
pytest.importorskip("markdown_it")

DATA = Path(__file__).parents[3] / "notebooks" / "data"
DOCUMENTS = DATA / "documents"
MANUAL = "operations-manual.pdf"
QUESTIONS = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
QRELS = load_qrels(DATA / "qrels.tsv")


def squeeze(text: str) -> str:
    """Return the text with every run of white space made one space."""
    return re.sub(r"\s+", " ", text)


def pdf_pages(content: bytes) -> list[str]:
    """Return the text of each page of a PDF."""
    return [squeeze(page.extract_text()) for page in pypdf.PdfReader(io.BytesIO(content)).pages]


def read_sections(path: Path) -> list[tuple[str, str]]:
    """Return the judged places of one document and their text, without their headings."""
    found = []
    for part in load(path).parts:
        if part.page_number is not None:
            found.append((f"{path.name}#p{part.page_number}", part.text))
        elif part.section is not None:
            found.append((f"{path.name}#{part.section}", part.text.partition("\n")[2]))
        else:
            found.append((path.name, part.text))
    return found


@cache
def corpus() -> dict[str, str]:
    """Return the squeezed text of every place, by its identifier."""
    places = [place for path in sorted(DOCUMENTS.iterdir()) for place in read_sections(path)]
    return {name: squeeze(body) for name, body in places}


def test_manual_has_enough_dense_pages() -> None:
    pages = pdf_pages((DOCUMENTS / MANUAL).read_bytes())
    assert len(pages) >= 20
    assert min(len(page) for page in pages) > 1000


def test_rebuilding_the_manual_gives_the_same_text() -> None:
    pytest.importorskip("fpdf")
    module = module_at(DATA / "source" / "build_pdf.py")
    content: bytes = module.build()
    assert content == module.build()
    assert pdf_pages(content) == pdf_pages((DOCUMENTS / MANUAL).read_bytes())


def test_headings_are_unique_within_a_file() -> None:
    for path in DOCUMENTS.iterdir():
        names = [name for name, _ in read_sections(path)]
        assert len(names) == len(set(names)), path.name


def test_questions_are_complete() -> None:
    assert [question["_id"] for question in QUESTIONS] == [f"q{n:02d}" for n in range(1, 41)]
    assert {question["kind"] for question in QUESTIONS} == {"exact", "meaning", "mixed"}
    assert len({question["text"] for question in QUESTIONS}) == 40
    languages = [question["language"] for question in QUESTIONS]
    assert set(languages) == {"en", "de", "zh"}
    assert languages.count("de") >= 4
    assert languages.count("zh") >= 4


def test_every_judged_place_exists_and_every_question_has_a_full_answer() -> None:
    assert {name for grades in QRELS.values() for name in grades} <= corpus().keys()
    assert QRELS.keys() == {question["_id"] for question in QUESTIONS}
    for question_id, grades in QRELS.items():
        assert set(grades.values()) <= {1, 2}, question_id
        assert 2 in grades.values(), question_id


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["_id"])
def test_answer_phrase_stands_on_a_relevant_place(question: dict[str, str]) -> None:
    full = [corpus()[name] for name, grade in QRELS[question["_id"]].items() if grade == 2]
    assert any(question["answer"] in text for text in full)


def test_documents_hold_no_citation_markers() -> None:
    text = "\n".join(corpus().values())
    assert not re.search(r"\[\s*(source|citation|quelle|来源)\b", text, re.IGNORECASE)

"""The made statute book: its references resolve, its questions need them, and its source reproduces it."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import module_at
from voicevault_retrievers.text.stopwords import ENGLISH

DATA = Path(__file__).parents[3] / "notebooks" / "data"
BOOK = DATA / "statutes"
ACTS = {"Harbour and Navigation Act": "HNA", "Water Supply Act": "WSA", "Public Records Act": "PRA"}
CITED = re.compile(
    r"\b(?:sections?|s\.) (?P<first>\d+)(?:\((?P<inner>\d+)\))?(?: to (?P<last>\d+))?"
    rf"(?: (?P<short>HNA|WSA|PRA)\b| of the (?P<long>{'|'.join(ACTS)}))?",
    re.IGNORECASE,
)
PART = re.compile(r"\bPart ([IVX]+)\b")
APPARATUS = {"section", "sections", "act", "acts", *(short.lower() for short in ACTS.values())}


def lines_of(file: str) -> dict[str, dict]:
    return {one["_id"]: one for one in map(json.loads, (BOOK / file).read_text(encoding="utf-8").splitlines())}


@cache
def corpus() -> dict[str, dict]:
    return lines_of("corpus.jsonl")


@cache
def queries() -> dict[str, dict]:
    return lines_of("queries.jsonl")


@cache
def qrels() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    with (BOOK / "qrels" / "test.tsv").open(encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines, delimiter="\t")
    assert header == ["query-id", "corpus-id", "score"]
    for query, section, grade in rows:
        assert section not in found[query]
        found[query][section] = int(grade)
    return dict(found)


def cited(text: str, act: str = "") -> list[str]:
    """The sections that a text names; without an act in the reference, those of the given one."""
    found = []
    for match in CITED.finditer(text):
        where = ACTS[match["long"]] if match["long"] else (match["short"] or act)
        last = int(match["last"] or match["first"])
        found += [f"{where}-{number}" for number in range(int(match["first"]), last + 1)]
    return found


@cache
def references() -> dict[str, set[str]]:
    return {name: set(cited(one["text"], one["metadata"]["act"])) for name, one in corpus().items()}


def words(text: str) -> set[str]:
    """The words of a text, by their first five letters, without the commonest and those of every section."""
    found = set(re.findall(r"[a-z]{3,}", text.lower())) - ENGLISH - APPARATUS
    return {word[:5] for word in found}


def shared(query: str, section: str) -> set[str]:
    one = corpus()[section]
    return words(queries()[query]["text"]) & words(f"{one['title']} {one['text']}")


def linked(one: str, other: str) -> bool:
    return other in references()[one] or one in references()[other]


def texts(kind: str) -> list[str]:
    return [name for name, one in queries().items() if one["metadata"]["kind"] == kind]


def test_three_acts_have_a_hundred_sections_each() -> None:
    assert [one["metadata"]["act"] for one in corpus().values()] == ["HNA"] * 100 + ["WSA"] * 100 + ["PRA"] * 100
    numbers = [one["metadata"]["section"] for one in corpus().values()]
    assert numbers == [*range(1, 101)] * 3
    for name, one in corpus().items():
        metadata = one["metadata"]
        assert name == f"{metadata['act']}-{metadata['section']}"
        assert one["title"].startswith(f"Section {metadata['section']} {metadata['act']}. ")
        assert 40 <= len(one["text"].split()) <= 180, name


def test_no_two_sections_say_the_same() -> None:
    assert len({one["text"] for one in corpus().values()}) == 300
    assert not [one["_id"] for one in corpus().values() if re.search(r"[<>{}|@+]", one["title"] + one["text"])]


def test_every_reference_resolves() -> None:
    parts = {(one["metadata"]["act"], one["metadata"]["part"]) for one in corpus().values()}
    for name, one in corpus().items():
        act = one["metadata"]["act"]
        assert references()[name] <= set(corpus()) - {name}, name
        assert {(act, part) for part in PART.findall(one["text"])} <= parts, name


@pytest.mark.parametrize("texts", [corpus, queries])
def test_every_subsection_named_exists(texts: Callable[[], dict[str, dict]]) -> None:
    for one in texts().values():
        for match in filter(lambda match: match["inner"], CITED.finditer(one["text"])):
            act = one.get("metadata", {}).get("act", "")
            (target,) = cited(match[0], act)
            assert f"({match['inner']}) " in corpus()[target]["text"], one["_id"]
        own = re.findall(r"\bsubsection \((\d+)\)", one["text"])
        assert all(f"({number}) " in one["text"] for number in own), one["_id"]


def test_references_are_many_and_of_every_form() -> None:
    everything = " ".join(one["text"] for one in corpus().values())
    assert sum(1 for _ in CITED.finditer(everything)) + len(PART.findall(everything)) == 840 + 35
    assert all(references().values())
    forms = ["section 42", r"section \d+\(\d+\)", r"sections \d+ to \d+", r"s\. \d+ (HNA|WSA|PRA)", "Part X",
             "section [0-9]+ of the Water Supply Act", "subject to section", "notwithstanding section",
             "has the meaning given in section", "as defined in section"]  # fmt: skip
    assert [form for form in forms if not re.search(form, everything, re.IGNORECASE)] == []


def test_definitions_and_penalties_are_cited_most() -> None:
    heads = Counter(corpus()[target]["metadata"]["heading"] for found in references().values() for target in found)
    assert {name for name, _ in heads.most_common(4)} == {
        "Preliminary", "Offences and penalties", "Appeals and review", "Inspection and procedure"
    }  # fmt: skip


def test_a_defined_word_is_used_where_its_definition_is_cited() -> None:
    for name, one in corpus().items():
        for clause in re.findall(
            r'\(\d+\) [^()]*?"([^"]+)" (?:has the|is used as|bears|is to be construed)', one["text"]
        ):
            assert one["text"].lower().count(clause.lower()) > 1, (name, clause)


def test_there_are_sixty_questions_of_four_kinds() -> None:
    kinds = Counter(one["metadata"]["kind"] for one in queries().values())
    assert kinds == {"named": 20, "situation": 25, "hops": 8, "reverse": 7}
    assert set(qrels()) == set(queries())
    for query, grades in qrels().items():
        assert set(grades) <= set(corpus())
        assert set(grades.values()) <= {1, 2}
        assert 2 in grades.values(), query
        assert set(cited(queries()[query]["text"])) <= set(grades), query


@pytest.mark.parametrize("query", sorted(queries()))
def test_each_question_needs_a_reference(query: str) -> None:
    """A relevant section is named, or linked to a named or judged one, and shares hardly a word with the question."""
    named = cited(queries()[query]["text"])
    reached = [
        section
        for section, grade in qrels()[query].items()
        if grade == 2
        and (section in named or any(linked(section, other) for other in {*named, *qrels()[query]} - {section}))
        and len(shared(query, section)) <= 2
    ]
    assert reached


@pytest.mark.parametrize("query", texts("situation"))
def test_a_situation_is_found_by_words_and_answered_by_reference(query: str) -> None:
    grades = qrels()[query]
    (answer,) = [section for section, grade in grades.items() if grade == 2]
    direct = max(grades, key=lambda section: len(shared(query, section)))
    assert grades[direct] == 1
    assert answer in references()[direct]
    assert len(shared(query, answer)) <= 2 < len(shared(query, direct))


@pytest.mark.parametrize("query", texts("hops"))
def test_a_question_of_two_hops_has_its_chain_judged(query: str) -> None:
    grades = qrels()[query]
    (answer,) = [section for section, grade in grades.items() if grade == 2]
    direct = max(grades, key=lambda section: len(shared(query, section)))
    (between,) = set(grades) - {answer, direct}
    assert between in references()[direct]
    assert answer in references()[between]
    assert answer not in references()[direct]


@pytest.mark.parametrize("query", texts("reverse"))
def test_what_is_asked_in_reverse_cites_the_section(query: str) -> None:
    grades = qrels()[query]
    (target,) = [section for section, grade in grades.items() if grade == 1]
    citing = {section for section, found in references().items() if target in found}
    answers = set(grades) - {target}
    assert len(answers) > 1
    assert answers <= citing
    phrase = re.search(r"subject to|notwithstanding|other two Acts", queries()[query]["text"])
    number = target.partition("-")[2]
    if phrase is None:
        assert answers == citing
    elif phrase[0] == "other two Acts":
        assert answers == {section for section in citing if section[:3] != target[:3]}
    else:
        said = re.compile(rf"{phrase[0]} (?:anything in )?section {number}\b(?! of)", re.IGNORECASE)
        assert answers == {name for name in citing if name[:3] == target[:3] and said.search(corpus()[name]["text"])}


def test_the_source_reproduces_the_files() -> None:
    source = module_at(DATA / "source" / "build_statutes.py")
    built = source.build()
    assert set(built) == {"corpus.jsonl", "queries.jsonl", "qrels/test.tsv"}
    for name, text in built.items():
        assert (BOOK / name).read_bytes() == text.encode(), name
    assert source.build() == built


def test_the_whole_stays_small() -> None:
    files = [*BOOK.rglob("*"), *(DATA / "source" / "statutes").iterdir(), DATA / "source" / "build_statutes.py"]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 400_000

"""References read out of text: keys, spans, and that hostile text costs no more than its length."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import AsyncSays, Says
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.structure.graph import ModelReferences, Reference, RuleReferences, declared_laws
from voicevault_retrievers.text.references.laws import Laws

IPC = "indian penal code"
GDPR = "general data protection regulation"
BGB = "bürgerliches gesetzbuch"

ONE_KEY = {
    f"section:420:{IPC}": [
        "Section 420 of the Indian Penal Code", "S. 420 IPC", "420 IPC", "IPC 420", "s. 420 I.P.C.", "§ 420 IPC",
        "section 420, Indian Penal Code, 1860", "Section 420 of the Indian Penal Code (45 of 1860)", "u/s 420 IPC",
        "IPC Section 420", "section 420 ipc", "Sec. 420 of IPC", "SECTION 420 IPC",
    ],
    f"article:6(1)(f):{GDPR}": [
        "Art. 6(1)(f) GDPR", "Article 6 (1) (f) of the General Data Protection Regulation", "GDPR Art. 6(1)(f)",
        "Art. 6 Abs. 1 lit. f DSGVO", "Artikel 6 Absatz 1 Buchst. f der Datenschutz-Grundverordnung",
    ],
    f"section:433(1):{BGB}": ["§ 433 Abs. 1 BGB", "§ 433 Abs. 1 Satz 2 BGB", "§ 433(1) des Bürgerlichen Gesetzbuchs"],
    "section:12(3)(a):": [
        "s. 12(3)(a)", "Section 12 (3) (a)", "clause (a) of sub-section (3) of section 12",
        "section 12, sub-section (3), clause (a)", "section 12(3)(a) of this Act",
    ],
    "article:21:constitution of india": ["Article 21 of the Constitution of India", "Art. 21, Constitution of India"],
    "section:1341:18 usc": ["18 U.S.C. § 1341", "18 USC § 1341"],
    "section:7:companies act 2013": ["section 7 of the Companies Act, 2013", "s. 7 Companies Act 2013"],
    "section:97a:urhg": ["§ 97a UrhG"],
    "section:498a:": ["Section 498A"],
    "section:4.2:": ["see section 4.2.", "Abschnitt 4.2", "(section 4.2)"],
    "case:2015 3 scc 112:": ["(2015) 3 SCC 112"],
    "case:air 1978 sc 597:": ["AIR 1978 SC 597"],
    "case:410 us 113:": ["410 U.S. 113", "410 US 113", "410 U. S. 113"],
    "case:2019 uksc 41:": ["[2019] UKSC 41"],
    "case:roe v wade:": ["Roe v. Wade", "Roe v Wade", "See Roe vs. Wade."],
    "case:state of punjab v gurmit singh:": ["State of Punjab v. Gurmit Singh", "State of Punjab versus Gurmit Singh"],
    "case:bghz 123 45:": ["BGHZ 123, 45"],
    "case:viii zr 123/18:": ["VIII ZR 123/18"],
    "case:c-131/12:": ["C-131/12"],
    "paragraph:14:": ["para 14", "paragraph 14 above", "¶ 14", "Rn. 14"],
    "chapter:5:": ["chapter 5", "Chapter V", "Kapitel 5"],
    "table:2:": ["Table 2", "Tabelle 2"],
    "annex:b:": ["Appendix B", "Annex B"],
    "annex:2:": ["Anlage 2", "Annex II"],
    "term:premises:": [
        '"premises" means', "“Premises” shall mean", "what does premises mean", "the meaning of premises in section",
        'the definition of the term "premises"',
    ],
    "term:räume:": ["„Räume“ bezeichnet", "was bedeutet Räume"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in ONE_KEY.items() for text in texts])
def test_each_way_to_write_a_thing_has_its_key(key: str, text: str) -> None:
    for around in (text, f"As held, {text}, so it is." if not key.startswith("term:") else text):
        found = RuleReferences().read(around)
        assert key in [reference.key for reference in found], found


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("§§ 3, 4 and 5 BGB", [f"section:{n}:{BGB}" for n in (3, 4, 5)]),
        ("sections 3 to 6", ["section:3:", "section:4:", "section:5:", "section:6:"]),
        ("sections 302, 307 and 34 IPC", [f"section:{n}:{IPC}" for n in (302, 307, 34)]),
        ("Articles 14, 19 and 21", ["article:14:", "article:19:", "article:21:"]),
        ("sections 3-5", ["section:3:", "section:4:", "section:5:"]),
        ("sections 3 to 1000", ["section:3:", "section:1000:"]),
        ("Section 12 and 3 others", ["section:12:"]),
        ("Section 12, 40 people", ["section:12:"]),
        ("§ 823 Abs. 1 BGB und Art. 3 GG", [f"section:823(1):{BGB}", "article:3:grundgesetz"]),
        ("section 4.2 und Kapitel 3, Rn. 14", ["section:4.2:", "chapter:3:", "paragraph:14:"]),
        ('"Premises" means land as defined in section 3', ["term:premises:", "section:3:"]),
        ("Roe v. Wade, 410 U.S. 113", ["case:roe v wade:", "case:410 us 113:"]),
        ("What does section 49 IPC say?", [f"section:49:{IPC}"]),
        ("the meaning of section 3, and of what?", ["section:3:"]),
        ("What does it say?", []),
        ("in 2015 there were 3 cats in section", []),
        ("the intersection 5 of the roads", []),
        ("", []),
    ],
)
def test_lists_ranges_and_neighbours(text: str, keys: list[str]) -> None:
    assert [reference.key for reference in RuleReferences().read(text)] == keys


def test_a_span_is_where_the_reference_stands() -> None:
    text = "He was charged under Section 420 of the Indian Penal Code, and § 433 BGB; see Roe v. Wade."
    found = RuleReferences().read(text)
    assert [text[one.start : one.end] for one in found] == [one.text for one in found]
    assert [one.text for one in found] == ["Section 420 of the Indian Penal Code", "§ 433 BGB", "Roe v. Wade"]


def test_definitions_are_told_from_questions_for_them() -> None:
    (said,) = RuleReferences().read('"premises" (in this Act) means land')
    (asked,) = RuleReferences().read("what does premises mean?")
    assert (said.key, said.defines, asked.key, asked.defines) == ("term:premises:", True, "term:premises:", False)


def test_a_part_is_a_part_of_what_is_above_it() -> None:
    (reference,) = RuleReferences().read("s. 12(3)(a) BGB")
    assert [level.number for level in reference.levels()] == ["12(3)(a)", "12(3)", "12"]
    assert {level.work for level in reference.levels()} == {BGB}
    assert [level.number for level in Reference("case", "1 (x)").levels()] == ["1 (x)"]


def test_further_laws_can_be_named_and_are_read_from_texts() -> None:
    texts = [
        "This Act may be cited as the Water Supply Act or as WSA.", 'under the Public Records Act (the "PRA")',
        "the Water Supply Act (WSA)",
    ]  # fmt: skip
    laws = declared_laws(texts)
    assert laws == {"water supply act": ["WSA"], "public records act": ["PRA"]}
    reader = RuleReferences(laws)
    for text in ("s. 8 WSA", "section 8 of the Water Supply Act", "WSA 8", "8 WSA"):
        assert [one.key for one in reader.read(text)] == ["section:8:water supply act"]
    assert repr(reader) == "RuleReferences(Laws({'water supply act': ('WSA',), 'public records act': ('PRA',)}))"


@pytest.mark.parametrize(
    ("kind", "number"), [("chunk", "1"), ("Section", "1"), ("", "1"), ("section", ""), ("a", "1:2")]
)
def test_what_is_no_reference_is_refused(kind: str, number: str) -> None:
    with pytest.raises(ConfigError):
        Reference(kind, number)


HOSTILE = {
    "list": "§§ " + "1, " * 87_500,
    "parts": "§ 1" + "(a)" * 82_500,
    "brackets": "(" * 250_000,
    "versus": "A v. " * 50_000,
    "capitals": "section 1 of " + "Aa " * 82_500 + "Act",
    "quotes": '"a ' * 82_500,
    "open quotes": "“" * 250_000,
    "signs": "section " * 31_250,
    "almost laws": "section 1 of the " * 15_000,
    "digits": "1" * 250_000,
    "spaces": "section" + " " * 250_000 + "1",
    "dots": "1.1" * 82_500,
    "clauses": "clause (a) of " * 17_500,
    "definitions": "what does a " * 22_500,
    "declared": "cited as A " * 22_500,
    "names": "A" * 250_000 + " v. " + "B" * 250_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_to_its_end(name: str) -> None:
    """With a pattern that backtracks, one of these does not end while anybody waits."""
    text = HOSTILE[name] + "\n\nSection 420 IPC"
    found = RuleReferences().read(text)
    assert found[-1].key == f"section:420:{IPC}"
    declared_laws([text])


@given(st.text(alphabet="§ 12(a).,Secviton„“\"'BGABZArtx-\n", max_size=80))
def test_whatever_is_read_lies_in_the_text_and_overlaps_nothing(text: str) -> None:
    found = RuleReferences().read(text)
    assert all(text[one.start : one.end] == one.text for one in found)
    assert all(before.end <= after.start for before, after in pairwise(found))


TEXT = 'Whoever cheats is liable under section 420 of the penal code. "Cheating" means deceit.'
ITEMS: list[Any] = [
    {"text": "section 420 of the penal code", "kind": "Section", "number": "420", "law": "IPC"},
    {"text": '"Cheating" means', "kind": "term", "number": "Cheating", "law": "", "defines": True},
    {"text": "section 999", "kind": "section", "number": "999", "law": "IPC"},
    {"text": "cheats", "kind": "chunk", "number": "1"}, {"kind": "section", "number": "1"}, "noise", 3,
]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(ITEMS),
        f"<think>[1]</think>Sure:\n```json\n{json.dumps(ITEMS)}\n```",
        json.dumps({"references": ITEMS}),
    ],
)
async def test_a_model_reads_what_stands_in_the_text_alone(answer: str) -> None:
    for model in (Says(answer), AsyncSays(answer)):
        reader = ModelReferences(model)
        found = reader.read(TEXT)
        assert [(one.key, one.defines) for one in found] == [(f"section:420:{IPC}", False), ("term:cheating:", True)]
        assert [TEXT[one.start : one.end] for one in found] == [one.text for one in found]
        assert reader.read(TEXT) == found
        assert len(model.asked) == 1
        if isinstance(model, AsyncSays):
            assert await reader.aread(TEXT) == found
        assert reader.read("  ") == ()


@pytest.mark.parametrize("answer", ["no list", "[" * 5000, 7, ""])
def test_an_answer_without_a_list_is_refused(answer: Any) -> None:
    with pytest.raises(RetrievalError):
        ModelReferences(Says(answer)).read(TEXT)


def test_wrong_models_and_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="complete"):
        ModelReferences(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="text"):
        ModelReferences(Says("[]"), prompt="read it")


def test_laws_have_one_name() -> None:
    laws = Laws({"Data Act": ["DA"]})
    assert {laws.canonical(name) for name in ("DA", "data act", "The Data Act", "Data Act, 2023")} == {"data act"}
    assert laws.canonical("Companies Act, 2013") == "companies act 2013"
    assert laws.canonical("Tierschutzgesetzes") == "tierschutzgesetz"

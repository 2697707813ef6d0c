"""Build the made statute book, its questions and their judgements from the drafts beside this file.

A draft names a section by a key; numbers, subsections and the words of a reference are made here, so that a section
can be added anywhere. In a draft `<key>` is a reference, `<key.2>` one to a subsection (`<key.pen>` to that of a
clause), `<first..last>` one to a range, `<WSA:key>` one to another act and `<part:name>` one to a Part; `{a|b|c}` is
what the three acts say in turn; a line with a plus lists the standard clauses that follow, each with its reference.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("statutes")
TARGET = Path(__file__).parent.parent / "statutes"
ACTS = {"HNA": "Harbour and Navigation Act", "WSA": "Water Supply Act", "PRA": "Public Records Act"}
ROMAN = "I II III IV V VI VII VIII IX X XI XII".split()
REFERENCE = re.compile(r"<([^<>]+)>")


@dataclass
class Section:
    """One section: its draft, its place in the book and whom it cites, as (act, number, kind of clause)."""

    act: str
    part: str
    key: str
    title: str
    lines: list[str] = field(default_factory=list)
    clauses: list[tuple[str, str]] = field(default_factory=list)
    number: int = 0
    text: str = ""
    cites: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The name of the section in the corpus."""
        return f"{self.act}-{self.number}"

    def subsection(self, name: str) -> int:
        """The number of the subsection that a draft calls by its number or by the kind of its clause."""
        number = int(name) if name.isdigit() else len(self.lines) + [kind for kind, _ in self.clauses].index(name) + 1
        if not 1 <= number <= len(self.lines) + len(self.clauses):
            raise ValueError(f"{self.id} ({self.key}) has no subsection {name}")
        return number

    def ways(self, target: Section) -> set[str]:
        """How it cites another: `citing`, `abroad` where that is of another act, and the kinds of the clauses."""
        kinds = {kind for act, number, kind in self.cites if (act, number) == (target.act, target.number)}
        return kinds | {"citing"} | ({"abroad"} if self.act != target.act else set()) if kinds else kinds


def blocks(name: str) -> Iterator[tuple[str, list[str]]]:
    """The heading, without its @, and the lines of each block of a source file."""
    text = (SOURCE / f"{name}.md").read_text(encoding="utf-8")
    for block in re.split(r"^@", text, flags=re.MULTILINE)[1:]:
        heading, *lines = block.strip().splitlines()
        yield heading, lines


def choose(text: str, act: str) -> str:
    """The text with each {a|b|c} replaced by what the act says."""
    at = list(ACTS).index(act)
    return re.sub(r"\{([^{}]*)\}", lambda found: found[1].split("|")[at], text)


def drafts(act: str, name: str) -> Iterator[tuple[str, list[Section]]]:
    """The Parts of a source file in order, each `key Title` with its sections."""
    text = choose((SOURCE / f"{name}.md").read_text(encoding="utf-8"), act)
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, *found = part.strip().split("\n@")
        yield heading, [draft(act, heading.split()[0], block) for block in found]


def draft(act: str, part: str, block: str) -> Section:
    """One section as drafted."""
    heading, *lines = block.strip().splitlines()
    key, title = heading.split(" ", 1)
    clauses = [tuple(one.split(":", 1)) for line in lines if line.startswith("+") for one in line[1:].split()]
    plain = [line for line in lines if not line.startswith("+")]
    return Section(act, part, key, title, plain, [(kind, target) for kind, target in clauses])


class Book:
    """The acts with their sections numbered; references are worded as they come."""

    def __init__(self) -> None:
        self.sections: dict[tuple[str, str], Section] = {}
        self.parts: dict[tuple[str, str], tuple[str, str]] = {}
        self.said: Counter[str] = Counter()
        self.wordings = dict(blocks("clauses"))
        for act in ACTS:
            self._number(act)
        for section in self.sections.values():
            self._write(section)

    def _number(self, act: str) -> None:
        """Order the Parts of an act, its own between the general ones, and number Parts and sections."""
        first, *own = drafts(act, act.lower())
        administration, *closing = drafts(act, "general")
        number = 0
        for roman, (heading, sections) in zip(ROMAN, [first, administration, *own, *closing], strict=False):
            key, title = heading.split(" ", 1)
            self.parts[act, key] = (roman, title)
            for section in sections:
                number += 1
                section.number = number
                self.sections[act, section.key] = section

    def find(self, name: str, act: str) -> Section:
        """The section that a draft of an act means."""
        act, _, key = name.rpartition(":") if ":" in name else (act, "", name)
        return self.sections[act, key.lower()]

    def _turn(self, kind: str, among: int) -> int:
        """Which of so many wordings comes next."""
        self.said[kind] += 1
        return (self.said[kind] - 1) % among

    def _write(self, section: Section) -> None:
        """Word the section and note whom it cites."""
        said = [self._refer(line, section, "") for line in section.lines]
        for kind, target in section.clauses:
            wordings = self.wordings[kind]
            wording = wordings[self._turn(kind, len(wordings))].replace("{part:", "<part:").replace("}", ">")
            wording = wording.replace("{term>", target.rpartition(":")[2].replace("-", " "))
            said.append(self._refer(wording.replace("{ref>", f"<{target}>"), section, kind))
        section.text = " ".join(f"({at}) {line}" for at, line in enumerate(said, 1)) if len(said) > 1 else said[0]

    def _refer(self, line: str, section: Section, kind: str) -> str:
        """The line with its references in words, a capital where one begins a sentence."""
        line = REFERENCE.sub(lambda found: self._worded(found[1], section, kind), line)
        return re.sub(r"(^|[.] )(sections? \d)", lambda found: found[1] + found[2].capitalize(), line)

    def _worded(self, name: str, section: Section, kind: str) -> str:
        """One reference in words."""
        if name.startswith("part:"):
            return f"Part {self.parts[section.act, name[5:]][0]}"
        name, _, inner = (name, "", "") if ".." in name else name.partition(".")
        ends = [self.find(end, section.act) for end in name.split("..")]
        numbers = range(ends[0].number, ends[-1].number + 1)
        section.cites += [(ends[0].act, number, kind) for number in numbers]
        if len(numbers) > 1:
            return f"sections {numbers[0]} to {numbers[-1]}"
        number = f"{numbers[0]}({ends[0].subsection(inner)})" if inner else f"{numbers[0]}"
        if ends[0].act == section.act:
            return f"section {number}"
        act = ends[0].act
        return f"s. {number} {act}" if self._turn("abroad", 3) == 2 else f"section {number} of the {ACTS[act]}"

    def citing(self, how: str, target: Section) -> list[Section]:
        """The sections that cite one in a way that `Section.ways` names."""
        return [section for section in self.sections.values() if how in section.ways(target)]

    def documents(self) -> Iterator[dict[str, object]]:
        """The corpus."""
        for section in self.sections.values():
            roman, heading = self.parts[section.act, section.part]
            yield {
                "_id": section.id,
                "title": f"Section {section.number} {section.act}. {section.title}",
                "text": section.text,
                "metadata": {"act": section.act, "part": roman, "heading": heading, "section": section.number},
            }

    def questions(self) -> Iterator[tuple[str, str, dict[str, int]]]:
        """The kind, the text and the grades of each question."""
        for kind, lines in blocks("questions"):
            for line in lines:
                text, grades = line.split(" | ")
                yield kind, REFERENCE.sub(self._named, text), self._grades(grades)

    def _named(self, found: re.Match[str]) -> str:
        """A section as a question names it."""
        name, _, inner = found[1].partition(".")
        section = self.find(name, "")
        number = f"{section.number}({section.subsection(inner)})" if inner else f"{section.number}"
        return f"{('section', 's.')[self._turn('named', 2)]} {number} {section.act}"

    def _grades(self, line: str) -> dict[str, int]:
        """The grades of `ACT:key=2`, or of all that cite a section where a way to cite stands before it."""
        grades: dict[str, int] = {}
        for one in line.split():
            name, grade = one.split("=")
            how, target = (name.split(":", 1)[0], name.split(":", 1)[1]) if name.count(":") == 2 else ("", name)
            section = self.find(target, "")
            for judged in self.citing(how, section) if how else [section]:
                grades.setdefault(judged.id, int(grade))
        return grades


def build() -> dict[str, str]:
    """Each file of the collection by its path, the same text each time."""
    book = Book()
    asked = [(f"q{at:02}", *one) for at, one in enumerate(book.questions(), 1)]
    queries = [{"_id": id_, "text": text, "metadata": {"kind": kind}} for id_, kind, text, _ in asked]
    rows = [f"{id_}\t{section}\t{grade}" for id_, _, _, grades in asked for section, grade in grades.items()]
    return {
        "corpus.jsonl": "".join(json.dumps(one) + "\n" for one in book.documents()),
        "queries.jsonl": "".join(json.dumps(one) + "\n" for one in queries),
        "qrels/test.tsv": "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n",
    }


def main() -> None:
    """Write the files of the collection."""
    for name, text in build().items():
        (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / name).write_bytes(text.encode())
        print(f"wrote {name}, {len(text)} characters")


if __name__ == "__main__":
    main()

"""Reads references by rules, in English and German, without a model.

Every repetition in every pattern is bounded, so that the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from voicevault_retrievers.text.references.laws import BY_ARTICLE, Laws
from voicevault_retrievers.text.references.reference import Reference

_CITED = re.compile(
    r"\(\d{4}\)\s?(?:\d{1,3}\s)?[A-Z][A-Za-z.]{1,12}(?:\s?\([A-Za-z]{1,6}\))?\s\d{1,5}(?!\w)"  # (2015) 3 SCC 112
    r"|(?<!\w)AIR\s\d{4}\s[A-Z][A-Za-z&]{1,10}\s\d{1,5}(?!\w)"
    r"|\[\d{4}\]\s(?:\d{1,3}\s)?[A-Z][A-Za-z.]{1,10}(?:\s[A-Z][a-z]{1,5})?\s\d{1,5}(?!\w)"  # [2019] UKSC 41
    r"|(?<![\w.])\d{1,4}\s(?:U\.?\s?S\.?|S\.\s?Ct\.|F\.\s?(?:2d|3d|4th)|F\.\s?Supp\.(?:\s?[23]d)?|L\.\s?Ed\.(?:\s?2d)?)"
    r"\s\d{1,5}(?!\w)"
    r"|(?<!\w)(?:BGHZ|BGHSt|BVerfGE|BVerwGE|BAGE|BSGE|BFHE|RGZ|NJW)\s\d{1,4},\s(?:S\.\s)?\d{1,5}(?!\w)"
    r"|(?<!\w)[IVX]{1,5}\s[A-Z]{1,3}[a-z]?\s\d{1,5}/\d{2}(?!\w)"  # VIII ZR 123/18
    r"|(?<!\w)\d\sBv[A-Z]\s\d{1,5}/\d{2}(?!\w)"
    r"|(?<!\w)[CT]-\d{1,4}/\d{2}(?:\sP)?(?!\w)"
)
_PAGE = re.compile(r",\sS\.\s")
_APART = re.compile(r"\.\s(?=[A-Za-z])")
_VERSUS = re.compile(r"\s(?:v\.|vs\.?|versus|v(?=\s[A-Z])|\./\.)\s")
_SHORT = r"(?:[A-Z]\.){1,5}|(?:Ltd|Co|Inc|Corp|Bros|Dr|Mr|Mrs|Ms|St|Pvt|Ors|Anr|Dept|Assn)\."
_NAME = rf"(?:{_SHORT}|[A-ZÄÖÜ][\w'’&\-]{{0,40}})"
_SMALL = r"of|the|and|&|for|de|von|der|ex|rel\.|in|re"
_FIRST = re.compile(rf"(?<!\w)(?:{_NAME}(?:,?\s(?:{_NAME}|{_SMALL})){{0,7}})\Z")
_SECOND = re.compile(rf"{_NAME}(?:\s(?:{_NAME}|(?:{_SMALL})(?=\s(?:{_NAME}|the\s)))){{0,7}}")
_REACH = 120
_LEADS = frozenset({"In", "See", "Cf", "Cf.", "The", "Per", "And", "Also", "As", "Citing", "Following", "Vgl."})
_DROPPED = re.compile(r"[^\w\s/&-]+")


def cases(text: str) -> Iterator[Reference]:
    """Yield the judgments that a text cites."""
    for found in _CITED.finditer(text):
        cited = _APART.sub(".", _PAGE.sub(", ", found.group()))
        yield Reference("case", _plain(cited), "", found.start(), found.end(), found.group())
    for versus in _VERSUS.finditer(text):
        offset = max(0, versus.start() - _REACH)
        first = _FIRST.search(text[offset : versus.start()])
        second = _SECOND.match(text, versus.end(), versus.end() + _REACH)
        if first is None or second is None:
            continue
        start = offset + first.start() + _lead(first.group())
        end = second.end()
        if start < versus.start():
            parties = f"{_plain(text[start : versus.start()])} v {_plain(text[versus.end() : end])}"
            yield Reference("case", parties, "", start, end, text[start:end])


def _lead(names: str) -> int:
    """The length of leading words that are not part of a name: "See Roe"."""
    words, at = names.split(" "), 0
    while len(words) > 1 and words[0].rstrip(",") in _LEADS:
        at += len(words.pop(0)) + 1
    return at


def _plain(written: str) -> str:
    """The text without case and punctuation, so that "410 U.S. 113" and "410 US 113" are equal."""
    words = _DROPPED.sub(" ", written.replace(".", "").casefold()).split()
    return " ".join(words)


_MEANS = (
    r"means|includes|shall\smean|shall\sinclude|has\sthe\s(?:same\s)?meaning|have\sthe\smeaning|refers\sto|is\sdefined"
    r"|are\sdefined|bedeute[tn]|bezeichne[tn]|(?:ist|sind)\sim\sSinne|im\sSinne"
)
_DEFINED = re.compile(
    rf"[\"“„»](?P<term>[^\"“”„»«\n]{{1,80}})[\"”“«],?\s(?:\([^()\n]{{1,60}}\)\s|in\srelation\sto\s[^,\n]{{1,60}},\s)?"
    rf"(?:{_MEANS})\b"
)
_STOP = r"in|under|of|according|for|as|within|here|and|or|mean|means|nach|im|gemäß|ist|by|that|which|is|bedeutet"
_WORDS = rf"(?P<{{}}>(?!(?:{_STOP})\b)[\w\-]{{{{1,40}}}}(?:\s(?!(?:{_STOP})\b)[\w\-]{{{{1,40}}}}){{{{0,3}}}})"
_QUOTED = r"[\"“„»](?P<{}>[^\"“”„»«\n]{{1,80}})[\"”“«]"
_ASKED = re.compile(
    r"(?<!\w)(?i:(?:definition|meaning)\sof|define|(?P<what>what\sdo(?:es)?)|was\s(?:bedeutet|heißt|bedeuten)|"
    r"definition\s(?:von|des|der)|begriff)\s(?i:(?:the|a|an|der|die|das|ein|eine)\s)?(?i:(?:term|word|expression|begriff)"
    rf"\s)?(?:{_QUOTED.format('quoted')}|{_WORDS.format('words')})(?(what)(?=\smean))"
)


def terms(text: str) -> Iterator[Reference]:
    """Yield the terms that a text defines, and those whose definition it mentions or asks for."""
    for found in _DEFINED.finditer(text):
        number = term(found["term"])
        if number:
            yield Reference("term", number, "", found.start(), found.end(), found.group(), defines=True)
    for found in _ASKED.finditer(text):
        number = term(found["quoted"] or found["words"])
        if number:
            yield Reference("term", number, "", found.start(), found.end(), found.group())


def term(written: str) -> str:
    """A term as in its key: without case and colons, with single spaces."""
    return " ".join(written.casefold().replace(":", " ").split()).strip(" ,.;")


LONGEST_RANGE = 20
"""A range such as "sections 3 to 23" is expanded up to this difference; a longer range gives its two ends."""

_SIGNS = {
    "section": r"sections?|secs?\.?|u/ss?\.?|§{1,2}|ss?\.|abschnitte?[ns]?",
    "article": r"articles?|arts?\.?|artikel[ns]?",
    "paragraph": r"paragraphs?|paras?\.?|¶{1,2}|rn\.|rz\.|rdnr\.|randnummern?|absatz|absätze|abs\.",
    "chapter": r"chapters?|ch\.|kapitel[ns]?|kap\.",
    "part": r"parts?|teile?[ns]?",
    "table": r"tables?|tab\.|tabellen?",
    "figure": r"figures?|figs?\.|abbildung(?:en)?|abb\.",
    "schedule": r"schedules?",
    "annex": r"annex(?:es)?|appendi(?:x|ces)|anhangs?|anlagen?|exhibits?",
    "rule": r"rules?",
    "clause": r"clauses?|cl\.|klauseln?|ziffern?|ziff\.",
}
_PLURAL = re.compile(r"(?:§§|¶¶|u/ss|.*[^s]s|ss|appendices|annexes|.*(?:en|ern|eln)|absätze)\.?", re.IGNORECASE)
_SIGN = "|".join(f"(?P<{kind}>{signs})" for kind, signs in _SIGNS.items())
_UNDER = r"(?:clause\s\((?P<c>\w{1,5})\)\sof\s)?(?:sub-?section\s\((?P<s>\w{1,5})\)\sof\s)?"
_MARKED = re.compile(rf"(?<![\w.]){_UNDER}(?:{_SIGN})(?![^\W\d_])\s{{0,3}}(?=\d|(?-i:[A-Z]))", re.IGNORECASE)

_PARTS = r"(?:\s?\([0-9A-Za-z]{1,5}\)){0,6}"
_BELOW = (
    r"(?:,?\s(?:Abs(?:atz|\.)|Nr\.|Nummer|lit\.|Buchst\.|Satz|S\.|Alt\.|sub-?section|clause)\s?"
    r"(?:\(\w{1,5}\)|\d{1,3}[a-z]?(?!\w)|[a-z]\)?(?!\w))){0,5}"
)
_NUMBER = re.compile(
    rf"(?P<n>\d{{1,5}}(?:[A-Z]{{1,3}}|[a-z])?(?:\.\d{{1,4}}){{0,5}})(?P<p>{_PARTS})(?![A-Za-z0-9])(?P<b>{_BELOW})"
    r"(?:\s(?:ff?\.|et\sseq\.?))?"
)
_ROMAN = re.compile(r"(?P<n>[IVXLC]{1,7})(?![A-Za-z0-9])")
_LETTER = re.compile(r"(?P<n>[A-Z](?:\.?\d{1,3})?)(?![A-Za-z0-9])")
_PIECE = re.compile(r"\((\w{1,5})\)")
_PART = re.compile(r"(?:Abs(?:atz|\.)|Nr\.|Nummer|lit\.|Buchst\.|sub-?section|clause)\s?\(?(\w{1,5})\)?", re.IGNORECASE)
_TO = r"to|bis|through|[-–—]"
_JOIN = {
    kind: re.compile(
        rf"\s{{0,2}}(?P<mark>,\s(?:and|or|und|oder)|[,;/&–—-]|(?:and|or|und|oder|sowie|{_TO}|i\.?V\.?m\.?|r/w\.?|"
        rf"read\swith)(?=\s))\s{{0,3}}(?P<sign>(?i:{signs})\s{{0,2}})?(?=\d)"
    )
    for kind, signs in _SIGNS.items()
}
_STRONG = re.compile(r"/|r/w\.?|read\swith|i\.?V\.?m\.?")
_RANGE = re.compile(_TO)
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_BY_ROMAN = frozenset({"chapter", "part", "article", "schedule", "table", "annex"})
_BY_LETTER = frozenset({"annex", "schedule", "table", "figure", "part"})


class _Numbered(NamedTuple):
    number: str
    start: int
    end: int


class RuleReferences:
    """Reads references by rules: sections, articles, cases, paragraphs, chapters, tables, definitions.

    `laws` adds laws, as canonical names with other spellings: `{"motor vehicles act": ["MVA"]}`. Of overlapping
    readings the earliest counts, then the longest; terms have the lowest priority. "Section 12(3)(a)", "§ 12 Abs. 3
    lit. a" and "clause (a) of sub-section (3) of section 12" have the same key.
    """

    def __init__(self, laws: Mapping[str, Sequence[str]] | Laws | None = None) -> None:
        self.laws = laws if isinstance(laws, Laws) else Laws(laws)

    def read(self, text: str) -> tuple[Reference, ...]:
        """The references in a text, in the order of their places."""
        found = _apart([*cases(text), *self._marked(text), *self._beside(text)])
        starts = [reference.start for reference in found]
        free = [term for term in terms(text) if _is_free(term, found, starts)]
        return tuple(_apart([*found, *free]))

    def _marked(self, text: str) -> Iterator[Reference]:
        """Yield references after a sign: "§§ 3, 4 BGB"."""
        at = 0
        while (sign := _MARKED.search(text, at)) is not None:
            at = sign.end()
            kind = str(sign.lastgroup)
            listed = list(_listed(text, sign, kind))
            if not listed:
                continue
            at = listed[-1].end
            work, end = self._work(text, sign.start(), at)
            at = max(at, end)
            for place, (number, start, stop) in enumerate(listed, 1):
                stop = end if place == len(listed) else stop
                yield Reference(kind, number, work, start, stop, text[start:stop])

    def _beside(self, text: str) -> Iterator[Reference]:
        """Yield numbers next to a known law: "420 IPC"."""
        for found in self.laws.beside.finditer(text):
            law = self.laws.canonical(found["l1"] or found["l2"])
            kind = "article" if law in BY_ARTICLE else "section"
            number = (found["n1"] or found["n2"]).casefold()
            yield Reference(kind, number, law, found.start(), found.end(), found.group())

    def _work(self, text: str, start: int, end: int) -> tuple[str, int]:
        """The law named after a list of numbers or before its sign, and the end of the whole reference."""
        after = self.laws.after.match(text, end)
        if after is not None:
            return (self.laws.canonical(after["law"]) if after["law"] else ""), after.end()
        before = self.laws.before.search(text[max(0, start - 60) : start])
        return (self.laws.canonical(before["law"]) if before else ""), end

    def __repr__(self) -> str:
        return f"RuleReferences({self.laws!r})" if self.laws.more else "RuleReferences()"


def _apart(found: list[Reference]) -> list[Reference]:
    """The references that do not overlap an earlier one, in order."""
    kept: list[Reference] = []
    for reference in sorted(found, key=lambda one: (one.start, -one.end)):
        if not kept or reference.start >= kept[-1].end:
            kept.append(reference)
    return kept


def _is_free(term: Reference, others: Sequence[Reference], starts: Sequence[int]) -> bool:
    """Whether a term overlaps no other reference: "the meaning of section 3" refers to the section."""
    at = bisect_left(starts, term.end)
    return at == 0 or others[at - 1].end <= term.start


def _listed(text: str, sign: re.Match[str], kind: str) -> Iterator[_Numbered]:
    """Yield the numbers after a sign; implied numbers of a range have an empty span between its ends."""
    under = "".join(f"({part.casefold()})" for part in (sign["s"], sign["c"]) if part)
    last = _numbered(text, sign.end(), kind)
    if last is None:
        return
    yield _Numbered(last.number + under, sign.start(), last.end)
    plural = _PLURAL.fullmatch(sign[kind].rstrip()) is not None
    while (join := _JOIN[kind].match(text, last.end)) is not None:
        strong = join["sign"] or _STRONG.fullmatch(join["mark"])
        following = _numbered(text, join.end(), kind) if plural or strong else None
        if following is None:
            return
        if _RANGE.fullmatch(join["mark"]):
            yield from _between(last, following)
        yield following
        last = following


def _between(first: _Numbered, last: _Numbered) -> Iterator[_Numbered]:
    if first.number.isdecimal() and last.number.isdecimal():
        low, high = int(first.number), int(last.number)
        if high - low <= LONGEST_RANGE:
            yield from (_Numbered(str(number), first.end, first.end) for number in range(low + 1, high))


def _numbered(text: str, at: int, kind: str) -> _Numbered | None:
    """The canonical number at a position: lower case, parts in brackets, Roman numerals as Arabic."""
    found = _NUMBER.match(text, at)
    if found is not None:
        pieces = [*_PIECE.findall(found["p"]), *_PART.findall(found["b"])]
        return _Numbered(found["n"].casefold() + "".join(f"({p.casefold()})" for p in pieces), at, found.end())
    roman = _ROMAN.match(text, at) if kind in _BY_ROMAN else None
    if roman is not None and (roman["n"] not in ("I", "C", "L") or kind not in ("article", "part")):
        return _Numbered(str(_arabic(roman["n"])), at, roman.end())
    letter = _LETTER.match(text, at) if kind in _BY_LETTER else None
    return _Numbered(letter["n"].casefold(), at, letter.end()) if letter else None


def _arabic(roman: str) -> int:
    values = [_VALUES[letter] for letter in roman]
    return sum(-v if any(v < later for later in values[at + 1 : at + 2]) else v for at, v in enumerate(values))

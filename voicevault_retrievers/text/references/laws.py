"""Names of laws: maps many spellings to one canonical name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

KNOWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "indian penal code": ("IPC", "I.P.C.", "Indian Penal Code 1860"),
        "code of criminal procedure": ("CrPC", "Cr.P.C.", "Criminal Procedure Code", "Code of Criminal Procedure 1973"),
        "code of civil procedure": ("CPC", "C.P.C.", "Civil Procedure Code", "Code of Civil Procedure 1908"),
        "bharatiya nyaya sanhita": ("BNS", "Bharatiya Nyaya Sanhita 2023"),
        "constitution of india": ("Indian Constitution",),
        "general data protection regulation": ("GDPR", "DSGVO", "DS-GVO", "Datenschutz-Grundverordnung"),
        "bürgerliches gesetzbuch": ("BGB", "Bürgerlichen Gesetzbuchs", "Bürgerlichen Gesetzbuches"),
        "strafgesetzbuch": ("StGB",),
        "handelsgesetzbuch": ("HGB",),
        "grundgesetz": ("GG",),
        "zivilprozessordnung": ("ZPO",),
        "strafprozessordnung": ("StPO",),
        "european convention on human rights": ("ECHR", "EMRK"),
    }
)
"""Canonical names of laws, with their other spellings."""

BY_ARTICLE = frozenset(
    {
        "constitution of india", "constitution", "general data protection regulation", "grundgesetz",
        "european convention on human rights",
    }
)  # fmt: skip
"""Laws whose bare numbers are articles: "GDPR 5"."""

_WORD = r"[A-ZÄÖÜ][\w'’&\-]{0,30}"
_NAMED = (
    rf"(?:{_WORD}\s(?:of\s|and\s|for\s|on\s|&\s|\([^()]{{1,40}}\)\s)?){{1,8}}?"
    r"(?:Act|Code|Rules|Regulations?|Ordinance|Order|Convention|Directive|Statute|Constitution)\b"
    r"(?:,?\s(?:of\s)?\d{4}\b)?"
)
_CODE = (
    rf"(?:Code|Constitution|Charter|Convention)(?:\s(?:of|on)\s(?:the\s)?{_WORD}(?:\s{_WORD}){{0,3}})?"
    r"(?:,?\s\d{4}\b)?"
)
_GERMAN = r"[A-ZÄÖÜ][\wäöüß\-]{2,40}(?:gesetz(?:es|buche?s?)?|ordnung)\b|[A-ZÄÖÜ][A-Za-zÄÖÜäöüß]{0,8}(?:G|GB|O|VO)\b"
_ACRONYM = r"(?!(?:AND|OR|OF|THE|TO|IN|BY|IS|A|NO|FOR|MAY|NOT|ANY|WITH|UNDER)\b)[A-Z]{2,6}\b"
_TO_LAW = (
    r"(?:\s{0,3},?\s{1,3}(?:of|under|in|des|der|dem|from)\s{1,3}(?:the\s{1,3})?|\s{0,2},\s{1,2}(?:the\s)?|\s{1,3})"
)
_OWN = (
    r"(?:this|that|the\ssaid|the|dieses|diesem|dieser)\s"
    r"(?i:act|code|regulation|law|agreement|contract|gesetze?s?|verordnung)\b"
)
_ENDINGS = (("gesetzbuches", "gesetzbuch"), ("gesetzbuchs", "gesetzbuch"), ("gesetzes", "gesetz"))
_SPACE = re.compile(r"[\s,()\[\]:]+")


_DECLARED = re.compile(
    rf"(?:cited\sas\s(?:the\s)?(?P<cited>{_NAMED}),?\sor\sas\s(?:the\s)?(?P<or>[A-Z][\w.]{{1,15}}\b)"
    rf"|(?P<named>{_NAMED})\s\((?:the\s)?[\"“]?(?P<short>[A-Z][\w.]{{1,15}})[\"”]?\))"
)


def declared_laws(texts: Iterable[str]) -> dict[str, list[str]]:
    """The short names of laws that texts declare: "may be cited as the Water Supply Act or as WSA", "Data Act (DA)".

    The result is a mapping for `RuleReferences`: canonical names with their other spellings.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        for law in _DECLARED.finditer(text):
            shorts = found.setdefault(plain(law["cited"] or law["named"]), [])
            short = law["or"] or law["short"]
            if short not in shorts:
                shorts.append(short)
    return found


class Laws:
    """The laws that references may name: `KNOWN`, and `more`, canonical names with their other spellings.

    Laws in no list are recognised by their form: "Companies Act, 2013", "UrhG", "Tierschutzgesetz".
    """

    def __init__(self, more: Mapping[str, Iterable[str]] | None = None) -> None:
        self.more = {plain(name): tuple(others) for name, others in (more or {}).items()}
        known: dict[str, tuple[str, ...]] = {**KNOWN, **self.more}
        self._canonical = {plain(written): name for name, others in known.items() for written in (name, *others)}
        written = {name for name in known} | {other for others in known.values() for other in others}
        self._written = "|".join(
            re.escape(name).replace(r"\ ", r",?\s").replace("of,?", "of") for name in sorted(written, key=_longest)
        )

    def canonical(self, written: str) -> str:
        """The canonical name of a law: "I.P.C." and "Indian Penal Code, 1860" give "indian penal code"."""
        name = plain(written)
        return self._canonical.get(name) or self._canonical.get(_without_year(name)) or name

    @cached_property
    def after(self) -> re.Pattern[str]:
        """Matches the name of a law after a number: the group `law`, or `own` for "of this Act"."""
        law = rf"(?i:{self._written})(?!\w)|{_NAMED}|{_CODE}|{_GERMAN}|{_ACRONYM}"
        return re.compile(rf"(?:\s{{1,3}}(?:of|under|in)\s{{1,3}}|\s{{1,3}})(?P<own>{_OWN})|{_TO_LAW}(?P<law>{law})")

    @cached_property
    def before(self) -> re.Pattern[str]:
        """Matches the name of a law just before a number or its sign: the group `law`."""
        return re.compile(rf"(?<!\w)(?P<law>\d{{1,3}}\sU\.?S\.?C\.?A?\.?|(?i:{self._written}))[\s,]{{1,2}}\Z")

    @cached_property
    def beside(self) -> re.Pattern[str]:
        """Matches a number next to a known law: "420 IPC" in groups `n1`, `l1`; "IPC 420" in `l2`, `n2`."""
        number = r"\d{1,4}(?:[A-Z]{1,2})?(?:\([0-9A-Za-z]{1,5}\)){0,6}"
        law = rf"(?i:{self._written})"
        return re.compile(
            rf"(?<![\w.])(?P<n1>{number})\s(?P<l1>{law})(?!\w)|(?<!\w)(?P<l2>{law})\s(?P<n2>{number})(?![\w.]\w)"
        )

    def __repr__(self) -> str:
        return f"Laws({self.more!r})" if self.more else "Laws()"


def plain(written: str) -> str:
    """The name without case, punctuation, articles and German genitives."""
    name = _SPACE.sub(" ", written.casefold().replace(".", "")).strip().removeprefix("the ")
    for ending, bare in _ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending) + bare
    return name


def _without_year(name: str) -> str:
    head, _, tail = name.rpartition(" ")
    return head if len(tail) == 4 and tail.isdecimal() else name


def _longest(name: str) -> tuple[int, str]:
    return -len(name), name

"""Citations of judgments: by reporter, by docket, by the names of the parties."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
    """The judgments that a text cites."""
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
    """How many characters of the first words are no name: "See Roe"."""
    words, at = names.split(" "), 0
    while len(words) > 1 and words[0].rstrip(",") in _LEADS:
        at += len(words.pop(0)) + 1
    return at


def _plain(written: str) -> str:
    """Without case and punctuation: "410 U.S. 113" and "410 US 113" are one."""
    words = _DROPPED.sub(" ", written.replace(".", "").casefold()).split()
    return " ".join(words)

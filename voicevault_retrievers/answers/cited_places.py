"""Places in documents as people and models cite them: `Manual.pdf, pages 1-3 | Section: Results`."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

WIDEST = 50
"""The largest difference between the ends of a range."""

DASH = r"[-\u2010-\u2014]"
_LONGEST = 500
_SPACES = re.compile(r"\s*([,|])\s*|\s+")
_COMMAS = str.maketrans("，、", ",,")
_ITEM = rf"(?:\d{{1,6}}(?:\s?(?:{DASH}|to|bis)\s?\d{{1,6}})?|[a-z]{{1,3}}{DASH}?\d{{1,6}}|[ivxlcdm]{{1,8}})"
_BETWEEN = r"\s?(?:,|&|\band\b|\bund\b)\s?(?:pp?\.?\s?)?"
_AT = re.compile(
    rf"(?P<file>.+?)(?:,|\s|#|\s?\()"
    rf"(?:(?:pages?|pgs?|pp?|seiten?|s)(?:\s?[.:=]\s?|\s|(?=\d))(?P<pages>{_ITEM}(?:{_BETWEEN}{_ITEM})*)"
    rf"|第?\s?(?P<counted>\d{{1,6}}(?:\s?{DASH}\s?\d{{1,6}})?)\s?(?:页|頁|ページ))\)?"
)
_ENDS = re.compile(rf"(\d{{1,6}})\s?(?:{DASH}|to|bis)\s?(\d{{1,6}})")
_LEAD = re.compile(
    r"\s*(?:(?:see(?:\s+also)?|cf\.?|e\.g\.|from|in|per|siehe|vgl\.?)[\s,]+|(?:sources?|quellen?)\s*[:：]\s*)",
    re.IGNORECASE,
)
_FILE = re.compile(r"[^,;:?*\"<>|\n]{1,200}\.(?P<end>[a-z0-9]{1,8})", re.IGNORECASE)
_READ = frozenset("pdf doc docx odt rtf txt md htm html ppt pptx odp xls xlsx ods epub tex rst".split())
"""Extensions of documents."""
_KEPT = _READ | frozenset("text markdown xhtml xml csv tsv json jsonl yaml yml eml msg log ipynb key mobi".split())
"""Extensions of files that may be cited with pages."""


@dataclass(frozen=True)
class CitedPlace:
    """A file with its cited pages (None: all) and section (None: any), normalised by `plain`."""

    file: str
    pages: frozenset[str] | None = None
    section: str | None = None


def plain(text: object) -> str:
    """A text normalised to compare places: NFC, case-folded, with single spaces and none around commas."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", str(text)).casefold())
    return _SPACES.sub(lambda space: space[1] or " ", folded).strip()


def place_of(text: str) -> CitedPlace:
    """The file, pages and section that a text names."""
    whole, _, section = plain(text.translate(_COMMAS)).partition("|section:")
    match = _AT.fullmatch(whole) if len(whole) <= _LONGEST else None
    file, pages = (whole, None) if match is None else (match["file"], _pages(match["pages"] or match["counted"]))
    return CitedPlace(file.rstrip(","), pages, section.strip() or None)


def without_lead(text: str) -> str:
    """A text without an introduction to a place: `see`, `cf.`, `source:`."""
    return _LEAD.sub("", text, count=1) if _LEAD.match(text) else text


def is_file(text: str) -> bool:
    """Whether a text names a file; without a page, only documents count."""
    place = place_of(text)
    match = _FILE.fullmatch(place.file)
    return match is not None and match["end"] in (_READ if place.pages is None else _KEPT)


def _pages(text: str) -> frozenset[str]:
    """The pages of a list such as `1-3, 5`; a descending or too wide range gives none."""
    found: set[str] = set()
    for item in re.findall(_ITEM, text):
        ends = _ENDS.fullmatch(item)
        if ends is None:
            found.add(str(int(item)) if item.isdecimal() else item)
        elif 0 <= int(ends[2]) - int(ends[1]) <= WIDEST:
            found.update(map(str, range(int(ends[1]), int(ends[2]) + 1)))
    return frozenset(found)

"""Loads HTML files by headings."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.documents._markdown import decode
from voicevault_retrievers.documents._model import EXTRA, HeadingPath, Part
from voicevault_retrievers.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bs4 import BeautifulSoup

_NAMES = {
    "dropped": "script style nav template noscript title",
    "heading": "h1 h2 h3 h4 h5 h6",
    "row": "table caption tr",
    "cell": "td th",
    "pre": "pre",
    "block": "[document] address article aside blockquote body br dd details div dl dt fieldset figcaption figure "
    "footer form head header hr html li main ol option p section summary ul",
}
MAX_CHARS, MAX_TAGS = 64 << 20, 500_000
MAX_RESCANNED = 50_000_000
"""The most characters that Python's parser may reread for tags, comments and marked sections that are never closed."""

MAX_SEPARATORS = 2_000_000
"""The most spaces, quotes and slashes in opening tags: an attribute has at least one, and takes 1 KB of memory."""

MAX_CLIMBED = 20_000_000
"""The most steps from texts to the root: Beautiful Soup takes as many for a text behind another node."""

_ENDS = (("<", ">"), ("<!--", "-->"), ("<![", "]>"))
_OPENING = re.compile(r"<[a-zA-Z][^>]*")
_SEPARATORS = " \n\t\r\f/\"'"
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Like in browsers, Latin-1 means Windows-1252; a declaration in ASCII bytes rules out UTF-16.
_MEANT = {"iso-8859-1": "cp1252", "utf-16": "utf-8"}


def load_html(path: Path) -> list[Part]:
    """A part per heading, with a line per block or table row; ` | ` separates cells.

    The encoding is that of a byte order mark, else the declared one, else UTF-8. Raises DocumentError for a page that
    is too large, or that has so many unclosed tags, comments, sections or attributes, or nests so deeply, that parsing
    would take too long.
    """
    bs4 = require("bs4", extra=EXTRA)
    data = path.read_bytes()
    declared = bs4.dammit.EncodingDetector.find_declared_encoding(data, is_html=True)
    markup = decode(data, path.name, _MEANT.get(declared, declared))
    _check(markup, path.name)
    # bs4 warns of input that looks like a file name, unless it is a stream, and of an XML declaration.
    soup = _soup(io.StringIO(re.sub(r"\A\s*<\?xml[^>]*>", "", markup)), path.name)
    page = _Page()
    for event, value in _events(soup):
        getattr(page, event)(value)
    path_of = HeadingPath(" ".join(soup.title.get_text().split()) or None if soup.title else None)
    return [one.part(path_of) for one in page.sections]


def _check(markup: str, name: str) -> None:
    tags = markup.count("<")
    if len(markup) > MAX_CHARS or tags > MAX_TAGS:
        raise DocumentError(
            f"{name} has {len(markup)} characters and {tags} tags, more than {MAX_CHARS} or {MAX_TAGS}: divide it"
        )
    opening = "".join(_OPENING.findall(markup))
    separators = sum(map(opening.count, _SEPARATORS))
    if separators > MAX_SEPARATORS:
        raise DocumentError(f"{name} has too many attributes ({separators} separators in tags): save it without them")
    for start, end in _ENDS:
        rest = markup[markup.rfind(end) + 1 :]
        if rest.count(start) * len(rest) > MAX_RESCANNED:
            raise DocumentError(f"{name} has {rest.count(start)} times a {start} that no {end} closes: it is damaged")


def _soup(markup: io.StringIO, name: str) -> BeautifulSoup:
    """Parse a page. Raises DocumentError where it nests so deeply that this takes too long."""
    bs4 = require("bs4", extra=EXTRA)

    class Soup(bs4.BeautifulSoup):  # type: ignore[misc,name-defined]  # its base is imported when it is used
        climbed = 0

        def object_was_parsed(self, *args: Any, **options: Any) -> None:
            if self.currentTag.next_element is not None:
                self.climbed += len(self.tagStack)
                if self.climbed > MAX_CLIMBED:
                    raise DocumentError(f"{name} nests its tags too deeply ({len(self.tagStack)} levels): save it anew")
            super().object_was_parsed(*args, **options)

    soup: BeautifulSoup = Soup(markup, "html.parser")
    return soup


def _events(soup: BeautifulSoup) -> Iterator[tuple[str, str]]:
    """Yield opening tags, texts and closing tags. Not recursive, as pages may nest deeper than Python's stack."""
    bs4 = require("bs4", extra=EXTRA)
    inside = [soup]
    for node in soup.descendants:
        while node.parent is not inside[-1]:
            yield "close", inside.pop().name
        if isinstance(node, bs4.Tag):
            inside.append(node)
            yield "open", node.name
        elif not isinstance(node, bs4.element.PreformattedString):  # no comments, doctypes, declarations
            yield "text", str(node)
    while inside:
        yield "close", inside.pop().name


@dataclass
class _Section:
    """A heading's level and text, and the lines from it on."""

    level: int = 1
    title: str | None = None
    lines: list[str] = field(default_factory=list)

    def part(self, path_of: HeadingPath) -> Part:
        above, body = path_of.enter(self.level, self.title), len(self.title or "")
        return Part("\n".join(self.lines), section=self.title, above=above, body=body)


class _Page:
    """The sections so far, and the current line."""

    def __init__(self) -> None:
        self.sections = [_Section()]
        self._line: list[str] = []
        self._inside: Counter[str] = Counter()
        self._in_row = False

    def open(self, name: str) -> None:
        kind = _KINDS.get(name, "inline")
        self._separate(kind)
        if kind == "heading" and not self._inside["dropped"]:
            self.sections.append(_Section(int(name[1])))
        if kind == "cell":
            self._line.append(" | " * self._in_row)
        self._in_row = kind == "cell" or (self._in_row and kind != "row")
        self._inside[kind] += 1

    def text(self, text: str) -> None:
        if not self._inside["dropped"]:
            self._line.append(text)

    def close(self, name: str) -> None:
        kind = _KINDS.get(name, "inline")
        self._separate(kind)
        self._inside[kind] -= 1

    def _separate(self, kind: str) -> None:
        """End the line at a row or block, or in a heading or cell only the word."""
        if kind == "heading":
            self._end_heading()
        elif kind == "row" or (kind in {"block", "pre"} and not self._flat()):
            self._end_line()
        elif kind in {"block", "pre"}:
            self._line.append(" ")

    def _flat(self) -> bool:
        return bool(self._inside["cell"] or self._inside["heading"])

    def _end_line(self) -> None:
        text = "".join(self._line)
        text = text.strip("\n").rstrip() if self._inside["pre"] and not self._flat() else " ".join(text.split())
        if text.strip(" |"):
            self.sections[-1].lines.append(text)
        self._line = []

    def _end_heading(self) -> None:
        """End the line; the first line after a heading opened is its title."""
        self._end_line()
        section = self.sections[-1]
        if self._inside["heading"] and section.title is None and section.lines:
            section.title = section.lines[0]

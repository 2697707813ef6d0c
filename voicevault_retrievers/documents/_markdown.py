"""Loads Markdown by headings, keeping the markup, and plain text."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.documents._encoding import decode
from voicevault_retrievers.documents._model import EXTRA, HeadingPath, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it import MarkdownIt


def load_text(path: Path) -> list[Part]:
    """The whole text as one part."""
    text, notes = decode(path.read_bytes(), path.name)
    return [Part(text, notes=notes)]


# Front matter is between two lines of dashes, and begins with a key, a comment or its end; other dashes are a thematic
# break.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?=[^\n]+:|#|---)(?:.*?\n)??(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:[ \t]*([^\s|>].*?)[ \t]*$", re.MULTILINE)
_LONGEST_TITLE = 1000
_SHOWN = {"text", "code_inline", "image"}


class _Heading(NamedTuple):
    """A heading: its first line, the line behind it, its level and its text."""

    start: int
    body: int
    level: int
    text: str | None


def load_markdown(path: Path) -> list[Part]:
    """A part per heading outside lists and quotes, without front matter, whose title is above them all."""
    whole, notes = decode(path.read_bytes(), path.name)
    front = _FRONT_MATTER.match(whole)
    title = _TITLE.search(front[0]) if front else None
    text = whole[front.end() :] if front else whole
    lines = text.split("\n")
    headings = [_Heading(0, 0, 1, None), *_headings(text), _Heading(len(lines), len(lines), 1, None)]
    path_of = HeadingPath(title[1].strip("\"' ") if title else None)
    return [
        replace(_part(lines, one, after.start, path_of.enter(one.level, one.text)), notes=notes)
        for one, after in pairwise(headings)
    ]


def _part(lines: Sequence[str], heading: _Heading, end: int, above: tuple[str, ...]) -> Part:
    head = "\n".join(lines[heading.start : heading.body]).strip("\n")
    text = "\n".join(lines[heading.start : end]).strip("\n")
    return Part(text, section=heading.text, above=above, body=len(head))


def _headings(text: str) -> Iterator[_Heading]:
    parser: MarkdownIt = require("markdown_it", extra=EXTRA).MarkdownIt("commonmark")
    env: dict[str, Any] = {}
    # Inline markup is parsed for headings only, as it is most of the work.
    blocks = parser.disable("inline").parse(text, env)
    parser.enable("inline")
    for opening, content in pairwise(blocks):
        if opening.type == "heading_open" and opening.level == 0 and opening.map:
            start, body = opening.map
            yield _Heading(start, body, int(opening.tag[1:]), _plain(parser, content.content, env))


def _plain(parser: MarkdownIt, markup: str, env: dict[str, Any]) -> str | None:
    children = [child for token in parser.parseInline(markup[:_LONGEST_TITLE], env) for child in token.children or ()]
    shown = (child.content if child.type in _SHOWN else " " * child.type.endswith("break") for child in children)
    return " ".join("".join(shown).split()) or None

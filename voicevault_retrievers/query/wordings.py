"""The wordings of a question in what a language model wrote, however it wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

_FENCE = re.compile(r"```(?:[\w-]*\n)?(.*?)(?:```|\Z)", re.DOTALL)
_INTRO = re.compile(
    r"(?:sure|certainly|of course|absolutely|okay|ok|great)\s*(?:[!,.:;]|$)"
    r"|here(?:'s|’s| is| are| you)\b|(?:below|these|the following) (?:is|are)\b",
    re.IGNORECASE,
)
_CHATTER = re.compile(
    r"(?:let me know|i hope|hope (?:this|these|that)|feel free|as an ai)\b|(?:note|sorry)\s*[:,!.]|#+\s"
    r"|i(?:['’]m| am) (?:sorry|unable)\b|i can(?:['’]t|not| not) (?:help|assist|provide|generate|rephrase|comply)\b",
    re.IGNORECASE,
)
_MARK = re.compile(
    r"(?:[-*+•‣·–—]\s+"
    r"|\*{0,2}(?:\(?\d{1,2}[.):、]|\[\d{1,2}\])\*{0,2}(?!\d)\s*"
    r"|\*{0,2}(?:(?:original|alternative|rephrased) )?(?:q|query|question|alternative|varia(?:nt|tion)|version|wording)"
    r"(?:\s*#?\d{1,2}\s*[.):]|\s*:)\*{0,2}(?!\d)\s*)+",
    re.IGNORECASE,
)
_JSON = re.compile(r"^[\[{]\s*[\[{\"']", re.MULTILINE)
_STRING = re.compile(r"(\"(?:[^\"\\]|\\.?)*(?:\"|\Z)|'(?:[^'\\]|\\.?)*(?:'|\Z))(\s*:)?", re.DOTALL)
_QUOTES = frozenset(('""', "''", "``", "“”", "‘’", "«»", "„“", "「」"))
_HEADING_ENDS = (":", "：", "[", "{")


def wordings_of(answer: str, longest: int) -> list[str]:
    """The wordings in what a model wrote, each in one line of at most `longest` characters.

    They are the strings of a JSON list or object, whole or cut off; else the lines, or where at least two are numbered
    or bulleted those alone, without their marks, quotes and code fences, headings and chatter.
    """
    fenced = "\n".join(_FENCE.findall(answer))
    lines = [_unchattered(line.strip()) for line in (fenced.strip() or answer).splitlines()]
    text = "\n".join(lines)
    data = _JSON.search(text)
    found = _bare_lines(lines) if data is None else _strings(text[data.start() :])
    return [wording for wording in map(one_line, found) if len(wording) <= longest and any(map(str.isalnum, wording))]


def one_line(text: str) -> str:
    """A text with single spaces for all its white space, and `?` for what UTF-8 cannot hold."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def _unchattered(line: str) -> str:
    """A line; nothing of one that is chatter, and of an introduction what follows its colon."""
    if _CHATTER.match(line):
        return ""
    return line.partition(":")[2].strip() if _INTRO.match(line) else line


def _bare_lines(lines: Sequence[str]) -> Iterator[str]:
    marked = [line for line in lines if _MARK.match(line)]
    for line in marked if len(marked) > 1 else lines:
        mark = _MARK.match(line)
        if not line.endswith(_HEADING_ENDS):
            yield _unquoted(line[mark.end() :] if mark else line)


def _unquoted(line: str) -> str:
    text = line.strip().rstrip(",").removeprefix("**").removesuffix("**").strip()
    ends, inner = text[:1] + text[-1:], text[1:-1]
    return inner if ends in _QUOTES and not set(ends) & set(inner) else text


def _strings(data: str) -> Iterator[str]:
    """The strings of JSON that are no keys; one that is cut off is left out."""
    closed = data[: max(data.rfind("]"), data.rfind("}")) + 1]
    for text, key in _STRING.findall(closed or data):
        if not key and len(text) > 1 and text[0] == text[-1]:
            yield _unescaped(text)


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # quoted as in Python, or with an escape that is none
        return text[1:-1]

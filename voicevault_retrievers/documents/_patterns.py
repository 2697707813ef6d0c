"""Patterns of paths as in `.gitignore`, in time linear in the path, since whoever wrote them may mean harm.

Semantics: https://git-scm.com/docs/gitignore. Libraries translate a pattern into one regular expression, which for
`*a*a*a*a*b` takes minutes on one long name; here each segment is one, and stars take what they need first.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_STARS = re.compile(r"\*+")
_ESCAPED = re.compile(r"\\(.)")


class _Pattern(NamedTuple):
    """`segments` are matched one by one; None stands for any number of them."""

    segments: tuple[re.Pattern[str] | None, ...]
    folders: bool
    negated: bool

    def matches(self, path: Sequence[str]) -> bool:
        """Whether the whole path has these segments."""
        ends = {0}  # how much of the path the segments so far can take
        for segment in self.segments:
            if segment is None:
                ends = set(range(min(ends), len(path) + 1)) if ends else ends
            else:
                ends = {end + 1 for end in ends if end < len(path) and segment.match(path[end])}
        return len(path) in ends


class Patterns:
    """Lines of patterns, the last of which that matches counts."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns = [pattern for line in lines if (pattern := _parsed(line)) is not None]

    def __call__(self, path: str) -> bool | None:
        """Whether a relative posix path is named; None where nothing says so. Folders end in `/`.

        What is below a named folder is named.
        """
        parts = path.rstrip("/").split("/")
        for end in range(1, len(parts) + 1):
            told = self._told(parts[:end], folder=end < len(parts) or path.endswith("/"))
            if told or end == len(parts):
                return told
        return None

    def _told(self, path: Sequence[str], *, folder: bool) -> bool | None:
        for pattern in reversed(self._patterns):
            if (folder or not pattern.folders) and pattern.matches(path):
                return not pattern.negated
        return None


def _parsed(line: str) -> _Pattern | None:
    """The pattern of a line; None for a blank one, and a comment."""
    text = re.sub(r"(?<!\\)((?:\\\\)*)[ \t]+$", r"\1", line.rstrip("\r\n"))
    if not text.strip() or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[negated:]
    names = text.strip("/").split("/")
    if names == [""]:
        return None
    anchored = "/" in text.rstrip("/")
    below = names[-1] == "**" and anchored  # what is in a folder, not the folder
    segments = [None if name == "**" else _segment(name) for name in (names[:-1] if below else names)]
    segments = segments if anchored else [None, *segments]
    return _Pattern((*segments, *((re.compile(""), None) if below else ())), text.endswith("/"), negated)


def _segment(name: str) -> re.Pattern[str]:
    """What a name is to match: stars that follow each other are one, and escaped characters stand for themselves."""
    plain = _ESCAPED.sub(lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], _STARS.sub("*", name))
    return re.compile(fnmatch.translate(plain.replace("[^", "[!")))

"""Loads source code by definitions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from voicevault_retrievers.documents._encoding import decode
from voicevault_retrievers.documents._model import Part

PYTHON = (".py", ".pyi")
OTHER = tuple(
    ".c .cc .cpp .cs .go .h .hpp .java .jl .js .jsx .kt .lua .mjs .php .pl .r .rb .rs .scala .sh .sql .swift .ts "
    ".tsx".split()
)

_KINDS = (
    "class|struct|interface|enum|trait|impl|union|record|protocol|extension|object|module|namespace|package"
    "|function|func|fn|fun|def|sub|type|CREATE (?:OR REPLACE )?(?:TABLE|VIEW|FUNCTION|PROCEDURE|TRIGGER)"
)
_NAMED = re.compile(
    rf"\s{{0,40}}(?:[a-z]+(?:\([a-z]*\))? ){{0,6}}(?:{_KINDS})\b"
    r"(?:\s?\([^()]{0,80}\)|<[^<>]{0,80}>)? ?([A-Za-z_]\w*(?:(?:\.|::)\w+)*)"
)
_CALLED = re.compile(
    r"\s{0,40}(?:[A-Za-z_][\w<>,:\[\]]{0,80}[ *&]{1,3}){1,6}(~?[A-Za-z_]\w{0,80}(?:::~?\w{1,80}){0,8})\([^;]{0,400}$"
)
_NO_TYPE = re.compile(
    r"\s*(?:return|else|if|for|while|switch|new|throw|await|yield|case|delete|goto|using|import|echo)\b"
)
_ABOVE = re.compile(r"\s*(?:@|#|//|/?\*|--|\[)")


class _Definition(NamedTuple):
    """The first line of a definition, from 0, with the lines that belong to it; its depth and name."""

    start: int
    depth: int
    name: str


_Found: TypeAlias = list[_Definition]


def load_code(path: Path, source_file: str | None = None) -> list[Part]:
    """A part per definition, with its lines; its section is the qualified name, below the path of the file.

    Python is read by its syntax tree: a function, a method, or a class up to its first method. In other languages, and
    in Python that does not parse, which a note says, a definition begins at a line with a word such as `class` or
    `func` and a name, or with a type, a name and a parenthesis as in C, and reaches to the next one. It is in those
    above it that are indented less. Comments and decorators directly above belong to it.
    """
    text, notes = decode(path.read_bytes(), path.name)
    lines = text.split("\n")
    found = _python(text) if path.suffix.lower() in PYTHON else None
    if found is None:
        notes += ("it is not Python 3, and was read by its lines",) if path.suffix.lower() in PYTHON else ()
        found = list(_by_lines(lines))
    return list(_parts(lines, found, source_file or path.name, notes))


def _parts(lines: Sequence[str], found: _Found, above: str, notes: tuple[str, ...]) -> Iterator[Part]:
    starts = sorted({one.start: one for one in reversed(found)}.values())
    if not starts or starts[0].start > 0:
        starts.insert(0, _Definition(0, 0, ""))
    inside: list[_Definition] = []
    for at, one in enumerate(starts):
        inside = [*(outer for outer in inside if outer.depth < one.depth), one]
        end = starts[at + 1].start if at + 1 < len(starts) else len(lines)
        while end > one.start + 1 and not lines[end - 1].strip():
            end -= 1
        name = ".".join(outer.name for outer in inside if outer.name)
        place = {"line_start": one.start + 1, "line_end": end}
        yield Part("\n".join(lines[one.start : end]), section=name or None, above=(above,), metadata=place, notes=notes)


def _python(text: str) -> _Found | None:
    """The definitions of Python; None where it does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: _Found = []
    todo: list[tuple[int, ast.stmt]] = [(0, node) for node in tree.body]
    while todo:
        depth, node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found.append(_Definition(first - 1, depth, node.name))
            if isinstance(node, ast.ClassDef):
                todo += [(depth + 1, inner) for inner in node.body]
        elif depth == 0:  # what stands between definitions is a part without a name
            found.append(_Definition(node.lineno - 1, 0, ""))
    return _joined(found)


def _joined(found: _Found) -> _Found:
    """The definitions in order, with one part for the unnamed statements between two of them."""
    kept: _Found = []
    for one in sorted(found):
        if one.name or not kept or kept[-1].name:
            kept.append(one)
    return kept


def _by_lines(lines: Sequence[str]) -> Iterator[_Definition]:
    for at, line in enumerate(lines):
        match = _NAMED.match(line) or (None if _NO_TYPE.match(line) else _CALLED.match(line))
        if match is None or _ABOVE.match(line):
            continue
        start = at
        while start and _ABOVE.match(lines[start - 1]):
            start -= 1
        yield _Definition(start, len(line) - len(line.lstrip()), match[1])

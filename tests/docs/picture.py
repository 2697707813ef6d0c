"""Draws docs/images/architecture.svg: `python -m tests.docs.picture`.

The floors are those that import-linter checks; each arrow of a query's or a document's way is an import of the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = "voicevault_retrievers"
IMAGE = ROOT / "docs/images/architecture.svg"

WIDTH, FLOOR, BOX, LEFT = 900, 62, 116, 40
"""Pixels: the width of the picture, the height of a floor, the width of a box, what stands left of the boxes."""
QUERY, DOCUMENT = "#1565c0", "#c05a00"


class Arrow(NamedTuple):
    """One step: a folder that calls another, under the mark that the legend explains."""

    mark: str
    caller: str
    called: str


A_QUERY = (
    Arrow("1", "langchain", "pipeline"), Arrow("1", "llama_index", "pipeline"), Arrow("2", "pipeline", "query"),
    Arrow("3", "pipeline", "fusion"), Arrow("4", "pipeline", "lexical"), Arrow("5", "pipeline", "dense"),
    Arrow("6", "pipeline", "rerank"), Arrow("7", "pipeline", "structure"), Arrow("8", "pipeline", "answers"),
)  # fmt: skip
A_DOCUMENT = (
    Arrow("A", "cli", "store"), Arrow("B", "store", "documents"), Arrow("C", "store", "lexical"),
    Arrow("D", "lexical", "text"), Arrow("E", "store", "dense"), Arrow("F", "dense", "models"),
    Arrow("G", "store", "structure"),
)  # fmt: skip
LEGEND = (
    (QUERY, "A query: 1 a retriever runs its pipeline; 2 other wordings; 3 fusion of 4 keywords and 5 vectors;"),
    (QUERY, "6 reranking; 7 parents; 8 a context with citations."),
    (DOCUMENT, "A document: A a knowledge base takes it in; B loads and splits it; C, D analyzes it into postings;"),
    (DOCUMENT, "E, F embeds it; G keeps its parents and references."),
)


def floors() -> list[list[str]]:
    """The folders of each floor, the highest first."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (layers,) = re.findall(r"layers = \[\n(.*?)\n\]", project, re.DOTALL)
    return [re.findall(r"\w+", line) for line in layers.splitlines()]


def imports() -> set[tuple[str, str]]:
    """Which folder of the package imports from which."""
    found = set()
    for path in (ROOT / PACKAGE).rglob("*.py"):
        home = path.relative_to(ROOT / PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                found.add((home, str(node.module).split(".")[1]))
    return found


def places() -> dict[str, tuple[float, float]]:
    """The upper left corner of each folder's box."""
    found = {}
    for floor, names in enumerate(floors()):
        gap = (WIDTH - LEFT - len(names) * BOX) / (len(names) + 1)
        for at, name in enumerate(names):
            found[name] = (LEFT + gap + at * (BOX + gap), 12 + floor * FLOOR)
    return found


def picture() -> str:
    """The drawing, as SVG."""
    height = 12 + len(floors()) * FLOOR + 20 * len(LEGEND) + 8
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_arrows(A_QUERY, QUERY),
        *_arrows(A_DOCUMENT, DOCUMENT),
        *_boxes(),
        *_legend(height),
        "</svg>\n",
    ])  # fmt: skip


def _boxes() -> Iterator[str]:
    for floor, names in enumerate(floors()):
        yield f'<text x="8" y="{36 + floor * FLOOR}" font-size="12" fill="#777">{len(floors()) - 1 - floor}</text>'
        for name in names:
            x, y = places()[name]
            yield f'<rect x="{x:.0f}" y="{y}" width="{BOX}" height="36" rx="5" fill="#f4f6f8" stroke="#90a0b0"/>'
            yield f'<text x="{x + BOX / 2:.0f}" y="{y + 23}" font-size="14" text-anchor="middle">{name}</text>'


def _arrows(steps: tuple[Arrow, ...], colour: str) -> Iterator[str]:
    shift = -14 if colour == QUERY else 14
    for step in steps:
        (x, y), (to_x, to_y) = places()[step.caller], places()[step.called]
        x, y, to_x = x + BOX / 2 + shift, y + 36, to_x + BOX / 2 + shift
        bend = (to_y - y) / 2
        yield (
            f'<path d="M{x:.0f},{y} C{x:.0f},{y + bend:.0f} {to_x:.0f},{to_y - bend:.0f} {to_x:.0f},{to_y - 8}" '
            f'fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        yield f'<path d="M{to_x - 4:.0f},{to_y - 9} h8 l-4,9 z" fill="{colour}"/>'
        yield f'<text x="{to_x + shift / 1.4 - 4:.0f}" y="{to_y - 4}" font-size="12" fill="{colour}">{step.mark}</text>'


def _legend(height: int) -> Iterator[str]:
    for line, (colour, text) in enumerate(LEGEND):
        y = height - 8 - 20 * (len(LEGEND) - 1 - line)
        yield f'<text x="{LEFT}" y="{y}" font-size="14" fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    IMAGE.write_text(picture(), encoding="utf-8")

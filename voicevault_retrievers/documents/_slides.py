"""Loads PPTX files by slide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.documents._model import BETWEEN, EXTRA, Part
from voicevault_retrievers.documents._zip import check_archive


def load_pptx(path: Path) -> list[Part]:
    """A part per slide, with its number as `page_number` and `slide`, its title as section and its notes at the end.

    Tables have a line per row. Text in pictures, charts and diagrams is not read. Raises DocumentError for a file that
    is no PPTX or is a zip bomb.
    """
    pptx = require("pptx", extra=EXTRA)
    check_archive(path, "PPTX")
    return [_part(slide, number) for number, slide in enumerate(pptx.Presentation(str(path)).slides, 1)]


def _part(slide: Any, number: int) -> Part:
    title = slide.shapes.title
    heading = " ".join(title.text_frame.text.split()) if title is not None and title.has_text_frame else ""
    own = None if title is None else title.shape_id
    blocks = [text for shape in _shapes(slide.shapes) if shape.shape_id != own and (text := _text(shape))]
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    told = _lines(notes.text) if notes is not None else ""
    blocks += [f"Notes: {told}"] if told else []
    text = BETWEEN.join([heading, *blocks] if heading else blocks)
    return Part(text, number, heading or None, body=len(heading), metadata={"slide": number})


def _shapes(shapes: Any) -> Iterator[Any]:
    """Yield the shapes of a slide, in place of a group its own. Not recursive, as groups may nest deeply."""
    todo = list(reversed(list(shapes)))
    while todo:
        shape = todo.pop()
        if hasattr(shape, "shapes"):
            todo += reversed(list(shape.shapes))
        else:
            yield shape


def _text(shape: Any) -> str:
    if shape.has_text_frame:
        return _lines(shape.text_frame.text)
    if not getattr(shape, "has_table", False):
        return ""
    rows = ([" ".join(cell.text.split()) for cell in row.cells] for row in shape.table.rows)
    return "\n".join(" | ".join(cells) for cells in rows if any(cells))


def _lines(text: str) -> str:
    """The text without blank lines; a vertical tab is a line break inside a paragraph."""
    lines = (line.strip() for line in text.replace("\v", "\n").splitlines())
    return "\n".join(filter(None, lines))

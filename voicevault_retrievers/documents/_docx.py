"""Loads DOCX files by headings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.documents._model import BETWEEN, EXTRA, HeadingPath, Part
from voicevault_retrievers.documents._zip import check_archive
from voicevault_retrievers.errors import DocumentError

if TYPE_CHECKING:
    from docx.document import Document as WordDocument
    from docx.oxml.xmlchemy import BaseOxmlElement

MAX_PARAGRAPHS = 500_000

_HEADING = re.compile(r"Heading (\d)|Title")
_BLOCKS = "(.//w:p | .//w:tbl)[not(ancestor::w:tbl) and not(ancestor::w:p)]"
# Like in a word processor, runs in tracked insertions, links and controls count; moved-away text and a text box's
# fallback copy do not.
_SEEN = "[not(ancestor::w:moveFrom) and not(ancestor::*[local-name()='Fallback'])]"
_RUNS = f"(.//w:r/w:t | .//w:r/w:tab | .//w:r/w:br | .//w:r/w:cr | .//w:r/w:noBreakHyphen){_SEEN}"
_SPACES = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def load_docx(path: Path) -> list[Part]:
    """A part per heading or title, with tables in place, one row per line; a blank line separates blocks.

    Headers, footers, notes and comments are not read. Raises DocumentError for a file that is no DOCX, is a zip bomb,
    declares entities, or has too many paragraphs.
    """
    docx = require("docx", extra=EXTRA)
    check_archive(path, "DOCX")
    document: WordDocument = docx.Document(str(path))
    _check_markup(document, path.name)
    levels, path_of = _heading_levels(document), HeadingPath()
    sections: list[tuple[str | None, tuple[str, ...], list[str]]] = [(None, (), [])]
    for block in document.element.body.xpath(_BLOCKS):
        text = _table(block) if block.tag.endswith("}tbl") else _paragraph(block)
        level = levels.get(getattr(block, "style", None)) if text else None
        if level is not None:
            heading = " ".join(text.split())
            sections.append((heading, path_of.enter(level, heading), []))
        if text:
            sections[-1][2].append(text)
    return [
        Part(BETWEEN.join(blocks), section=section, above=above, body=0 if section is None else len(blocks[0]))
        for section, above, blocks in sections
    ]


def _check_markup(document: WordDocument, name: str) -> None:
    if document.element.getroottree().docinfo.internalDTD is not None:
        raise DocumentError(f"{name} declares XML entities, which no DOCX has: get a copy from its source")
    paragraphs = int(document.element.xpath("count(.//w:p)"))
    if paragraphs > MAX_PARAGRAPHS:
        raise DocumentError(f"{name} has {paragraphs} paragraphs, more than {MAX_PARAGRAPHS}: divide it")


def _heading_levels(document: WordDocument) -> dict[str | None, int]:
    """The levels of the built-in heading styles and of styles based on them, by their ids; 0 for titles."""
    styles = {style.style_id: style for style in document.styles}
    found = {style_id: _HEADING.fullmatch(style.name or "") for style_id, style in styles.items()}
    levels: dict[str | None, int] = {style_id: int(name[1] or 0) for style_id, name in found.items() if name}
    based = {style_id: levels.get(style.element.basedOn_val) for style_id, style in styles.items()}
    return {style_id: level for style_id, level in based.items() if level is not None} | levels


def _paragraph(element: BaseOxmlElement) -> str:
    runs = element.xpath(_RUNS)
    return "".join(_SPACES.get(run.tag.rpartition("}")[2], run.text or "") for run in runs).strip()


def _table(table: BaseOxmlElement) -> str:
    rows = table.xpath("./w:tr | ./w:sdt/w:sdtContent/w:tr")
    return "\n".join(filter(None, map(_row, rows)))


def _row(row: BaseOxmlElement) -> str:
    cells = [_cell(cell) for cell in row.xpath("./w:tc | ./w:sdt/w:sdtContent/w:tc")]
    return " | ".join(cells) if any(cells) else ""


def _cell(cell: BaseOxmlElement) -> str:
    return " ".join(" ".join(map(_paragraph, cell.xpath(".//w:p[not(ancestor::w:p)]"))).split())

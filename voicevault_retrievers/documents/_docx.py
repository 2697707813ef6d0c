"""DOCX by headings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

from voicevault_retrievers.documents._model import EXTRA, Part
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.extras import require

if TYPE_CHECKING:
    from docx.document import Document as WordDocument
    from docx.oxml.xmlchemy import BaseOxmlElement

MAX_UNPACKED = 512 << 20
MAX_RATIO, RATIO_FROM = 200, 64 << 20

_HEADING = re.compile(r"Heading \d|Title")
_BLOCKS = "(.//w:p | .//w:tbl)[not(ancestor::w:tbl) and not(ancestor::w:p)]"
# Runs in tracked insertions, links and controls count, as a reader sees them; moved-away text and the copy of a text
# box for old programs do not.
_SEEN = "[not(ancestor::w:moveFrom) and not(ancestor::*[local-name()='Fallback'])]"
_RUNS = f"(.//w:r/w:t | .//w:r/w:tab | .//w:r/w:br | .//w:r/w:cr | .//w:r/w:noBreakHyphen){_SEEN}"
_SPACES = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def load_docx(path: Path) -> list[Part]:
    """A part per heading or title, tables in place as a row per line; a blank line between blocks.

    Headers, footers, notes and comments are not read. Raises DocumentError for what is no DOCX or a zip bomb.
    """
    docx = require("docx", extra=EXTRA)
    _check_size(path)
    document: WordDocument = docx.Document(str(path))
    headings = _heading_styles(document)
    sections: list[tuple[str | None, list[str]]] = [(None, [])]
    for block in document.element.body.xpath(_BLOCKS):
        text = _table(block) if block.tag.endswith("}tbl") else _paragraph(block)
        if text and getattr(block, "style", None) in headings:
            sections.append((" ".join(text.split()), []))
        if text:
            sections[-1][1].append(text)
    return [Part("\n\n".join(blocks), section=section) for section, blocks in sections]


def _check_size(path: Path) -> None:
    try:
        with ZipFile(path) as archive:
            members = archive.infolist()
    except BadZipFile as error:
        raise DocumentError(
            f"{path.name} is not a DOCX ({error}): it may have a password or be an old .doc; save it anew as DOCX"
        ) from error
    size = sum(member.file_size for member in members)
    ratio = size / max(1, sum(member.compress_size for member in members))
    if size > MAX_UNPACKED or (size > RATIO_FROM and ratio > MAX_RATIO):
        raise DocumentError(
            f"{path.name} declares {size >> 20} MiB unpacked, {ratio:.0f} times its size: it looks like a zip bomb; "
            "divide it, or save it as PDF"
        )


def _heading_styles(document: WordDocument) -> set[str]:
    """The ids of the built-in heading styles and of those that are based on one."""
    paragraph_styles = [style for style in document.styles if hasattr(style, "base_style")]
    return {
        style.style_id
        for style in paragraph_styles
        if any(_HEADING.fullmatch(each.name or "") for each in (style, style.base_style) if each is not None)
    }


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
    return " ".join(" ".join(map(_paragraph, cell.xpath(".//w:p"))).split())

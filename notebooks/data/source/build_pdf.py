"""Build the sample operations manual as a PDF from its Markdown source."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import XPos, YPos

SOURCE = Path(__file__).with_name("operations-manual.md")
TARGET = Path(__file__).parent.parent / "documents" / "operations-manual.pdf"
CREATED = datetime(2024, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
FONT = "Helvetica"
BODY_SIZE = 10.5
LINE_HEIGHT = 5.4


class ManualPDF(FPDF):
    """A4 page with a running chapter title above and a page number below."""

    chapter: str = ""

    def header(self) -> None:
        """Print the station name and the current chapter."""
        self.set_font(FONT, "I", 9)
        self.cell(0, 6, f"Halden Sound Tidal Station - {self.chapter}", border="B")
        self.ln(10)

    def footer(self) -> None:
        """Print the document name and the page number."""
        self.set_y(-15)
        self.set_font(FONT, "I", 8)
        self.cell(0, 6, f"Operations manual, edition 7 - page {self.page_no()}", align="C")


def write_block(pdf: ManualPDF, text: str, indent: float = 0.0) -> None:
    """Write one left-aligned block of text, indented by some millimetres."""
    pdf.set_x(pdf.l_margin + indent)
    pdf.multi_cell(0, LINE_HEIGHT, text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)


def write_row(pdf: ManualPDF, line: str) -> None:
    """Write one table row in columns of equal width, the first one wider."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    first = 56.0 if len(cells) < 6 else 18.0
    rest = (pdf.epw - first) / (len(cells) - 1)
    if pdf.will_page_break(LINE_HEIGHT):
        pdf.add_page()
    for index, cell in enumerate(cells):
        pdf.cell(first if index == 0 else rest, LINE_HEIGHT, cell)
    pdf.ln(LINE_HEIGHT)


def write_line(pdf: ManualPDF, line: str) -> None:
    """Write one source line according to its Markdown mark."""
    if line.startswith("# "):
        fresh = "Unit" in line + pdf.chapter or not pdf.page_no()
        pdf.chapter = line[2:]
        if fresh or pdf.will_page_break(10 * LINE_HEIGHT):
            pdf.add_page()
        pdf.set_font(FONT, "B", 15)
        write_block(pdf, pdf.chapter)
    elif line.startswith("## "):
        if pdf.will_page_break(4 * LINE_HEIGHT):
            pdf.add_page()
        pdf.set_font(FONT, "B", 11.5)
        write_block(pdf, line[3:])
    elif line.startswith("|"):
        pdf.set_font(FONT, "", BODY_SIZE - 1)
        write_row(pdf, line)
    else:
        pdf.set_font(FONT, "", BODY_SIZE)
        marked = line.startswith("- ") or re.match(r"\d+\. ", line) is not None
        write_block(pdf, line, indent=5.0 if marked else 0.0)


def build(source: Path = SOURCE) -> bytes:
    """Return the PDF of a Markdown source, the same bytes for the same text."""
    pdf = ManualPDF(format="A4")
    pdf.set_creation_date(CREATED)
    pdf.set_title("Halden Sound Tidal Station: operations manual")
    pdf.set_author("Halden Sound Tidal Station (fictional)")
    pdf.set_margins(24, 16, 24)
    pdf.set_auto_page_break(True, margin=20)
    for line in source.read_text(encoding="utf-8").splitlines():
        if line.strip():
            write_line(pdf, line)
        elif pdf.page_no():
            pdf.ln(2.4)
    return bytes(pdf.output())


def main() -> None:
    """Write the PDF beside the other sample documents."""
    TARGET.write_bytes(build())
    print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()

"""Reading XLSX and PPTX by `documents.load`, and by markitdown where it is installed; writes converters.json.

    python -m tests.benchmarks.converters

Each conversion runs in a process of its own, on files made here: 20,000 rows and 300 slides. markitdown is not a
dependency, since it loads onnxruntime and pandas for what openpyxl and python-pptx do, and writes one text for a file,
without the numbers of rows that a citation needs.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import openpyxl
import pptx

from tests.benchmarks.results import Row, write

ROWS, SLIDES = 20_000, 300
_RUN = """
import resource, sys, time
began = time.perf_counter()
{imports}
ready = time.perf_counter()
{convert}
done = time.perf_counter()
print(ready - began, done - ready, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
READERS = {
    "documents.load": ("from voicevault_retrievers.documents import load", "load(sys.argv[1], limits=None)"),
    "markitdown": ("from markitdown import MarkItDown", "MarkItDown().convert(sys.argv[1])"),
}


def write_files(folder: Path) -> list[Path]:
    """A workbook and a deck."""
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Prices")
    sheet.append(["name", "price", "note"])
    for at in range(ROWS):
        sheet.append([f"item {at}", at * 1.5, None if at % 3 else "see the manual of the pump"])
    book.save(folder / "a.xlsx")
    deck = pptx.Presentation()
    for at in range(SLIDES):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = f"Slide {at}", "Some text\n" * 8
        slide.notes_slide.notes_text_frame.text = "notes"
    deck.save(str(folder / "a.pptx"))
    return [folder / "a.xlsx", folder / "a.pptx"]


def main() -> None:
    """Write the rows of each file and reader."""
    readers = [name for name in READERS if name == "documents.load" or find_spec(name)]
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for path in write_files(Path(folder)):
            for name in readers:
                imports, convert = READERS[name]
                script = _RUN.format(imports=imports, convert=convert)
                done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
                values = map(float, done.stdout.split())
                metrics = ("seconds of imports", "seconds", "peak MiB")
                rows += [Row(name, path.suffix, metric, value) for metric, value in zip(metrics, values, strict=True)]
    write("converters", rows, ("openpyxl", "python-pptx", *readers[1:]))


if __name__ == "__main__":
    main()

"""What the child process that reads documents costs for clean files, and what hostile ones cost; writes reading.json.

python -m tests.benchmarks.reading

Clean: fresh processes read a folder of Markdown, HTML, DOCX and PDF in equal parts, each file itself and by a child, in
turns; the child's start counts.
Hostile: the seconds until a file is refused, and the child's peak memory.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import docx
from fpdf import FPDF

from tests.benchmarks.results import Row, write

SYSTEM = "voicevault-retrievers"
SIZES, RUNS, SECTIONS = (1, 20, 300), 7, 6
KINDS = ("md", "html", "docx", "pdf")
READ = """
import resource, sys, time
from voicevault_retrievers.documents import LIMITS, _reader, discover, load
def processor(who):
    return sum(resource.getrusage(who)[:2])
free = limited = free_processor = limited_processor = 0.0
for at, (_, path) in enumerate(discover([sys.argv[1]])):
    for limits in ((None, LIMITS), (LIMITS, None))[at % 2]:
        start, before = time.perf_counter(), processor(resource.RUSAGE_SELF)
        load(path, limits=limits)
        taken, worked = time.perf_counter() - start, processor(resource.RUSAGE_SELF) - before
        if limits is None:
            free, free_processor = free + taken, free_processor + worked
        else:
            limited, limited_processor = limited + taken, limited_processor + worked
_reader._POOL.close()
print(free, limited, free_processor, limited_processor + processor(resource.RUSAGE_CHILDREN))
"""
REFUSE = """
import resource, sys, time
from voicevault_retrievers.documents import _reader, load
from voicevault_retrievers.errors import DocumentError
start = time.perf_counter()
try:
    load(sys.argv[1])
    said = "read"
except DocumentError as error:
    said = error
seconds = time.perf_counter() - start
_reader._POOL.close()
print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, said)
"""
WORDS = ["".join(random.Random(at).choices("abcdefghiklmnoprstuvw", k=3 + at % 8)) for at in range(3000)]


def main() -> None:
    """Measure both, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        rows = [*clean(), *hostile()]
    write("reading", rows, [SYSTEM, "pypdf", "beautifulsoup4", "python-docx", "markdown-it-py"])


def clean() -> list[Row]:
    """The median seconds of each folder with and without limits, of the clock and of processors, and their ratios."""
    rows = []
    for size in SIZES:
        folder = Path(f"clean-{size}")
        folder.mkdir()
        for at in range(size):
            clean_file(folder, at)
        runs = [seconds(folder) for _ in range(RUNS)]
        for at, metric in ((0, "seconds"), (2, "processor seconds")):
            free, limited = ([run[at + turn] for run in runs] for turn in (0, 1))
            ratio = statistics.median(two / one for one, two in zip(free, limited, strict=True))
            case = f"{size} clean files"
            rows += [
                Row("in this process", case, f"median {metric}", round(statistics.median(free), 3)),
                Row("in a child process", case, f"median {metric}", round(statistics.median(limited), 3)),
                Row("in a child process", case, f"median ratio of {metric}", round(ratio, 3)),
            ]
    return rows


def seconds(folder: Path) -> list[float]:
    """How long a fresh process takes to read the folder itself, and by a child: by the clock, and by the processors."""
    command = [sys.executable, "-c", READ, str(folder)]
    return list(map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))


def clean_file(folder: Path, at: int) -> None:
    """A file of some pages of words below headings, of the kind whose turn it is."""
    draw = random.Random(at)
    sections = [
        (" ".join(draw.choices(WORDS, k=4)), [" ".join(draw.choices(WORDS, k=60)) + "." for _ in range(4)])
        for _ in range(SECTIONS)
    ]
    kind = KINDS[at % len(KINDS)]
    path = folder / f"{at:03}.{kind}"
    if kind == "md":
        path.write_text("\n\n".join(f"## {head}\n\n" + "\n\n".join(texts) for head, texts in sections))
    elif kind == "html":
        body = "".join(
            f"<h2>{head}</h2>" + "".join(f"<p class='t'>{one}</p>" for one in texts) for head, texts in sections
        )
        path.write_text(f"<!doctype html><html><head><title>{at}</title></head><body>{body}</body></html>")
    elif kind == "docx":
        document = docx.Document()
        for head, texts in sections:
            document.add_heading(head, 2)
            for text in texts:
                document.add_paragraph(text)
        document.save(str(path))
    else:
        pdf = FPDF()
        pdf.set_font("helvetica", size=11)
        for head, texts in sections:
            pdf.add_page()
            pdf.start_section(head)
            pdf.multi_cell(0, text="\n".join([head, *texts]))
        pdf.output(str(path))


def nested(path: Path) -> None:
    path.write_text("<div>" * 14_500 + "x<br>" * 17_500)


def attributes(path: Path) -> None:
    path.write_text("<p " + "ab " * 5_000_000 + ">text")


def quoted_attributes(path: Path) -> None:
    path.write_text("<p q='>' " + "ab " * 5_000_000 + ">text")


def tags(path: Path) -> None:
    path.write_text("<b>x</b>" * 240_000)


def lying(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("word/document.xml", "w", force_zip64=True) as member:
            for _ in range(2100):
                member.write(bytes(1 << 20))
        archive.infolist()[0].file_size = 1000


HOSTILE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "160 KB of nested <div> and <br>, which is read": ("nested.html", nested),
    "15 MB of attributes": ("attributes.html", attributes),
    "15 MB of attributes behind a quoted >": ("quoted.html", quoted_attributes),
    "480,000 tags, which is read": ("tags.html", tags),
    "a DOCX of 2.1 GB that declares 1 KB": ("lying.docx", lying),
}


def hostile() -> list[Row]:
    """The seconds and the child's peak memory until each file is refused, or read."""
    rows = []
    for case, (name, make) in HOSTILE.items():
        make(Path(name))
        done = subprocess.run([sys.executable, "-c", REFUSE, name], capture_output=True, text=True, check=True)
        taken, peak, said = done.stdout.split(maxsplit=2)
        if said.startswith("read") != ("read" in case):
            raise ValueError(f"{case}: {said}")
        rows += [Row(SYSTEM, case, "seconds", round(float(taken), 2)), Row(SYSTEM, case, "peak MiB", int(peak))]
    return rows


if __name__ == "__main__":
    main()

"""Documents changed at random: each is read or named, none stops the others, and none exceeds the limits.

HYPOTHESIS_PROFILE=nightly reads 200 of each type.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import docx
import pytest

from tests.docs.mixed_folder import PLAIN
from tests.helpers import examples
from tests.unit.documents.test_documents import HTML, MARKDOWN, pdf
from voicevault_retrievers.documents import ReadingLimits, _reader, read

pytestmark = pytest.mark.program

MUTANTS = examples(0.2).max_examples
LIMITS = ReadingLimits(seconds=30, memory_bytes=512 << 20, output_bytes=8 << 20)
LONGEST = 1 << 20


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The data after one to four changes: bytes flipped, a piece cut out, repeated, moved or drawn at random."""
    for _ in range(draw.randint(1, 4)):
        start, end = sorted(draw.choices(range(len(data) + 1), k=2))
        piece = data[start:end]
        match draw.choice(["flip", "cut", "end", "repeat", "move", "random"]):
            case "flip":
                changed = bytearray(data)
                for at in draw.choices(range(len(data)), k=draw.choice([1, 8, 64])) if data else ():
                    changed[at] ^= 1 << draw.randrange(8)
                data = bytes(changed)
            case "cut":
                data = data[:start] + data[end:]
            case "end":
                data = data[:end]
            case "repeat":
                piece = piece[: draw.choice([1, 5, 50, 5000])]
                times = min(draw.choice([2, 100, 10_000, 100_000]), LONGEST // max(1, len(piece)))
                data = data[:start] + piece * times + data[end:]
            case "move":
                at = draw.randrange(len(data) + 1)
                data = data[:at] + piece + data[at:]
            case "random":
                data = data[:start] + draw.randbytes(min(len(piece), 200)) + data[end:]
        data = data[: 4 * LONGEST]
    return data


def mutated_archive(data: bytes, draw: random.Random, main: str) -> bytes:
    """An archive in which one of the parts has changed, often the main one, or the archive itself."""
    if draw.random() < 0.3:
        return mutated(data, draw)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        changed = draw.choice([main, main, *source.namelist()])
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, mutated(content, draw) if name == changed else content)
    return made.getvalue()


def plain(folder: Path, suffix: str) -> bytes:
    """A plain document of the type."""
    path = folder / f"whole{suffix}"
    PLAIN[suffix][1](path, random.Random(1))
    return path.read_bytes()


def a_docx(folder: Path) -> bytes:
    document = docx.Document()
    document.add_heading("Heading", 1)
    document.add_paragraph("The pump.")
    document.add_table(2, 2).cell(0, 0).text = "cell"
    document.save(str(folder / "whole.docx"))
    return (folder / "whole.docx").read_bytes()


KINDS: dict[str, Callable[[Path], bytes]] = {
    "pdf": lambda folder: pdf(folder / "whole.pdf", "one", "two", outline={1: "First"}).read_bytes(),
    "docx": a_docx,
    "html": lambda _: HTML.encode(),
    "md": lambda _: MARKDOWN.encode(),
    "txt": lambda _: "The pump, and\r\nthe välve.\n\n".encode() * 20,
    "csv": lambda _: b'name;value\n"a;b";1\nc;2\n' * 20,
    **{
        suffix[1:]: partial(plain, suffix=suffix)
        for suffix in (".xlsx", ".pptx", ".eml", ".json", ".jsonl", ".py", ".js")
    },
}
MAIN = {"docx": "word/document.xml", "xlsx": "xl/worksheets/sheet1.xml", "pptx": "ppt/slides/slide1.xml"}
"""The archives, each with the part that has the text."""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[_reader._Pool]:
    own = _reader._Pool()
    monkeypatch.setattr(_reader, "_POOL", own)
    yield own
    own.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_mutant_is_read_or_named_and_none_stops_the_rest(kind: str, tmp_path: Path, pool: _reader._Pool) -> None:
    whole = KINDS[kind](tmp_path)
    folder = tmp_path / "mutants"
    folder.mkdir()
    for seed in range(MUTANTS):
        change = partial(mutated_archive, main=MAIN[kind]) if kind in MAIN else mutated
        (folder / f"{seed:03}.{kind}").write_bytes(change(whole, random.Random(seed)))
    (folder / "last.txt").write_text("read at last")
    found = read([folder], limits=LIMITS)
    named = [file.source_file for file in found.skipped]
    indexed = {chunk.metadata["source_file"] for chunk in found.chunks}
    assert sorted({*named, *indexed}) == sorted(path.name for path in folder.iterdir())
    assert not indexed.intersection(named)
    assert "last.txt" in indexed
    assert all(file.reason for file in found.skipped)
    assert pool._all == set(pool._idle)
    assert len(pool._idle) == 1

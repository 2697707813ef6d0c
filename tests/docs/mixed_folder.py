"""A folder of 500 mixed files, and what `voicevault index` says of it.

`python -m tests.docs.mixed_folder` writes that into docs/how-to/knowledge-bases.md. The files are of all types that are
read, and of others; some are broken, hostile, in other encodings, hidden, ignored or links. The same seed makes the
same folder.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from zipfile import ZIP_DEFLATED, ZipFile

import docx
import openpyxl
import pptx
from click.testing import CliRunner, Result
from fpdf import FPDF

from tests.docs.limits import ROOT
from tests.helpers import HashEmbedder
from voicevault_retrievers.cli import index
from voicevault_retrievers.cli.commands import voicevault

PAGE = ROOT / "docs" / "how-to" / "knowledge-bases.md"
FILES, SEED = 500, 7
WORDS = "pump valve oil hall key green reset pressure bar filter shift report order spare part leak seal motor".split()
GERMAN = "Grüße aus Köln: die Größe der Dichtung zählt, Öl und Kühlung für die Anlage prüfen, Käse später."
JAPANESE = "ポンプは緑のキーでリセットします。バルブは4バールで開きます。東京の工場で使用されています。"

Make = Callable[[Path, random.Random], object]


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(6, 20))).capitalize() + "."


def _text(path: Path, rng: random.Random) -> None:
    path.write_text("\n\n".join(_sentence(rng) for _ in range(3)), "utf-8")


def _markdown(path: Path, rng: random.Random) -> None:
    path.write_text(
        f"# {rng.choice(WORDS)}\n\n{_sentence(rng)}\n\n## {rng.choice(WORDS)}\n\n{_sentence(rng)}\n", "utf-8"
    )


def _html(path: Path, rng: random.Random) -> None:
    path.write_text(f"<title>{rng.choice(WORDS)}</title><h1>Plan</h1><p>{_sentence(rng)}</p>", "utf-8")


def _pdf(path: Path, rng: random.Random, text: bool = True) -> None:
    document = FPDF()
    document.set_font("helvetica", size=12)
    for _ in range(2):
        document.add_page()
        if text:
            document.multi_cell(0, text=_sentence(rng))
    document.output(str(path))


def _docx(path: Path, rng: random.Random) -> None:
    document = docx.Document()
    document.add_heading(rng.choice(WORDS))
    document.add_paragraph(_sentence(rng))
    document.save(str(path))


def _table(rng: random.Random) -> list[list[str]]:
    return [["part", "hall", "note"], *([rng.choice(WORDS), str(rng.randint(1, 9)), _sentence(rng)] for _ in range(3))]


def _csv(path: Path, rng: random.Random) -> None:
    delimiter = "\t" if path.suffix == ".tsv" else rng.choice(",;")
    path.write_text("\n".join(map(delimiter.join, _table(rng))), "utf-8")


def _xlsx(path: Path, rng: random.Random) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Stock")
    for row in _table(rng):
        sheet.append(row)
    book.save(path)


def _pptx(path: Path, rng: random.Random) -> None:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = rng.choice(WORDS), _sentence(rng)
    deck.save(str(path))


def _eml(path: Path, rng: random.Random) -> None:
    message = EmailMessage()
    message["From"], message["Subject"] = f"{rng.choice(WORDS)}@example.org", rng.choice(WORDS)
    message["Date"] = "Fri, 03 May 2024 08:30:00 +0200"
    message.set_content(_sentence(rng))
    path.write_bytes(bytes(message))


def _json(path: Path, rng: random.Random) -> None:
    records = [{"id": at, "text": _sentence(rng)} for at in range(3)]
    text = json.dumps(records) if path.suffix == ".json" else "\n".join(map(json.dumps, records))
    path.write_text(text, "utf-8")


def _python(path: Path, rng: random.Random) -> None:
    path.write_text(f'def {rng.choice(WORDS)}() -> None:\n    """{_sentence(rng)}"""\n', "utf-8")


def _javascript(path: Path, rng: random.Random) -> None:
    path.write_text(f"export function {rng.choice(WORDS)}() {{\n  // {_sentence(rng)}\n}}\n", "utf-8")


def _bytes(data: bytes) -> Make:
    return lambda path, rng: path.write_bytes(data)


def _bomb(path: Path, rng: random.Random) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", bytes(64 << 20))


PLAIN: dict[str, tuple[int, Make]] = {
    ".md": (70, _markdown), ".txt": (60, _text), ".html": (40, _html), ".pdf": (30, _pdf), ".docx": (20, _docx),
    ".csv": (40, _csv), ".tsv": (10, _csv), ".xlsx": (20, _xlsx), ".pptx": (15, _pptx), ".eml": (40, _eml),
    ".json": (30, _json), ".jsonl": (20, _json), ".py": (40, _python), ".js": (20, _javascript),
}  # fmt: skip
ODD: dict[str, Make] = {
    "köln.txt": _bytes(GERMAN.encode("latin-1")),
    "köln.html": _bytes(f"<p>{GERMAN}</p>".encode("cp1252")),
    "tokyo.csv": _bytes(f"part,note\npump,{JAPANESE}\n".encode("shift_jis")),
    "short.txt": _bytes(b"caf\xe9"),
    "scan.pdf": lambda path, rng: _pdf(path, rng, text=False),
    "cut.pdf": _bytes(b"%PDF-1.7\n1 0 obj\n<<"),
    "empty.md": _bytes(b""),
    "old.xlsx": _bytes(b"\xd0\xcf\x11\xe0"),
    "bomb.docx": _bomb,
    "deep.json": _bytes(b"[" * 100_000),
    "open.html": _bytes(b"<!--" * 20_000),
    "LICENSE": _text,
    ".DS_Store": _bytes(b"\0"),
    ".git/config": _text,
    ".gitignore": _bytes(b"node_modules/\n*.tmp\n"),
    "a.tmp": _text,
    "node_modules/a.js": _javascript,
    "node_modules/b.js": _javascript,
}
LINKS: dict[str, Callable[[Path, Path], None]] = {
    "again.md": lambda path, root: os.link(root / "a" / "0.md", path),
    "link.md": lambda path, root: path.symlink_to(root / "a" / "0.md"),
    "cycle": lambda path, root: path.symlink_to(root, target_is_directory=True),
    "gone.txt": lambda path, root: path.symlink_to(root / "none.txt"),
    "out.txt": lambda path, root: path.symlink_to(ROOT / "README.md"),
}


def make(root: Path) -> None:
    """Write the folder: FILES files and links."""
    rng = random.Random(SEED)
    for folder in ("a", "b/c", ".git", "node_modules"):
        (root / folder).mkdir(parents=True)
    for suffix, (count, write) in PLAIN.items():
        for at in range(count):
            write(root / ("a" if at % 2 == 0 else "b/c") / f"{at}{suffix}", rng)
    for name, write in ODD.items():
        write(root / name, rng)
    for name, link in LINKS.items():
        link(root / name, root)
    for at in range(FILES - sum(1 for _ in entries(root))):
        (root / "a" / f"{at}.png").write_bytes(rng.randbytes(100))


def entries(root: Path) -> Iterator[str]:
    """Yield the paths of all files and links below a folder."""
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*files, *links):
            yield Path(folder, name).relative_to(root).as_posix()


def indexed(root: Path, bases: Path, *options: str) -> Result:
    """Run `voicevault index` on the folder; vectors are of hashes, as what it says does not depend on them."""
    with patch.object(index, "load_embedder", lambda *_: HashEmbedder()):
        words = ["index", str(root), "--kb", "plant", "--root", str(bases), *options]
        return CliRunner().invoke(voicevault, words, catch_exceptions=False)


def transcript() -> str:
    """The command and what it says, as the page shows it."""
    with TemporaryDirectory() as folder:
        make(root := Path(folder) / "share")
        lines = indexed(root, Path(folder) / "kbs").output.splitlines(keepends=True)
    said = "".join(line for line in lines if not re.match(r"\d+%: ", line))  # a slow machine also tells the progress
    return f"```text\n$ voicevault index share --kb plant\n{said}```\n"


def with_transcript(page: str, told: str) -> str:
    """The page with this transcript."""
    return re.sub(r"```text\n\$ voicevault index share .*?```\n", lambda _: told, page, flags=re.DOTALL)


def main() -> None:
    """Write the transcript into the page."""
    PAGE.write_text(with_transcript(PAGE.read_text("utf-8"), transcript()), "utf-8")


if __name__ == "__main__":
    main()

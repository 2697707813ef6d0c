"""Text in other encodings than UTF-8 is read, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from voicevault_retrievers.documents import Note, load, read
from voicevault_retrievers.errors import DocumentError

pytestmark = pytest.mark.program  # a child process reads files

GERMAN = "Grüße aus Köln: die Größe zählt nicht. Über Käse lässt sich streiten, Äpfel kosten viel."
FRENCH = "L'été dernier, à la plage, nous avons mangé des crêpes près de l'hôtel où le garçon était né."
JAPANESE = "ポンプは緑のキーでリセットします。バルブは4バールで開きます。東京の工場で使用されています。"
RUSSIAN = "Насос сбрасывается зелёной клавишей. Клапан открывается при давлении 4 бар."


@pytest.mark.parametrize("suffix", [".txt", ".md", ".html", ".py"])
@pytest.mark.parametrize(
    ("text", "encoding", "told"),
    [
        (GERMAN, "latin-1", "cp1252"),
        (FRENCH, "cp1252", "cp1252"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "euc_jp", "euc_jp"),
        (RUSSIAN, "cp1251", "cp1251"),
        (RUSSIAN, "koi8_r", "koi8_r"),
        (GERMAN, "utf-16-le", "utf-16-le"),
        (FRENCH, "utf-16-be", "utf-16-be"),
    ],
)
def test_an_encoding_is_detected_and_told(tmp_path: Path, suffix: str, text: str, encoding: str, told: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes((f"# {text}\n" if suffix == ".py" else text).encode(encoding))
    document = load(path)
    assert text in document.parts[0].text
    assert document.notes == (f"read as {told}",)
    assert read([path]).notes == (Note(f"a{suffix}", f"read as {told}"),)


def test_of_encodings_for_latin_letters_it_is_that_of_browsers(tmp_path: Path) -> None:
    path = tmp_path / "fr.txt"
    path.write_bytes("café fermé le lundi, déjà vu à la gare\n".encode("latin-1"))
    document = load(path)
    assert document.parts[0].text == "café fermé le lundi, déjà vu à la gare\n"
    assert document.notes == ("read as cp1252, which may be cp1250, cp1257",)


@pytest.mark.parametrize("data", [GERMAN.encode(), "\ufeffText".encode("utf-16"), b"plain", "é".encode()])
def test_nothing_is_guessed_where_utf8_or_a_mark_tells(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    assert load(tmp_path / "a.txt").notes == ()


def test_a_wrong_declaration_is_corrected_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_bytes(f"<meta charset='utf-8'><p>{GERMAN}</p>".encode("cp1252"))
    (tmp_path / "b.html").write_bytes(f"<meta charset='ascii'><p>{GERMAN}</p>".encode())
    assert [(load(path).parts[0].text, load(path).notes) for path in sorted(tmp_path.iterdir())] == [
        (GERMAN, ("read as cp1252",)),
        (GERMAN, ("read as utf-8",)),
    ]


@pytest.mark.parametrize("data", [b"caf\xe9", bytes(range(128, 256))])
def test_what_cannot_be_told_is_an_error_with_a_remedy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(
        DocumentError, match=r"a.txt is not utf-8 text \(byte 0x.. at offset .\); it .*: save it as UTF-8"
    ):
        load(tmp_path / "a.txt")

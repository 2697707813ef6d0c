"""`voicevault index`, again and again: what is read, what stays, what goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import Counting, HashEmbedder
from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.cli import index
from voicevault_retrievers.core import prometheus
from voicevault_retrievers.documents import ReadingLimits, _reader
from voicevault_retrievers.store import KnowledgeBase, indexing
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.text import Analyzer

pytestmark = pytest.mark.program  # a child process reads files


class Interrupted(Counting):
    """Ctrl-C comes when it is asked for texts beyond `patience`."""

    patience = 1000

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if len(self.texts) + len(texts) > self.patience:
            raise KeyboardInterrupt
        return super().embed_documents(texts)


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    counting = Interrupted()
    monkeypatch.setattr(index, "load_embedder", lambda *_: counting)
    return counting


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were given to a child process."""
    names: list[str] = []
    real = _reader._Pool.answer

    def counted(pool: _reader._Pool, asked: Mapping[str, Any], limits: ReadingLimits) -> dict[str, Any]:
        names.append(Path(asked["path"]).name)
        return real(pool, asked, limits)

    monkeypatch.setattr(_reader._Pool, "answer", counted)
    return names


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (folder / name).write_text(f"the pump of {name}")
    return folder


@pytest.fixture
def run(tmp_path: Path, embedder: Interrupted) -> Run:
    return partial(ran, "index", "--kb", "kb", "--root", tmp_path / "kbs", "--model", "hash")


def _base(tmp_path: Path) -> KnowledgeBase:
    return KnowledgeBase.open("kb", root=tmp_path / "kbs", embedder=HashEmbedder())


def _texts(tmp_path: Path) -> list[str]:
    base = _base(tmp_path)
    assert base.verify() == []
    return sorted(chunk.text for chunk in base)


def test_only_what_has_changed_is_read_and_embedded(
    run: Run, docs: Path, tmp_path: Path, parsed: list[str], embedder: Interrupted
) -> None:
    said = run(docs).output
    assert "kb: 3 files read, 0 unchanged; 3 chunks added, 0 replaced, 0 removed; 3 in all" in said
    assert set(_base(tmp_path).sources) == {"a.txt", "b.txt", "sub/c.txt"}
    (docs / "a.txt").write_text("the new pump of a.txt")
    (docs / "d.txt").write_text("the pump of d.txt")
    parsed.clear()
    embedder.texts.clear()
    said = run(docs).output
    assert "kb: 2 files read, 2 unchanged; 2 chunks added, 0 replaced, 1 removed; 4 in all" in said
    assert parsed == ["a.txt", "d.txt"]
    assert embedder.texts == ["the new pump of a.txt", "the pump of d.txt"]
    assert "the pump of a.txt" not in _texts(tmp_path)
    generation = _base(tmp_path).manifest.generation, (tmp_path / "kbs" / "kb" / "log-000000").stat().st_size
    assert "0 files read, 4 unchanged; 0 chunks added" in run(docs).output
    assert generation == (
        _base(tmp_path).manifest.generation,
        (tmp_path / "kbs" / "kb" / "log-000000").stat().st_size,
    )
    assert "4 files read, 0 unchanged; 0 chunks added" in run(docs, "--max-chars", 500).output


def test_an_interrupted_run_goes_on_where_it_was(
    run: Run, docs: Path, tmp_path: Path, parsed: list[str], embedder: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "COMMIT_AT", 2)
    for at in range(7):
        (docs / f"{at}.txt").write_text(f"valve {at}")
    embedder.patience = 5
    assert "kb holds 4 chunks; the same command goes on from here" in run(docs, code=130).output
    assert len(_texts(tmp_path)) == 4
    embedder.patience = 1000
    embedder.texts.clear()
    parsed.clear()
    assert "6 files read, 4 unchanged; 6 chunks added, 0 replaced, 0 removed; 10 in all" in run(docs).output
    assert len(embedder.texts) == len(parsed) == len(_texts(tmp_path)) - 4 == 6


def test_a_file_that_is_gone_is_named_and_removed_when_asked(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs)
    (docs / "b.txt").unlink()
    said = run(docs).output
    assert "gone b.txt" in said
    assert "0 removed; 3 in all" in said
    assert "gone" not in run(docs / "sub").output
    said = run(docs, "--prune").output
    assert "1 removed; 2 in all" in said
    assert set(_base(tmp_path).sources) == {"a.txt", "sub/c.txt"}
    (docs / "sub" / "c.txt").unlink()
    (docs / "sub").rmdir()
    assert "1 removed; 1 in all" in run(docs / "sub", "--prune").output
    assert "does not exist" in run(docs / "never", code=1).output
    assert _texts(tmp_path) == ["the pump of a.txt"]


def test_a_file_that_cannot_be_read_keeps_what_is_there(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs)
    before = _texts(tmp_path)
    (docs / "a.txt").write_bytes(b"\0\0")
    (docs / "b.txt").write_bytes(b"")
    said = run(docs).output
    assert "skipped a.txt: " in said
    assert "skipped b.txt: " in said
    assert "0 files read, 1 unchanged; 0 chunks added, 0 replaced, 0 removed; 3 in all" in said
    assert _texts(tmp_path) == before
    (docs / "a.txt").write_text("whole again")
    assert "1 files read, 1 unchanged" in run(docs).output
    assert "nothing of what was given could be read" in run(docs / "b.txt", code=1).output


def test_a_file_keeps_its_name_when_it_is_read_from_another_folder(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs)
    (docs / "sub" / "c.txt").write_text("another pump")
    for path in (docs / "sub", docs / "sub" / "c.txt", docs):
        run(path, "--prune")
        assert sorted(_base(tmp_path).sources) == ["a.txt", "b.txt", "sub/c.txt"]
        assert _texts(tmp_path) == ["another pump", "the pump of a.txt", "the pump of b.txt"]


def test_another_file_of_the_same_name_does_not_take_its_place(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs)
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("of another folder")
    assert "has the same name as" in run(other, code=1).output
    assert "the pump of a.txt" in _texts(tmp_path)
    (other / "a.txt").write_text("the pump of a.txt")
    assert "0 files read, 1 unchanged" in run(other).output
    (docs / "a.txt").rename(other / "a.txt")
    assert "1 files read, 0 unchanged; 0 chunks added" in run(other).output
    assert _base(tmp_path).sources["a.txt"].path == str(other / "a.txt")


def test_a_base_keeps_what_it_was_made_with(docs: Path, tmp_path: Path, run: Run, embedder: Interrupted) -> None:
    run(docs / "a.txt", "--language", "de", "--vectors", "int8")
    base = _base(tmp_path)
    assert (base.analyzer, base.manifest.vectors) == (Analyzer("de"), "int8")
    run(docs / "b.txt")
    assert "made with Analyzer(language='de'" in run(docs, "--language", "en", code=1).output
    assert "made with vectors='int8'" in run(docs, "--vectors", "exact", code=2).output
    assert len(_texts(tmp_path)) == 2


def test_the_language_none_makes_a_base_without_stems(
    docs: Path, tmp_path: Path, run: Run, embedder: Interrupted
) -> None:
    (docs / "a.txt").write_text("The pumps of the GPT-4 plants")
    run(docs / "a.txt", "--language", "none")
    base = _base(tmp_path)
    assert base.analyzer == Analyzer(language=None)
    assert [base.bm25().search(word, 5).ids != () for word in ("pumps", "pump", "the", "gpt", "4")] == [
        True, False, True, True, True,
    ]  # fmt: skip
    assert [part.term for part in base.bm25().explain("GPT-4 plants", base.ids()[0])] == ["gpt", "4", "plants"]
    assert "1 unchanged" in run(docs / "a.txt").output
    assert "made with Analyzer(language=None" in run(docs / "a.txt", "--language", "en", code=1).output
    told = " ".join(run("--help").output.split())
    assert "none: words as they are, lowercase, not stemmed" in told


def test_what_cannot_be_indexed_makes_no_base(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "does not exist" in run(tmp_path / "none", code=1).output
    assert "no files of a known type" in run(tmp_path / "empty", code=1).output
    assert not (tmp_path / "kbs").exists()


def test_children_longer_than_parents_make_no_base(run: Run, docs: Path, tmp_path: Path) -> None:
    done = run(docs, "--parents", 300, code=2)
    assert "are at most as long as --parents" in done.output
    assert not (tmp_path / "kbs").exists()


def test_another_writer_is_named_and_waited_for(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs / "a.txt")
    lock = Lock(tmp_path / "kbs" / "kb" / "lock")
    said = run(docs, code=1).output
    assert "is open for writing in process" in said
    assert "on the command line: --wait SECONDS" in said
    assert "0.05 s were not enough" in run(docs, "--wait", 0.05, code=1).output
    lock.release()
    run(docs, "--wait", 0.05)


def test_what_is_not_read_is_told_by_type_and_reason(run: Run, docs: Path) -> None:
    for at in range(5):
        (docs / f"{at}.png").write_bytes(b"x")
    (docs / ".gitignore").write_text("*.tmp")
    (docs / "x.tmp").write_text("x")
    (docs / "zero.txt").write_bytes(b"")
    (docs / "again.txt").symlink_to(docs / "a.txt")
    (docs / "köln.txt").write_bytes("Grüße aus Köln: Käse, Äpfel und Öl für den Größenvergleich.".encode("latin-1"))
    (docs / "sub" / "data.json").write_text('[{"id": 1, "text": "a valve"}, {"id": 2, "text": "an oil"}]')
    said = run(docs, "--exclude", "b.*").output.splitlines()
    assert (
        said[-9:]
        == [
            "skipped zero.txt: is empty (0 bytes): get a whole copy of it",
            "not read 1: --exclude names it",
            "not read 1: hidden",
            "not read 1: ignored by .gitignore",
            "not read 1: second name of a file (again.txt: a.txt)",
            "not read 5: unknown type .png (0.png, 1.png, 2.png and 2 more; --verbose names all)",
            "note read as cp1252: 1 file (köln.txt)",
            "kb: 4 files read, 0 unchanged; 5 chunks added, 0 replaced, 0 removed; 5 in all; 10 not read",
        ][-9:]
    )
    named = run(docs, "--exclude", "b.*", "--verbose").output
    assert "not read 4.png: unknown type .png" in named
    assert "not read x.tmp: ignored by .gitignore" in named
    assert "not read" not in run(docs, "--exclude", "*.png", "--exclude", "again.txt", "-q").output
    told = json.loads(run(docs, "--json", "--text-field", "text").stdout)
    assert (told["read"], told["unchanged"], told["chunks"]) == (5, 0, 6)
    assert {"source_file": "0.png", "reason": "unknown type .png", "why": "unknown type"} in told["skipped"]
    assert told["file_notes"] == [{"source_file": "köln.txt", "text": "read as cp1252"}]


def test_what_rules_leave_out_is_not_pruned(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs)
    (docs / ".gitignore").write_text("sub/")
    said = run(docs, "--include", "a.*", "--prune").output
    assert "0 files read, 1 unchanged; 0 chunks added, 0 replaced, 0 removed; 3 in all" in said
    (docs / "sub" / "c.txt").unlink()
    assert "1 removed; 2 in all" in run(docs, "--include", "a.*", "--prune").output
    assert set(_base(tmp_path).sources) == {"a.txt", "b.txt"}


def test_a_second_name_of_an_indexed_file_changes_nothing(run: Run, docs: Path, tmp_path: Path) -> None:
    run(docs / "b.txt")
    (docs / "0.txt").hardlink_to(docs / "b.txt")
    assert "2 files read, 1 unchanged" in run(docs).output
    assert set(_base(tmp_path).sources) == {"a.txt", "b.txt", "sub/c.txt"}


def test_quiet_says_only_what_went_wrong(run: Run, docs: Path) -> None:
    assert run(docs, "--quiet").output == ""
    (docs / "a.txt").write_bytes(b"\0\0")
    (docs / "b.txt").unlink()
    assert [line.split(":")[0] for line in run(docs, "-q").output.splitlines()] == ["skipped a.txt", "gone b.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="no file has such a name there")
def test_what_a_terminal_would_obey_is_written_out(run: Run, docs: Path) -> None:
    name = "\x1b[2Jb\n\u202efdp.txt"
    (docs / name).write_bytes(b"\0\0")
    said = run(docs).output
    assert r"skipped \x1b[2Jb\n\u202efdp.txt: " in said
    assert "\x1b" not in said
    assert "\u202e" not in said
    (docs / name).write_text("a pump")
    run(docs)
    (docs / name).unlink()
    assert r"gone \x1b[2Jb\n\u202efdp.txt: " in run(docs).output


def test_metrics_are_served_while_files_are_read(
    run: Run, docs: Path, embedder: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    scraped: list[str] = []

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        scraped.extend(served)
        return HashEmbedder(16).embed_documents(texts)

    @contextmanager
    def serve(port: int) -> Iterator[Any]:
        served.append(f"port {port}")
        yield SimpleNamespace(url="http://127.0.0.1:9/metrics")
        served.append("ends")

    monkeypatch.setattr(prometheus, "serve_prometheus", serve)
    monkeypatch.setattr(embedder, "embed_documents", embed)
    assert "metrics: http://127.0.0.1:9/metrics" in run(docs, "--metrics-port", 9464).output
    assert scraped == ["port 9464"]
    assert served[-1] == "ends"
    assert "metrics" not in run(docs).output
    assert "Invalid value for '--metrics-port'" in run(docs, "--metrics-port", 65536, code=2).output

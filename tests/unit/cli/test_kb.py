"""`voicevault kb`: what each command says, does and refuses, and its exit code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.cli import kb as commands
from voicevault_retrievers.cli.commands import voicevault
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase, manifest
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.repair import problems
from voicevault_retrievers.text import CustomAnalyzer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two bases, `plant` with vectors and a deleted chunk, `bare` without; a folder that is none; a file."""
    root = tmp_path / "kbs"
    with KnowledgeBase.create("plant", root=root, embedder=HashEmbedder()) as kb:
        kb.add([Chunk("a", "the pump hums"), Chunk("b", "the valve"), Chunk("c", "gone")])
        kb.compact()
        kb.delete(["c"])
    with KnowledgeBase.create("bare", root=root) as kb:
        kb.add([Chunk("a", "an idle turbine")])
    (root / "other").mkdir()
    (root / "other" / "thesis.docx").write_text("years of work")
    (root / "file").write_text("no folder")
    return root


@pytest.fixture
def run(root: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(commands, "load_embedder", lambda *_: HashEmbedder())
    return lambda *words, **options: ran("kb", *words, "--root", root, **options)


def _damage(folder: Path) -> None:
    path = next(folder.glob("seg-*/vectors.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def test_list_names_bases_and_nothing_else(run: Run, root: Path) -> None:
    sizes = {name: KnowledgeBase.open(name, root=root).stats().size for name in ("bare", "plant")}
    told = json.loads(run("list", "--json").stdout)
    assert told == {
        "version": 1,
        "kbs": [
            {"name": "bare", "chunks": 1, "size": sizes["bare"]},
            {"name": "plant", "chunks": 2, "size": sizes["plant"]},
        ],
    }
    shown = run("list").stdout
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["bare", "1"], ["plant", "2"]]
    _damage(root / "plant")
    told = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in told["kbs"] if "error" in entry] == ["plant"]
    assert "There are no knowledge bases in" in ran("kb", "list", "--root", root / "none").output


def test_stats_are_those_of_the_base(run: Run, root: Path) -> None:
    told = json.loads(run("stats", "plant", "--json").stdout)
    assert (told["version"], told["chunks"], told["deleted"], told["dimension"]) == (1, 2, 1, 16)
    assert told["size"] == KnowledgeBase.open("plant", root=root).stats().size
    assert "chunks: 2\n" in run("stats", "plant").stdout
    assert "known: bare, other, plant" in run("stats", "missing", code=2).output


def test_verify_says_what_is_wrong_and_exits_with_1(run: Run, root: Path) -> None:
    assert run("verify", "plant").stdout == "plant: all is sound\n"
    _damage(root / "plant")
    done = run("verify", "plant", code=1)
    assert "vectors.npy has changed" in done.stdout
    assert "manifest.json is missing" in run("verify", "other", code=1).stdout
    run("verify", "missing", code=2)


def test_repair_makes_the_index_again(run: Run, root: Path) -> None:
    (next((root / "plant").glob("seg-*")) / "terms.npy").unlink()
    assert "voicevault kb repair" in run("stats", "plant", code=1).output
    assert run("repair", "plant").stderr == "plant: 2 chunks indexed again\n"
    assert "no knowledge base 'missing'" in run("repair", "missing", code=2).stderr
    assert KnowledgeBase.open("plant", root=root).verify() == []


def test_compact_leaves_nothing_of_what_was_deleted(run: Run, root: Path) -> None:
    assert "MB now" in run("compact", "plant").stderr
    stats = KnowledgeBase.open("plant", root=root).stats()
    assert (stats.chunks, stats.segments, stats.deleted) == (2, 1, 0)
    lock = Lock(root / "plant" / "lock")
    assert "is open for writing" in run("compact", "plant", code=1).output
    lock.release()


@pytest.mark.parametrize("words", [(), ("--no-vectors",)])
def test_what_is_exported_is_imported(run: Run, root: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    piped = run("export", "plant", *words)
    assert "plant: 2 chunks exported" in piped.stderr
    file = tmp_path / "plant.jsonl"
    run("export", "plant", "-o", str(file), *words)
    assert file.read_bytes() == piped.stdout_bytes
    assert (b'"vector"' in file.read_bytes()) is (words == ())
    assert "2 chunks imported\n" in run("import", str(file), "--kb", "one", "--model", "hash").stderr
    assert "2 chunks imported\n" in run("import", "-", "--kb", "two", "--model", "x", given=file.read_bytes()).stderr
    found = [
        KnowledgeBase.open(name, root=root, embedder=HashEmbedder()).dense().search("the pump")
        for name in ("plant", "one", "two")
    ]
    assert len({tuple((hit.id, hit.score) for hit in ranking) for ranking in found}) == 1
    file.write_bytes(file.read_bytes()[:-10])
    assert "it was cut" in run("import", str(file), "--kb", "cut", "--model", "hash", code=1).output
    assert not (root / "cut").exists()


def test_a_base_of_voicevault_is_imported(run: Run, root: Path, tmp_path: Path) -> None:
    bm25 = pytest.importorskip("rank_bm25").BM25Okapi
    texts = {"x": "the pump hums", "y": "an idle turbine", "z": "hot oil"}
    folder = tmp_path / "old"
    folder.mkdir()
    data = {
        "bm25": bm25([text.split() for text in texts.values()]),
        "doc_ids": list(texts),
        "documents": list(texts.values()),
        "metadatas": [{"page": at} for at in range(3)],
    }
    (folder / "bm25.pkl").write_bytes(pickle.dumps(data))
    said = run("import", "--voicevault", str(folder), "--kb", "new", "--language", "en").stderr
    assert "new: 3 chunks imported, for keywords only\n" in said
    assert KnowledgeBase.open("new", root=root).bm25().search("pump").ids == ("x",)
    assert "`voicevault kb export new -o new.jsonl`, then `voicevault kb import new.jsonl --kb NEW --model" in said
    file = str(tmp_path / "new.jsonl")
    run("export", "new", "-o", file)
    assert "full: 3 chunks imported\n" in run("import", file, "--kb", "full", "--model", "hash").stderr
    assert KnowledgeBase.open("full", root=root, embedder=HashEmbedder()).dense().search(texts["y"], 1).ids == ("y",)


def test_import_takes_one_source_and_no_base_that_is_there(run: Run, tmp_path: Path) -> None:
    for words in ((), ("file", "--voicevault", "folder")):
        assert "give either a FILE" in run("import", *words, "--kb", "new", code=2).output
    file = tmp_path / "bare.jsonl"
    run("export", "bare", "-o", str(file))
    assert "is there already" in run("import", str(file), "--kb", "bare", code=2).output
    assert "cannot be read" in run("import", str(tmp_path / "none"), "--kb", "new", code=1).output


def test_delete_asks_and_removes_a_base_only(run: Run, root: Path) -> None:
    before = sorted(root.rglob("*"))
    assert "Aborted" in run("delete", "plant", code=1, given="n\n").output
    assert "is not a knowledge base" in run("delete", "other", "--yes", code=2).output
    for name in ("missing", "../kbs", ".", "file"):
        run("delete", name, "--yes", code=2)
    lock = Lock(root / "bare" / "lock")
    assert "is open for writing" in run("delete", "bare", "--yes", code=1).output
    lock.release()
    assert sorted(root.rglob("*")) == before
    assert str(root / "plant") in run("delete", "plant", given="y\n").output
    run("delete", "bare", "--yes")
    assert sorted(path.name for path in root.iterdir()) == ["file", "other"]


def test_a_damaged_base_and_one_of_a_newer_version_are_removed_and_a_link_is_not(run: Run, root: Path) -> None:
    (root / "plant" / manifest.NAME).write_text("{")
    (root / "bare" / manifest.NAME).unlink()
    (root / "link").symlink_to(root / "plant")
    assert "is a link to" in run("delete", "link", "--yes", code=2).output
    (root / "other" / manifest.NAME).write_text('{"name": "an app of the web"}')
    (root / "other" / "log-000000").write_text("a log of something else")
    run("delete", "other", "--yes", code=2)
    for name in ("plant", "bare"):
        run("delete", name, "--yes")
    assert sorted(path.name for path in root.iterdir()) == ["file", "link", "other"]


def test_a_custom_analyzer_is_said_to_need_python(run: Run, root: Path) -> None:
    loud = CustomAnalyzer(lambda text: text.upper().split(), name="loud")
    KnowledgeBase.create("loud", root=root, analyzer=loud).add([Chunk("a", "a fox")])
    for command in ("stats", "verify", "compact", "export", "repair"):
        assert "cannot be given on the command line" in " ".join(run(command, "loud", code=1).output.split())
    run("delete", "loud", "--yes")


def test_verify_is_told_of_all_bytes_of_segments(root: Path) -> None:
    told: list[tuple[int, int]] = []
    assert problems(root / "plant", progress=lambda *step: told.append(step)) == []
    files = [file for entry in manifest.read(root / "plant").segments for file in entry.files.values()]
    assert told[-1] == (sum(file.size for file in files),) * 2
    assert told == sorted(told)
    assert len(told) >= sum(file.size > 0 for file in files)
    _damage(root / "plant")
    assert problems(root / "plant", progress=lambda *step: told.append(step)) != []


def test_ctrl_c_at_a_question_is_ctrl_c_and_no_is_no(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    run("delete", "plant", given="n\n", code=1)
    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(SystemExit) as ended:
        voicevault(["kb", "delete", "plant", "--root", str(root)])
    assert ended.value.code == 130
    assert len(KnowledgeBase.open("plant", root=root)) == 2


def test_a_base_that_may_not_be_looked_into_is_listed(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.exists

    def refused(path: Path) -> bool:
        if path.parent.name == "bare":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "exists", refused)
    names = [entry["name"] for entry in json.loads(run("list", "--json").stdout)["kbs"]]
    assert names == ["bare", "plant"]


def test_a_curation_is_checked_shown_and_removed(run: Run, root: Path, tmp_path: Path) -> None:
    assert run("curation", "plant").stdout == "plant: there is no curation\n"
    assert json.loads(run("curation", "plant", "--json").stdout) == {"version": 1, "curation": None, "unresolved": []}
    file = tmp_path / "own.yaml"
    file.write_text("synonyms: [a => b]\npinned: [{queries: [hums], chunks: [b]}]\nblocked: [{documents: [x.pdf]}]\n")
    done = run("curation", "plant", "--set", file)
    assert done.stdout.splitlines() == [
        "plant: 1 synonyms, 1 pinned, 1 blocked",
        "a => b",
        "pinned: b for 'hums'",
        "blocked: x.pdf",
    ]
    assert "blocked, entry 1: document 'x.pdf' is not there." in done.stderr
    assert KnowledgeBase.open("plant", root=root, embedder=HashEmbedder()).curation is not None
    told = json.loads(run("curation", "plant", "--json").stdout)
    assert told["curation"] == {
        "synonyms": {"a": ["b"]},
        "pinned": [{"queries": ["hums"], "documents": [], "chunks": ["b"]}],
        "blocked": [{"queries": [], "documents": ["x.pdf"], "chunks": []}],
    }
    assert len(told["unresolved"]) == 1
    kept = (root / "plant" / "curation.yaml").read_bytes()
    file.write_text("pinned: [{documents: [a]}]")
    assert "own.yaml: pinned, entry 1: give the queries" in run("curation", "plant", "--set", file, code=2).output
    assert (root / "plant" / "curation.yaml").read_bytes() == kept
    assert [path.name for path in (root / "plant").glob(".curation*")] == []
    (root / "plant" / "curation.yaml").write_text("blocked: 1")
    assert "blocked is a list" in run("curation", "plant", code=2).output
    assert "blocked is a list" in run("verify", "plant", code=1).output
    assert "give either --set FILE or --remove" in run("curation", "plant", "--set", file, "--remove", code=2).output
    assert "plant: removed" in run("curation", "plant", "--remove").stderr
    assert "plant: there is no curation" in run("curation", "plant", "--remove").stderr
    assert "all is sound" in run("verify", "plant").output
    file.write_text("blocked: [{chunks: [b]}]")
    run("curation", "other", "--set", file, code=1)
    assert not (root / "other" / "curation.yaml").exists()

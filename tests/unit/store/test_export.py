"""A knowledge base as JSON Lines: what comes back, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import (
    ConfigError,
    DocumentError,
    IncompatibleIndexError,
    IndexDamagedError,
    StorageError,
)
from voicevault_retrievers.store import KnowledgeBase, Limits, Source, commit, disk, export_format, files
from voicevault_retrievers.store.export import export, restore
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

QUERIES = ("fox", "a lazy dog", "der Hund")
Lines = list[dict[str, Any]]


@pytest.fixture
def kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnowledgeBase:
    """Two segments, tombstones and a log; parents and sources in each."""
    monkeypatch.setattr(commit, "SEAL_AT", 4)
    made = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder(), analyzer=Analyzer("en"), vectors="int8")
    chunks = [
        Chunk("b", "the fox and the dog", "p1", {"source_file": "a.md", "tags": ["x", {"deep": None}], "n": 0.1}),
        Chunk("\ud800\n", "line\u2028break 😀", None, {"é": True}),
        Chunk("a", "the lazy dog", "p2", {"source_file": "b.md"}),
        Chunk("gone", "a fox that goes", "p3"),
    ]
    parents = [Chunk("p1", "all of the fox", metadata={"page": 3}), Chunk("p2", "all of the dog"), Chunk("p3", "gone")]
    made.add(chunks, parents=parents, sources=[Source("a.md", "1", "r", "/x/a.md"), Source("b.md", "2")])
    made.add([Chunk(f"{at}", f"der Hund {at}") for at in range(6)])
    made.delete(["gone", "3"])
    made.add([Chunk("0", "der Fuchs")])
    made.close()
    return made


def _lines(kb: KnowledgeBase, **options: Any) -> Lines:
    file = BytesIO()
    export(kb, file, **options)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def _file(lines: Lines) -> BytesIO:
    """An export of these lines, sealed."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    kinds = [next(iter(line)) for line in lines[1:-1]]
    counts = {kind: kinds.count(kind) for kind in export_format.KINDS}
    end = {"end": {**counts, "sha256": hashlib.sha256(data).hexdigest()}}
    return BytesIO(data + json.dumps(end).encode() + b"\n")


def _all(kb: KnowledgeBase) -> dict[str, Any]:
    parents = kb.parents([chunk.parent_id for chunk in kb if chunk.parent_id])
    return {
        "chunks": [(c.id, c.text, c.parent_id, c.metadata) for c in kb],
        "parents": [(c.id, c.text, c.parent_id, c.metadata) for _, c in sorted(parents.items())],
        "sources": kb.sources,
        "vectors": [kb.view().snapshot.vector(chunk_id).tobytes() for chunk_id in kb.ids()],
        "found": [
            [(hit.id, hit.score) for hit in channel.search(query, 20)]
            for channel in (kb.bm25(), kb.dense())
            for query in QUERIES
        ],
        "made by": (repr(kb.analyzer), kb.manifest.embedder, kb.manifest.vectors),
    }


@pytest.mark.parametrize("block", [1, 3, 4096])
def test_what_is_exported_comes_back_to_the_bit(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(export_format, "BLOCK", block)
    file = tmp_path / "kb.jsonl"
    told: list[tuple[int, int]] = []
    assert export(kb, file, progress=lambda *done: told.append(done)) == len(kb) == 3 + 5
    assert told == [(at, 8) for at in range(1, 9)]
    told.clear()
    other = restore(
        file, "kb", root=tmp_path / "other", embedder=HashEmbedder(), progress=lambda *done: told.append(done)
    )
    assert told[-1] == (8, 8)
    assert other.verify() == []
    assert _all(other) == _all(kb)
    assert other.manifest.id != kb.manifest.id
    again = BytesIO()
    export(other, again)
    assert again.getvalue() == file.read_bytes()
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["kb"]


def test_the_lines_are_what_the_format_says(kb: KnowledgeBase) -> None:
    header, *rest, end = _lines(kb)
    assert (header["format"], header["version"], header["name"]) == ("voicevault", 1, "kb")
    assert (header["analyzer"], header["embedder"]["dimension"]) == (Analyzer("en").recipe(), 16)
    kinds = [next(iter(line)) for line in rest]
    assert kinds == ["source"] * 2 + ["parent"] * 2 + ["chunk"] * 8
    ids = [line["chunk"]["id"] for line in rest[4:]]
    assert ids == sorted(ids)
    first = rest[4]["chunk"]
    row: NDArray[np.float32] = HashEmbedder().embed_documents([first["text"]])[0]
    assert first["vector"] == b64encode(row.astype("<f4").tobytes()).decode()
    assert {kind: end["end"][kind] for kind in export_format.KINDS} == header["counts"]


def test_vectors_that_are_taken_over_need_no_embedder(kb: KnowledgeBase, tmp_path: Path) -> None:
    other = restore(_file(_lines(kb)), "other", root=tmp_path)
    assert other.manifest.embedder == kb.manifest.embedder
    with pytest.raises(IncompatibleIndexError, match=r"hash/16.*hash/8"):
        restore(_file(_lines(kb)), "third", root=tmp_path, embedder=HashEmbedder(8))


def test_without_vectors_they_are_made_anew_by_any_embedder(kb: KnowledgeBase, tmp_path: Path) -> None:
    lines = _lines(kb, vectors=False)
    assert all("vector" not in line.get("chunk", {}) for line in lines)
    assert _all(restore(_file(lines), "same", root=tmp_path, embedder=HashEmbedder()))["vectors"] == _all(kb)["vectors"]
    small = restore(_file(lines), "small", root=tmp_path, embedder=HashEmbedder(8))
    assert small.dense().search("der Fuchs").ids[0] == "0"
    with pytest.raises(ConfigError, match="embedder="):
        restore(_file(lines), "none", root=tmp_path)
    assert not (tmp_path / "none").exists()


def test_keywords_alone_and_an_empty_base(tmp_path: Path) -> None:
    bare = KnowledgeBase.create("bare", root=tmp_path)
    assert len(restore(_file(_lines(bare)), "empty", root=tmp_path)) == 0
    bare.add([Chunk("a", "a fox")])
    found = restore(_file(_lines(bare)), "again", root=tmp_path, analyzer=Analyzer("de"))
    assert (found.ids(), found.manifest.embedder, found.analyzer) == (["a"], None, Analyzer("de"))
    assert restore(_file(_lines(bare)), "rich", root=tmp_path, embedder=HashEmbedder()).dense().search("fox").ids


def test_a_custom_analyzer_has_to_be_given(tmp_path: Path) -> None:
    loud = CustomAnalyzer(lambda text: text.upper().split(), name="loud")
    with KnowledgeBase.create("loud", root=tmp_path, analyzer=loud) as kb:
        kb.add([Chunk("a", "a fox")])
    with pytest.raises(IncompatibleIndexError, match="custom analyzer 'loud'"):
        restore(_file(_lines(kb)), "other", root=tmp_path)
    assert restore(_file(_lines(kb)), "other", root=tmp_path, analyzer=loud).bm25().search("Fox").ids == ("a",)


def test_a_file_that_is_cut_anywhere_leaves_nothing(kb: KnowledgeBase, tmp_path: Path) -> None:
    file = BytesIO()
    export(kb, file)
    whole = file.getvalue()
    for end in range(0, len(whole), 97):
        with pytest.raises((DocumentError, IndexDamagedError)):
            restore(BytesIO(whole[:end]), "cut", root=tmp_path / "new")
    for data in (whole[:-1], whole + b"\n", whole + whole, whole.replace(b"lazy", b"hazy")):
        with pytest.raises(IndexDamagedError, match="the export"):
            restore(BytesIO(data), "cut", root=tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def _set(line: int, *keys: str, to: Any) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        held = lines[line]
        for key in keys[:-1]:
            held = held[key]
        held[keys[-1]] = to

    return change


HOSTILE: dict[str, tuple[Callable[[Lines], Any], str]] = {
    "no export": (_set(0, "format", to="other"), "line 1: this is no export"),
    "version": (_set(0, "version", to="2"), "line 1: version is a whole number"),
    "a header's key": (_set(0, "more", to=1), "line 1: expected an object with the keys"),
    "search": (_set(0, "vector_search", to="magic"), "line 1: vector_search"),
    "dimension": (_set(0, "embedder", "dimension", to=10**12), "line 1: the vectors have"),
    "dimension 0": (_set(0, "embedder", "dimension", to=0), "line 1: dimension"),
    "embedder": (_set(0, "embedder", to=None), "line 1: there are vectors"),
    "counts": (_set(0, "counts", to={"chunk": 1}), "line 1: expected an object"),
    "kind": (lambda lines: lines.insert(3, {"secret": {}}), "line 4: expected one key"),
    "two kinds": (lambda lines: lines[3].update(chunk={}), "line 4: expected one key"),
    "source": (_set(1, "source", "sha256", to=3), "line 2: sha256 has a value of another type"),
    "no object": (_set(5, "chunk", to=["id"]), "line 6: expected an object"),
    "id": (_set(5, "chunk", "id", to=""), "line 6: a chunk's id"),
    "long id": (_set(5, "chunk", "id", to="\ud900" * 400), "line 6: the id"),
    "text": (_set(5, "chunk", "text", to=None), "line 6: text has a value of another type"),
    "metadata": (_set(5, "chunk", "metadata", to=[]), "line 6: metadata has a value"),
    "nested": (_set(5, "chunk", "metadata", to={"a": json.loads("[" * 20 + "]" * 20)}), "line 6: .*nests deeper"),
    "not finite": (_set(5, "chunk", "metadata", to={"a": float("nan")}), "line 6: .*cannot be kept as JSON"),
    "much metadata": (_set(5, "chunk", "metadata", to={"a": "x" * 70_000}), "line 6: .*bytes as JSON"),
    "much text": (_set(5, "chunk", "text", to="x" * 1_000_001), "line 6: .*characters, more than"),
    "no base64": (_set(5, "chunk", "vector", to="*"), "line 6: "),
    "short vector": (_set(5, "chunk", "vector", to="AACAPw=="), r"line 6: .*expected \(1, 16\)"),
    "odd vector": (_set(5, "chunk", "vector", to="AAA="), "line 6: buffer size"),
    "long vector": (_set(5, "chunk", "vector", to=b64encode(b"\0\0\0@" * 16).decode()), "line 6: .*length"),
    "no vector": (lambda lines: lines[5]["chunk"].pop("vector"), "line 6: expected an object with the keys"),
    "twice": (lambda lines: lines.insert(6, lines[5]), "line 7: chunk '0' comes after '0'"),
    "order": (lambda lines: lines.insert(5, lines.pop(6)), "line 7: chunk '0' comes after '1'"),
    "kinds' order": (lambda lines: lines.insert(6, lines[1]), "line 7: source 'a.md' comes after"),
    "analyzer": (_set(0, "analyzer", to={"language": "tlh"}), "no analyzer here has the recipe"),
    "analyzer's types": (_set(0, "analyzer", to={"language": "en", "stemming": []}), "line 1: the analyzer"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_line_is_named_and_leaves_nothing(kb: KnowledgeBase, tmp_path: Path, what: str) -> None:
    change, said = HOSTILE[what]
    lines = _lines(kb)
    change(lines)
    with pytest.raises((DocumentError, IncompatibleIndexError), match=said):
        restore(_file(lines), "other", root=tmp_path / "new")
    assert not (tmp_path / "new" / "other").exists()
    assert [path for path in (tmp_path / "new").glob("*")] == []


def test_a_line_that_is_no_json_and_one_without_end(kb: KnowledgeBase, tmp_path: Path) -> None:
    first = json.dumps(_lines(kb)[0]).encode() + b"\n"
    for line, said in ((b"[" * 100_000, "line 2"), (b"\xff", "line 2"), (b"[]", "line 2: it is not an object")):
        with pytest.raises(DocumentError, match=said):
            restore(BytesIO(first + line + b"\n"), "other", root=tmp_path)

    class Endless(BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 < size < 32 * 1024 * 1024
            return super().readline(size) or b"x" * size

    with pytest.raises(DocumentError, match="line 2: it has more than"):
        restore(Endless(first), "other", root=tmp_path)


def test_larger_chunks_need_larger_limits_and_a_newer_version_a_newer_package(tmp_path: Path) -> None:
    limits = Limits(text=2_000_000)
    kb = KnowledgeBase.create("long", root=tmp_path, limits=limits)
    kb.add([Chunk("a", "😀" * 1_500_000)])
    lines = _lines(kb)
    with pytest.raises(DocumentError, match="line 2"):
        restore(_file(lines), "other", root=tmp_path)
    assert restore(_file(lines), "other", root=tmp_path, limits=limits).get(["a"])["a"].text == "😀" * 1_500_000
    lines[0]["version"] = 4
    with pytest.raises(IncompatibleIndexError, match="version 4, newer than 3"):
        restore(_file(lines), "third", root=tmp_path)


def test_a_base_that_is_there_is_not_written_over(kb: KnowledgeBase, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is there already"):
        restore(_file(_lines(kb)), "kb", root=tmp_path)
    with pytest.raises(DocumentError, match="cannot be read"):
        restore(tmp_path / "none.jsonl", "other", root=tmp_path)


def test_a_file_is_whole_or_as_it_was(kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out" / "kb.jsonl"
    with pytest.raises(StorageError, match=r"kb\.jsonl cannot be written"):
        export(kb, file)
    file.parent.mkdir()
    file.write_bytes(b"before")
    link = tmp_path / "link"
    link.symlink_to(file)

    def full(old: Path, new: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", full)
        with pytest.raises(StorageError, match="No space left"):
            export(kb, str(file))
    assert (file.read_bytes(), os.listdir(file.parent)) == (b"before", ["kb.jsonl"])
    export(kb, link)
    assert link.is_symlink()
    assert file.read_bytes().startswith(b'{"format": "voicevault"')
    for wrong in (tmp_path, Path("/dev/null")):
        with pytest.raises(ConfigError, match="is not a file"):
            export(kb, wrong)


def test_damaged_vectors_are_not_exported(tmp_path: Path) -> None:
    with KnowledgeBase.create("large", root=tmp_path, embedder=HashEmbedder(4096)) as kb:
        kb.add(Chunk(str(at), f"the fox {at}") for at in range(files.SMALL // (4 * 4096) + 1))
        kb.compact()
    vectors = next(kb.path.glob("seg-*/vectors.npy"))
    data = bytearray(vectors.read_bytes())
    data[-1] ^= 1
    vectors.write_bytes(data)
    opened = KnowledgeBase.open(kb.path)
    with pytest.raises(IndexDamagedError, match=r"vectors\.npy has changed"):
        export(opened, BytesIO())

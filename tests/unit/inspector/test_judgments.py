"""What people judge in the inspector: kept, seen by others, and exported for tune and eval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra inspector is not installed")
pytest.importorskip("uvicorn", reason="the extra inspector is not installed")

from starlette.testclient import TestClient

from tests.unit.cli.parts import ran
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, StorageError
from voicevault_retrievers.evaluation import load_judged
from voicevault_retrievers.inspector import Judgment, Judgments, app
from voicevault_retrievers.store import KnowledgeBase, remove

PRESET = "version: 1\nchannels: {bm25: {}}\nstages: [page_cap]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with KnowledgeBase.create("plant", root=tmp_path / "kbs") as base:
        base.add([Chunk(f"c{at}", f"pump of unit {at}", metadata={"source_file": f"{at}.md"}) for at in range(14)])
    with KnowledgeBase.create("law", root=tmp_path / "kbs") as base:
        base.add([Chunk("c1", "a statute")])
    (tmp_path / "own.yaml").write_text(PRESET)
    return tmp_path / "kbs"


@pytest.fixture
def client(root: Path, tmp_path: Path) -> Iterator[TestClient]:
    served = app(["plant", "law"], root=root, presets=[str(tmp_path / "own.yaml")])
    with TestClient(served, base_url="http://localhost") as client:
        yield client


def put(client: TestClient, query: str, chunk_id: str, grade: Any, kb: str = "plant") -> Any:
    return client.put("/api/judgments", json={"query": query, "kb": kb, "id": chunk_id, "grade": grade})


def test_a_judgement_is_kept_beside_the_bases_and_taken_back(client: TestClient, tmp_path: Path) -> None:
    assert put(client, "unit 1", "c1", 1).json() == {"count": 1}
    assert put(client, " unit 1\n", "plant:c2", 0).json() == {"count": 2}
    assert put(client, "unit 1", "c1", 0).json() == {"count": 2}
    told = client.get("/api/judgments", params={"query": "unit 1"}).json()["judgments"]
    assert told == [
        {"query": "unit 1", "kb": "plant", "id": "c2", "grade": 0},
        {"query": "unit 1", "kb": "plant", "id": "c1", "grade": 0},
    ]
    asked = {"query": "unit 1", "kb": ["plant", "law"], "preset": "own", "k": 3}
    hits = client.post("/api/search", json=asked).json()["hits"]
    assert {hit["id"]: hit["judgment"] for hit in hits} == {"plant:c1": 0, "plant:c0": None, "plant:c10": None}
    assert put(client, "unit 1", "plant:c1", None).json() == {"count": 1}
    assert client.get("/api/judgments", params={"kb": "law"}).json() == {"judgments": []}
    assert len((tmp_path / "judgments.jsonl").read_text().splitlines()) == 4


def test_only_what_is_there_is_judged_and_all_can_be_taken_back(client: TestClient, root: Path) -> None:
    assert put(client, "unit", "c1", 1, "law").json() == {"count": 1}
    assert put(client, "unit", "c9", 1, "law").status_code == 404
    assert put(client, "unit", "c1", 1, "nowhere").status_code == 400
    for grade in (2, "1", True, 1.0):
        assert "grade is 1, 0 or null" in put(client, "unit", "c1", grade).json()["error"]
    assert (
        "has a grade" in client.put("/api/judgments", json={"query": "unit", "kb": "law", "id": "c1"}).json()["error"]
    )
    remove("law", root=root)
    assert put(client, "unit", "law:c1", None, "law").json() == {"count": 0}


def test_an_export_is_what_tune_and_eval_read(client: TestClient, root: Path, tmp_path: Path) -> None:
    for at in range(14):
        put(client, f"unit {at}", f"c{at}", 1)
        put(client, f"unit {at}", f"c{(at + 1) % 14}", 0)
    put(client, "a statute of\n\ttwo “lines”", "c1", 1, "law")
    put(client, "unit 13", "c13", None)
    files = {}
    for part, name in (("queries", "queries.jsonl"), ("qrels", "qrels.tsv")):
        answer = client.get("/api/judgments/export", params={"kb": "plant", "part": part})
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        files[part] = tmp_path / name
        files[part].write_bytes(answer.content)
    judged = load_judged(files["queries"], files["qrels"])
    assert [(one.text, dict(one.grades)) for one in judged] == [
        *((f"unit {at}", {f"c{at}": 1, f"c{at + 1}": 0}) for at in range(13)),
        ("unit 13", {"c0": 0}),
    ]
    given = ["--kb", "plant", "--queries", files["queries"], "--qrels", files["qrels"], "--root", root]
    for command in ("eval", "tune"):
        done = ran(command, *given, "--preset", tmp_path / "own.yaml", "--json")
        assert json.loads(done.stdout)["kb"] == "plant"


def test_an_export_says_what_it_cannot_hold(client: TestClient, root: Path) -> None:
    with KnowledgeBase.open("law", root=root) as base:
        base.add([Chunk("a\tb", "a statute")])
    assert put(client, "unit", "a\tb", 1, "law").json() == {"count": 1}
    answer = client.get("/api/judgments/export", params={"kb": "law", "part": "qrels"})
    assert (answer.status_code, "cannot hold the chunk id" in answer.json()["error"]) == (400, True)
    assert client.get("/api/judgments/export", params={"kb": "law", "part": "all"}).status_code == 400
    assert client.get("/api/judgments/export", params={"kb": "../law", "part": "qrels"}).text == (
        "query-id\tcorpus-id\tscore\n"
    )


def test_what_a_crash_cut_short_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "judgments.jsonl"
    first = Judgments(path)
    assert first.put(Judgment("q", "kb", "c1", 1)) == 1
    with path.open("ab") as file:
        file.write(b'{"query": "q", "kb": "kb", "i')
    second = Judgments(path)
    assert second.grade("q", "kb", "c1") == 1
    assert second.put(Judgment("q", "kb", "c2", 0)) == 2
    third = Judgments(path)
    assert [(one.id, one.grade) for one in third.of()] == [("c1", 1), ("c2", 0)]
    assert third.skipped == [2]
    assert [one.id for one in first.of()] == ["c1", "c2"]  # what another has written is seen


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    kept, other = Judgments(tmp_path / "kept.jsonl"), Judgments(tmp_path / "other.jsonl")
    kept.put(Judgment("pump", "plant", "c1", 1))
    for at in range(3):
        other.put(Judgment(f"unit {at}", "plant", "c1", 0))
    other.path.replace(kept.path)
    assert [one.query for one in kept.of()] == ["unit 0", "unit 1", "unit 2"]
    assert kept.skipped == []


def test_judgements_of_threads_and_of_several_readers_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "judgments.jsonl"
    readers = [Judgments(path) for _ in range(4)]

    def judge(at: int) -> None:
        for number in range(25):
            readers[at].put(Judgment(f"q{number}", "kb", f"c{at}", number % 2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(judge, range(4)))
    assert {len(reader.of()) for reader in readers} == {100}
    assert Judgments(path).skipped == []
    path.write_text("")
    assert readers[0].of() == []


def test_a_file_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="judgements cannot be read"):
        Judgments(tmp_path / "file" / "judgments.jsonl").put(Judgment("q", "kb", "c", 1))
    with pytest.raises(StorageError, match="judgements cannot be read"):
        Judgments(tmp_path)
    with pytest.raises(ConfigError, match="a judgement's id is a text"):
        Judgment("q", "kb", "", 1)

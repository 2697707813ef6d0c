"""The inspector's API: what it answers, and what it does with hostile requests and documents."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra inspector is not installed")
pytest.importorskip("uvicorn", reason="the extra inspector is not installed")

import httpx
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.inspector import app, registry
from voicevault_retrievers.store import KnowledgeBase, embedding, remove
from voicevault_retrievers.store.questions import question_index

HOME = "http://127.0.0.1:8460"
PRESET = "version: 1\nchannels: {bm25: {}, dense: {}}\nstages: [page_cap]\n"
HOSTILE = [
    "<script>alert('pump')</script>",
    "</script><img src=x onerror=alert(1)> pump",
    "[pump](javascript:alert(1)) ![pump](data:text/html,<b>)",
    "pump \u2028\u2029\u202e\u200b\ufeff \x1b[31m \x7f &lt;b&gt; ${pump} {{pump}} ' \" ` -->",
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two bases: `plant` of manuals with parents, `hostile` of documents that want to be more than text."""
    monkeypatch.setattr(embedding, "make", lambda entry, kb: HashEmbedder())
    folder = tmp_path / "kbs"
    with KnowledgeBase.create("plant", root=folder, embedder=HashEmbedder()) as plant:
        chunks = [
            Chunk(f"c{at}", f"the pump of unit {at} is reset", "p", {"source_file": "a.md", "page_number": at})
            for at in range(6)
        ]
        plant.add(chunks, parents=[Chunk("p", "all about pumps")])
    with KnowledgeBase.create("hostile", root=folder, embedder=HashEmbedder()) as hostile:
        hostile.add([Chunk(f"<b>{at}", text, metadata={"<i>": text}) for at, text in enumerate(HOSTILE)])
    (tmp_path / "own.yaml").write_text(PRESET)
    return folder


@pytest.fixture
def served(root: Path, tmp_path: Path) -> Starlette:
    return app(["plant", "hostile"], root=root, presets=[str(tmp_path / "own.yaml")])


@pytest.fixture
def client(served: Starlette) -> Iterator[TestClient]:
    with TestClient(served, base_url=HOME) as client:
        yield client


def asked(query: str = "pump reset", *kb: str, **others: Any) -> dict[str, Any]:
    return {"query": query, "kb": list(kb or ["plant"]), "preset": "own", "k": 3, **others}


def test_what_there_is_to_choose_from(client: TestClient, root: Path) -> None:
    told = client.get("/api/bases").json()
    assert told["bases"] == [{"name": "plant", "chunks": 6}, {"name": "hostile", "chunks": 4}]
    assert (told["kb"], told["preset"], told["k"]) == (["plant", "hostile"], "own", 10)
    assert told["presets"][0] == "own"
    assert "voicevault" in told["presets"]
    (root / "hostile" / "manifest.json").write_text("{}")
    assert client.get("/api/bases").json()["bases"][1]["error"]


def test_without_names_all_bases_of_the_root_are_offered(root: Path, tmp_path: Path) -> None:
    client = TestClient(app(root=root, presets=[str(tmp_path / "own.yaml")]), base_url=HOME)
    (root / "no base").mkdir()
    told = client.get("/api/bases").json()
    assert [base["name"] for base in told["bases"]] == ["hostile", "plant"]
    assert told["kb"] == ["hostile"]
    with KnowledgeBase.create("new", root=root) as new:
        new.add([Chunk("n", "pump")])
    assert [base["name"] for base in client.get("/api/bases").json()["bases"]] == ["hostile", "new", "plant"]


def test_a_search_is_that_of_the_pipeline(client: TestClient) -> None:
    told = client.post("/api/search", json=asked()).json()
    assert [hit["kb"] for hit in told["hits"]] == ["plant"] * 3
    assert (told["kb"], told["preset"], told["k"]) == (["plant"], "own", 3)
    assert {entry["name"] for entry in told["lists"]} >= {"bm25", "dense", "fused"}
    assert all(hit["judgment"] is None and hit["page_image"] is False for hit in told["hits"])
    narrowed = client.post("/api/search", json=asked(where={"page_number": 4})).json()
    assert [hit["id"] for hit in narrowed["hits"]] == ["c4"]


@pytest.mark.parametrize("by", ["bm25", "both"])
def test_a_list_of_questions_is_told_as_one_of_chunks(root: Path, tmp_path: Path, by: str) -> None:
    with KnowledgeBase.open("plant", root=root) as plant, KnowledgeBase.open("hostile", root=root) as hostile:
        question_index(plant).update({"c1": ["is it broken", "why is it broken"], "c2": ["what is broken"]})
        question_index(hostile).update({"<b>0": ["is this broken"]})
    (tmp_path / "asking.yaml").write_text(f"version: 1\nchannels: {{bm25: {{}}, questions: {{by: {by}}}}}\n")
    client = TestClient(app(root=root, presets=[str(tmp_path / "asking.yaml")]), base_url=HOME)
    told = {}
    for kb in (["plant"], ["plant", "hostile"]):
        answer = client.post("/api/search", json=asked("broken", *kb, preset="asking")).json()
        told[len(kb)] = {entry["name"]: [hit["id"] for hit in entry["hits"]] for entry in answer["lists"]}
    assert sorted(told[1]["questions"]) == ["c1", "c2"]
    assert sorted(told[2]["questions/plant"]) == ["plant:c1", "plant:c2"]
    assert told[2]["questions/hostile"] == ["hostile:<b>0"]
    assert not any("?" in one for names in told.values() for found in names.values() for one in found)


def test_a_chunk_comes_with_its_parent_by_either_id(client: TestClient) -> None:
    several = client.post("/api/search", json=asked("unit 4", "plant", "hostile")).json()["hits"][0]
    assert (several["id"], several["kb"]) == ("plant:c4", "plant")
    for chunk_id in ("plant:c4", "c4"):
        told = client.get("/api/chunk", params={"kb": "plant", "id": chunk_id}).json()
        assert (told["id"], told["text"]) == ("c4", "the pump of unit 4 is reset")
        assert told["parent"] == {"id": "p", "text": "all about pumps"}
        assert told["metadata"] == {"source_file": "a.md", "page_number": 4}
    assert client.get("/api/chunk", params={"kb": "hostile", "id": "<b>0"}).json()["parent"] is None
    gone = client.get("/api/chunk", params={"kb": "plant", "id": "<b>0"})
    assert gone.status_code == 404
    assert "has no chunk '<b>0'" in gone.json()["error"]


def test_what_another_process_commits_is_found(client: TestClient, root: Path) -> None:
    assert "new" not in [hit["id"] for hit in client.post("/api/search", json=asked("gearbox")).json()["hits"]]
    with KnowledgeBase.open("plant", root=root, embedder=HashEmbedder()) as other:
        other.add([Chunk("new", "gearbox")])
    assert client.post("/api/search", json=asked("gearbox")).json()["hits"][0]["id"] == "new"
    remove("hostile", root=root)
    told = client.post("/api/search", json=asked("gearbox", "plant", "hostile")).json()
    assert told["degraded"]
    assert ["hostile" in one["message"] for one in told["errors"] if one["degrades"]] == [True]
    with KnowledgeBase.create("hostile", root=root) as anew:
        anew.add([Chunk("tame", "gearbox")])
    assert client.get("/api/chunk", params={"kb": "hostile", "id": "tame"}).json()["text"] == "gearbox"


def test_questions_that_another_process_makes_are_asked(root: Path, tmp_path: Path) -> None:
    (tmp_path / "asking.yaml").write_text("version: 1\nchannels: {bm25: {}, questions: {}}\n")
    client = TestClient(app(root=root, presets=[str(tmp_path / "asking.yaml")]), base_url=HOME)
    body = asked("wherefore", preset="asking")
    assert "there are no questions" in client.post("/api/search", json=body).text
    for number in (1, 2):
        with KnowledgeBase.open("plant", root=root, embedder=HashEmbedder()) as other:
            question_index(other).update({f"c{number}": [f"wherefore {number}?"]})
        found = client.post("/api/search", json=body).json()["hits"]
        assert {hit["id"] for hit in found} == {f"c{at}" for at in range(1, number + 1)}


def test_a_collection_goes_by_its_name_and_its_address_stays_here(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    engine = EmbeddedEngine("plant", root=root)
    monkeypatch.setattr(engine, "close", lambda: closed.append(True))
    monkeypatch.setattr(registry, "connect", lambda _: engine)
    served = app(["postgresql://user:secret@host/db#plant", "hostile"], root=root, presets=[str(tmp_path / "own.yaml")])
    with TestClient(served, base_url=HOME) as client:
        bases = client.get("/api/bases")
        assert bases.json()["bases"][0] == {"name": "plant", "chunks": 6}
        found = client.post("/api/search", json=asked("unit 4"))
        assert (found.json()["hits"][0]["id"], found.json()["hits"][0]["kb"]) == ("c4", "plant")
        chunk = client.get("/api/chunk", params={"kb": "plant", "id": "c4"})
        assert chunk.json()["parent"]["text"] == "all about pumps"
        assert not any("secret" in answer.text for answer in (bases, found, chunk))
        together = client.post("/api/search", json=asked("unit", "plant", "hostile"))
        assert "searched alone" in together.json()["error"]
    assert closed == [True]


@pytest.mark.parametrize(
    ("given", "said"),
    [([], "name at least one"), (["nowhere"], "no knowledge base 'nowhere'"), (["plant", "plant"], "two bases")],
)
def test_what_cannot_be_inspected_is_said_at_once(root: Path, given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        app(given, root=root)
    with pytest.raises(ConfigError, match="unknown preset 'nothing'"):
        app(root=root, presets=["nothing"])


def test_a_hostile_document_stays_text(client: TestClient) -> None:
    answer = client.post("/api/search", json=asked("pump script", "hostile", k=4))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"<" not in answer.content
    assert answer.content.isascii()
    told = answer.json()["hits"]
    assert sorted(hit["text"] for hit in told) == sorted(HOSTILE)
    assert all("".join(piece for piece, _ in hit["pieces"]) == hit["text"] == hit["metadata"]["<i>"] for hit in told)
    refusal = client.get("/api/chunk", params={"kb": "<script>alert(1)</script>", "id": "x"})
    assert refusal.status_code == 400
    assert b"<" not in refusal.content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": " "}, "query is a text that is not empty"),
        ({"query": "x" * 4001}, "query has 4001 characters, more than 4000"),
        ({"query": ["a"]}, "query is a text"),
        ({"kb": []}, "kb is a list of the names"),
        ({"kb": "plant"}, "kb is a list of the names"),
        ({"kb": ["plant", 7]}, "kb is a text"),
        ({"kb": ["nowhere"]}, "unknown knowledge base 'nowhere'"),
        ({"kb": ["../kbs/plant"]}, "unknown knowledge base '../kbs/plant'"),
        ({"kb": ["qdrant://localhost/x"]}, "unknown knowledge base"),
        ({"preset": "own.yaml"}, "unknown preset 'own.yaml'"),
        ({"preset": None}, "preset is a text"),
        ({"k": 0}, "k is a whole number from 1 to 100"),
        ({"k": 101}, "k is a whole number from 1 to 100"),
        ({"k": True}, "k is a whole number from 1 to 100"),
        ({"where": "all"}, "a filter is a mapping"),
        ({"where": {"$nor": []}}, "$nor"),
        ({"where": json.loads('{"$and": [' * 200 + '{"a": 1}' + "]}" * 200)}, "deep"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(client: TestClient, change: dict[str, Any], said: str) -> None:
    answer = client.post("/api/search", json=asked() | change)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (b"[" * 60_000, 400),
        (b'{"where":' * 5_000 + b"1" + b"}" * 5_000, 400),
        (b'{"query": "\\ud800", "kb": ["plant"], "preset": "own"}', 200),
        (json.dumps({"query": "x" * 70_000}).encode(), 413),
    ],
)
def test_a_body_that_is_none_is_refused(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/api/search", content=body, headers={"Content-Type": "application/json; charset=utf-8"})
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    ["/static/../web.py", "/static/%2e%2e%2fweb.py", "/static/..%5cweb.py", "/static/", "/static/a/b", "/nothing"],
)
def test_no_file_but_the_page_s_own_is_served(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]


def test_what_fails_unexpectedly_is_said_without_its_reasons(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(KnowledgeBase, "get", lambda *_: 1 / 0)
    answer = client.get("/api/chunk", params={"kb": "plant", "id": "c1"})
    assert (answer.status_code, answer.json()["error"]) == (500, "this failed, and the server's log says why")
    assert "content-security-policy" in answer.headers
    assert "ZeroDivisionError" in caplog.text


async def test_searches_at_once_find_what_each_finds_alone(served: Starlette) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url=HOME) as client:
        bodies = [asked(f"pump unit {at % 6}", *(["plant"] if at % 2 else ["plant", "hostile"])) for at in range(24)]
        alone = [(await client.post("/api/search", json=body)).json()["hits"] for body in bodies]
        together = await asyncio.gather(*(client.post("/api/search", json=body) for body in bodies))
    assert [answer.json()["hits"] for answer in together] == alone


async def test_a_search_that_takes_long_holds_up_nobody(served: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    real = HashEmbedder.embed_queries

    def waiting(self: HashEmbedder, texts: list[str]) -> Any:
        assert answered.wait(30)
        return real(self, texts)

    monkeypatch.setattr(HashEmbedder, "embed_queries", waiting)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url=HOME) as client:
        searching = asyncio.create_task(client.post("/api/search", json=asked("pump waits"), timeout=30))
        await asyncio.sleep(0)
        assert (await client.get("/api/bases")).status_code == 200
        answered.set()
        told = (await searching).json()
    assert not told["degraded"]

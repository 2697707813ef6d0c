"""`voicevault search`: one query and many, what is only checked, and what a configuration says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.helpers import HashEmbedder
from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.cli import search_options
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import MissingExtraError, ModelNotAvailableError, RerankerNotAvailableError
from voicevault_retrievers.inspector.registry import Shelf
from voicevault_retrievers.models import weights
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.rerank import scorers
from voicevault_retrievers.store import KnowledgeBase, embedding

TEXTS = {"a": "the pump hums", "b": "the valve of the pump is shut", "c": "see section 420 of the IPC"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plant` has vectors, `bare` has not, `wrong` is damaged."""
    root = tmp_path_factory.mktemp("kbs")
    chunks = [Chunk(name, text, None, {"source_file": f"{name}.md"}) for name, text in TEXTS.items()]
    with KnowledgeBase.create("plant", root=root, embedder=HashEmbedder()) as kb:
        kb.add(chunks)
    with KnowledgeBase.create("bare", root=root) as kb:
        kb.add([Chunk("x", "a bare pump")])
    KnowledgeBase.create("wrong", root=root)
    (root / "wrong" / "manifest.json").write_text("{")
    return root


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """By keywords alone, unless another preset is named."""
    monkeypatch.setenv("VOICEVAULT_HOME", str(root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.yaml").write_text("version: 1\nchannels: {bm25: {}}\n")
    (tmp_path / "model.yaml").write_text("version: 1\nstages: [llm_rerank]\n")

    def run(*words: str, code: int = 0, kb: str = "plant", given: str | None = None) -> Result:
        preset = () if "--preset" in words or "--config" in words else ("--preset", "words.yaml")
        kbs = () if "--config" in words else ("--kb", kb)
        return ran("search", *words, *kbs, *preset, code=code, given=given)

    return run


def _lines(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_results_are_groups_of_documents(run: Run) -> None:
    found = json.loads(run("pump", "--json", "--group-by", "document").stdout)
    assert [[one["id"] for one in hit["passages"]] for hit in found["hits"]] == [["a"], ["b"]]
    (note,) = json.loads(run("pump", "--json", "--group-by", "kind").stdout)["errors"]
    assert "the hits have no 'kind', so each is a group of its own" in note


@pytest.fixture
def folded(tmp_path: Path) -> str:
    """A base in which a text stands in two files, and a preset that knows what is relevant."""
    with KnowledgeBase.create("folded", root=tmp_path) as kb:
        kb.add([Chunk(name, text, None, {"source_file": f"{name}.md"}) for name, text in SAME.items()])
    (tmp_path / "sure.yaml").write_text(
        "version: 1\nchannels: {bm25: {}}\nstages: [{relevance: {slope: 10, intercept: -3}}]\n"
    )
    return str(tmp_path)


SAME = {"a": "the pump hums", "b": "the  pump hums", "c": "a pump, a valve, a seal and a very long lever of the gate"}


def test_equal_texts_are_shown_once_with_their_sources_and_irrelevant_hits_are_marked(folded: str, run: Run) -> None:
    asked = ("the pump hums", "--root", folded, "--preset", f"{folded}/sure.yaml", "--top-k", "2")
    shown = run(*asked, kb="folded").stdout.splitlines()
    assert shown[0].startswith("1. [Source: a.md] ")
    assert shown[1:3] == ["   the pump hums", "   + [Source: b.md]"]
    assert shown[3].startswith("2. [Source: c.md] irrelevant ")
    hits = json.loads(run(*asked, "--json", kb="folded").stdout)["hits"]
    assert [(hit["id"], hit["irrelevant"]) for hit in hits] == [("a", False), ("c", True)]
    assert [one["metadata"]["source_file"] for one in hits[0]["passages"]] == ["a.md", "b.md"]
    assert "passages" not in hits[1]


def test_one_query_gives_an_object_and_several_one_a_line(run: Run) -> None:
    one = json.loads(run("pump", "--json").stdout)
    assert one == json.loads(run("--query", "pump", "--json").stdout) | {"timings_ms": one["timings_ms"]}
    assert (one["version"], one["kbs"], [hit["id"] for hit in one["hits"]]) == (1, ["plant"], ["a", "b"])
    first, second = _lines(run("pump", "--query", "valve", "--json"))
    assert first | {"timings_ms": None} == one | {"timings_ms": None, "id": None, "failed": False}
    assert (second["query"], [hit["id"] for hit in second["hits"]]) == ("valve", ["b"])
    shown = run("pump", "--query", "nothing", "--explain").stdout
    assert shown.startswith("pump\n1. [Source: a.md] keyword: bm25 #1")
    assert "words pump, for 'pump'" in shown
    assert shown.endswith("nothing\nNothing found.\n\n")


def test_explain_and_json_say_which_wordings_were_asked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("version: 1\nchannels: {bm25: {}}\nexpansion: {size: 3}\n")
    asked = ("fix the pump", "--preset", "rules.yaml")
    shown = run(*asked, "--explain").stdout
    assert "wording: 'fix the pump' (bm25)\nwording: 'fix the pump repair' (bm25)\n" in shown
    assert "wording" not in run(*asked).stdout
    told = json.loads(run(*asked, "--json").stdout)["wordings"]
    assert told == [
        {"text": text, "weight": 1.0, "channels": ["bm25"]} for text in ("fix the pump", "fix the pump repair")
    ]


def test_a_query_that_fails_does_not_stop_the_others(run: Run) -> None:
    file = '{"_id": "q1", "text": "pump", "top_k": 1}\n{"id": 2, "text": "x", "wher": 1}\n"valve"\n'
    done = run("--queries-file", "-", "--json", given=file, code=1)
    assert "1 of 3 queries failed" in done.stderr
    told = _lines(done)
    assert [(one["id"], one["failed"], len(one["hits"])) for one in told] == [
        ("q1", False, 1), ("2", True, 0), (None, False, 1),
    ]  # fmt: skip
    assert "Did you mean 'where'?" in told[1]["errors"][0]
    shown = run("--queries-file", "-", given=file, code=1).stdout
    assert "failed query: ConfigError: the standard input:2: unknown key" in shown
    assert "valve\n1. [Source: b.md]" in shown


def test_a_file_of_one_query_is_a_batch_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("pump\n")
    (told,) = _lines(run("--queries-file", "one.txt", "--json"))
    assert (told["query"], told["failed"]) == ("pump", False)


def test_filters_of_the_command_line_narrow_those_of_a_query(run: Run) -> None:
    files = '{"text": "pump", "where": {"source_file": {"$in": ["a.md", "c.md"]}}}\n"pump"'
    words = ("--queries-file", "-", "--json", "--where", '{"source_file": {"$ne": "b.md"}}')
    assert [[hit["id"] for hit in one["hits"]] for one in _lines(run(*words, given=files))] == [["a"], ["a"]]
    permitted = run("pump", "--json", "--require", '{"source_file": "b.md"}').stdout
    assert [hit["id"] for hit in json.loads(permitted)["hits"]] == ["b"]
    assert json.loads(run("pump", "--json", "--require", "{}").stdout)["hits"] == []


def test_a_preset_whose_access_is_mandatory_refuses_a_query_that_names_no_rights(run: Run, tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text("version: 1\nchannels: {bm25: {}}\naccess: mandatory\n")
    words = ("pump", "--preset", "case.yaml")
    for refused in (words, (*words, "--where", '{"source_file": "a.md"}'), (*words, "--dry-run")):
        assert "names no access rights" in " ".join(run(*refused, code=2).output.split())
    done = run(
        *words, "--query", "valve", "--queries-file", "-", "--json", given='{"text": "x", "require": {}}', code=1
    )
    told = _lines(done)
    assert [(one["failed"], len(one["errors"])) for one in told] == [(True, 1), (True, 1), (False, 1)]
    assert "are empty: they permit nothing" in str(told[2]["errors"])
    assert "names no access rights" in run("--interactive", *words[1:], given="pump\n").output.replace("\n", " ")
    assert json.loads(run(*words, "--json", "--require", "{}").stdout)["hits"] == []
    own = run(*words, "--json", "--require", '{"source_file": "a.md"}').stdout
    assert [hit["id"] for hit in json.loads(own)["hits"]] == ["a"]
    assert run(*words, "--dry-run", "--require", '{"source_file": "a.md"}').stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a QUERY, --query, --queries-file or --interactive"),
        (("pump", "--interactive"), "--interactive asks for its queries"),
        (("--interactive", "--dry-run"), "--interactive asks for its queries"),
        (("pump", "--where", "{"), "is not JSON"),
        (("pump", "--where", "[]"), "is a filter such as"),
        (("pump", "--where", '{"a": {"$no": 1}}'), "unknown filter operator '$no'"),
        (("pump", "--require", '{"$no": 1}'), "$no"),
        (("pump", "--require", '{"a": 1, "a": 2}'), "comes twice"),
        (("pump", "--where", '{"a": NaN}'), "NaN is no value of JSON"),
        (("pump", "--preset", "wrds"), "unknown preset 'wrds'"),
        (("--queries-file", "none.txt"), "none.txt cannot be read"),
        (("pump", "--config", "none.yaml"), "does not exist"),
    ],
)
def test_what_is_wrong_is_said(run: Run, words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(run(*words, code=2).output.replace("│", " ").split())


def test_a_base_that_cannot_be_searched_fails_and_one_that_is_not_there_is_noted(run: Run) -> None:
    assert "Error: " in run("pump", kb="wrong", code=1).stderr
    assert "names at least one knowledge base" in run("pump", kb=" , ", code=2).stderr
    noted = run("pump", kb="missing,plant").stdout
    assert "missing: knowledge base 'missing' does not exist" in " ".join(noted.split())
    Path("both.yaml").write_text("version: 1\n")
    for words in ((), ("--dry-run",)):
        shown = run("pump", "--preset", "both.yaml", *words, kb="bare").stdout
        assert "knowledge base 'bare' was created without an embedder and is searched by keywords only" in shown
        assert "kb export bare" in shown
    Path("vectors.yaml").write_text("version: 1\nchannels: {dense: {}}\n")
    assert "kb export bare" in run("pump", "--preset", "vectors.yaml", kb="bare", code=2).stderr
    assert "qdrant" in run("pump", kb="qdrand://localhost/x", code=2).stderr


def test_what_a_terminal_obeys_is_not_in_what_is_shown(run: Run, root: Path) -> None:
    with KnowledgeBase.create("evil", root=root) as kb:
        kb.add([Chunk("x", "pump \x1b]0;owned\x07 \u202egnp\u202c [red]", None, {"source_file": "\x1b[2J.md"})])
    shown = run("pump\x1b[1m", "--explain", kb="evil").stdout
    assert "[Source: (2J.md]" in shown
    assert "]0;owned gnp [red]" in shown
    assert {"\x1b", "\x07", "\u202e"}.isdisjoint(shown)


def test_a_configuration_gives_options_and_the_command_line_wins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASE", "plant")
    (tmp_path / "c.yaml").write_text(
        "kb: ['${BASE}', bare]\npreset: words.yaml\ntop_k: 1\nwhere: {source_file: a.md}\nquery: pump\njson: true\n"
    )
    told = json.loads(run("--config", "c.yaml").stdout)
    assert (told["kbs"], told["query"], [hit["id"] for hit in told["hits"]]) == (["plant", "bare"], "pump", ["plant:a"])
    words = ("--query", "valve", "--kb", "plant", "--where", "{}", "--top-k", "5")
    told = json.loads(run("--config", "c.yaml", *words).stdout)
    assert (told["kbs"], told["query"], [hit["id"] for hit in told["hits"]]) == (["plant"], "valve", ["b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("presett: legal", "unknown option 'presett'. Did you mean 'preset'?"),
        ("config: other.yaml", "unknown option 'config'"),
        ("- kb", "holds a list, not a mapping"),
        ("kb: [", "cannot be read as YAML"),
        ("kb: '${VOICEVAULT_NOT_THERE}'", "VOICEVAULT_NOT_THERE"),
        ("kb: plant\ntop_k: many", "'many' is not a valid integer"),
        ("kb: plant\nwhere: [1]", "is a filter such as"),
        ("kb: {a: 1}", "names, as a list or with commas between"),
        ("kb: plant\ntop_k: [1]", "top-k is a text or a number, not [1]"),
        ("kb: plant\ntop_k: true", "top-k is a text or a number, not True"),
        ("kb: plant\ntop_k: 2.7", "'2.7' is not a valid integer"),
        ("kb: plant\ntop_k: 1\ntop-k: 2", "top-k is there twice"),
        ("kb: plant\nexplain: 3", "explain is true or false, not 3"),
        ("kb: plant\nroot: {a: 1}", "root is a text or a number"),
        ("kb: plant\nquery: [pump, null]", "query is a text or a number, or a list of these"),
        ("kb: plant\nrequire:", "require is empty: leave it out, or write {}, which permits nothing"),
        ("kb: plant\nwhere: &a {x: *a}", "cannot be read as YAML"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_said(run: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert said in " ".join(run("pump", "--config", "c.yaml", code=2).output.split())


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is loaded, no file of one looked for, and no engine asked."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a dry run does not do this")

    for place, name in (
        (embedding, "make"), (weights, "fetch"), (weights, "find"), (scorers, "load_scorer"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, refuse)


@pytest.mark.usefixtures("untouched")
def test_a_dry_run_says_what_would_be_asked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "routed.yaml").write_text(
        "version: 1\nk: 7\nchannels: {bm25: {}, dense: {depth: 30}, graph: {depth: 9}}\n"
        "route: {method: rules, simple: [graph], standard: [bm25, dense]}\n"
        "stages: [rerank: {model: fast, depth: 12}, llm_rerank: {ollama: 'qwen3:8b', depth: 5}, page_cap]\n"
    )
    words = ("Section 420 IPC", "--query", "the pump hums", "--dry-run", "--preset", "routed.yaml")
    told = json.loads(run(*words, "--json", "--where", '{"a": 1}', "--top-k", "3").stdout)
    assert (told["version"], told["preset"], told["kbs"], told["notes"]) == (1, "routed", ["plant"], [])
    simple, standard = told["queries"]
    assert (simple["route"], simple["channels"]) == ("simple", {"graph": 9})
    assert (standard["route"], standard["rule"], standard["channels"]) == (
        "standard", "no rule", {"bm25": 100, "dense": 30},
    )  # fmt: skip
    rerankers = {"rerank": "cross-encoder/ms-marco-TinyBERT-L-2-v2", "llm_rerank": "qwen3:8b"}
    assert simple["models"] == rerankers
    assert standard["models"] == {"embedder": "hash/16", **rerankers}
    assert standard["stages"] == [
        {"name": "rerank", "depth": 12}, {"name": "llm_rerank", "depth": 5}, {"name": "page_cap"},
    ]  # fmt: skip
    assert (standard["k"], standard["where"], standard["require"]) == (3, {"a": 1}, None)
    shown = run(*words).stdout
    assert "Section 420 IPC\n  route:    simple (" in shown
    assert "  channels: bm25 (depth 100), dense (depth 30)\n" in shown
    assert "  filter:   none\n  results:  7\n" in shown


@pytest.mark.usefixtures("untouched")
def test_a_dry_run_needs_no_query_no_server_and_no_base(run: Run) -> None:
    assert "any query\n  route:    none\n  channels: bm25 (depth 100)" in run("--dry-run").stdout
    assert "note: missing: missing" in run("--dry-run", kb="missing").stdout
    pytest.importorskip("qdrant_client")
    shown = run("pump", "--dry-run", "--preset", "voicevault", kb="qdrant://192.0.2.1/plant").stdout
    assert "what the collection was made with (embedder)" in shown


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("words", "kb", "said"),
    [
        (("--preset", "model.yaml"), "plant", "llm_rerank needs a language model"),
        (("--where", '{"a": {"$no": 1}}'), "plant", "unknown filter operator"),
    ],
)
def test_a_dry_run_finds_what_a_search_would_refuse(run: Run, words: tuple[str, ...], kb: str, said: str) -> None:
    pytest.importorskip("qdrant_client")
    assert said in " ".join(run("pump", "--dry-run", *words, kb=kb, code=2).output.split())


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("words", "kb", "said"),
    [
        (("--preset", "voicevault"), "bare", "missing: dense: knowledge base 'bare' was created without an embedder"),
        (("--preset", "legal"), "plant", "on the command line: voicevault kb questions"),
        (
            ("--preset", "legal"),
            "qdrant://192.0.2.1/plant",
            "give graph= a graph store, or name its address as `store`",
        ),
    ],
)
def test_a_dry_run_says_what_is_missing(run: Run, words: tuple[str, ...], kb: str, said: str) -> None:
    pytest.importorskip("qdrant_client")
    assert said in " ".join(run("pump", "--dry-run", *words, kb=kb).output.split())
    assert json.loads(run("pump", "--dry-run", "--json", *words, kb=kb).stdout)["missing"]


@pytest.mark.usefixtures("untouched")
def test_a_language_model_is_named_on_the_command_line(run: Run) -> None:
    words = ("pump", "--dry-run", "--json", "--preset", "model.yaml")
    told = json.loads(run(*words, "--ollama", "qwen3:8b").stdout)
    assert told["queries"][0]["models"]["llm_rerank"] == "qwen3:8b"
    assert "--ollama MODEL or --openai MODEL" in " ".join(run(*words, code=2).output.split())
    assert "llm= would not be used" in run("pump", "--dry-run", "--ollama", "a", code=2).output
    assert "named once" in run("pump", "--dry-run", "--ollama", "a", "--openai", "b", code=2).output


@pytest.mark.usefixtures("untouched")
def test_an_address_reads_the_environment_and_its_password_is_never_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("qdrant_client")
    monkeypatch.setenv("KEY", "sesame")
    (tmp_path / "c.yaml").write_text("kb: 'qdrant://${KEY}@192.0.2.1/plant'\npreset: words.yaml\n")
    typed = run("pump", "--dry-run", kb="qdrant://${KEY}@192.0.2.1/plant").output
    for shown in (typed, run("pump", "--dry-run", "--config", "c.yaml").output):
        assert "over qdrant://***@192.0.2.1/plant\n" in shown
        assert "sesame" not in shown
    assert "the environment has no NONE" in run("pump", kb="qdrant://${NONE}@192.0.2.1/plant", code=2).stderr


def test_a_missing_extra_is_no_wrong_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MissingExtraError("pip install 'voicevault-retrievers[qdrant]'")

    monkeypatch.setattr(search_options, "open_bases", missing)
    assert run("pump", code=2).stderr == "Error: pip install 'voicevault-retrievers[qdrant]'\n"


def test_a_model_that_does_not_exist_is_a_wrong_set_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RerankerNotAvailableError("the reranker 'a/b' cannot be loaded") from ModelNotAvailableError("a/b")

    monkeypatch.setattr(scorers, "load_scorer", missing)
    monkeypatch.setattr(scorers, "_SHARED", {})
    Path("reranked.yaml").write_text("version: 1\nchannels: {bm25: {}}\nstages: [rerank: {model: a/b}]\n")
    done = run("pump", "--preset", "reranked.yaml", code=2)
    assert done.stderr == "Error: the reranker 'a/b' cannot be loaded\n"


def test_a_dry_run_checks_each_query(run: Run) -> None:
    given = '{"text": "pump"}\n{"text": "x", "weights": {"none": 1}}\n{"no": 1}\n'
    done = run("--queries-file", "-", "--dry-run", given=given, code=2)
    assert "wrong: unknown channel in weights 'none'" in done.stdout
    assert "wrong: the standard input:3: unknown key" in done.stdout
    assert run("--queries-file", "-", given=given, code=1).stdout.count("failed query:") == 2


def test_an_engine_is_closed_when_it_has_answered(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = pytest.importorskip("voicevault_retrievers.engines.qdrant.engine").QdrantEngine
    closed: list[Any] = []
    real = engine.close

    def counted(own: Any) -> None:
        closed.append(own)
        real(own)

    monkeypatch.setattr(engine, "close", counted)
    assert "Nothing found." in run("pump", kb=f"qdrant+file://{tmp_path}/q/plant").stdout
    assert len(closed) == 1


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_what_a_terminal_obeys_in_a_file_of_queries_is_not_shown(run: Run, words: tuple[str, ...]) -> None:
    given = json.dumps({"text": "pump \x1b]0;owned\x07 \u202egnp", "where": {"\x1b[2J": 1}})
    shown = run("--queries-file", "-", *words, given=given).stdout
    assert "pump ]0;owned gnp" in shown
    assert {"\x1b", "\x07", "\u202e"}.isdisjoint(shown)


@pytest.mark.usefixtures("untouched")
def test_what_stands_behind_an_address_is_not_shown(run: Run) -> None:
    pytest.importorskip("psycopg")
    done = run("pump", "--dry-run", "--json", kb="postgresql://me:open@192.0.2.1/db?password=sesame#plant")
    assert json.loads(done.stdout)["kbs"] == ["postgresql://***@192.0.2.1/db?***#plant"]


@pytest.mark.parametrize("words", [(), ("--explain",), ("--json",), ("--query", "valve")])
@pytest.mark.parametrize("kb", ["plnt", "plnt,other"])
def test_a_base_that_does_not_exist_is_named_with_the_nearest_and_how_to_make_it(
    run: Run, root: Path, words: tuple[str, ...], kb: str
) -> None:
    said = run("pump", *words, kb=kb, code=2)
    assert said.stdout == ""
    told = said.stderr
    assert f"there is no knowledge base 'plnt' in {root}; did you mean 'plant'?; known: bare, " in told
    assert "to make one: voicevault index FOLDER --kb NAME" in told


def test_before_anything_is_indexed_search_and_inspect_say_what_to_do(tmp_path: Path) -> None:
    for words in (("search", "pump"), ("search", "--interactive"), ("inspect", "--no-open")):
        told = ran(*words, "--kb", "docs", "--root", tmp_path / "none", code=2).stderr
        assert "there is no knowledge base 'docs' in" in told
        assert "known: none; to make one: voicevault index FOLDER --kb NAME" in told
        assert not (tmp_path / "none").exists()


def test_without_a_preset_search_ranks_as_the_library_does(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "make", lambda *_: HashEmbedder())
    base = KnowledgeBase.open("plant", root=root, embedder=HashEmbedder())
    expected = compose({"bm25": base.bm25(), "dense": base.dense()}).search("the pump hums")
    specified = load_preset("voicevault").over(base).channel
    words = ("search", "the pump hums", "--kb", "plant", "--root", root, "--json")
    told = json.loads(ran(*words).stdout)
    assert [(hit["id"], hit["score"]) for hit in told["hits"]] == [(hit.id, hit.score) for hit in expected.hits]
    planned = json.loads(ran(*words, "--dry-run").stdout)
    assert (planned["preset"], planned["missing"]) == ("default", [])
    assert (list(planned["queries"][0]["channels"]), planned["queries"][0]["stages"]) == (["bm25", "dense"], [])
    assert "RRF" in repr(specified)
    assert json.loads(ran(*words, "--dry-run", "--preset", "voicevault").stdout)["preset"] == "voicevault"
    assert Shelf(["plant"], root=root).preset_names[:1] == ["default"]
    shelf = Shelf(["plant"], root=root).pipeline(["plant"], "default")
    assert shelf.search("the pump hums").ranking.ids == expected.ranking.ids

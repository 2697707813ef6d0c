"""What is served and to whom: the options of `voicevault mcp` and its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("mcp")

from voicevault_retrievers import KnowledgeBase
from voicevault_retrievers.cli.mcp import mcp_
from voicevault_retrievers.errors import AccessError, ConfigError
from voicevault_retrievers.mcp import load_configuration, local
from voicevault_retrievers.mcp.bases import Library

TOKEN = "t" * 24


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", TOKEN)
    monkeypatch.setenv("TEST_NUMBER", "0123456789012345")
    monkeypatch.setenv("TEST_SHORT", "short")
    monkeypatch.setenv("TEST_DEPARTMENT", "tides")


def _written(folder: Path, text: str) -> Path:
    path = folder / "server.yaml"
    path.write_text(text)
    return path


def test_bases_clients_and_rights(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("version: 1\nchannels: {bm25: {}}\n")
    found = load_configuration(
        _written(
            tmp_path,
            """
version: 1
bases:
  plant: {}
  cases:
    description: |
      Closed
      cases.
    root: kbs
    preset: own.yaml
    k: 8
    where: {status: closed}
    require: {department: "${TEST_DEPARTMENT}"}
  archive: {address: "qdrant://key@host/archive"}
clients:
  desk: {token: "${TEST_TOKEN}", bases: [cases, plant], require: {public: true}}
  other: {token: "${TEST_NUMBER}", bases: [archive]}
hosts: [search.example.org]
max_tokens: 500
""",
        ),
        preset="legal",
        root=Path("/kbs"),
    )
    desk, other = found.clients
    cases, plant = desk.offers
    assert (cases.name, cases.description, cases.root, cases.k) == ("cases", "Closed cases.", tmp_path / "kbs", 8)
    assert cases.preset == str(tmp_path / "own.yaml")
    assert cases.require == {"$and": [{"department": "tides"}, {"public": True}]}
    assert cases.passes({"status": "closed", "department": "tides", "public": True})
    assert not cases.passes({"status": "open", "department": "tides", "public": True})
    assert not cases.passes({"status": "closed", "department": "tides"})
    assert (plant.preset, plant.root, plant.require) == ("legal", Path("/kbs"), {"public": True})
    assert other.token == "0123456789012345"  # noqa: S105 - not a number
    assert (found.hosts, found.max_tokens, found.guarded) == (("search.example.org",), 500, True)
    assert TOKEN not in repr(found)
    assert "key@host" not in repr(found)
    with pytest.raises(ConfigError, match="give --http"):
        _ = found.local


BASES = "version: 1\nbases: {plant: {}, cases: {}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bases: {plant: {}}", "says `version: 1`"),
        ("version: 1", "names no bases"),
        ("version: 1\nbases: [plant]", "bases is a mapping"),
        ("version: 1\nbase: {plant: {}}", "Did you mean 'bases'"),
        ("version: 1\nbases: {../x: {}}", "is not the name of a knowledge base"),
        ("version: 1\nbases: {plant: {requires: {a: 1}}}", "Did you mean 'require'"),
        ("version: 1\nbases: {plant: {require: }}", "leave it out to restrict nothing"),
        ("version: 1\nbases: {plant: {require: {}}}", "leave it out to restrict nothing"),
        ("version: 1\nbases: {plant: {require: {$or: [{}]}}}", "leave it out to restrict nothing"),
        ("version: 1\nbases: {plant: {require: {a: {$near: 1}}}}", "unknown filter operator '\\$near'"),
        ("version: 1\nbases: {plant: {preset: lega}}", "Did you mean 'legal'"),
        ("version: 1\nbases: {plant: {k: 0}}", "k of base 'plant' is a whole number"),
        ("version: 1\nbases: {plant: {address: x}}", "address is an engine's"),
        ("version: 1\nbases: {plant: {where: {a: '${NO_SUCH}'}}}", "the environment has no NO_SUCH"),
        ("version: 1\nbases: 5", "bases is a mapping"),
        (BASES + "clients:", "clients names none"),
        (BASES + "clients: {desk: {bases: [plant]}}", "token names a variable"),
        (BASES + "clients: {desk: {bases: [plant], token: plainly-written-here}}", "token names a variable"),
        (BASES + "clients: {desk: {bases: [plant], token: '${NO_SUCH}'}}", "the environment has no NO_SUCH"),
        (BASES + "clients: {desk: {bases: [plant], token: '${TEST_SHORT}'}}", "fewer than 16 characters"),
        (BASES + "clients: {desk: {bases: [plan], token: '${TEST_TOKEN}'}}", "Did you mean 'plant'"),
        (BASES + "clients: {desk: {bases: [], token: '${TEST_TOKEN}'}}", "bases is a list of at least one"),
        (BASES + "clients: {desk: {token: '${TEST_TOKEN}'}}", "bases is a list of at least one"),
        (BASES + "clients: {desk: {bases: [plant], require: , token: '${TEST_TOKEN}'}}", "leave it out"),
        (
            BASES
            + "clients: {a: {bases: [plant], token: '${TEST_TOKEN}'}, b: {bases: [plant], token: '${TEST_TOKEN}'}}",
            "two clients have one token",
        ),
        (BASES + "hosts: example.org", "hosts is a list of names"),
        ("{", "is not YAML"),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load_configuration(_written(tmp_path, text))
    assert "short" not in str(error.value)
    assert "plainly-written" not in str(error.value)


def test_bases_by_name_alone() -> None:
    (client,) = local(["plant", "cases"]).clients
    assert [offer.name for offer in client.offers] == ["plant", "cases"]
    assert client.token is None
    for names, said in (([], "at least one"), (["a", "a"], "each once"), (["qdrant://k@h/c"], "may hold a password")):
        with pytest.raises(ConfigError, match=said):
            local(names)
    assert client.offers[0].passes({})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say what to serve"),
        (["--kb", "a", "--config", "x.yaml"], "say what to serve"),
        (["--config", "none.yaml"], "cannot be read"),
        (["--kb", "a", "--preset", "lega"], "Did you mean 'legal'"),
        (["--kb", "a", "--http", "--host", "10.0.0.5"], "clients and their tokens"),
        (["--kb", "a", "--port", "70000"], "not in the range"),
    ],
)
def test_wrong_options_end_with_two(words: list[str], said: str) -> None:
    done = CliRunner().invoke(mcp_, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_what_is_wrong_with_a_base_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("{version: 1, channels: {bm25: {}}}")
    KnowledgeBase.create("broken", root=tmp_path)
    (tmp_path / "broken" / "manifest.json").write_text("{")
    words = ["--root", str(tmp_path), "--preset", str(tmp_path / "own.yaml"), "--kb"]
    done = CliRunner().invoke(mcp_, [*words, "broken"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "manifest.json" in done.stderr


def test_a_base_that_is_not_there_yet_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "own.yaml").write_text("{version: 1, channels: {bm25: {}}}")
    Library().open(local(["plnt"], preset=str(tmp_path / "own.yaml"), root=tmp_path).local.offers)
    assert "knowledge base 'plnt' does not exist in" in caplog.text


def test_a_base_whose_preset_has_access_as_mandatory_is_offered_under_rights_alone(tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text("version: 1\nchannels: {bm25: {}}\naccess: mandatory\n")
    clients = "clients: {desk: {bases: [plant], token: '${TEST_TOKEN}'%s}}"
    plant, rights = "version: 1\nbases: {plant: {preset: case.yaml%s}}\n", ", require: {public: true}"
    for text in (plant % "", plant % "" + clients % ""):
        with pytest.raises(AccessError, match=r"offered to .* without access rights"):
            load_configuration(_written(tmp_path, text))
    for text in (plant % rights, plant % rights + clients % "", plant % "" + clients % rights):
        (client,) = load_configuration(_written(tmp_path, text)).clients
        assert client.offers[0].require == {"public": True}
    with pytest.raises(AccessError, match="'casefile'"):
        local(["plant"], preset="casefile")

"""`voicevault engine`: copies, comparisons, and what a collection is, into Qdrant's local mode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.parts import Run, ran
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.store import KnowledgeBase

pytest.importorskip("qdrant_client")
WORDS = ("pump", "valve", "turbine")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with KnowledgeBase.create("plant", root=tmp_path / "kbs") as kb:
        kb.add(
            [Chunk(f"c{at}", f"The {WORDS[at % 3]} is number {at}.", "p", {"title": f"Part {at}"}) for at in range(9)],
            parents=[Chunk("p", "all about it")],
        )
    return tmp_path / "kbs"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"qdrant+file://{tmp_path}/qdrant/plant"


@pytest.fixture
def run(root: Path) -> Run:
    return lambda *words, **options: ran(
        *words, *(() if {"info", "reweigh"} & set(words) else ("--root", root)), **options
    )


def test_a_copy_is_told_and_verified(run: Run, address: str) -> None:
    told = run("engine", "copy", "--from", "plant", "--to", address).stdout
    assert told.startswith("9 chunks written")
    assert "9 of 9 chunks" in told
    assert told.endswith(": verified\n")
    again = json.loads(run("engine", "copy", "--from", "plant", "--to", address, "--json").stdout)
    assert (again["version"], again["written"], again["unchanged"], again["parents"]) == (1, 0, 9, 1)
    assert again["verified"] is True


def test_a_collection_that_holds_more_is_not_verified(run: Run, root: Path, address: str) -> None:
    run("engine", "copy", "--from", "plant", "--to", address)
    with KnowledgeBase.open("plant", root=root) as kb:
        kb.delete(["c0"])
    told = run("engine", "copy", "--from", "plant", "--to", address, code=1).stdout
    assert "1 more are in the collection" in told
    assert "NOT the same as the source" in told
    told = run("engine", "copy", "--from", "plant", "--to", address, "--prune").stdout
    assert "1 more were removed" in told
    assert "8 of 8 chunks" in told


def test_a_difference_has_a_cause(run: Run, address: str) -> None:
    run("engine", "copy", "--from", "plant", "--to", address)
    same = run("engine", "diff", "--from", "plant", "--to", address, "--synthetic", "5").stdout
    assert "overlap@10" in same
    assert "1.000" in same
    engine = connect(address)
    engine.delete(["c1"])
    engine.close()
    told = json.loads(run("engine", "diff", "--from", "plant", "--to", address, "--k", "3", "--json").stdout)
    (channel,) = told["channels"]
    assert channel["channel"] == "bm25"
    assert channel["overlap"] < 1
    assert "absent" in channel["causes"]


def test_info_says_what_a_collection_was_made_with(run: Run, address: str) -> None:
    run("engine", "copy", "--from", "plant", "--to", address)
    told = json.loads(run("engine", "info", address, "--json").stdout)
    assert (told["collection"], told["exists"], told["chunks"]) == ("plant", True, 9)
    assert told["made_with"]["embedder"] is None
    assert told["capabilities"]["engine_statistics"] is True
    assert told["weights"]["drift"] == 0.0
    told = json.loads(run("engine", "info", address + "-other", "--json").stdout)
    assert (told["exists"], told["chunks"], told["made_with"]) == (False, 0, None)


def test_weights_are_made_anew(run: Run, address: str) -> None:
    run("engine", "copy", "--from", "plant", "--to", address)
    engine = connect(address)
    engine.upsert([Chunk("long", "turbine " * 40)])
    engine.close()
    assert json.loads(run("engine", "info", address, "--json").stdout)["weights"]["drift"] != 0.0
    assert run("engine", "reweigh", address).stdout == "10 chunks have new weights\n"
    assert json.loads(run("engine", "info", address, "--json").stdout)["weights"]["drift"] == 0.0
    assert json.loads(run("engine", "reweigh", address, "--json").stdout) == {"version": 1, "reweighed": 0}


@pytest.mark.weights
def test_a_search_takes_an_address(run: Run, address: str) -> None:
    run("engine", "copy", "--from", "plant", "--to", address)
    told = json.loads(run("search", "turbine", "--kb", address, "--json").stdout)
    assert told["hits"][0]["id"] in ("c2", "c5", "c8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("copy", "--from", "none", "--to", "qdrant+file:///x/y"), "none", id="no base"),
        pytest.param(("copy", "--from", "plant", "--to", "qdrand://x/y"), "Did you mean 'qdrant'", id="scheme"),
        pytest.param(("copy", "--from", "plant", "--to", "plant"), "SCHEME://", id="no address"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, words: tuple[str, ...], said: str) -> None:
    assert said in run("engine", *words, code=2).output

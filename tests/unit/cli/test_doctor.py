"""`voicevault doctor`: what it finds here, and what it would say of other machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.parts import Run, ran
from voicevault_retrievers._support import compiled as numba
from voicevault_retrievers.cli import doctor, environment, speed
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import MissingExtraError
from voicevault_retrievers.models import weights
from voicevault_retrievers.pipeline.presets import DEFAULT_MODEL
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL as SCORER
from voicevault_retrievers.store import KnowledgeBase

REQUIRED = [
    "numpy>=1.26",
    "click>=8.1; extra == 'cli'",
    "click<2,>=1; extra == 'old'",
    'voicevault-no-such-package[fast] (>=3.1) ; extra == "gone"',
    "click>=8.1; extra == 'gone'",
    "ruff>=0.9; extra == 'dev'",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with KnowledgeBase.create("plant", root=tmp_path / "kbs") as kb:
        kb.add([Chunk("a", "the pump hums")])
    (tmp_path / "kbs" / "other").mkdir()
    return tmp_path / "kbs"


@pytest.fixture
def run(root: Path) -> Run:
    return partial(ran, "doctor", "--root", root)


def _damage(root: Path) -> None:
    (root / "plant" / "manifest.json").write_text("{")


def test_what_is_here_is_told(run: Run, root: Path) -> None:
    told = json.loads(run("--no-measure", "--json").stdout)
    assert told["version"] == 1
    assert told["extras"]["cli"]["status"] == "present"
    assert set(told["extras"]).isdisjoint({"all", "dev"})
    assert (told["speed"], told["broken"], told["root"]) == ({}, [], str(root))
    assert [(base["name"], base["chunks"], base["vectors"]) for base in told["kbs"]] == [("plant", 1, None)]
    assert told["processor"]["cores"] >= 1
    shown = run("--no-measure").stdout
    assert shown.startswith(f"voicevault-retrievers {told['package']}, Python {told['python']}")
    assert "\n  plant: 1 chunks, 0.0 MB\n" in shown
    assert "\nSpeed\n  not measured\n" in shown
    assert shown.endswith("\nBroken\n  none\n")


@pytest.mark.skipif(not numba.installed(), reason="numba is not installed")
def test_machine_code_is_made_beforehand(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(run("--no-measure", "--warm", "--json").stdout)
    assert told["warmed"] == {"plant": "ready"}
    assert "\nMachine code\n  plant: ready\n" in run("--no-measure", "--warm").stdout
    assert "warmed" not in json.loads(run("--no-measure", "--json").stdout)

    def missing(*_: object, **__: object) -> None:
        raise MissingExtraError("pip install 'voicevault-retrievers[fast]'")

    monkeypatch.setattr("voicevault_retrievers.lexical.index.require_extra", missing)
    told = json.loads(run("--no-measure", "--warm", "--json").stdout)
    assert told["warmed"] == {"plant": "pip install 'voicevault-retrievers[fast]'"}


def test_a_damaged_base_is_named_and_makes_it_fail(run: Run, root: Path) -> None:
    _damage(root)
    told = json.loads(run("--no-measure", "--json", code=1).stdout)
    assert told["broken"][0].startswith("knowledge base plant: ")
    assert "plant: DAMAGED" in run("--no-measure", code=1).stdout


def test_what_is_measured_has_a_rate_or_a_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> speed.Measurement:
        raise MissingExtraError("pip install 'voicevault-retrievers[onnx]'")

    def failing() -> speed.Measurement:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(speed, "CHUNKS", 100)
    monkeypatch.setattr(speed, "rate", partial(speed.rate, seconds=0.01))
    models = [environment.Model(name, ("onnx",), "package") for name in (DEFAULT_MODEL, SCORER)]
    monkeypatch.setattr(environment, "models", lambda: models)
    monkeypatch.setattr(speed, "embedding", missing)
    monkeypatch.setattr(speed, "reranking", failing)
    done = run("--json", code=1)
    told = json.loads(done.stdout)
    assert told["speed"]["keyword_search"]["per_second"] > 0
    assert told["speed"]["disk"]["per_second"] > 0
    assert told["speed"]["embedding"] == {"missing": "pip install 'voicevault-retrievers[onnx]'"}
    assert told["broken"] == ["reranking: RuntimeError: no such instruction"]


def test_a_model_that_is_not_here_is_not_fetched_to_be_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched() -> speed.Measurement:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(speed, "CHUNKS", 100)
    monkeypatch.setattr(speed, "rate", partial(speed.rate, seconds=0.01))
    monkeypatch.setattr(speed, "embedding", fetched)
    monkeypatch.setattr(speed, "reranking", fetched)
    monkeypatch.setattr(environment, "models", list)
    told = json.loads(run("--json").stdout)
    for name in ("embedding", "reranking"):
        assert "does not load without the network: pip install" in told["speed"][name]["missing"]


def test_a_rate_is_work_over_time_without_its_first_step() -> None:
    def clock() -> Iterator[float]:
        yield from (10.0, 10.5, 11.0, 12.0)

    times, steps = clock(), iter((100, 3, 4, 5))
    assert speed.rate(lambda: next(steps), seconds=1.5, clock=lambda: next(times)) == (3 + 4 + 5) / 2


def test_the_models_here_are_named() -> None:
    if weights.find("all-MiniLM-L6-v2", "onnx") is None or not weights.installed("onnx"):
        pytest.skip("the weights of the extra offline are not installed")
    names = {(one.name, one.place) for one in environment.models()}
    assert {("all-MiniLM-L6-v2", "package"), ("ms-marco-MiniLM-L-12-v2", "package")} <= names


def test_extras_are_present_missing_or_in_conflict() -> None:
    cli, gone, old = environment.extras(REQUIRED)
    assert (cli.name, cli.status, list(cli.packages)) == ("cli", "present", ["click"])
    assert (gone.name, gone.status, gone.missing) == ("gone", "missing", ("voicevault-no-such-package",))
    assert gone.install == "pip install 'voicevault-retrievers[gone]'"
    assert (old.name, old.status) == ("old", "conflict")
    assert old.conflicts == (f"click {old.packages['click']} is installed, <2,>=1 is supported",)


@pytest.mark.parametrize(
    ("held", "wanted", "holds"),
    [
        ("1.4.2", "<2,>=1.4", True), ("2.0.0", "<2,>=1.4", False), ("1.3.99", ">=1.4", False), ("1.10", ">=1.9", True),
        ("1.0", "==1.0.0", True), ("1.0.1", "==1.0.0", False), ("0.48b0", ">=0.48b0", True), ("3", "!=3.0", False),
        ("3", "<=3.0", True), ("3", ">3", False), ("anything", "", True), ("2026.4.1", ">=2025.0", True),
    ],
)  # fmt: skip
def test_a_version_lies_in_a_range(held: str, wanted: str, holds: bool) -> None:
    assert environment.satisfies(held, wanted) is holds


def test_models_of_the_hubs_cache_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "installed", lambda _: True)
    for at, folder in enumerate(("models--BAAI--bge-reranker-v2-m3", "models--a--pickles", "models--a--graph")):
        snapshot = tmp_path / folder / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        for name in (("model.safetensors", "config.json"), ("model.bin",), ("model.onnx", "tokenizer.json"))[at]:
            (snapshot / name).write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = {one.name: one.backends for one in environment.models() if one.place == "hub cache"}
    assert found == {"BAAI/bge-reranker-v2-m3": ("sentence-transformers",), "a/graph": ("openvino", "onnx")}


def test_the_hubs_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert environment.hub_cache() == Path.home() / ".cache/huggingface/hub"
    assert not environment.hub_offline()
    for name, path in (("XDG_CACHE_HOME", "huggingface/hub"), ("HF_HOME", "hub"), ("HF_HUB_CACHE", "")):
        monkeypatch.setenv(name, os.fspath(Path("/x", name)))
        assert environment.hub_cache() == Path("/x", name, path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "true")
    assert environment.hub_offline()


def test_a_processor_is_told_where_the_system_tells(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fpu avx2 avx512_vnni amx_int8\n\n")
    told = environment.processor(file)
    assert (told["name"], told["features"]) == ("Some CPU @ 2GHz", ["AVX2", "AVX-512 VNNI", "AMX int8"])
    file.write_text("Features\t: fp asimd asimddp\n")
    assert environment.processor(file)["features"] == ["NEON", "NEON dot product"]
    assert environment.processor(tmp_path / "none")["features"] is None


def test_what_is_recommended_follows_from_what_was_found() -> None:
    here: dict[str, Any] = {
        "extras": {name: {"status": "missing", "install": f"pip install [{name}]"} for name in ("fast", "openvino")},
        "models": [{"name": "all-MiniLM-L6-v2"}],
        "speed": {"reranking": {"per_second": 80.0}},
        "kbs": [
            {"name": "large", "chunks": 20_000, "dimension": 384, "vectors": "exact"},
            {"name": "codes", "chunks": 20_000, "dimension": 384, "vectors": "int8"},
            {"name": "words", "chunks": 20_000, "dimension": None, "vectors": None},
            {"name": "bad", "error": "damaged"},
            {"name": "foreign", "vectors": None, "advice": "foreign: index anew"},
        ],
    }
    said = list(doctor.recommended(here))
    assert said == [
        "OpenVINO embeds faster on most processors: pip install [openvino]",
        "numba builds and searches large indexes faster: pip install [fast]",
        "reranking takes up to a second at depth 80, and 0.2 s at depth 20",
        "`--vectors int8` pays from 10,923 chunks on (of 384 dimensions)",
        "large is that large: index it anew with `--vectors int8`",
        "foreign: index anew",
    ]
    bare = list(doctor.recommended({"extras": {}, "models": [], "speed": {}, "kbs": []}))
    assert bare[0] == "no embedding model loads without the network: pip install 'voicevault-retrievers[onnx,offline]'"


def test_folders_that_may_not_be_looked_into_do_not_end_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise PermissionError(13, "Permission denied", "/somewhere")

    monkeypatch.setattr(Path, "glob", refused)
    monkeypatch.setattr("voicevault_retrievers.store.names.names", refused)
    told = json.loads(run("--no-measure", "--json", code=1).stdout)
    assert told["kbs"] == [{"name": "kbs", "error": "[Errno 13] Permission denied: '/somewhere'"}]

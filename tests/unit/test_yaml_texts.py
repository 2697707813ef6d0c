"""YAML that users write: keys that are there twice are refused wherever a file is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from voicevault_retrievers._support.yaml_texts import loaded
from voicevault_retrievers.cli.commands import voicevault
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.mcp.configuration import load_configuration
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.store.curation import Curation

RIGHTS = "bases: {plant: {require: {team: a}, require: {team: b}}}"


def by_command(path: Path) -> None:
    done = CliRunner().invoke(voicevault, ["search", "pump", "--config", str(path)])
    assert done.exit_code == 2
    raise ConfigError(done.output)


READERS: list[tuple[Callable[[Path], Any], str]] = [
    (load_configuration, f"version: 1\n{RIGHTS}"),
    (load_preset, "version: 1\naccess: mandatory\nchannels: {bm25: {}}\naccess: optional"),
    (by_command, "require: {team: a}\nrequire: {team: b}"),
    (lambda path: Curation.from_text(path.read_text()), "blocked: []\nblocked: []"),
]


@pytest.mark.parametrize(("read", "text"), READERS)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, read: Callable[[Path], Any], text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the key '(require|access|blocked)' is there twice, near line"):
        read(path)


def test_what_yaml_allows_is_read() -> None:
    assert loaded("", "it") is None
    assert loaded("a: &x {b: 1}\nc: [*x, *x]\nd: {<<: *x, b: 2}", "it") == {
        "a": {"b": 1},
        "c": [{"b": 1}, {"b": 1}],
        "d": {"b": 2},
    }


def test_aliases_of_aliases_take_no_time() -> None:
    lines = ["a0: &a0 [x]", *(f"a{at}: &a{at} [*a{at - 1}, *a{at - 1}]" for at in range(1, 40))]
    assert len(loaded("\n".join(lines), "it")) == 40


@pytest.mark.parametrize("text", ["a: [", "a: &x [*x", "[" * 5000, "a: !!python/object:os.system x", "2026-99-99"])
def test_what_is_not_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^it is not YAML"):
        loaded(text, "it")


@pytest.mark.parametrize("value", ["@home", "{a: [", "{a: 1, a: 2}"])
def test_the_value_of_a_variable_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OWN_VALUE", value)
    path = tmp_path / "own.yaml"
    path.write_text("version: 1\nchannels: {bm25: {}}\nk: ${OWN_VALUE}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the value of \$\{OWN_VALUE\} is not YAML") as raised:
        load_preset(path)
    assert value not in str(raised.value)

"""`voicevault completion`: scripts that shells take, and what is offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from tests.unit.cli.parts import ran
from voicevault_retrievers.cli.commands import COMMANDS, voicevault
from voicevault_retrievers.pipeline.presets import preset_names
from voicevault_retrievers.store import KnowledgeBase


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOICEVAULT_HOME", str(tmp_path / "home"))
    KnowledgeBase.create("plant", root=tmp_path / "home")
    KnowledgeBase.create("planet", root=tmp_path / "home")
    KnowledgeBase.create("other", root=tmp_path / "kbs")
    return tmp_path


def _offered(*words: str, last: str = "") -> list[str]:
    shell = ShellComplete(voicevault, {}, "voicevault", "_VOICEVAULT_COMPLETE")
    return [item.value for item in shell.get_completions(list(words), last)]


@pytest.mark.program
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_takes(shell: str, tmp_path: Path) -> None:
    script = ran("completion", shell).stdout
    assert f"_VOICEVAULT_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_commands_and_options_are_offered() -> None:
    assert _offered(last="in") == ["index", "inspect"]
    assert _offered() == list(COMMANDS)
    assert _offered("kb", last="re") == ["repair"]
    assert _offered("search", last="--que") == ["--query", "--queries-file"]


def test_bases_and_presets_that_there_are_are_offered(root: Path) -> None:
    assert _offered("search", "--kb", last="pl") == ["planet", "plant"]
    assert _offered("search", "--kb", last="plant,") == ["plant,planet", "plant,plant"]
    assert _offered("search", "--root", str(root / "kbs"), "--kb") == ["other"]
    for words in (("kb", "stats"), ("kb", "graph"), ("engine", "copy", "--from"), ("eval", "--kb"), ("tune", "--kb")):
        assert _offered(*words) == ["planet", "plant"], words
    for command in ("search", "eval", "tune"):
        assert _offered(command, "--preset") == preset_names()
    assert _offered("search", "--preset", last="my") == ["my"]


@pytest.mark.program
def test_the_program_answers_a_shell(root: Path) -> None:
    env = {
        **os.environ, "_VOICEVAULT_COMPLETE": "bash_complete", "COMP_WORDS": "voicevault search --kb pla",
        "COMP_CWORD": "3",
    }  # fmt: skip
    code = "from voicevault_retrievers.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,planet", "plain,plant"]


@pytest.mark.program
def test_no_command_is_loaded_for_the_help_of_all() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom voicevault_retrievers.cli.commands import voicevault\n"
        "CliRunner().invoke(voicevault, ['--help'])\nprint(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "rich", "voicevault_retrievers.cli.search"}.isdisjoint(loaded)
    context = click.Context(voicevault)
    assert all(isinstance(voicevault.get_command(context, name), click.Command) for name in COMMANDS)


def test_a_command_or_a_shell_that_is_not_there_is_said_with_those_that_are() -> None:
    assert "unknown command 'serch'. Did you mean 'search'?" in ran("serch", "x", code=2).output
    assert "'bash', 'zsh', 'fish'" in ran("completion", "cmd", code=2).output

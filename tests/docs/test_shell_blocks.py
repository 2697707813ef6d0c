"""The shell blocks of README, documents and integrations: each line is run, or is of a kind that is checked."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.docs.test_documents_run import needs_weights
from tests.unit.cli.test_help import LINES as EXAMPLES
from tests.unit.cli.test_help import folder, prepared  # noqa: F401 - fixtures
from voicevault_retrievers.cli.commands import voicevault

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "integrations").rglob("*.md"))]
RUN_ELSEWHERE = ("first-steps.md", "casefile", "legal", "newsroom", "pdf-chat", "voicevault")
"""Pages, and folders of presets, all of whose lines other tests run one after the other."""
NEEDS = {"eval": "ir_measures", "tune": "ir_measures", "engine": "qdrant_client"}


def shell(page: Path) -> list[str]:
    """The lines of a page's shell blocks, without comments; a line that goes on is one."""
    text = "".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    lines = (re.sub(r"(?:^|  +)# .*", "", line).strip() for line in text.replace("\\\n", "").splitlines())
    return [line for line in lines if line]


def words_of(line: str) -> list[str]:
    """The words of the command in a line, without what a shell does with it."""
    (command,) = re.findall(r"\bvoicevault [^>)]+", line)
    return shlex.split(command)


LINES = {page: shell(page) for page in PAGES}
ALL = sorted({line for lines in LINES.values() for line in lines})
COMMANDS = [line for line in ALL if "voicevault " in line and not line.startswith(("cd ", "git "))]
SHOWN = [*(words_of(line) for line in EXAMPLES), ["voicevault", "eval", "--sample"]]
"""What other tests run."""
RUN = [
    line
    for line in COMMANDS
    if words_of(line)[1] not in ("inspect", "mcp")
    and words_of(line) not in SHOWN
    and any(line in LINES[page] for page in PAGES if {page.name, page.parent.name}.isdisjoint(RUN_ELSEWHERE))
]
"""Those of the command, but for servers."""


def test_shell_blocks_are_marked_as_such() -> None:
    for page in PAGES:
        assert not re.search(r"(?m)^```(bash|console|shell)$", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("line", ALL)
def test_a_line_is_of_a_kind_that_is_run_or_checked(line: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    start, *words = line.split()
    if start == "pip":
        named = [extra for found in re.findall(r"\[([\w,-]+)\]'", line) for extra in found.split(",")]
        assert [extra for extra in named if f"\n{extra} = [" not in project] == []
    elif start == "make":
        assert f"\n{words[0]}:" in makefile
    elif start == "python" and "/" in line:
        assert (ROOT / words[0]).is_file()
    elif start == "export":
        assert words == ["OPENAI_API_KEY=..."]
    elif line not in COMMANDS:
        assert line in LINES[ROOT / "docs/tutorials/first-steps.md"]  # which `make bench-newcomer` types as it is


@needs_weights
@pytest.mark.parametrize("line", RUN)
def test_a_line_of_the_command_works(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    if (needed := NEEDS.get(words_of(line)[1])) is not None:
        pytest.importorskip(needed)
    _own(folder)
    monkeypatch.setenv("HOME", str(folder))
    if "diff" in line or "info" in line:
        _done("voicevault engine copy --from plant --to qdrant://localhost:6333/plant", folder)
    _done(line, folder)


def _own(place: Path) -> None:
    """What the pages take for granted beside what the examples of the help do."""
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```yaml\n# plant\.yaml\n(.*?)```", page, re.DOTALL)
    place.joinpath("plant.yaml").write_text(file)
    place.joinpath("indexes").symlink_to(place / "kbs", target_is_directory=True)
    shutil.copy(place / "q.jsonl", place / "queries.jsonl")
    for name in ("law", "manuals"):
        shutil.copytree(place / "kbs" / "plant", place / "kbs" / name)
    _done(f"voicevault kb questions law --file {place}/questions.json", place)


def _done(line: str, place: Path) -> None:
    """Run it in this process, with a folder in the place of a server and lines in that of what is piped in."""
    words = [word.replace("qdrant://localhost:6333", f"qdrant+file://{place}/qdrant") for word in words_of(line)]
    done = CliRunner().invoke(voicevault, words[1:], input="which oil\n")
    assert done.exit_code == 0, done.output
    assert done.output.strip()


@pytest.mark.parametrize("line", COMMANDS)
def test_a_line_has_options_that_there_are(line: str) -> None:
    _known(words_of(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_in_the_text_has_options_that_there_are(page: Path) -> None:
    for line in re.findall(r"`(voicevault [a-z][^`]*)`", page.read_text(encoding="utf-8")):
        _known(line.split())


def _known(words: list[str]) -> None:
    command: Any = voicevault
    for word in words[1:]:
        if isinstance(command, click.Group) and re.fullmatch("[a-z]+", word):
            command = command.get_command(click.Context(command), word)
            assert command is not None, words
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= {*options, "--help"}, words

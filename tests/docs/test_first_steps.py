"""docs/tutorials/first-steps.md: what comes after the installs, as `make bench-newcomer` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import printed
from tests.docs.test_documents_run import needs_weights

for module in ("fpdf", "pypdf", "langchain_core", "click"):
    pytest.importorskip(module)

from tests.benchmarks.newcomer import PAGE, check, commands, own_pdfs, scripts  # noqa: E402 - where it is not skipped
from tests.end_to_end.programs import as_script  # noqa: E402 - as above

TEXT = PAGE.read_text(encoding="utf-8")


@needs_weights
def test_the_commands_and_the_script_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_pdfs(tmp_path / "manuals", ["wsa-5.pdf", "hna-2.pdf", "incident-log.pdf"])
    monkeypatch.setenv("VOICEVAULT_HOME", str(tmp_path / "kbs"))
    given = {
        line: scripts(TEXT)[line.split()[1]]
        if line.startswith("python ")
        else as_script(line.replace("~/manuals", str(tmp_path / "manuals")))
        for line in commands(TEXT)
        if line.startswith(("python ", "voicevault ")) and "inspect" not in line
    }
    assert len(given) == 3
    (outputs,) = printed((tuple(given.values()),), ("-W", "error"))
    for line, said in zip(given, outputs, strict=True):
        check(line, said, TEXT)


def test_the_script_is_ten_lines() -> None:
    (script,) = scripts(TEXT).values()
    assert len([line for line in script.splitlines() if line]) <= 10
    assert TEXT.count("```python") == 1


def test_the_page_is_served_with_options_that_there_are() -> None:
    pytest.importorskip("starlette")
    from click import Context

    from voicevault_retrievers.cli.commands import voicevault

    (line,) = (line for line in commands(TEXT) if line.startswith("voicevault inspect"))
    _, name, *words = line.replace("~/manuals", str(PAGE.parent)).split()
    command = voicevault.get_command(Context(voicevault), name)
    assert command is not None
    command.make_context(name, words)

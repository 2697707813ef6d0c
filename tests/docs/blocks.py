"""The blocks of a page: code, and what it prints."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from tests.docs.shared_runs import HIDDEN, environment

# Reads sessions, lists of scripts that share their names, and writes what each script prints, or how it ends.
_RUN = """
import contextlib, io, json, sys, traceback
outcomes = []
for session in json.load(sys.stdin):
    names, printed = {"__name__": "__main__"}, []
    for script in session:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(script, names)
            except BaseException:
                traceback.print_exc(file=out)
        printed.append(out.getvalue())
    outcomes.append(printed)
json.dump(outcomes, sys.stdout)
"""


class Block(NamedTuple):
    code: str
    prints: str

    @property
    def missing(self) -> list[str]:
        """The modules that it imports and that are not installed."""
        nodes = list(ast.walk(ast.parse(self.code)))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        return sorted(name for name in names if not _installed(name))


def blocks(text: str) -> list[Block]:
    """The blocks that print something; that of the set-up has nothing below it."""
    found = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", text, re.DOTALL)
    return [Block(*each) for each in found]


@cache
def printed(
    sessions: tuple[tuple[str, ...], ...],
    options: tuple[str, ...] = (),
    hidden: tuple[str, ...] = HIDDEN,
    *,
    quiet: bool = False,
) -> list[list[str]]:
    """What each script of each session prints; the sessions run in one process, each with names of its own.

    Where it is to be `quiet`, nothing may be written to stderr.
    """
    command = [sys.executable, *options, "-c", _RUN]
    done = subprocess.run(
        command, input=json.dumps(sessions), capture_output=True, text=True, check=False, env=environment(hidden=hidden)
    )
    assert done.returncode == 0, done.stderr
    assert not quiet or not done.stderr, done.stderr
    outcomes: list[list[str]] = json.loads(done.stdout)
    return outcomes


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # what it is in is not there
        return False

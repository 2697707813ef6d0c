"""`voicevault` in this process, for the tests of its commands."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import CliRunner, Result

from voicevault_retrievers.cli.commands import voicevault

Run = Callable[..., Result]


def ran(*words: object, code: int = 0, given: bytes | str | None = None) -> Result:
    """What a command says that ends with this exit code."""
    done = CliRunner().invoke(voicevault, [str(word) for word in words], input=given)
    assert done.exit_code == code, done.output
    return done

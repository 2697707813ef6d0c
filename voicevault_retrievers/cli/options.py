"""Options shared by commands. Modules that few commands need are imported where used, so that help is fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from voicevault_retrievers._support import yaml_texts
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, RetrievalError, is_setup_error, unknown

Command = Callable[..., Any]

UNSTEMMED = "none"
"""The value of --language that turns stemming off."""


def examples(*lines: str) -> str:
    """An epilog with these example command lines, unwrapped."""
    return "\b\nExample: " + lines[0] if len(lines) == 1 else "\b\nExample:\n" + "\n".join(f"  {one}" for one in lines)


def analyzer_of(language: str | None) -> Any:
    """The analyzer of a --language; None where none is given. Raises ConfigError for an unknown language."""
    from voicevault_retrievers.text import Analyzer

    return None if language is None else Analyzer(None if language == UNSTEMMED else language)


def known_bases(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of bases below the root that begin with the typed text."""
    from voicevault_retrievers.store.names import names

    return [CompletionItem(name) for name in names(ctx.params.get("root")) if name.startswith(incomplete)]


def bases_in(folder: Path) -> list[Path]:
    """The folders of the bases below a root, including folders that cannot be read."""
    from voicevault_retrievers.store.manifest import NAME
    from voicevault_retrievers.store.names import names

    def is_base(path: Path) -> bool:
        try:
            return (path / NAME).exists()
        except OSError:
            return True

    return [path for name in names(folder) if is_base(path := folder / name)]


def known_presets(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shipped presets that begin with the typed text, or else files."""
    from voicevault_retrievers.pipeline.presets.files import preset_names

    found = [CompletionItem(name) for name in preset_names() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


class BasesOption(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """Knowledge bases separated by commas, or one address of an engine; in a configuration file also a list."""

    name = "bases"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        given = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in given):
            self.fail("are names, as a list or with commas between", param, ctx)
        names = (part for one in map(str, given) for part in ([one] if "://" in one else one.split(",")))
        found = tuple(name for one in names if (name := one.strip()))
        return found or self.fail("names at least one knowledge base", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + one.value) for one in known_bases(ctx, param, last)]


class JsonFilter(click.ParamType):  # type: ignore[type-arg]  # as above
    """A filter as JSON; in a configuration file also a mapping."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, Any]:
        from voicevault_retrievers.pipeline.query_file import read_json

        try:
            found = read_json(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        if not isinstance(found, Mapping):
            self.fail(f'is a filter such as {{"source_file": "a.pdf"}}, not {value!r}', param, ctx)
        return found


def _configured(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take the command's defaults from a file, whose keys are the options' names without leading dashes."""
    if path is None:
        return
    known = {one.opts[-1].lstrip("-"): one for one in ctx.command.params if isinstance(one, click.Option)}
    del known["config"]
    found: dict[str, Any] = {}
    for key, value in _read(path, ctx).items():
        name = str(key).replace("_", "-")
        if name not in known:
            raise click.UsageError(f"{path}: {unknown('option', key, known)}", ctx)
        if str(known[name].name) in found:
            raise click.UsageError(f"{path}: {name} is there twice", ctx)
        if value is None and name == "require":  # such as an empty variable, which must not permit everything
            raise click.UsageError(f"{path}: require is empty: leave it out, or write {{}}, which permits nothing", ctx)
        try:
            found[str(known[name].name)] = value if value is None else _typed(known[name], value)
        except ValueError as error:
            raise click.UsageError(f"{path}: {name} {error}", ctx) from error
    ctx.default_map = {name: value for name, value in found.items() if value is not None}


def _typed(option: click.Option, value: Any) -> Any:
    """A value as it would be typed, for click to parse; ValueError where it cannot be typed."""
    if isinstance(option.type, BasesOption | JsonFilter):
        return value
    if option.is_flag:
        if not isinstance(value, bool):
            raise ValueError(f"is true or false, not {value!r}")
        return value
    given = value if option.multiple and isinstance(value, list) else [value]
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in given):
        many = ", or a list of these" if option.multiple else ""
        raise ValueError(f"is a text or a number{many}, not {value!r}")
    return [str(one) for one in given] if option.multiple else str(given[0])


def _read(path: Path, ctx: click.Context) -> Mapping[Any, Any]:
    from voicevault_retrievers.pipeline.presets.sections import filled

    try:
        data = filled(yaml_texts.read(path) or {})
    except (ConfigError, RecursionError) as error:
        raise click.UsageError(f"{path} cannot be read as YAML: {error}", ctx) from error
    if not isinstance(data, Mapping):
        raise click.UsageError(f"{path} holds a {type(data).__name__}, not a mapping of options", ctx)
    return data


config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_configured,
    help="Options of this command as YAML; those given beside it win.",
)
root = click.option("--root", type=click.Path(file_okay=False, path_type=Path), help="Folder of the knowledge bases.")
wait = click.option(
    "--wait", default=0.0, metavar="SECONDS", type=click.FloatRange(min=0), help="Wait for another process that writes."
)
preset = click.option(
    "--preset",
    default="voicevault",
    show_default=True,
    help="A preset, or a YAML file.",
    shell_complete=known_presets,
)


class WrongSetup(click.ClickException):
    """The error of a missing extra or model: the request is correct but cannot be executed here."""

    exit_code = 2


def reporting(command: Command) -> Command:
    """Report the package's errors as one line, with exit code 1, or 2 for a wrong option and a missing extra or model.

    See `errors.is_setup_error`. An incompatible index does not count as a wrong setup here.
    """

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except ConfigError as error:
            raise click.UsageError(said(error)) from error
        except BrokenPipeError:  # click exits quietly when the reader has closed the pipe
            raise
        except (RetrievalError, OSError) as error:
            wrong = is_setup_error(error) and not isinstance(error, IncompatibleIndexError)  # the base's error
            raise (WrongSetup if wrong else click.ClickException)(said(error)) from error

    return run


def as_json(data: Any, indent: int | None = 2) -> str:
    """Data as JSON for the standard output; escapes non-ASCII characters only where its encoding lacks them."""
    whole = (sys.stdout.encoding or "").lower().startswith("utf")
    return json.dumps(data, ensure_ascii=not whole, indent=indent, default=str)


def said(error: object) -> str:
    """An error's text, safe for a terminal, with hints for the command line."""
    from voicevault_retrievers._support.characters import without_controls

    return without_controls(str(error)) + "".join(hint for named, hint in _HINTS.items() if named in str(error))


_HINTS: Mapping[str, str] = {
    "there is no knowledge base '": "; to make one: voicevault index FOLDER --kb NAME",
    "CustomAnalyzer(": "; a function cannot be given on the command line: do this in Python",
    "(wait=seconds)": "; on the command line: --wait SECONDS",
    "or give llm=": "; on the command line: --ollama MODEL or --openai MODEL",
    "question_index(kb)": "; on the command line: voicevault kb questions",
}
"""Hints by what an error's text, written for Python, names."""

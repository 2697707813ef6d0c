"""What the commands share. What is needed by few is imported where it is, so that help is fast."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
import yaml
from click.shell_completion import CompletionItem

from voicevault_retrievers.errors import ConfigError, MissingExtraError, RetrievalError, unknown

Command = Callable[..., Any]


def examples(*lines: str) -> str:
    """An epilog with these command lines, as they are."""
    return "\b\nExample: " + lines[0] if len(lines) == 1 else "\b\nExample:\n" + "\n".join(f"  {one}" for one in lines)


def known_bases(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the bases below the root that begin so."""
    from voicevault_retrievers.store.names import names

    return [CompletionItem(name) for name in names(ctx.params.get("root")) if name.startswith(incomplete)]


def known_presets(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shipped presets that begin so, or else files."""
    from voicevault_retrievers.presets.files import preset_names

    found = [CompletionItem(name) for name in preset_names() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


class Bases(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """Knowledge bases with commas between, or one address of an engine; in a configuration file also a list."""

    name = "bases"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        given = value if isinstance(value, list | tuple) else [value] if "://" in str(value) else str(value).split(",")
        found = tuple(name for one in given if (name := str(one).strip()))
        return found or self.fail("names at least one knowledge base", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + one.value) for one in known_bases(ctx, param, last)]


class JsonFilter(click.ParamType):  # type: ignore[type-arg]  # as above
    """A filter as JSON; in a configuration file also a mapping."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, Any]:
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        if not isinstance(found, Mapping):
            self.fail(f'is a filter such as {{"source_file": "a.pdf"}}, not {value!r}', param, ctx)
        return found


def _configured(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make what a file says the defaults of the command's options, each by its name without the dashes before it."""
    if path is None:
        return
    known = {one.opts[-1].lstrip("-"): one for one in ctx.command.params if one.param_type_name == "option"}
    del known["config"]
    found: dict[str, Any] = {}
    for key, value in _read(path, ctx).items():
        name = str(key).replace("_", "-")
        if name not in known:
            raise click.UsageError(f"{path}: {unknown('option', key, known)}", ctx)
        listed = known[name].multiple and not isinstance(value, list)
        found[str(known[name].name)] = [value] if listed else value
    ctx.default_map = {name: value for name, value in found.items() if value is not None}


def _read(path: Path, ctx: click.Context) -> Mapping[Any, Any]:
    from voicevault_retrievers.presets.sections import filled

    try:
        data = filled(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (yaml.YAMLError, UnicodeDecodeError, ConfigError) as error:
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


class NotInstalled(click.ClickException):
    """An extra is missing: nothing is wrong with what was asked, and it cannot be done here."""

    exit_code = 2


def reporting(command: Command) -> Command:
    """Errors of the package as one line and exit code 1, or 2 where an option is wrong or an extra is missing."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except ConfigError as error:
            raise click.UsageError(said(error)) from error
        except BrokenPipeError:  # click ends quietly where nobody reads on
            raise
        except (RetrievalError, OSError) as error:
            kind = NotInstalled if isinstance(error, MissingExtraError) else click.ClickException
            raise kind(said(error)) from error

    return run


def said(error: object) -> str:
    """An error's text, with what the command line adds to it."""
    return str(error) + "".join(hint for named, hint in _HINTS.items() if named in str(error))


_HINTS: Mapping[str, str] = {
    "CustomAnalyzer(": "; a function cannot be given on the command line: do this in Python",
    "question_index(kb)": "; on the command line: voicevault kb questions",
}
"""By what an error that was written for Python names."""

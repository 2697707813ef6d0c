"""The commands of `voicevault`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from voicevault_retrievers.cli import INTERRUPTED, options
from voicevault_retrievers.errors import unknown

COMMANDS: Mapping[str, str] = {
    "completion": "Completion of commands, options and names for a shell.",
    "demo": "Index the sample documents, and answer questions on them.",
    "doctor": "What is installed, how fast this machine is, what to do.",
    "engine": "Copy knowledge bases into engines, and compare them.",
    "eval": "Measure a knowledge base on judged questions.",
    "index": "Read files and folders of them into a knowledge base.",
    "inspect": "Search in a web page that shows why each hit is there.",
    "kb": "Look after knowledge bases: list, check, mend, move.",
    "mcp": "Serve knowledge bases to agents, over MCP.",
    "search": "Ask one or several knowledge bases.",
    "tune": "Better settings of a preset from judged questions.",
}
"""Each command with its description; the command is in the module of the same name."""


class Commands(click.Group):
    """Loads a command's module on demand, so that help is fast and needs no other command's extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"voicevault_retrievers.cli.{cmd_name}")
        found: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=said) for name, said in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(str(unknown("command", args[0], COMMANDS)), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        # The printed result contains the warnings of a search: without a handler Python would print them again.
        logging.getLogger("voicevault_retrievers").addHandler(logging.NullHandler())
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:  # click's exit code for it would be that of any failure
            if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__context__, KeyboardInterrupt):
                raise  # the answer to a confirmation was no
            click.echo("Aborted!", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=options.examples("voicevault --version"),
)
@click.version_option(package_name="voicevault-retrievers")
def voicevault() -> None:
    """Hybrid retrieval on your own documents.

    Exits with 0 where all went well, 1 where something failed, 2 where the command line, a configuration or the set-up
    is wrong, such as where an extra or a model is missing, and 130 where Ctrl-C ended it.
    """

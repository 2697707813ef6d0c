"""`voicevault completion`: scripts by which a shell completes commands, options, bases and presets."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from voicevault_retrievers.cli import options

PROGRAM = "voicevault"
VARIABLE = "_VOICEVAULT_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=options.examples(
        "voicevault completion bash > voicevault.bash",
        "voicevault completion zsh > _voicevault",
        "voicevault completion fish > voicevault.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes `voicevault`.

    \b
    bash: add to ~/.bashrc              eval "$(voicevault completion bash)"
    zsh:  add to ~/.zshrc               eval "$(voicevault completion zsh)"
    fish: write to a file that it reads
          voicevault completion fish > ~/.config/fish/completions/voicevault.fish
    """  # noqa: D301 - click reads the backspace
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this version of click has no completion for {shell}")
    made = kind(ctx.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(made.source_template % made.source_vars())

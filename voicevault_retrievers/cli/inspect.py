"""`voicevault inspect`: a local web page that searches knowledge bases and explains each hit."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.metered import metered
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import default_root

_folder = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("inspect", epilog=options.examples("voicevault inspect --kb plant"))
@click.option(
    "--kb", "kbs", type=options.BasesOption(), metavar="A,B", help="Bases, or an engine's address.  [default: all]"
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    help="A preset, or a YAML file; the first is the default.",
    shell_complete=options.known_presets,
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; another needs a token.")
@click.option("--port", default=8460, show_default=True, type=click.IntRange(0, 65535), help="0 for any that is free.")
@click.option("--token", envvar="VOICEVAULT_TOKEN", show_envvar=True, help="What a browser must know.")
@click.option("--documents", multiple=True, type=_folder, help="A folder of PDFs, of which hits' pages are shown.")
@click.option("--judgments", type=click.Path(dir_okay=False, path_type=Path), help="The file that keeps judgements.")
@click.option("--no-open", is_flag=True, help="Open no browser.")
@options.config
@options.root
@options.reporting
@metered
def inspect_(
    kbs: tuple[str, ...] | None,
    presets: tuple[str, ...],
    host: str,
    port: int,
    token: str | None,
    documents: tuple[Path, ...],
    judgments: Path | None,
    no_open: bool,
    root: Path | None,
) -> None:
    """Search in the browser, and see why each hit is there.

    Serves a page until Ctrl-C. An address that other machines reach has a token, which is made and shown where none is
    given. Hits that are marked right or wrong are kept, and exported for `voicevault tune` and `voicevault eval`.
    """
    from voicevault_retrievers.cli.search_options import check_exist
    from voicevault_retrievers.inspector import serve
    from voicevault_retrievers.inspector.registry import bases_below

    check_exist(kbs or (), root)
    if not kbs and not bases_below(root):
        raise ConfigError(f"there is no knowledge base in {root or default_root()}: make one with voicevault index")

    def ready(address: str) -> None:
        click.echo(f"{address}  (Ctrl-C ends it)")
        if not no_open and _has_screen():
            webbrowser.open(address)

    serve(
        kbs or None,
        host=host,
        port=port,
        token=token,
        ready=ready,
        root=root,
        presets=presets,
        documents=documents,
        judgments=judgments,
    )
    if sys.stdout.isatty():
        click.echo()  # the terminal has echoed ^C


def _has_screen() -> bool:
    """Whether there is a graphical display; otherwise a text browser would take over the terminal."""
    shown = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return shown and sys.stdout.isatty()

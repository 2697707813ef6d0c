"""`voicevault mcp`: knowledge bases as tools for clients of the Model Context Protocol."""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import click

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.cli import INTERRUPTED, options
from voicevault_retrievers.cli.metered import metered
from voicevault_retrievers.errors import ConfigError

PORT = 8461
_EXAMPLES = ("voicevault mcp --kb plant", f"voicevault mcp --kb plant --http --port {PORT}")


@click.command("mcp", epilog=options.examples(*_EXAMPLES))
@click.option("--kb", "kbs", type=options.BasesOption(), metavar="A,B", help="The bases that there are for a client.")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Bases and clients as YAML, instead."
)
@click.option("--http", is_flag=True, help="Serve HTTP instead of the process that starts this one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; another needs clients.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 for any that is free.")
@options.preset
@options.root
@options.reporting
@metered
def mcp_(
    kbs: tuple[str, ...] | None, file: Path | None, http: bool, host: str, port: int, preset: str, root: Path | None
) -> None:
    """Serve search, get_context and list_sources to models, over stdio or HTTP.

    Sources are numbered, to cite. Only the bases of --kb, or of the configuration and there of the client, exist for
    it. Over stdio the standard output carries the protocol alone; the log goes to the standard error.
    """
    for module in ("mcp", "starlette", "uvicorn"):
        require(module, extra="mcp")
    if not (1, 30) <= tuple(map(int, version("mcp").split(".")[:2])) < (2,):
        raise ConfigError(f"mcp {version('mcp')} has another interface: pip install 'mcp>=1.30,<2'")
    from voicevault_retrievers import mcp

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if (kbs is None) == (file is None):
        raise ConfigError("say what to serve: --kb A,B, or --config FILE with bases, and maybe clients")
    if file is None:
        configuration = mcp.local(kbs or (), preset=preset, root=root)
    else:
        configuration = mcp.load_configuration(file, preset=preset, root=root)
    if http:
        logging.getLogger("mcp.server.streamable_http").addFilter(_is_news)
        mcp.serve_http(configuration, host, port, lambda address: click.echo(f"listening on {address}", err=True))
    else:
        # An exception would not end the thread that waits for input. The server writes no file that could be cut short.
        former = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        try:
            mcp.serve_stdio(configuration)
        finally:
            signal.signal(signal.SIGINT, former)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to log a record: not the end of a client's session, which the SDK logs as an error."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ClosedResourceError"

"""`--metrics-port`: metrics of a running command for Prometheus."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click

from voicevault_retrievers.cli.options import Command


def metered(command: Command) -> Command:
    """The command with the option; put it below `options.reporting`, which reports errors of the port."""

    @click.option(
        "--metrics-port",
        metavar="PORT",
        type=click.IntRange(0, 65535),
        help="Serve metrics to Prometheus on loopback meanwhile; 0 for any port that is free.",
    )
    @wraps(command)
    def run(*args: Any, metrics_port: int | None, **options: Any) -> Any:
        if metrics_port is None:
            return command(*args, **options)
        from voicevault_retrievers.core.prometheus import serve_prometheus

        with serve_prometheus(metrics_port) as served:
            click.echo(f"metrics: {served.url}", err=True)
            return command(*args, **options)

    return run

"""The metrics of `metrics` in Prometheus' text format over HTTP."""

from __future__ import annotations

import os
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError

PORT = 9464
"""The default port of OpenTelemetry's Prometheus exporters."""
HOST = "127.0.0.1"


class Served:
    """A server of metrics at `url`; a context manager that closes it."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        host, self.port = server.server_address[:2]
        self.url = f"http://{host!s}:{self.port}/metrics"
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="voicevault-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server. The process keeps counting."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Served({self.url!r})"


def serve_prometheus(port: int = PORT, *, host: str = HOST) -> Served:
    """Start measuring, and serve the metrics to Prometheus. Port 0 picks any free port.

    Sets up OpenTelemetry's metrics for the process. Raises ConfigError where the application has done so itself or the
    port is taken, and MissingExtraError without the extra `prometheus`.
    """
    if whole("port", port, least=0) > 65535:
        raise ConfigError(f"port is a whole number from 0 to 65535, not {port}")
    handler = require("prometheus_client", extra="prometheus").MetricsHandler
    _provide()
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise ConfigError(f"port {port} of {host} cannot be listened on ({error.strerror}): give another") from error
    return Served(server)


_own: Any = None
_providing = threading.Lock()


def _provide() -> None:
    """Ensure that the process has a meter provider that Prometheus reads from."""
    global _own
    exporter = require("opentelemetry.exporter.prometheus", extra="prometheus")
    sdk = require("opentelemetry.sdk.metrics", extra="prometheus")
    api = require("opentelemetry.metrics", extra="prometheus")
    with _providing:
        present = api.get_meter_provider()
        if _own is not None and present is _own:
            return
        if isinstance(present, sdk.MeterProvider):
            raise ConfigError(
                "the application has set up OpenTelemetry's metrics itself: give its MeterProvider a "
                "PrometheusMetricReader and serve that (prometheus_client.start_http_server)"
            )
        _own = sdk.MeterProvider([exporter.PrometheusMetricReader()], _resource())
        api.set_meter_provider(_own)


def _resource() -> Any:
    """The OpenTelemetry resource: service `voicevault`, unless the environment names the service."""
    resources = require("opentelemetry.sdk.resources", extra="prometheus")
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return resources.Resource.create(None if named else {"service.name": "voicevault"})

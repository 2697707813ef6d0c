"""What is measured, as Prometheus scrapes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias
from urllib.request import urlopen

import pytest

from tests.helpers import FailingChannel, ListChannel, older
from voicevault_retrievers.core import prometheus
from voicevault_retrievers.core.prometheus import serve_prometheus
from voicevault_retrievers.errors import ConfigError, SearchNotAvailableError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.pipeline.pipeline import Pipeline

pytest.importorskip("opentelemetry.exporter.prometheus")

import prometheus_client
from opentelemetry import metrics as api
from opentelemetry.exporter import prometheus as exporter
from opentelemetry.sdk.metrics import MeterProvider


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of its own, in which nothing is set up yet."""
    own: list[Any] = [api.NoOpMeterProvider()]
    if not older("opentelemetry-exporter-prometheus", "0.63"):
        registry = prometheus_client.CollectorRegistry()
        reader = partial(exporter.PrometheusMetricReader, registry=registry)
        monkeypatch.setattr(exporter, "PrometheusMetricReader", reader)
        monkeypatch.setattr(prometheus_client.MetricsHandler, "registry", registry)
    monkeypatch.setattr(prometheus, "_own", None)
    monkeypatch.setattr(api, "get_meter_provider", lambda: own[-1])
    monkeypatch.setattr(api, "set_meter_provider", own.append)
    yield
    for provider in own[1:]:
        provider.shutdown()


Scraped: TypeAlias = "dict[str, dict[frozenset[tuple[str, str]], float]]"


def _scraped(url: str) -> Scraped:
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(url, timeout=30) as answer:  # noqa: S310 - of loopback
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: Scraped = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if not name.startswith("otel_") and value}
        found.setdefault(sample.name, {})[frozenset(labels.items())] = sample.value
    return found


@pytest.mark.usefixtures("alone")
def test_prometheus_scrapes_real_searches() -> None:
    with serve_prometheus(0) as served, serve_prometheus(0) as again:
        assert served.url == f"http://127.0.0.1:{served.port}/metrics"
        near = ListChannel([("a", 0.9), ("b", 0.8), ("c", 0.7)], name="near")
        far = FailingChannel(SearchNotAvailableError("down"), name="far")
        pipeline = Pipeline(fuse({"near": near, "far": far}))
        for _ in range(3):
            pipeline.search("who is ada", 2)
        found = _scraped(served.url)
        assert _scraped(again.url).keys() == found.keys()
    degraded = frozenset({("voicevault_outcome", "degraded")})
    assert found["voicevault_search_duration_seconds_count"] == {degraded: 3.0}
    assert found["voicevault_search_duration_seconds_bucket"][degraded | {("le", "+Inf")}] == 3.0
    assert found["voicevault_search_hits_sum"] == {frozenset(): 6.0}
    failures = frozenset({("voicevault_part_name", "far"), ("error_type", "SearchNotAvailableError")})
    assert found["voicevault_search_failures_total"] == {failures: 3.0}
    of = frozenset({("voicevault_part_kind", "channel"), ("voicevault_part_name", "near")})
    assert found["voicevault_call_duration_seconds_count"][of] == 3.0
    assert found["voicevault_call_active"][of] == 0.0
    (target,) = found["target_info"]
    assert ("service_name", "voicevault") in target
    with pytest.raises(OSError, match="refused"):
        urlopen(served.url, timeout=30)  # noqa: S310 - of loopback


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_served_is_said() -> None:
    with serve_prometheus(0) as served, pytest.raises(ConfigError, match=rf"port {served.port} of 127.0.0.1 cannot"):
        serve_prometheus(served.port)
    for port in (-1, 65536, "80"):
        with pytest.raises(ConfigError, match="port is a whole number"):
            serve_prometheus(port)  # type: ignore[arg-type]  # wrong on purpose


def test_an_application_that_measures_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = MeterProvider()
    monkeypatch.setattr(api, "get_meter_provider", lambda: provider)
    with pytest.raises(ConfigError, match="give its MeterProvider a PrometheusMetricReader"):
        serve_prometheus(0)
    provider.shutdown()

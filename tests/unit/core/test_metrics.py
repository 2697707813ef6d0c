"""What is measured, by OpenTelemetry and Prometheus, and what never shows in it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import FailingChannel, HashEmbedder, HeldChannel, ListChannel
from voicevault_retrievers.core import metrics
from voicevault_retrievers.core.types import Result
from voicevault_retrievers.errors import SearchNotAvailableError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import KnowledgeBase, update
from voicevault_retrievers.store.merged_bases import MergedBases

pytest.importorskip("opentelemetry.sdk.metrics")

from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)

PAGE = Path(__file__).parents[3] / "docs/how-to/observability.md"
FOUND = [("secret-1", 0.9), ("secret-2", 0.8), ("secret-3", 0.7)]

Read = Callable[[], dict[str, dict[tuple[str, ...], Any]]]


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes a provider that of the application, and forgets what was counted before."""

    def provide(provider: Any) -> None:
        monkeypatch.setattr(api, "get_meter_provider", lambda: provider)

    monkeypatch.setattr(metrics, "_active", {})
    monkeypatch.setattr(metrics, "_parts", set())
    return provide


@pytest.fixture
def read(provided: Callable[[Any], None]) -> Iterator[Read]:
    """What was recorded: by name, the points (a value, or a histogram's count and sum) by their attributes' values."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    provided(provider)

    def read() -> dict[str, dict[tuple[str, ...], Any]]:
        data = reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics if data else ()
        return {metric.name: {_values(point): _figure(point) for point in metric.data.data_points} for metric in found}

    yield read
    provider.shutdown()


def _values(point: Any) -> tuple[str, ...]:
    return tuple(str(value) for _, value in sorted(point.attributes.items()))


def _figure(point: Any) -> Any:
    return (point.count, point.sum) if hasattr(point, "count") else point.value


def _search(pipeline: Pipeline, is_async: bool) -> Result:
    return asyncio.run(pipeline.asearch("who is ada", 2)) if is_async else pipeline.search("who is ada", 2)


def _fused(**channels: Any) -> Pipeline:
    return Pipeline(fuse({"near": ListChannel(FOUND, name="near"), **channels}))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_search_and_each_of_its_calls_are_counted_and_timed(read: Read, is_async: bool) -> None:
    for _ in range(3):
        _search(_fused(), is_async)
    found = read()
    ((outcome, (count, seconds)),) = found["voicevault.search.duration"].items()
    assert (outcome, count) == (("ok",), 3)
    assert seconds > 0
    assert found["voicevault.search.hits"] == {(): (3, 6)}
    calls = found["voicevault.call.duration"]
    assert {of: count for of, (count, _) in calls.items()} == {("channel", "near"): 3, ("fusion", "fused"): 3}
    assert found["voicevault.call.active"] == {("channel", "near"): 0, ("fusion", "fused"): 0}
    assert "voicevault.search.failures" not in found


@pytest.mark.parametrize("is_async", [False, True])
def test_a_degraded_search_names_the_part_and_the_error(read: Read, is_async: bool) -> None:
    assert _search(_fused(far=FailingChannel(SearchNotAvailableError("who is ada"), name="far")), is_async).degraded
    found = read()
    assert found["voicevault.search.failures"] == {("SearchNotAvailableError", "far"): 1}
    assert list(found["voicevault.search.duration"]) == [("degraded",)]
    assert ("SearchNotAvailableError", "channel", "far") in found["voicevault.call.duration"]


def test_a_search_that_raises_has_failed(read: Read) -> None:
    with pytest.raises(SearchNotAvailableError):
        Pipeline(FailingChannel(SearchNotAvailableError("down"))).search("pump")
    assert list(read()["voicevault.search.duration"]) == [("SearchNotAvailableError", "failed")]


def test_a_call_that_hangs_shows_as_timed_out_and_as_active_until_it_ends(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, gone, of = HeldChannel(name="hanging", timeout=0.05), threading.Event(), ("channel", "hanging")
    ended = metrics.CallClock.ended

    def told(call: metrics.CallClock, *given: Any) -> None:
        ended(call, *given)
        if "hanging" in call._of.values():
            gone.set()

    monkeypatch.setattr(metrics.CallClock, "ended", told)
    _fused(hanging=hanging).search("pump")
    found = read()
    assert found["voicevault.search.failures"] == {("SearchTimeoutError", "hanging"): 1}
    assert found["voicevault.call.active"][of] == 1
    assert of not in found["voicevault.call.duration"]
    hanging.go.set()
    assert gone.wait(30)
    found = read()
    assert found["voicevault.call.active"][of] == 0
    assert found["voicevault.call.duration"][of][0] == 1


def test_no_query_id_or_name_of_a_base_is_recorded(read: Read) -> None:
    broken = FailingChannel(SearchNotAvailableError("who is ada"), name="dense")
    groups = MergedBases({"payroll": broken, "board": ListChannel(FOUND, name="dense")}, "dense", "semantic")
    _fused(dense=groups).search("who is ada")
    Pipeline(groups).search("who is ada")
    found = read()
    assert set(found["voicevault.search.failures"]) == {
        ("SearchNotAvailableError", "dense"),
        ("SearchNotAvailableError", "other"),
    }
    for secret in ("ada", "secret", "payroll", "board"):
        assert secret not in repr(found)


def test_names_of_parts_are_bounded(read: Read) -> None:
    for at in range(metrics.MOST_PARTS + 50):
        metrics.CallClock("channel", f"c{at}").ended(1.0, {})
    points = read()["voicevault.call.duration"]
    assert len(points) == metrics.MOST_PARTS + 1
    assert points["channel", "other"] == (50, 50.0)


@pytest.mark.program
def test_what_an_ingest_does_is_counted(read: Read, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in "abc":
        (docs / f"{name}.txt").write_text(f"the pump of {name}")
    (docs / "bad.txt").write_bytes(b"\0\0")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("of the same name")
    with KnowledgeBase.create("payroll", root=tmp_path, embedder=HashEmbedder()) as base:
        update(base, [docs, tmp_path / "other"])
        (docs / "a.txt").write_text("the new pump")
        update(base, docs)
        base.add([next(iter(base)).__class__("x", "one"), next(iter(base)).__class__("y", "two")])
        base.delete(["x", "y", "never"])
    found = read()
    assert found["voicevault.ingest.files"] == {("read",): 4, ("unchanged",): 2, ("skipped",): 3}
    assert found["voicevault.ingest.chunks"] == {("added",): 6, ("removed",): 3}
    assert found["voicevault.ingest.embedded"] == {(): 6}
    steps = {of: count for of, (count, _) in found["voicevault.ingest.duration"].items()}
    assert steps == {("read",): 4, ("DocumentError", "read"): 2, ("embed",): 3, ("commit",): 4}
    assert "payroll" not in repr(found)


# Faults of what records


class Refusing(MetricExporter):
    """A collector that is down."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def export(self, *given: Any, **options: Any) -> MetricExportResult:
        self.asked += 1
        raise ConnectionError("the collector is down")

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Nothing to do."""


def test_an_exporter_that_fails_fails_no_search(provided: Callable[[Any], None]) -> None:
    exporter = Refusing()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)])
    provided(provider)
    assert len(_fused().search("pump", 2).hits) == 2
    provider.force_flush()
    assert exporter.asked == 1
    assert len(_fused().search("pump", 2).hits) == 2
    provider.shutdown()


def test_a_span_exporter_that_fails_fails_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    class Down:
        asked = 0

        def export(self, spans: Any) -> Any:
            self.asked += 1
            raise ConnectionError("the collector is down")

        def shutdown(self) -> None:
            """Nothing to do."""

    exporter, provider = Down(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))  # type: ignore[arg-type]  # as much as is asked for
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert len(_fused().search("pump", 2).hits) == 2
    assert exporter.asked == 3
    provider.shutdown()


class Broken:
    """A provider whose instruments raise, or that has none."""

    def __init__(self, when: str) -> None:
        self.when = when

    def get_meter(self, name: str) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        def create(*given: Any, **options: Any) -> Any:
            if self.when == "made":
                raise TypeError("an unexpected keyword argument")
            return self

        def record(*given: Any) -> None:
            raise RuntimeError("the SDK is broken")

        return create if name.startswith("create_") else record


@pytest.mark.parametrize("when", ["made", "used"])
def test_an_sdk_that_fails_fails_no_search_and_is_named_once(
    provided: Callable[[Any], None], when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "_complained", False)
    provided(Broken(when))
    for _ in range(2):
        assert len(_fused().search("pump", 2).hits) == 2
    said = "TypeError" if when == "made" else "RuntimeError"
    (record,) = caplog.records
    assert record.getMessage() == f"metrics are not recorded: {said} (said once)"


@pytest.mark.program
def test_where_nothing_is_set_up_nothing_is_loaded_or_counted() -> None:
    program = """
import sys
from tests.helpers import ListChannel
from voicevault_retrievers.pipeline.pipeline import Pipeline
search = Pipeline(ListChannel([("a", 1.0)])).search
search("pump")
print(any(name.startswith("opentelemetry") for name in sys.modules))
import opentelemetry.metrics
from voicevault_retrievers.core import metrics
search("pump")
print(metrics.loaded(), metrics._parts)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root)
    assert (done.stdout, done.stderr) == ("False\nFalse set()\n", "")


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(voicevault\.[a-z.]+)` \| (\w+), (\S+) \| (.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.M
    )
    assert [
        (name, kind, unit.strip("`"), tuple(re.findall(r"`([^`]+)`", of)), said) for name, kind, unit, of, said in rows
    ] == [
        (metric.name, metric.instrument, metric.unit, metric.attributes, metric.meaning) for metric in metrics.METRICS
    ]

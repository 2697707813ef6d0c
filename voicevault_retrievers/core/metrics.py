"""OpenTelemetry metrics of searches and ingests. Does nothing unless the application has loaded OpenTelemetry.

`METRICS` lists all that is recorded. Attributes have few distinct values: kinds, steps, outcomes, names of channels and
stages (see `part`), and types of errors. They never hold a query, text, id, file or knowledge base name. Recording
never raises; an SDK's error is logged once.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.errors import told

NAME = "voicevault_retrievers"
MOST_PARTS = 100
"""The most names of channels and stages that are recorded; further names are recorded as OTHER."""
OTHER = "other"

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STEPS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
_HITS = (0, 1, 2, 5, 10, 20, 50, 100)
_LOG = logging.getLogger(__name__)

Step: TypeAlias = Literal["read", "embed", "commit"]
Outcome: TypeAlias = Literal["read", "unchanged", "skipped"]


@dataclass(frozen=True)
class Metric:
    """One metric: name, instrument, unit (UCUM), attributes, and description; `bounds` are those of buckets."""

    name: str
    instrument: Literal["histogram", "counter", "updowncounter"]
    unit: str
    attributes: tuple[str, ...]
    meaning: str
    bounds: Sequence[float] = ()


_OUTCOME, _ERROR, _STEP, _CHANGE = "voicevault.outcome", "error.type", "voicevault.step", "voicevault.change"
_KIND, _PART = "voicevault.part.kind", "voicevault.part.name"

METRICS = (
    Metric(
        "voicevault.search.duration",
        "histogram",
        "s",
        (_OUTCOME, _ERROR),
        "Duration of searches",
        _SECONDS,
    ),
    Metric("voicevault.search.hits", "histogram", "{hit}", (), "Hits of a search", _HITS),
    Metric(
        "voicevault.search.failures",
        "counter",
        "{failure}",
        (_PART, _ERROR),
        "Skipped channels and stages",
    ),
    Metric(
        "voicevault.call.duration",
        "histogram",
        "s",
        (_KIND, _PART, _ERROR),
        "Duration of calls, refused ones included",
        _SECONDS,
    ),
    Metric(
        "voicevault.call.active",
        "updowncounter",
        "{call}",
        (_KIND, _PART),
        "Calls that have not ended, abandoned ones included",
    ),
    Metric("voicevault.ingest.files", "counter", "{file}", (_OUTCOME,), "Files: read, unchanged or skipped"),
    Metric("voicevault.ingest.chunks", "counter", "{chunk}", (_CHANGE,), "Chunks: added, replaced or removed"),
    Metric("voicevault.ingest.embedded", "counter", "{chunk}", (), "Chunks whose vectors were made"),
    Metric(
        "voicevault.ingest.duration",
        "histogram",
        "s",
        (_STEP, _ERROR),
        "Duration of reading a file, embedding a batch, committing a change",
        _STEPS,
    ),
)

Instruments: TypeAlias = Mapping[str, Callable[[float, Mapping[str, str]], None]]


class _Clock:
    """Times a block. Subclasses add the outcome; the error type is known when the block ends."""

    def __enter__(self) -> Any:
        self.began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended(time.perf_counter() - self.began, {} if kind is None else {_ERROR: kind.__name__})

    def ended(self, seconds: float, error: Mapping[str, str]) -> None:
        """Record the duration and the error type."""
        raise NotImplementedError


class SearchClock(_Clock):
    """Measures a whole search, as a context manager; `note` takes the search's ranking."""

    def __init__(self) -> None:
        self._outcome = "failed"

    def note(self, ranking: Any) -> None:
        """Count the hits, and the channels and stages that were skipped."""
        failures = [failure for failure in ranking.errors if failure.degrades]
        self._outcome = "degraded" if failures else "ok"
        _record("voicevault.search.hits", len(ranking), {})
        for failure in failures:
            kind = failure.kind if failure.kind.isidentifier() else OTHER
            _record("voicevault.search.failures", 1, {_PART: failed(failure.stage), _ERROR: kind})

    def ended(self, seconds: float, error: Mapping[str, str]) -> None:
        outcome = "failed" if error else self._outcome
        _record("voicevault.search.duration", seconds, {_OUTCOME: outcome, **error})


class CallClock(_Clock):
    """Measures a call of a channel, fusion, stage or rewriter, as a context manager, even after it is abandoned."""

    def __init__(self, kind: str, name: str) -> None:
        self._of = {_KIND: kind, _PART: part(name)}

    def __enter__(self) -> Callable[[Any], None]:
        _count(self._of[_KIND], self._of[_PART], 1)
        self.began = time.perf_counter()
        return _ignore  # the value of a call is not measured

    def ended(self, seconds: float, error: Mapping[str, str]) -> None:
        _count(self._of[_KIND], self._of[_PART], -1)
        _record("voicevault.call.duration", seconds, {**self._of, **error})


class IngestClock(_Clock):
    """Measures a step of an ingest, as a context manager."""

    def __init__(self, step: Step) -> None:
        self._of = {_STEP: step}

    def ended(self, seconds: float, error: Mapping[str, str]) -> None:
        _record("voicevault.ingest.duration", seconds, {**self._of, **error})


def file(outcome: Outcome) -> None:
    """Count a file."""
    _record("voicevault.ingest.files", 1, {_OUTCOME: outcome})


def embedded(count: int) -> None:
    """Count chunks whose vectors were made."""
    _record("voicevault.ingest.embedded", count, {})


def committed(changes: Any) -> None:
    """Count the chunks of a commit, from `store.Changes` or from a number of deleted chunks."""
    for change in ("added", "replaced", "removed"):
        count = getattr(changes, change, changes if change == "removed" and isinstance(changes, int) else 0)
        if count:
            _record("voicevault.ingest.chunks", count, {_CHANGE: change})


_parts: set[str] = set()


def part(name: str) -> str:
    """A channel's or stage's name as an attribute, up to the first slash, after which a knowledge base may be named.

    Beyond MOST_PARTS names, OTHER.
    """
    first = name.partition("/")[0]
    if first not in _parts:
        if len(_parts) >= MOST_PARTS:
            return OTHER
        _parts.add(first)
    return first


def failed(stage: str) -> str:
    """The attribute of a failure's stage; OTHER unless a call had that name, which else might name anything."""
    first = stage.partition("/")[0]
    return first if first in _parts else OTHER


def loaded() -> bool:
    """Whether the application has set up OpenTelemetry's metrics."""
    return _instruments() is not None


def _record(name: str, value: float, attributes: Mapping[str, str]) -> None:
    instruments = _instruments()
    if instruments is None:
        return
    try:
        instruments[name](value, attributes)
    except Exception as error:  # noqa: BLE001 - a metric must not make a search fail
        _complain(error)


def _ignore(value: Any) -> None:
    """Ignore a value that is not measured."""


_active: dict[tuple[str, str], int] = {}
_mutex = Mutex()


def _count(kind: str, name: str, change: int) -> None:
    with _mutex:
        _active[kind, name] = _active.get((kind, name), 0) + change


def _counted(observation: Any) -> list[Any]:
    with _mutex:
        return [observation(count, {_KIND: kind, _PART: name}) for (kind, name), count in _active.items()]


_made: tuple[Any, Instruments | None] | None = None


def _instruments() -> Instruments | None:
    """The instruments of the application's meter provider; None where OpenTelemetry is not imported or not set up."""
    global _made
    api = sys.modules.get("opentelemetry.metrics")
    if not (hasattr(api, "get_meter_provider") and hasattr(api, "get_meter")):  # another thread may be importing it
        return None
    provider = api.get_meter_provider()  # type: ignore[union-attr]  # hasattr was checked above
    made = _made
    if made is None or made[0] is not provider:
        with _mutex:
            made = _made
            if made is None or made[0] is not provider:
                _made = made = (provider, _make(provider, api))
    return made[1]


def _make(provider: Any, api: Any) -> Instruments | None:
    """The instruments of a provider; None where it records nothing or cannot make them."""
    if type(provider).__name__ in ("_ProxyMeterProvider", "NoOpMeterProvider"):  # OpenTelemetry's own placeholders
        return None
    try:
        meter, made = provider.get_meter(NAME), dict[str, Any]()
        for metric in METRICS:
            said = (metric.name, metric.unit, metric.meaning)
            if metric.instrument == "histogram":
                made[metric.name] = meter.create_histogram(
                    *said, explicit_bucket_boundaries_advisory=metric.bounds
                ).record
            elif metric.instrument == "counter":
                made[metric.name] = meter.create_counter(*said).add
            else:
                meter.create_observable_up_down_counter(metric.name, [lambda _: _counted(api.Observation)], *said[1:])
    except Exception as error:  # noqa: BLE001 - a metric must not make a search fail
        _complain(error)
        return None
    return made


_complained = False


def _complain(error: Exception) -> None:
    global _complained
    if not _complained:
        _complained = True
        _LOG.warning("metrics are not recorded: %s (said once)", told(error))

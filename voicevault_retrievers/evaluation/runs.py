"""Evaluation runs: the rankings of a channel for all questions, with times and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from voicevault_retrievers._support.caches import afresh
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.plan import Span
from voicevault_retrievers.core.types import Failure
from voicevault_retrievers.evaluation.judgements import Judged, Unit, names_of


@dataclass(frozen=True)
class EvaluationRun:
    """The judged names found for each question, best first, in the questions' order.

    `seconds` are the times of the searches, `parts` the times of each stage and rewriter in them, by name. `failures`
    are those that degraded each result. `error` is the error that ended the run before its end.
    """

    found: tuple[tuple[str, ...], ...] = ()
    seconds: tuple[float, ...] = ()
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failures: tuple[tuple[Failure, ...], ...] = ()
    error: Exception | None = None


def run(
    channel: Channel, questions: Sequence[Judged], unit: Unit, depth: int, tick: Callable[[], None] = lambda: None
) -> EvaluationRun:
    """Search `depth` hits for each question, one after the other.

    A warm-up search, which loads models and files, is not counted. Queries embedded in earlier runs are embedded again.
    A search that raises ends the run.
    """
    found: list[tuple[str, ...]] = []
    seconds: list[float] = []
    spans: list[list[Span]] = []
    failures: list[tuple[Failure, ...]] = []
    try:
        with afresh():
            channel.search("warm up", 1)
            for question in questions:
                spans.append([])
                begun = perf_counter()
                ranking = channel.search(question.text, depth, spans=spans[-1])
                seconds.append(perf_counter() - begun)
                found.append(tuple(names_of(ranking, unit)))
                failures.append(tuple(failure for failure in ranking.errors if failure.degrades))
                tick()
    except Exception as error:  # noqa: BLE001 - any channel's error is reported beside the other channels' results
        return EvaluationRun(error=error)
    names = {span.name for own in spans for span in own if span.kind in ("stage", "rewriter")}
    parts = {name: tuple(sum(s.seconds for s in own if s.name == name) for own in spans) for name in names}
    return EvaluationRun(tuple(found), tuple(seconds), parts, tuple(failures))

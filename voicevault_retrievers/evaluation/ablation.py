"""Ablation: the gain and cost of each part of a pipeline, added one by one, or of any channels side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from statistics import median

from voicevault_retrievers.core.channel import Channel, Rewriter, Rewritten, Stage, Then
from voicevault_retrievers.errors import ConfigError, told
from voicevault_retrievers.evaluation.judgements import By, Judged, Judgements, unit_of
from voicevault_retrievers.evaluation.measures import MEASURES, check_grades, depth_of, measured, parsed
from voicevault_retrievers.evaluation.report import ChannelRow, Report, Worse
from voicevault_retrievers.evaluation.runs import EvaluationRun, run
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.fusion.fuse import Fused
from voicevault_retrievers.pipeline.pipeline import Pipeline

_SAID = 3


def steps(channel: Channel | Pipeline) -> dict[str, Channel]:
    """The channels of an ablation: those of the fusion alone, the fusion, then each rewriter and stage added.

    The last is the whole channel. The parts of a `Pipeline` are those of its channel, and what groups its hits.
    """
    if isinstance(channel, Pipeline):
        rows = steps(channel.channel)
        return rows if channel.group_by is None else {**rows, _unused("+ group_by", rows): channel.searched}
    if isinstance(channel, Then | Rewritten):
        rows = steps(channel.below)
        return {**rows, _unused(f"+ {_added(channel).name}", rows): channel}
    parts = dict(channel.channels) if isinstance(channel, Fused) else {channel.name: channel}
    return {**parts, _unused(channel.name, parts): channel} if len(parts) > 1 else dict.fromkeys(parts, channel)


def ablation(
    channels: Mapping[str, Channel],
    judgements: Judgements | Sequence[Judged],
    *,
    by: By = "chunk",
    measures: Sequence[str] = MEASURES,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Measure channels on judged questions, each compared with the previous one.

    `channels` are `steps(pipeline)`, or any channels by name. `judgements` are the result of `judge`, or
    questions with grades `by` chunk or place. Channels are asked for as many hits as the measures count, and at least
    50; `ms` is the time of such a search. Results that a stage keeps between searches, such as a reranker's scores, are
    counted with the time they took when the stage was first added. A channel that raises, or whose last part fails at
    every question, becomes a row that says so. Raises MissingExtraError without ir-measures, ConfigError for an unknown
    measure, or for no question or channel.
    """
    given = judgements if isinstance(judgements, Judgements) else Judgements(list(judgements), by)
    if not given.questions or not channels:
        raise ConfigError("an ablation needs at least one judged question and one channel")
    wanted = parsed(measures)
    check_grades(given.questions)
    twice = next(
        (one for one, times in Counter(question.id for question in given.questions).items() if times > 1), None
    )
    if twice is not None:
        raise ConfigError(f"two questions have the id {twice!r}: give each its own")
    depth, total, done = depth_of(wanted), len(channels) * len(given.questions), count(1)

    def tick() -> None:
        if progress is not None:
            progress(next(done), total)

    rows: list[ChannelRow] = []
    costs = _Costs()
    for name, channel in channels.items():
        made = run(channel, given.questions, unit_of(given.by), depth, tick)
        before = next((row for row in reversed(rows) if row.unavailable is None), None)
        unavailable = _unavailable(channel, made)
        if unavailable is not None:
            rows.append(ChannelRow(name, unavailable=unavailable))
            continue
        values = measured(made.found, given.questions, measures)
        row = ChannelRow(name, values, ms=1e3 * median(costs.of(channel, made)), notes=_notes(made))
        rows.append(row if before is None else _compared(row, before, given.questions))
    return Report(given, tuple(map(str, wanted)), depth, tuple(rows))


class _Costs:
    """The seconds of searches, in which each part counts with the time of its first run."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[object, Sequence[float]]] = {}  # holding the part keeps its id its own

    def of(self, channel: Channel, made: EvaluationRun) -> Sequence[float]:
        seconds: Sequence[float] = made.seconds
        while isinstance(channel, Then | Rewritten):
            part, channel = _added(channel), channel.below
            now = made.parts.get(part.name, (0.0,) * len(seconds))
            _, first = self._first.setdefault(id(part), (part, now))
            seconds = [own + max(0.0, old - new) for own, old, new in zip(seconds, first, now, strict=True)]
        return seconds


def _unavailable(channel: Channel, made: EvaluationRun) -> str | None:
    """Why a channel, or the part that it adds, did nothing at all; None where it did something."""
    if made.error is not None:
        return told(made.error)
    if not isinstance(channel, Then | Rewritten):
        return None
    own = [next((str(one) for one in each if one.stage == _added(channel).name), None) for each in made.failures]
    return own[0] if all(own) else None


def _notes(made: EvaluationRun) -> tuple[str, ...]:
    """The failures that degraded results, most frequent first."""
    said = Counter(str(failure) for each in made.failures for failure in set(each)).most_common(_SAID)
    return tuple(f"{times} of {len(made.failures)} questions degraded: {text}" for text, times in said)


def _compared(row: ChannelRow, before: ChannelRow, questions: Sequence[Judged]) -> ChannelRow:
    """A row with its gains over the previous row, and the questions that got worse by the first measure."""
    gains = {name: paired(before.values[name], values) for name, values in row.values.items()}
    first = next(iter(row.values))
    pairs = zip(questions, before.values[first], row.values[first], strict=True)
    worse = [Worse(question.id, question.text, old, new) for question, old, new in pairs if new < old]
    worse.sort(key=lambda one: (one.after - one.before, one.id))
    return replace(row, over=before.name, gains=gains, worse=tuple(worse))


def _added(channel: Then | Rewritten) -> Stage | Rewriter:
    return channel.stage if isinstance(channel, Then) else channel.rewriter


def _unused(name: str, rows: Mapping[str, Channel]) -> str:
    """The name, or the name with the first number that no row has."""
    return next(new for at in count(1) if (new := name if at == 1 else f"{name} ({at})") not in rows)

"""Reports of an evaluation: one row per channel, as values, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.evaluation.judgements import Judgements
from voicevault_retrievers.evaluation.significance import Comparison, interval

COLUMNS = ("mean", "95 %", "gain", "95 %", "p", "ms")
"""The columns of `Report.cells` after the row's name."""
_LEAST_P = 0.001


class Worse(NamedTuple):
    """A question that got worse by the first measure."""

    id: str
    text: str
    before: float
    after: float


@dataclass(frozen=True)
class ChannelRow:
    """The results of one channel: `values` by measure, one per question, and `ms`, the median milliseconds of a search.

    `over` is the previous available row, `gains` is the comparison with it, and `worse` are the questions that lost,
    the largest loss first. An `unavailable` row, which says why, has none of these.
    """

    name: str
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ms: float | None = None
    over: str | None = None
    gains: Mapping[str, Comparison] = field(default_factory=dict)
    worse: tuple[Worse, ...] = ()
    notes: tuple[str, ...] = ()
    unavailable: str | None = None

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean of each measure."""
        return {name: sum(values) / len(values) for name, values in self.values.items()}

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each mean."""
        return {name: interval(values) for name, values in self.values.items()}


@dataclass(frozen=True)
class Report:
    """Rows, each compared with the previous one; `str` gives a table. `depth` is the number of hits asked for."""

    judgements: Judgements
    measures: tuple[str, ...]
    depth: int
    rows: tuple[ChannelRow, ...]

    @property
    def synthetic(self) -> int:
        """The number of synthetic questions."""
        return sum(question.synthetic for question in self.judgements.questions)

    @property
    def heading(self) -> str:
        """The number of questions, the kind of judgements, and the number of synthetic questions."""
        asked = len(self.judgements.questions)
        share = "all" if self.synthetic == asked else self.synthetic
        made = f"; {share} SYNTHETIC, made from the documents and asked by nobody" if self.synthetic else ""
        return f"{asked} questions, judged by {self.judgements.by}{made}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the judgements and on each row."""
        missing = [f"{row.name}: not available: {row.unavailable}" for row in self.rows if row.unavailable is not None]
        return (*self.judgements.notes, *missing, *(f"{row.name}: {note}" for row in self.rows for note in row.notes))

    def cells(self, measure: str) -> list[tuple[str, ...]]:
        """A measure's table as texts: a line of headings, then one line per row. Gains are over the previous row."""
        return [(measure, *COLUMNS), *((row.name, *_cells(row, measure)) for row in self.rows)]

    def as_data(self) -> dict[str, Any]:
        """The report as plain data, with each question's values."""
        return {
            "questions": len(self.judgements.questions),
            "synthetic": self.synthetic,
            "judged_by": self.judgements.by,
            "depth": self.depth,
            "measures": list(self.measures),
            "rows": [self._row(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def _row(self, row: ChannelRow) -> dict[str, Any]:
        if row.unavailable is not None:
            return {"name": row.name, "unavailable": row.unavailable}
        ids = [question.id for question in self.judgements.questions]
        measures = {
            name: {
                "mean": row.means[name],
                "interval": list(row.intervals[name]),
                "gain": vars(row.gains[name]) if name in row.gains else None,
                "values": dict(zip(ids, values, strict=True)),
            }
            for name, values in row.values.items()
        }
        worse = [one._asdict() for one in row.worse]
        return {"name": row.name, "over": row.over, "ms": row.ms, "measures": measures, "worse": worse}

    def __str__(self) -> str:
        tables = [line for measure in self.measures for line in ("", *_aligned(self.cells(measure)))]
        return "\n".join([self.heading, *tables, *(("", *self.notes) if self.notes else ())])


def _cells(row: ChannelRow, measure: str) -> tuple[str, ...]:
    if row.unavailable is not None:
        return ("", "not available", "", "", "", "")
    gain = row.gains.get(measure)
    against = (
        ("", "", "") if gain is None else (f"{gain.difference:+.3f}", _range(gain.low, gain.high, "+"), _p(gain.p))
    )
    took = "" if row.ms is None else f"{row.ms:.1f}"
    return (f"{row.means[measure]:.3f}", _range(*row.intervals[measure]), *against, took)


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.3f} .. {high:{sign}.3f}"


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= _LEAST_P else f"<{_LEAST_P}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns with two spaces between: names aligned left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]


_SHARE = 0.8
"""The share of the space per row that its bars take."""


def plot(report: Report) -> Any:
    """A matplotlib Figure of a report: `figure.savefig("out.png")` writes it, and notebooks show it.

    Bars are means, error bars their 95 % intervals; an unavailable row says so. Raises MissingExtraError without
    matplotlib.
    """
    figure = require("matplotlib.figure", extra="eval").Figure(
        figsize=(max(6.0, 1.5 * len(report.rows)), 4.0), layout="constrained"
    )
    axes = figure.add_subplot()
    width = _SHARE / len(report.measures)
    for at, measure in enumerate(report.measures):
        _bars(axes, report, measure, width * (at - (len(report.measures) - 1) / 2), width)
    for place, row in enumerate(report.rows):
        if row.unavailable is not None:
            axes.text(place, 0.02, "not available", rotation=90, ha="center", va="bottom", color="grey")
    axes.set_xticks(range(len(report.rows)), [row.name for row in report.rows])
    axes.set_xlim(-0.5, len(report.rows) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_title(report.heading, fontsize="medium", wrap=True)
    axes.legend(ncols=len(report.measures), loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    # Without pyplot a notebook has no formatter for figures and calls this method.
    figure._repr_png_ = lambda: _png(figure)
    return figure


def _bars(axes: Any, report: Report, measure: str, shift: float, width: float) -> None:
    rows = [(place, row) for place, row in enumerate(report.rows) if row.unavailable is None]
    means = [row.means[measure] for _, row in rows]
    below = [max(0.0, mean - row.intervals[measure][0]) for mean, (_, row) in zip(means, rows, strict=True)]
    above = [max(0.0, row.intervals[measure][1] - mean) for mean, (_, row) in zip(means, rows, strict=True)]
    places = [place + shift for place, _ in rows]
    axes.bar(places, means, width, label=measure, yerr=(below, above), capsize=2, error_kw={"linewidth": 0.8})


def _png(figure: Any) -> bytes:
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()

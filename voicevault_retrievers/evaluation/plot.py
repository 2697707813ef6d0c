"""A report as a picture: a bar with its interval for each row and measure."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.evaluation.report import Report

_SHARE = 0.8
"""How much of the room between two rows their bars take."""


def plot(report: Report) -> Any:
    """A matplotlib Figure: `figure.savefig("out.png")` writes it, and a notebook shows it.

    Bars are means, lines their 95 % intervals; an unavailable row says so. Raises MissingExtraError without matplotlib.
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
    # Without pyplot a notebook has no printer for figures, and asks the object for a picture of itself.
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
